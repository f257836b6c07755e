# SPDX-License-Identifier: Apache-2.0
"""Training on a device whose memory the host cannot read comes out with the same bits watched and alone.
"""
from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from on_device import HERE, on_device
from own_programs import adversarial
from read_there import read_there
from saved import records_of, report_of
from step_runs import Root, batch, run_once, watched
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

LEVELS = ("live", "ops")
BAD_STEP = 3


class Net(nn.Module):
    """A root of what exceeds 10 is NaN, which a healthy batch never makes."""

    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.inner, self.fc2 = Root(), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc2(self.drop(self.inner(self.fc1(x))) + self.norm(self.fc1(x.clamp(-3, 3))))


def training(make=Net, device="walled", bad=(BAD_STEP,), amp=True, clip=False, move=None, loss=F.cross_entropy,
             optimizer=torch.optim.AdamW, **options):
    def build():
        model = make()
        model.to(device) if move is None else move(model)
        opt = optimizer(model.parameters(), lr=1e-3, **options)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=amp)

        def step(i):
            x, y = batch()
            x, y = (x * 100 if i in bad else x).to(device), y.to(device)
            opt.zero_grad()
            with torch.autocast(device, dtype=torch.float16, enabled=amp):
                value = loss(model(x), y)
            scaler.scale(value).backward()
            if clip:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()

        generator = torch.walled.default_generators[0]
        return step, model, opt, lambda: scaler.state_dict(), lambda: generator.get_state()

    return build


def where(run):
    found = run.headline
    return found and (found["op"], found["module"], found["phase"], found["step"], found["class"])


SQRT = ("aten::sqrt", "inner", "forward", BAD_STEP, "invalid")
WAYS = {
    "scaler": {}, "clipped": {"clip": True}, "fused": {"fused": True}, "loop": {"foreach": False, "clip": True},
    "without a scaler": {"amp": False}, "momentum": {"optimizer": torch.optim.SGD, "momentum": 0.9, "amp": False},
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("way", WAYS)
@on_device
def test_the_same_bits_and_the_verdict_of_the_cpu(way, level, tmp_path, library):
    run = watched(training(**WAYS[way]), tmp_path, level=level)
    assert where(run) == SQRT
    if level != "ops":
        assert run.unheard == [] and run.headline["confidence"] == "proved"
        assert list((tmp_path / "run").glob("**/captures/op-*.safetensors"))
    if way == "scaler":
        assert where(watched(training(device="cpu"), tmp_path, level=level)) == SQRT


@pytest.mark.parametrize("way", WAYS)
@on_device
def test_a_held_step_is_read_where_its_tensors_are(way, tmp_path, library):
    with read_there():
        run = watched(training(**WAYS[way]), tmp_path)
    assert where(run) == SQRT
    assert run.unheard == [] and run.headline["confidence"] == "observed"
    assert not [note for note in run.notes if "copied to the host" in note or "memory was changed" in note], run.notes


@on_device
def test_a_number_that_went_bad_on_the_host_too_takes_nothing_from_what_the_device_says(tmp_path, library):
    def build():
        model = Net()
        model.to("walled")
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(i):
            x, y = batch()
            x, y = (x * 100 if i == BAD_STEP else x).to("walled"), y.to("walled")
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            (loss.detach().cpu() * torch.ones(3)).sum().item()
            loss.backward()
            opt.step()

        return step, model, opt

    with read_there():
        run = watched(build, tmp_path)
    assert where(run) == SQRT


@on_device
def test_what_is_read_at_the_end_says_what_each_op_says_with_fewer_launches(tmp_path, library):
    launches, reports = {}, {}
    for level in ("live", "ops"):
        with read_there() as emulated:
            reports[level] = watched(training(), tmp_path / level, level=level).report
            launches[level] = emulated.count("launches")
    assert launches["ops"] > launches["live"] > 0
    keys = ("op", "module", "call_site", "class", "severity", "bad_elements", "bad_steps")
    found = {level: [[f[key] for key in keys] for f in report["findings"] if f["severity"] == "fault"]
             for level, report in reports.items()}
    assert found["ops"] == found["live"]


@on_device
def test_what_an_op_writes_over_was_read_before(tmp_path, library):
    class Over(nn.Module):
        """A NaN that is there between two operations alone."""

        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x):
            with torch.no_grad():
                gone = torch.log(x.clamp(max=0) - 1)
                gone.zero_()
            return self.fc(x) + gone.sum() * 0 + torch.sqrt(10 - x).sum()

    with read_there():
        run = watched(training(Over), tmp_path)
    found = {row["step"]: row["outputs"][0]["nan"] for row in run.records("ops") if row["op"] == "aten::log"}
    assert found == {0: 48, 2: 48, BAD_STEP: 48, 4: 48}, "as on the CPU"


@pytest.mark.parametrize("way", WAYS)
@on_device
def test_no_step_but_the_first_is_waited_for(way, tmp_path, library):
    import walled

    def waits(steps, folder):
        with read_there() as emulated:
            before = walled.waits()
            run_once(training(bad=(), **WAYS[way]), steps, folder)
            return walled.waits() - before, emulated.count("waits")

    def added(steps):
        (alone, _), (watched_too, of_rows) = waits(steps, None), waits(steps, tmp_path / f"run{steps}")
        return watched_too - alone, of_rows

    few = added(12)
    assert added(36) == few, "for gradients, for what ops hold: in the first step and at the end"
    assert sum(few) <= 12


class Slope(nn.Module):
    """The slope of a root at zero, on call."""

    on = False

    def forward(self, x):
        return x + torch.sqrt(x - x.detach()) if Slope.on else x


class Again(nn.Module):
    """What a checkpoint runs again: in a thread of the device, on a device."""

    def __init__(self, reentrant):
        super().__init__()
        self.a, self.c, self.reentrant = nn.Linear(6, 8), nn.Linear(8, 3), reentrant
        self.b = nn.Sequential()
        for name, part in (("fc", nn.Linear(8, 8)), ("slope", Slope()), ("drop", nn.Dropout(0.2))):
            self.b.add_module(name, part)

    def forward(self, x):
        return self.c(checkpoint(self.b, self.a(x), use_reentrant=self.reentrant))


@pytest.mark.parametrize("level", ["live", "ops"])
@pytest.mark.parametrize("reentrant", [False, True])
@on_device
def test_what_a_checkpoint_runs_again_has_its_place(reentrant, level, tmp_path, library):
    def build():
        step, *things = training(lambda: Again(reentrant), bad=(), amp=False)()

        def slope(i):
            Slope.on = i == BAD_STEP
            step(i)

        return slope, *things

    run = watched(build, tmp_path, level=level)
    assert where(run) == ("aten::div", "b.slope", "backward", BAD_STEP, "divide_by_zero")
    assert not [note for note in run.notes if "threads" in note], run.notes


class Mixed(nn.Module):
    """The first layer stays on the CPU."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.rest = nn.Linear(6, 6), nn.Dropout(0.2), Net()

    def forward(self, x):
        return self.rest(self.drop(self.first(x.cpu())).to("walled"))


@pytest.mark.parametrize("level", LEVELS)
@on_device
def test_a_model_may_be_on_both(level, tmp_path, library):
    run = watched(training(Mixed, move=lambda model: model.rest.to("walled"), amp=False), tmp_path, level=level)
    assert where(run) == ("aten::sqrt", "rest.inner", *SQRT[2:])
    assert run.unheard == []


@pytest.mark.parametrize("level", LEVELS)
@on_device
def test_a_model_may_move_while_it_is_watched(level, tmp_path, library):
    def build():
        model = Net()
        state = {"opt": torch.optim.SGD(model.parameters(), lr=1e-2), "device": "cpu"}

        def step(i):
            if i == 4:
                model.to("walled")
                state.update(opt=torch.optim.SGD(model.parameters(), lr=1e-2), device="walled")
            x, y = batch()
            x = (x * 100 if i == 6 else x).to(state["device"])
            state["opt"].zero_grad()
            F.cross_entropy(model(x), y.to(x.device)).backward()
            state["opt"].step()

        return step, model

    run = watched(build, tmp_path, 8, level=level)
    assert where(run) == ("aten::sqrt", "inner", "forward", 6, "invalid")
    assert run.unheard == []


@pytest.mark.parametrize("level", LEVELS)
@on_device
def test_a_closed_watch_keeps_no_memory_of_the_device(level, tmp_path, library):
    import walled

    gc.collect()
    before = walled.bytes_in_use()
    run_once(training(), 5, tmp_path / "run", level=level)
    gc.collect()
    assert walled.bytes_in_use() == before


@on_device
def test_nan_in_memory_that_was_never_written_is_no_finding(tmp_path, library):
    def build():
        step, *things = training(bad=())()

        def with_scratch(i):
            torch.empty(4, device="walled").zero_().add_(1)
            step(i)

        return with_scratch, *things

    for level in LEVELS:
        assert watched(build, tmp_path, level=level).report["verdict"]["status"] == "clean"


@on_device
def test_run_attaches_where_the_program_brings_a_device(tmp_path, library):
    from hunting import cli

    program = tmp_path / "program.py"
    program.write_text(f"import sys, runpy\nsys.path[:0] = [{str(HERE / 'device')!r}, {str(HERE / 'cases')!r}]\n"
                       "import walled\nwalled.load()\n"
                       "sys.argv = ['masked_softmax', '--device', 'walled']\n"
                       f"runpy.run_path({str(HERE / 'cases' / 'masked_softmax.py')!r}, run_name='__main__')\n")
    out = tmp_path / "run"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([cli(), "run", "--out", str(out), "--", sys.executable, str(program)], capture_output=True,
                          text=True, timeout=1800, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(Path(out, "report.json").read_text())
    found = next(f for f in report["findings"] if f["id"] == report["verdict"]["origin"])
    assert (found["op"], found["module"], found["step"]) == ("aten::_softmax", "attention", 9)


EXITS = """
import os, sys
import walled
walled.load()
import nanhunt
import test_device_runs
from read_there import read_there
with read_there():
    watch = nanhunt.watch(out=sys.argv[1], quiet=True)
    step, *_ = test_device_runs.training(amp=False)()
    for i in range(test_device_runs.BAD_STEP + 1):
        step(i)
    os._exit(0)
"""


@on_device
def test_a_program_that_leaves_at_once_has_the_verdict_of_its_last_step(tmp_path, library):
    program, out = tmp_path / "program.py", tmp_path / "run"
    program.write_text(EXITS)
    done = subprocess.run([sys.executable, str(program), str(out)], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}, check=False)
    assert done.returncode == 0, done.stderr
    report = report_of(out)
    found = next(f for f in report["findings"] if f["id"] == report["verdict"]["origin"])
    assert (found["op"], found["module"], found["step"]) == ("aten::sqrt", "inner", BAD_STEP)
    assert [row["step"] for row in records_of(out, "steps")] == list(range(BAD_STEP + 1))
    assert {row["step"] for row in records_of(out, "ops")} == {0, BAD_STEP}


@pytest.mark.parametrize("level", [*LEVELS, "steps"])
@pytest.mark.parametrize("there", [True, False])
@on_device
def test_gradients_that_another_loss_left_bad_do_no_harm_once_they_are_cleared(there, level, tmp_path, library):
    with read_there() if there else contextlib.nullcontext():
        run = watched(adversarial(2.0**20, device="walled"), tmp_path, level=level, steps=14)
    assert run.report["verdict"]["status"] == "calibrating", run.report["verdict"]
    assert run.report["scaler"]["skipped"] > 1
