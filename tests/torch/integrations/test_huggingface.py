# SPDX-License-Identifier: Apache-2.0
"""The callback for Hugging Face's Trainer, and the helper for Accelerate, with small random models."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
import nanhunt  # noqa: E402

pytestmark = pytest.mark.usefixtures("library", "no_watch_left")
STEPS = 4


class LogActivation(torch.nn.Module):
    """log(relu(x) + floor): the logarithm of 0 where floor is 0."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.relu(x) + self.floor)


def make_model(floor: float | None) -> torch.nn.Module:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=1
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    if floor is not None:
        model.transformer.h[1].mlp.act = LogActivation(floor)
    return model


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 64, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def fine_tune(tmp_path, floor: float | None, callbacks: list, **arguments: object) -> torch.nn.Module:
    model = make_model(floor)
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path / "trainer"), max_steps=STEPS, per_device_train_batch_size=2, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True, seed=1, **arguments,
    )  # fmt: skip
    transformers.Trainer(model, options, train_dataset=Data(), callbacks=callbacks).train()
    return model


@pytest.mark.parametrize("level", ["ops", "live"])
def test_the_callback_names_a_planted_fault_and_is_silent_on_its_twin(tmp_path, level):
    from nanhunt.integrations.huggingface import NanhuntCallback

    bad = NanhuntCallback(out=tmp_path / "bad", level=level)
    fine_tune(tmp_path, 0.0, [bad])
    (first, *_) = bad.watch.findings
    assert bad.watch.verdict == "fault"
    assert (first.op, first.module, first.phase) == ("aten::log", "transformer.h.1.mlp.act", "forward")

    good = NanhuntCallback(out=tmp_path / "good", level=level)
    fine_tune(tmp_path, 1.0, [good])
    assert good.watch.verdict == "clean", good.watch.report()
    assert nanhunt.load(tmp_path / "good").data["coverage"]["steps"] == STEPS


@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_a_fault_is_told_in_transformers_own_log_while_it_trains(tmp_path, floor):
    import logging

    from nanhunt.integrations.huggingface import NanhuntCallback

    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append
    transformers.utils.logging.add_handler(handler)
    try:
        fine_tune(tmp_path, floor, [NanhuntCallback(out=tmp_path / "run")])
    finally:
        transformers.utils.logging.remove_handler(handler)
    lines = [record.getMessage() for record in told if record.getMessage().startswith("nanhunt:")]
    assert bool(lines) == (floor == 0.0), lines
    assert all("aten::log in transformer.h.1.mlp.act" in line for line in lines[:1])


@pytest.mark.parametrize("level", ["ops", "live"])
def test_the_callback_changes_no_bit_of_a_training(tmp_path, level):
    from nanhunt.integrations.huggingface import NanhuntCallback

    arguments = {"gradient_accumulation_steps": 2, "max_grad_norm": 1.0, "bf16": True}
    watched = NanhuntCallback(out=tmp_path / "run", level=level)
    one = fine_tune(tmp_path, None, [watched], **arguments)
    other = fine_tune(tmp_path, None, [], **arguments)
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert watched.watch.step_number == STEPS


def test_a_second_training_of_one_callback_is_a_run_of_its_own(tmp_path):
    from nanhunt.integrations.huggingface import NanhuntCallback

    callback = NanhuntCallback(out=tmp_path / "run", level="ops")
    fine_tune(tmp_path, 1.0, [callback])
    fine_tune(tmp_path, 1.0, [callback])
    assert len(list((tmp_path / "run" / "rank-00000").iterdir())) == 2


def prepared(tmp_path, floor: float, level: str | None) -> tuple[torch.nn.Module, object]:
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), LogActivation(floor), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    watch = None
    if level is not None:
        from nanhunt.integrations.accelerate import watch_prepared

        watch = watch_prepared(accelerator, model, optimizer, out=tmp_path / f"run-{floor}", level=level)
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.randn(3, 4, generator=generator)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return accelerator.unwrap_model(model), watch


@pytest.mark.parametrize("level", ["ops", "live"])
def test_what_accelerate_prepared_is_watched(tmp_path, level):
    _, watch = prepared(tmp_path, 0.0, level)
    (first, *_) = watch.findings
    assert (first.op, first.module) == ("aten::log", "1")
    _, watch = prepared(tmp_path, 1.0, level)
    assert watch.verdict == "clean" and watch.step_number == STEPS


def test_what_accelerate_prepared_trains_as_without(tmp_path):
    one, _ = prepared(tmp_path, 1.0, "live")
    other, _ = prepared(tmp_path, 1.0, None)
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)
