# SPDX-License-Identifier: Apache-2.0
"""Four ranks under torchrun: which one made the bad number, and how it came to the others."""
from __future__ import annotations

import os
import subprocess

import pytest
import ready_python
from hunting import cli
from listening import hears_python

torch = pytest.importorskip("torch")
WORLD = 4
LEVELS = {"live": [], "ops": ["--level", "ops"]}
BAD_STEP, BAD_RANK = 3, 2

SCRIPT = """
import atexit, os, sys
import torch, torch.distributed as dist
from torch import nn

class Norm(nn.Module):
    def forward(self, x):
        return x / x.pow(2).sum(-1, keepdim=True).sqrt()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), Norm(), nn.Linear(8, 2))
if sys.argv[2] == "DDP":
    model = nn.parallel.DistributedDataParallel(model)
elif sys.argv[2] == "FSDP2":
    from torch.distributed.fsdp import fully_shard
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(100 + rank)
bad = sys.argv[1]
for step in range(6):
    x, y = torch.randn(5, 6), torch.randn(5, 2)
    if bad == "born" and step == 3 and rank == 2:
        x[1] = 0  # an empty sample: its norm is 0
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    if sys.argv[2] == "own":  # gradients are added up in fp16, each rank's as large as they may be
        for p in model.parameters():
            factor = (4e4 if bad == "sum" and step == 3 else 1e3) / p.grad.abs().max()
            dist.all_reduce(factor, op=dist.ReduceOp.MIN)
            wire = (p.grad * factor).half()
            dist.all_reduce(wire)
            p.grad.copy_(wire.float() / factor / dist.get_world_size())
    optimizer.step(); optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
# gloo's threads keep what backward stashed for Python a little longer than the call. If they let go of it when the
# interpreter is already at its end, PyTorch aborts the rank, watched or not. So what a program runs at its end is run
# here, and the interpreter does not end.
atexit._run_exitfuncs()
os._exit(0)
"""


def can_shard():
    """Skips where this PyTorch has no FSDP2, or none that runs on the CPU."""
    if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("this PyTorch has no torch.distributed.fsdp.fully_shard")
    if not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("this PyTorch's FSDP2 does not run on the CPU")


@pytest.fixture(scope="module")
def hunted(tmp_path_factory):
    """Runs the script under torchrun on loopback and gives its report."""
    import json

    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    reports = {}

    def run(how, bad, wrapper="DDP"):
        if wrapper == "FSDP2":
            can_shard()
        if (how, bad, wrapper) not in reports:
            folder = tmp_path_factory.mktemp(bad)
            (folder / "main.py").write_text(SCRIPT)
            python = ready_python.command()
            command = [cli(), "run", *LEVELS[how], "--out", str(folder / "run"), "--", *python, "-m",
                       "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}", "--no-python",
                       *python, "main.py", bad, wrapper]
            environment = dict(os.environ, OMP_NUM_THREADS="1")
            environment.pop("PYTHONPATH", None)
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800)
            assert done.returncode == 0, done.stderr[-3000:]
            reports[how, bad, wrapper] = json.loads((folder / "run" / "report.json").read_text())
        return reports[how, bad, wrapper]

    return run


def faults(report):
    return [finding for finding in report["findings"] if finding["severity"] == "fault"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_rank_on_which_it_was_born_is_named_and_the_others_got_it(hunted, level):
    report = hunted(level, "born")
    first = faults(report)[0]
    assert (first["rank"], first["step"], first["phase"]) == (BAD_RANK, BAD_STEP, "forward")
    assert first["op"] == "aten::div" and first["class"] == "divide_by_zero"
    assert first["ranks"] == [BAD_RANK]
    assert {rank for passage in first["rank_propagation"] for rank in passage["ranks"]} == {0, 1, 3}
    assert all(finding["rank"] == BAD_RANK for finding in faults(report))


@pytest.mark.parametrize("level", ["live", "ops"])
def test_of_a_model_that_is_sharded_too(hunted, level):
    report = hunted(level, "born", "FSDP2")
    first = faults(report)[0]
    assert (first["rank"], first["step"], first["op"], first["module"]) == (BAD_RANK, BAD_STEP, "aten::div", "2")
    assert {passage["through"] for passage in first["rank_propagation"]} == {"reduce_scatter"}
    assert {rank for passage in first["rank_propagation"] for rank in passage["ranks"]} == {0, 1, 3}
    if hears_python():
        assert all(finding["class"] == "divide_by_zero" for finding in faults(report))
    else:  # the optimizer's step on sharded parameters is not heard: what it made bad is said to be unwatched, no more
        others = [finding for finding in faults(report) if finding["class"] != "divide_by_zero"]
        assert {finding["class"] for finding in others} <= {"unexplained", "bad_state"}
        assert all(finding["step"] > BAD_STEP for finding in others)


@pytest.mark.parametrize("level", ["live", "ops"])
def test_a_sum_that_the_program_takes_over_the_ranks_itself_overflows_between_them(hunted, level):
    first = faults(hunted(level, "sum", "own"))[0]
    assert (first["class"], first["op"], first["phase"]) == ("comm", "c10d::allreduce_", "comm")
    assert first["step"] == BAD_STEP and first["ranks"] == [0, 1, 2, 3]
    assert "overflowed between the ranks" in first["title"]


@pytest.mark.parametrize(("level", "wrapper"), [("live", "DDP"), ("ops", "DDP"), ("live", "FSDP2"),
                                                ("ops", "FSDP2"), ("live", "own"), ("ops", "own")])
def test_healthy_ranks_are_silent(hunted, level, wrapper):
    report = hunted(level, "no", wrapper)
    assert report["verdict"]["status"] == "clean"
    assert len(report["run"]["ranks"]) == WORLD
