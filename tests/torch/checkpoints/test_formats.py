# SPDX-License-Identifier: Apache-2.0
"""Files that the real packages wrote: silent when healthy, the planted fault named when not."""

from __future__ import annotations

import pytest
import torch
from checkpoint_runs import check, ids, nanhunt, plant, tensors, trained
from torch import nn

BOTH = pytest.mark.parametrize("planted", [False, True])


def expect(path, planted, name):
    status, answer = check(path)
    if not planted:
        assert (status, answer["status"], answer["findings"]) == (0, "clean", [])
        return answer
    assert (status, answer["status"], ids(answer)) == (1, "fault", ["nonfinite-tensor"])
    assert answer["findings"][0]["tensor"] == name
    assert tensors(answer)[name]["first_nonfinite"] == [2, 3]
    return answer


@BOTH
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_a_file_of_torch_save_is_read_in_both_formats(tmp_path, optimizer, zipped, planted):
    model, opt = trained(optimizer)
    name = plant(model) if planted else ""
    state = {
        "model": model.state_dict(),
        "optimizer": opt.state_dict(),
        "epoch": 3,
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
    }
    torch.save(state, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    answer = expect(tmp_path / "model.pt", planted, f"model.{name}")
    assert answer["format"] == ("torch" if zipped else "torch (legacy)")
    assert answer["coverage"]["not_judged"] == 0


@BOTH
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_each_pickle_protocol_is_read(tmp_path, protocol, planted):
    model, opt = trained()
    name = plant(model) if planted else ""
    torch.save([model.state_dict(), opt.state_dict()], tmp_path / "model.pth", pickle_protocol=protocol)
    expect(tmp_path / "model.pth", planted, f"0.{name}")


@BOTH
def test_a_module_that_was_saved_whole_has_the_names_of_its_state_dict(tmp_path, planted):
    model, _ = trained()
    name = plant(model) if planted else ""
    torch.save(model, tmp_path / "model.pt")
    answer = expect(tmp_path / "model.pt", planted, name)
    assert {t["name"] for t in answer["tensors"]} == set(model.state_dict())


FORMATS = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.int64, torch.int32, torch.uint8, torch.bool,
]  # fmt: skip


def count(values: torch.Tensor) -> dict:
    wide = values.double()
    finite = wide[wide.isfinite()]
    info = torch.finfo(values.dtype) if values.is_floating_point() else None
    small = ((finite != 0) & (finite.abs() < info.tiny)).sum() if info else torch.tensor(0)
    return {
        "elements": values.numel(),
        "nan": int(wide.isnan().sum()),
        "pos_inf": int((wide == float("inf")).sum()),
        "neg_inf": int((wide == float("-inf")).sum()),
        "zero": int((wide == 0).sum()),
        "subnormal": int(small),
        "amax": float(finite.abs().max()) if finite.numel() else 0.0,
    }


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("writer", ["zip", "legacy", "safetensors"])
def test_statistics_are_those_that_pytorch_counts(tmp_path, dtype, writer):
    torch.manual_seed(1)
    bits = torch.randint(0, 256, (64, 48, 16), dtype=torch.uint8)
    bits[0] = 0
    flat = (bits % 2).bool() if dtype == torch.bool else bits.view(dtype)
    values = {"all": flat, "one": flat[3, 5, 0].clone(), "empty": flat[:0].clone()}
    if writer == "safetensors":
        save_file = pytest.importorskip("safetensors.torch").save_file
        path = tmp_path / "x.safetensors"
        save_file(values, path)
    else:
        values |= {
            "transposed": flat.permute(2, 0, 1),
            "part": flat[7:30:3, 5:, 1:],
            "column": flat[:, 4, 0],
            "repeated": flat[5, 3:4].expand(7, flat.shape[2]),
            "same": flat,
        }
        path = tmp_path / "x.pt"
        torch.save(values, path, _use_new_zipfile_serialization=writer == "zip")
    _, answer = check(path)
    found = tensors(answer)
    for name, tensor in values.items():
        parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        expected = count(parts)
        assert {key: found[name][key] for key in expected if key != "amax"} == {
            k: v for k, v in expected.items() if k != "amax"
        }, name
        assert float(found[name]["amax"]) == expected["amax"], name
        at = found[name]["first_nonfinite"]
        if at is not None:
            assert not parts[tuple(at)].double().isfinite()


@BOTH
def test_a_tensor_of_more_than_one_job_is_counted_whole(tmp_path, planted):
    weight = torch.ones(5000, 4001, dtype=torch.float32)
    if planted:
        weight[4999, 4000] = float("inf")
    torch.save({"w": weight.t()}, tmp_path / "big.pt")
    status, answer = check(tmp_path / "big.pt")
    assert status == int(planted)
    assert tensors(answer)["w"]["elements"] == 5000 * 4001
    assert tensors(answer)["w"]["first_nonfinite"] == ([4000, 4999] if planted else None)


@BOTH
def test_a_sparse_tensor_is_judged_by_its_values(tmp_path, planted):
    dense = torch.eye(4)
    dense[2, 3] = float("nan") if planted else 1
    torch.save({"s": dense.to_sparse()}, tmp_path / "s.pt")
    status, answer = check(tmp_path / "s.pt")
    assert (status, ids(answer)) == ((1, ["nonfinite-tensor"]) if planted else (0, []))


@BOTH
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_the_values_of_a_sparse_tensor_are_named_so(tmp_path, layout, planted):
    dense = torch.ones(4, 4)
    dense[2, 3] = float("nan") if planted else 1
    torch.save({"s": dense.to_sparse(layout=layout)}, tmp_path / "s.pt")
    status, answer = check(tmp_path / "s.pt")
    indices = {"s.indices0"} if layout == torch.sparse_coo else {"s.indices0", "s.indices1"}
    assert (status, set(tensors(answer))) == (int(planted), {"s.values", *indices})
    assert [one["tensor"] for one in answer["findings"]] == (["s.values"] if planted else [])


@BOTH
def test_shards_of_save_pretrained_are_one_checkpoint(tmp_path, planted):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    name = "transformer.wte.weight"
    if planted:
        with torch.no_grad():
            model.transformer.wte.weight[2, 3] = float("nan")
    model.save_pretrained(tmp_path / "m", max_shard_size="40KB")
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    answer = expect(tmp_path / "m", planted, name)
    assert answer["format"] == "sharded"
    # A shard that is missing is damage, named, and beats no fault.
    shard = sorted((tmp_path / "m").glob("*.safetensors"))[-1]
    shard.unlink()
    status, answer = check(tmp_path / "m")
    assert answer["damaged"]
    assert shard.name in answer["notes"][0]["text"]
    assert status == (1 if "nonfinite-tensor" in ids(answer) else 4)


@BOTH
def test_a_folder_of_torch_distributed_checkpoint_is_read(tmp_path, planted):
    import torch.distributed.checkpoint as dcp

    model, opt = trained()
    name = plant(model) if planted else ""
    dcp.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "step": 3}, checkpoint_id=tmp_path / "d")
    answer = expect(tmp_path / "d", planted, f"model.{name}")
    assert answer["format"] == "distributed"
    assert set(model.state_dict()) <= {t["name"].removeprefix("model.") for t in answer["tensors"]}
    if not planted:
        next((tmp_path / "d").glob("*.distcp")).unlink()
        assert nanhunt("check", tmp_path / "d").returncode == 4


def train_with_trainer(folder, steps=2):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    data = [{"input_ids": torch.arange(8) % 32, "labels": torch.arange(8) % 32}] * 8
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, save_steps=1, per_device_train_batch_size=2, report_to=[],
        use_cpu=True, logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(model=model, args=arguments, train_dataset=data).train()


def test_a_trainer_checkpoint_is_one_and_its_folder_a_series(tmp_path):
    train_with_trainer(tmp_path / "out")
    newest = tmp_path / "out" / "checkpoint-2"
    status, answer = check(newest)
    assert (status, answer["findings"], answer["format"]) == (0, [], "folder")
    names = tensors(answer)
    assert "optimizer.pt:state.0.exp_avg" in names
    assert "model.safetensors:transformer.wte.weight" in names
    # Damage the newest optimizer state: it is named, and the older checkpoint is the newest good one.
    state = torch.load(newest / "optimizer.pt")
    state["state"][0]["exp_avg_sq"].view(-1)[7] = float("inf")
    torch.save(state, newest / "optimizer.pt")
    done = nanhunt("check", tmp_path / "out")
    assert done.returncode == 1
    first = "fault: of 2 checkpoints, newest good one checkpoint-1, first bad one checkpoint-2\n"
    assert done.stdout.startswith(first)
    assert "in optimizer.pt:state.0.exp_avg_sq (1 +Inf of " in done.stdout
    assert f"Newest good one: {tmp_path}/out/checkpoint-1" in done.stdout


def test_a_lightning_checkpoint_is_read(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Small(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def training_step(self, batch, index):
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    stop = lightning.pytorch.callbacks.EarlyStopping("never", strict=False)  # keeps a best score of Inf
    trainer = lightning.Trainer(
        max_steps=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, callbacks=[stop],
    )  # fmt: skip
    model = Small()
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2))
    trainer.save_checkpoint(tmp_path / "epoch=0-step=2.ckpt")
    status, answer = check(tmp_path / "epoch=0-step=2.ckpt")
    assert status == 0
    assert set(ids(answer)) <= {"nonfinite-callback-value"}
    assert "optimizer_states.0.state.0.exp_avg_sq" in tensors(answer)
    with torch.no_grad():
        model.layer.weight[1, 2] = float("nan")
    trainer.save_checkpoint(tmp_path / "epoch=0-step=3.ckpt")
    status, answer = check(tmp_path / "epoch=0-step=3.ckpt")
    assert (status, answer["findings"][0]["tensor"]) == (1, "state_dict.layer.weight")
