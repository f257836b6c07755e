# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint written by two ranks: all shards are read, and a NaN of rank 1 is named."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_runs import check, ids, nanhunt, tensors

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")

SAVE = """
import os, sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

rank, folder, way, planted = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "True"
dist.init_process_group("gloo", init_method="file://" + folder + ".store", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
if way == "fsdp2":
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    if planted and rank == 1:
        with torch.no_grad():
            model[0].weight.to_local()[2, 3] = float("nan")
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
elif way == "dtensor":
    whole = torch.arange(48.0).reshape(8, 6)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    columns = distribute_tensor(whole.clone(), mesh, [Shard(1)])
    if planted and rank == 1:
        sharded.to_local()[2, 3] = float("nan")
    same = distribute_tensor(torch.ones(3), mesh, [Replicate()])
    state = {"model": {"0.weight": sharded, "columns": columns, "same": same}, "step": 5}
else:
    own = torch.ones(8, 6)
    if planted and rank == 1:
        own[6, 3] = float("nan")
    state = {f"model.rank{rank}": own, "both": torch.ones(4)}
dcp.save(state, checkpoint_id=folder)
dist.destroy_process_group()
os._exit(0)  # threads of gloo that are still there would abort the process at its end
"""


def save(folder: Path, way: str, planted: bool) -> None:
    words = [str(folder), way, str(planted)]
    ranks = [
        subprocess.Popen([sys.executable, "-c", SAVE, str(rank), *words], stderr=subprocess.PIPE) for rank in (0, 1)
    ]
    try:
        for one in ranks:
            _, said = one.communicate(timeout=120)
            assert one.returncode == 0, said.decode()
    finally:
        for one in ranks:
            one.kill()


PLANTED = {"fsdp2": "model.0.weight", "dtensor": "model.0.weight", "own": "model.rank1"}


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize("way", PLANTED)
def test_shards_of_two_ranks_are_judged_as_one_tensor(tmp_path, way, planted):
    folder = tmp_path / "dcp"
    save(folder, way, planted)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    files = {info.relative_path for info in metadata.storage_data.values()}
    assert len(files) == 2  # of both ranks
    status, answer = check(folder)
    assert (status, ids(answer)) == ((1, ["nonfinite-tensor"]) if planted else (0, []))
    assert (answer["format"], answer["coverage"]["not_judged"], answer["notes"]) == ("distributed", 0, [])
    found = tensors(answer)
    assert {name for name, one in metadata.state_dict_metadata.items() if hasattr(one, "size")} <= set(found)
    for name, one in metadata.state_dict_metadata.items():
        if hasattr(one, "size"):
            assert (found[name]["elements"], found[name]["shape"]) == (one.size.numel(), list(one.size)), name
    if planted:
        assert answer["findings"][0]["tensor"] == PLANTED[way]
        assert found[PLANTED[way]]["first_nonfinite"] == [6, 3]
        return
    # Without the file of rank 1 half of it is damage.
    next(folder / one for one in sorted(files) if one.startswith("__1_")).unlink()
    assert nanhunt("check", folder).returncode == 4
