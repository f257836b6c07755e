# SPDX-License-Identifier: Apache-2.0
"""Twenty runs that died of a known cause: what their logs say, and that the command that is given proves it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import autopsy_answers
import pytest
import ready_python
from hunting import TIMEOUT, cli, needs_cli, with_package

pytestmark = needs_cli
RUNS = Path(__file__).resolve().parent / "dead_runs"
RIGHT_AT_LEAST = 16


@dataclass(frozen=True)
class Death:
    pattern: str
    cls: str  # of the finding that the watched run must have
    op: str | None  # None: training as a whole grew; the operation is the one that overflowed first
    needs: str = ""
    prints: bool = False  # its log is what it prints


DEATHS = {
    "adam_eps_fp16": Death("first_step", "eps_underflow", "aten::addcdiv_", prints=True),
    "anomaly_mode": Death("gradient_only", "divide_by_zero", "aten::div", prints=True),
    "bad_eval_batch": Death("eval_only", "divide_by_zero", "aten::nll_loss_forward", "tensorboard"),
    "empty_mask": Death("sudden", "divide_by_zero", "aten::div", prints=True),
    "high_lr": Death("exploding", "exploding", None, "tensorboard"),
    "log_of_zero": Death("sudden", "divide_by_zero", "aten::log"),
    "masked_row": Death("sudden", "invalid", "aten::_softmax", "wandb"),
    "nan_in_batch": Death("sudden", "invalid", "aten::copy_", "lightning"),
    "nan_in_checkpoint": Death("first_step", "invalid", "aten::copy_"),  # its own line, before it is saved
    "rate_restart": Death("lr_event", "overflow", "aten::pow", "tensorboard"),
    "resumed_without_rate": Death("after_resume", "exploding", None, "tensorboard"),
    "same_batch_each_epoch": Death("periodic", "invalid", "aten::copy_", "lightning"),
    "scaler_collapse": Death("scaler_collapsing", "scaler_collapse", "aten::div", prints=True),
    "sqrt_backward": Death("gradient_only", "divide_by_zero", "aten::div", "wandb"),
    "static_scale_fp16": Death("gradient_only", "overflow", "aten::_to_copy", "lightning"),
    "std_of_one": Death("sudden", "divide_by_zero", "aten::std"),
    "stopped_by_check": Death("sudden", "overflow", "aten::exp", prints=True),
    "trainer_filtered": Death("hidden_by_filter", "divide_by_zero", "aten::log", "transformers"),
    "trainer_plain": Death("sudden", "divide_by_zero", "aten::log", "transformers"),
    "wrong_sign": Death("exploding", "exploding", None),
}


def autopsy(folder: Path) -> dict[str, Any]:
    status, answer, said = autopsy_answers.autopsy(str(folder))
    assert status == answer["exit_status"], said
    return answer


def environment() -> dict[str, str]:
    kept = {name: value for name, value in with_package().items() if name != "PYTHONPATH"}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class Deaths:
    """Each run dies once, however many tests ask."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._answers: dict[str, dict[str, Any]] = {}

    def folder(self, name: str) -> Path:
        return self._base / name

    def program(self, name: str) -> list[str]:
        return [str(RUNS / f"{name}.py"), str(self.folder(name))]

    def answer(self, name: str) -> dict[str, Any]:
        if name not in self._answers:
            self.folder(name).mkdir()
            for _ in range(2 if name == "resumed_without_rate" else 1):
                done = subprocess.run([*ready_python.command(), *self.program(name)], capture_output=True, text=True,
                                      timeout=TIMEOUT, env=environment(), check=False)  # fmt: skip
            if DEATHS[name].prints:
                text = f"$ python {' '.join(self.program(name))}\n{done.stdout}{done.stderr}"
                (self.folder(name) / "train.log").write_text(text, encoding="utf-8")
            self._answers[name] = autopsy(self.folder(name))
        return self._answers[name]


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Deaths:
    return Deaths(tmp_path_factory.mktemp("dead"))


def guesses(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(guess["pattern"], guess["confidence"]) for guess in answer["guesses"]]


@pytest.mark.parametrize("name", DEATHS)
def test_a_dead_run_is_never_surely_misjudged(deaths, name):
    pytest.importorskip(DEATHS[name].needs or "json")
    answer = deaths.answer(name)
    assert answer["outcome"] == "bad_numbers"
    first = guesses(answer)[0]
    assert first[0] == DEATHS[name].pattern or first[1] == "possible", guesses(answer)


def test_the_first_guess_is_right_in_most_dead_runs(deaths):
    for death in DEATHS.values():
        pytest.importorskip(death.needs or "json")
    rows = [(name, death.pattern, guesses(deaths.answer(name))) for name, death in DEATHS.items()]
    for row in rows:
        print(*row)
    right = sum(found[:1] != [] and found[0][0] == pattern for _, pattern, found in rows)
    assert right >= RIGHT_AT_LEAST, rows


@pytest.mark.parametrize("name", DEATHS)
def test_the_command_that_is_given_proves_it(deaths, name):
    pytest.importorskip(DEATHS[name].needs or "json")
    command = deaths.answer(name)["command"]
    words = command["words"]
    dashes = words.index("--")
    script = words[dashes + 2 :]
    if command["known"]:
        assert script == deaths.program(name)
    else:
        assert words[dashes + 1 :] == ["python", "train.py"]
        assert "YOUR COMMAND" in command["text"]
        script = deaths.program(name)
    place = deaths.folder(name).with_name(f"{name}-again")
    place.mkdir()
    done = subprocess.run([cli(), *words[1 : dashes + 1], *ready_python.command(), *script], capture_output=True,
                          text=True, timeout=TIMEOUT, env=environment(), cwd=place, check=False)  # fmt: skip
    report = subprocess.run([cli(), "report", "--json", str(place / "nanhunt-run")], capture_output=True, text=True,
                            timeout=TIMEOUT, check=False)  # fmt: skip
    assert report.returncode == 0, done.stderr[-2000:]
    findings = json.loads(report.stdout)["findings"]
    found = [(finding["class"], finding["op"]) for finding in findings]
    assert (DEATHS[name].cls, DEATHS[name].op) in found, found
    if DEATHS[name].op is None:
        grown = next(finding for finding in findings if finding["class"] == DEATHS[name].cls)
        assert (grown["first_inf"] or grown["first_nan"])["op"].startswith("aten::"), grown


def test_a_repaired_run_is_left_alone(deaths, tmp_path):
    """The twin of `log_of_zero`: as many steps as were good."""
    assert deaths.answer("log_of_zero")["began"]["first_bad"] == 14
    lines = (deaths.folder("log_of_zero") / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[:14]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    answer = autopsy(tmp_path)
    assert (answer["outcome"], answer["exit_status"], answer["command"]) == ("nothing_bad", 0, None)
    assert guesses(answer) == [("healthy", "likely")]


def test_a_checkpoint_from_before_the_first_bad_step_is_named(deaths):
    pytest.importorskip("transformers")
    assert deaths.answer("trainer_plain")["resume"]["path"] == "checkpoint-12"


def test_every_dead_run_is_in_the_table():
    assert set(DEATHS) == {path.stem for path in RUNS.glob("*.py")} - {"support", "hf"}
