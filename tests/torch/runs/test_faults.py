# SPDX-License-Identifier: Apache-2.0
"""A fault is told while the run goes on: a line, a callback, the end of the process where that was asked for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import ready_python
from hunting import cli, needs_cli

torch = pytest.importorskip("torch")
import nanhunt  # noqa: E402

pytestmark = pytest.mark.usefixtures("library", "no_watch_left")
LEVELS = pytest.mark.parametrize("level", ["ops", "live"])

# BAD: the logarithm of a negative number from step 3 on.
PROGRAM = """
import sys, torch
BAD = {bad}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
try:
    for i in range(40):
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 4)) ** 2).mean()
        loss = torch.log(-loss if BAD and i >= 3 else loss + 1)
        loss.backward()
        optimizer.step()
        print("step", i, file=sys.stderr)
finally:
    print("cleaned up")
print("end")
"""


def run(tmp_path, level, bad, *options, before="pass"):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(bad=bad, before=before))
    boot = Path(__file__).resolve().parents[3] / "hooks/torch/nanhunt/boot"
    return subprocess.run(
        [cli(), "run", "--level", level, "--out", "run", *options, "--",
         *ready_python.command(), script],
        cwd=tmp_path, capture_output=True, text=True, timeout=1800, env={**os.environ, "NANHUNT_BOOT_DIR": str(boot)},
    )  # fmt: skip


def while_it_runs(done) -> list[str]:
    lines = done.stderr.splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("step "))
    return [line for line in lines[:last] if line.startswith("nanhunt:")]


@needs_cli
@LEVELS
def test_the_first_fault_is_told_in_one_line_while_the_run_goes_on_and_its_twin_is_silent(tmp_path, level):
    done = run(tmp_path, level, True)
    (line,) = while_it_runs(done)
    assert line.startswith("nanhunt: step 3: ") and "log" in line and "train.py:12" in line
    assert line.endswith("; full report: nanhunt report run")
    lines = done.stderr.splitlines()
    assert lines.index(line) < lines.index("step 4")
    assert (done.returncode, done.stdout) == (0, "cleaned up\nend\n")

    healthy = run(tmp_path, level, False)
    assert while_it_runs(healthy) == [] and (healthy.returncode, healthy.stdout) == (0, "cleaned up\nend\n")


@needs_cli
def test_quiet_says_nothing_until_the_end(tmp_path):
    done = run(tmp_path, "live", True, "--quiet")
    assert while_it_runs(done) == [] and "nanhunt: fault: " in done.stderr


@needs_cli
@LEVELS
def test_stop_on_fault_ends_the_run_after_the_step_is_recorded(tmp_path, level):
    done = run(tmp_path, level, True, "--stop-on-fault")
    assert (done.returncode, done.stdout) == (10, "cleaned up\n")
    assert "step 2" in done.stderr.splitlines() and "step 4" not in done.stderr.splitlines()
    assert "nanhunt: the run is ended after step 3, as stop on fault asks for (exit status 10)" in done.stderr
    (first, *_) = nanhunt.load(tmp_path / "run").findings
    assert (first.op, first.step, first.severity) == ("aten::log", 3, "fault")

    healthy = run(tmp_path, level, False, "--stop-on-fault")
    assert (healthy.returncode, healthy.stdout) == (0, "cleaned up\nend\n")
    own = run(tmp_path, level, True, "--stop-on-fault", "--error-exitcode", "9")
    assert own.returncode == 9


@needs_cli
def test_under_nanhunt_run_the_callback_of_a_watch_is_called(tmp_path):
    before = "import nanhunt; nanhunt.watch(model, on_fault=lambda fault: print('called', fault.op, fault.step))"
    done = run(tmp_path, "live", True, before=before)
    assert done.stdout == "called aten::log 3\ncleaned up\nend\n"


def train(model, optimizer, bad, steps=6):
    generator = torch.Generator().manual_seed(3)
    for i in range(steps):
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 4, generator=generator)) ** 2).mean()
        loss = torch.log(-loss if bad and i >= 2 else loss + 1)
        loss.backward()
        optimizer.step()


def made():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@LEVELS
@pytest.mark.parametrize("bad", [True, False])
def test_the_callback_is_called_once_for_an_origin_while_the_run_goes_on(tmp_path, level, bad, capsys):
    model, optimizer = made()
    seen = []
    with nanhunt.watch(model, optimizer, out=tmp_path / "run", level=level, on_fault=seen.append) as watch:
        train(model, optimizer, bad)
        assert [(fault.op, fault.step, fault.severity) for fault in seen] == [("aten::log", 2, "fault")] * bad
    assert len(seen) == bad
    said = capsys.readouterr().err
    assert said.count("nanhunt: step 2: ") == bad and said.count("nanhunt:") == bad
    assert not any("errors inside" in note for note in watch.notes)


def test_what_the_callback_raises_reaches_the_report_and_not_the_run(tmp_path):
    def wrong(fault):
        raise KeyError("mine")

    model, optimizer = made()
    with nanhunt.watch(model, optimizer, out=tmp_path / "run", on_fault=wrong, quiet=True) as watch:
        train(model, optimizer, True)
        assert "on_fault: the callback raised KeyError: 'mine'" in watch.notes
    with pytest.raises(TypeError, match="on_fault: expected a function"):
        nanhunt.watch(model, out=tmp_path / "other", on_fault=3)


@LEVELS
def test_stop_on_fault_leaves_by_system_exit_with_the_trace_closed(tmp_path, level, capsys):
    model, optimizer = made()
    watch = nanhunt.watch(model, optimizer, out=tmp_path / "run", level=level, stop_on_fault=True)
    with pytest.raises(SystemExit) as ended:
        train(model, optimizer, True)
    assert ended.value.code == 10 and watch.verdict == "fault"
    assert "the run is ended after step 2" in capsys.readouterr().err
    model, optimizer = made()
    with nanhunt.watch(model, optimizer, out=tmp_path / "twin", level=level, stop_on_fault=True) as watch:
        train(model, optimizer, False)
    assert watch.verdict == "clean"


@LEVELS
@pytest.mark.parametrize("bad", [True, False])
def test_a_scaler_that_calibrates_is_no_fault_and_what_it_cannot_cure_is(tmp_path, level, bad, capsys):
    model, optimizer = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=1000)
    generator = torch.Generator().manual_seed(3)
    with nanhunt.watch(model, optimizer, out=tmp_path / "run", level=level) as watch:
        for i in range(30):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                y = model(torch.randn(16, 4, generator=generator))
            loss = (y.float() ** 2).mean()
            if bad and i >= 25:
                loss = torch.log(-loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert watch.verdict == ("fault" if bad else "calibrating")
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("nanhunt:")]
    assert bool(said) == bad and len(said) <= 3
    assert not bad or "log of a negative number" in said[0]


@LEVELS
def test_a_step_that_the_program_skips_by_design_is_told_by_nobody(tmp_path, level, capsys):
    model, optimizer = made()
    generator = torch.Generator().manual_seed(3)
    seen = []
    with nanhunt.watch(model, optimizer, out=tmp_path / "run", level=level, on_fault=seen.append) as watch:
        for i in range(8):
            optimizer.zero_grad()
            loss = (model(torch.randn(16, 4, generator=generator)) ** 2).mean()
            loss = torch.log(-loss if i == 3 else loss + 1)
            if not torch.isfinite(loss):
                continue
            loss.backward()
            optimizer.step()
    assert watch.verdict == "warning"
    assert seen == [] and "nanhunt:" not in capsys.readouterr().err


def test_a_notebook_shows_a_card_where_the_report_or_the_watch_is_the_value_of_a_cell(tmp_path):
    model, optimizer = made()
    with nanhunt.watch(model, optimizer, out=tmp_path / "run", quiet=True) as watch:
        train(model, optimizer, True)
        for shown in (watch.report(), watch, nanhunt.load(tmp_path / "run"), nanhunt.load(tmp_path / "run").report()):
            page = shown._repr_html_()
            assert page.startswith('<div class="nanhunt-card fault">') and page.endswith("</div>")
            assert "<script" not in page and "<iframe" not in page and "http" not in page
            assert "torch.log" in page and "began in step" in page, "the code and the curve"
        whole = watch.report("html")._repr_html_()
        assert whole.startswith("<iframe srcdoc=") and whole.endswith("</iframe>")
        assert whole.count("<") == 2, "what stands in the page cannot leave the frame"
        assert "&lt;!doctype html" in whole.lower()
        assert len(str(watch.report()).splitlines()) <= 10 < len(str(watch.report("full")).splitlines())
        assert len(repr(watch.findings[0]).splitlines()) <= 3
        assert watch.report() == str(watch.report()) and "log" in watch.report()
        assert not hasattr(watch.report("json"), "_repr_html_")
