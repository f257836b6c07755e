# SPDX-License-Identifier: Apache-2.0
"""What real packages wrote is what is read: counts, ends, NaN and both infinities. Exit statuses."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import autopsy_answers
import pytest
from hunting import needs_cli

pytestmark = needs_cli
VALUES = [0.5, 2.0, float("nan"), float("inf"), float("-inf"), 0.25, float("nan")]


def autopsy(*words: str, text: str | None = None, status: int) -> dict[str, Any]:
    found, answer, said = autopsy_answers.autopsy(*words, text=text)
    assert found == status, f"{answer}{said}"
    return answer


def written(answer: dict[str, Any], name: str) -> None:
    series = next(one for one in answer["series"] if one["name"] == name)
    assert [series[key] for key in ("points", "nan", "plus_inf", "minus_inf")] == [7, 2, 1, 1]
    assert [series[key] for key in ("lowest", "highest", "first_bad")] == [0.25, 2.0, 20]
    assert (series["unit"], series["last_at"], series["last"]) == ("step", 60, "NaN")
    assert [source["damage"] for source in answer["sources"]] == [None] * len(answer["sources"])


def test_tensorboard_files_are_read_as_they_were_written(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for new_style in (False, True):
        writer = SummaryWriter(str(tmp_path / str(new_style)))
        for i, value in enumerate(VALUES):
            writer.add_scalar("train/loss", value, 10 * i, new_style=new_style)
        writer.add_text("note", "loss 3")
        writer.close()
        written(autopsy(str(tmp_path / str(new_style)), status=1), "train/loss")


def test_wandb_runs_are_read_as_they_were_written(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = {"learning_rate": 0.125, "fp16": True, "big": "x" * 90000}
    run = wandb.init(mode="offline", project="p", dir=str(tmp_path), config=config)
    for i, value in enumerate(VALUES):
        run.log({"train/loss": value, "nested": {"loss": value}}, step=10 * i)
    run.finish()
    end, status, answer = time.monotonic() + 600, 0, {}
    while sum(one["points"] for one in answer.get("series", [])) < 2 * len(VALUES):  # its process may still be writing
        assert time.monotonic() < end, answer
        status, answer, _ = autopsy_answers.autopsy(str(tmp_path))
    assert status == 1
    written(answer, "train/loss")
    written(answer, "nested.loss")
    settings = {one["key"]: one["value"] for one in answer["settings"]}
    assert settings == {"learning_rate": "0.125", "fp16": "true"}


def test_lightnings_tables_are_read_as_they_were_written(tmp_path):
    pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(str(tmp_path))
    for i, value in enumerate(VALUES):
        logger.log_metrics({"train_loss": value}, 10 * i)
        logger.log_metrics({"accuracy": 0.5}, 10 * i + 5)
    logger.save()
    written(autopsy(str(tmp_path), status=1), "train_loss")


def test_json_lines_and_text_are_read_as_they_were_written(tmp_path):
    lines = [json.dumps({"step": 10 * i, "loss": value}) for i, value in enumerate(VALUES)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines), encoding="utf-8")
    written(autopsy(str(tmp_path / "log.jsonl"), status=1), "loss")
    text = "".join(f"Step {10 * i}/100: loss {value}\n" for i, value in enumerate(VALUES))
    written(autopsy("-", text=text, status=1), "loss")


def test_exit_statuses_are_those_of_the_guide(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    bad, damaged, other = tmp_path / "bad.log", tmp_path / "damaged.jsonl", tmp_path / "other.log"
    bad.write_text("step 1 loss 2\nstep 2 loss nan\n", encoding="utf-8")
    damaged.write_text('{"step": 1, "loss": 2}\n{"st', encoding="utf-8")
    other.write_text("nothing here\n", encoding="utf-8")
    autopsy("-", text="step 1 loss 2\nstep 2 loss 2\n", status=0)
    autopsy(str(bad), status=1)
    autopsy(status=2)
    autopsy(str(tmp_path / "empty"), status=3)
    autopsy(str(tmp_path / "not-there"), status=3)
    autopsy(str(damaged), status=4)
    autopsy(str(other), status=5)
    assert autopsy(str(other), "--traceback", str(bad), status=1)["outcome"] == "bad_numbers"


@pytest.mark.parametrize(
    "bad, path, weights, passed_over",
    [
        ((), "step_30.pt", "sound", []),
        ((30,), "step_20.pt", "sound", ["step_30.pt"]),
        ((20, 30), None, "bad", ["step_30.pt", "step_20.pt"]),
    ],
)
def test_a_checkpoint_with_bad_weights_is_not_resumed_from(tmp_path, bad, path, weights, passed_over):
    import torch

    for step in (20, 30, 50):  # the last is from after the first bad number
        weight = torch.full((2, 2), float("nan") if step in bad else 1.0)
        torch.save({"model": {"layer.weight": weight}}, tmp_path / f"step_{step}.pt")
    rows = [f'{{"step": {step}, "loss": {"NaN" if step > 39 else 2.5}}}\n' for step in range(60)]
    (tmp_path / "metrics.jsonl").write_text("".join(rows), encoding="utf-8")
    resume = autopsy(str(tmp_path), status=1)["resume"]
    assert (resume["path"], resume["weights"], resume["bad"]) == (path, weights, passed_over)
