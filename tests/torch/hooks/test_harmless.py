# SPDX-License-Identifier: Apache-2.0
"""A watched program ends as it would have alone, whatever it does with the watch, with how Python ends, and with
threads; and what was not watched in it is never called clean."""
from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import nanhunt
import pytest
import ready_python
import torch
from mistakes import plant_failing_part
from saved import report_of
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

HERE = Path(__file__).resolve().parents[1]
LEVELS = ("live", "ops")
pytestmark = pytest.mark.usefixtures("library", "no_watch_left")

# `watch()` gives a watch, or in the program alone something that has the same methods.
HEAD = """
import os, sys, threading, torch
from torch import nn
torch.manual_seed(0)
class Alone:
    def close(self): pass
def watch():
    if not os.environ["RUN"]: return Alone()
    import nanhunt
    return nanhunt.watch(out=os.environ["RUN"] + str(len(os.listdir(os.path.dirname(os.environ["RUN"])))),
                         level=os.environ["LEVEL"])
def net(): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
model = net(); optimizer = torch.optim.SGD(model.parameters(), 0.1)
def step(model=model, optimizer=optimizer):
    optimizer.zero_grad(); model(torch.randn(3, 4)).pow(2).mean().backward(); optimizer.step()
"""
COND = """
from torch._higher_order_ops.cond import cond_op
def cond(): return cond_op(torch.tensor(True), lambda x: x.sin(), lambda x: x.cos(), (torch.ones(3),)).tolist()
w = watch(); step(); print(cond())
{close}
print(cond()); step(); print(cond())
"""
ENDS = """
import time
other = net(); its = torch.optim.SGD(other.parameters(), 0.1)
def to_the_end():  # a daemon, which is stopped amid an operation, aborts most such programs, unwatched as well
    while threading.main_thread().is_alive(): step(other, its)
def end(gradient):
    {end}
w = watch(); step()
for i in range(3):
    optimizer.zero_grad(); loss = model(torch.ones(3, 4)).pow(2).mean()
    if i == 1: model[0].weight.register_hook(end)
    print(i, flush=True); loss.backward(); optimizer.step()
"""
WRAPPED = """
first = watch(); step()
kept = {name}
def wrapper(*args): print("wrapped"); return kept(*args)
{name} = wrapper
first.close()
second = watch(); step()
{end}
"""
PROGRAMS = {
    "closes the watch inside of a module": """
class Closes(nn.Module):
    calls = 0
    def __init__(self): super().__init__(); self.inner = nn.Linear(4, 4)
    def forward(self, x):
        Closes.calls += 1
        if Closes.calls == 3: w.close()
        return self.inner(x)
model = nn.Sequential(Closes(), nn.Linear(4, 1)); optimizer = torch.optim.SGD(model.parameters(), 0.1)
w = watch()
for _ in range(5): step(model, optimizer)
print("end", model[1].weight.sum().item())
""",
    "closes the watch in another thread": COND.format(
        close="t = threading.Thread(target=w.close); t.start(); t.join()"),
    "closes the watch in a hook of backward": COND.format(
        close="h = model[0].weight.register_hook(lambda g: w.close()); model(torch.ones(3, 4)).sum().backward()\n"
              "h.remove()"),
    "ends during backward, by sys.exit": ENDS.format(end="sys.exit(3)"),
    "ends during backward, by os._exit": ENDS.format(end="sys.stdout.flush(); os._exit(4)"),
    "ends during backward, by an exception": ENDS.format(end="raise KeyError('labels')"),
    "ends during backward, while another thread trains": ENDS.format(
        end="threading.Thread(target=to_the_end).start(); time.sleep(0.05); sys.exit(5)"),
    "wraps sys.exit": WRAPPED.format(name="sys.exit", end="sys.exit(3)"),
    "wraps sys.excepthook": WRAPPED.format(name="sys.excepthook", end="raise ValueError(1)"),
    "wraps os._exit": WRAPPED.format(
        name="os._exit", end="sys.stdout.flush(); os._exit(5)"),
    "exits with what cannot be printed": """
class Status(int):
    def __repr__(self): raise RuntimeError("no words")
w = watch(); step()
try: sys.exit(Status(3))
except SystemExit as end: print("exit", int(end.code))
sys.stdout.flush(); os._exit(Status(4))
""",
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_ends_as_it_would_alone_when_it(tmp_path, level, what):
    script = tmp_path / "program.py"
    script.write_text(HEAD + PROGRAMS[what])

    def run(folder):
        (tmp_path / "runs").mkdir(exist_ok=True)
        package = HERE.parents[1] / "hooks" / "torch"
        environment = {**os.environ, "RUN": folder, "LEVEL": level, "PYTHONPATH": str(package)}
        done = subprocess.run([*ready_python.command(), script], capture_output=True, text=True, timeout=600,
                              env=environment)
        return done.returncode, done.stdout, done.stderr.splitlines()[-1:]

    assert run(str(tmp_path / "runs" / "run")) == run("")


@pytest.mark.parametrize("left", range(1, 8))
def test_one_mistake_of_ours_too_many_ends_the_watch_and_nothing_else(tmp_path, left):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    own = nn.Module.__call__

    def step():
        optimizer.zero_grad()
        model(torch.ones(3, 4)).mean().backward()
        optimizer.step()

    # Given a part of ours that fails at every call, and few mistakes left,
    with nanhunt.watch(out=tmp_path / "run", level="ops") as watch:
        step()
        plant_failing_part(watch, left)
        # when the last of them is made, then the run goes on, and the watch is off.
        step()
        step()
        assert nn.Module.__call__ is own
    assert "nothing any more: too many errors inside nanhunt" in watch.notes
    assert torch.isfinite(model[0].weight).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [True, False], ids=["training", "inference"])
def test_what_trains_in_another_thread_is_not_clean_and_what_only_looks_is(tmp_path, level, bad):
    def trained(number, model, optimizer):
        optimizer.zero_grad()
        model(torch.full((3, 4), number)).mean().backward()
        optimizer.step()

    made = [nn.Linear(4, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in made]
    with nanhunt.watch(out=tmp_path / "run", level=level):
        trained(1.0, made[0], optimizers[0])
        target = (lambda: trained(float("nan"), made[1], optimizers[1])) if bad else (lambda: made[1](torch.ones(1, 4)))
        other = threading.Thread(target=target)
        other.start()
        other.join()
        trained(1.0, made[0], optimizers[0])
    verdict = report_of(tmp_path / "run")["verdict"]
    assert verdict["status"] == ("inconclusive" if bad else "clean")
    assert not bad or "other threads" in verdict["headline"]


@pytest.mark.parametrize("level", LEVELS)
def test_two_calls_of_a_model_are_one_step_though_it_makes_an_infinite_constant(tmp_path, level):
    # Given a step of two forwards, each of which makes the -Inf of a mask,
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            masked = torch.where(torch.ones(4, 4).tril() > 0, y, torch.full((1,), float("-inf")))
            return masked.softmax(-1) @ y

    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    # when it trains,
    with nanhunt.watch(out=tmp_path / "run", level=level):
        for _ in range(5):
            optimizer.zero_grad()
            (model(torch.randn(4, 4)) - model(torch.randn(4, 4))).pow(2).mean().backward()
            optimizer.step()
    # then the program has taken five steps, and is healthy.
    report = report_of(tmp_path / "run")
    assert (report["coverage"]["steps"], report["verdict"]["status"]) == (5, "clean")


def test_a_number_that_was_read_keeps_no_large_tensor_alive(tmp_path):
    model = nn.Linear(4, 1)
    with nanhunt.watch(out=tmp_path / "run", level="ops"):
        model(torch.ones(1, 4)).sum().backward()
        kept = []
        for n in (64, 1 << 20):
            big = torch.full((n,), 0.37)
            big[0].item()
            kept.append(StorageWeakRef(big.untyped_storage()))
            del big
        # What is small may be kept for as long as its number is known: it is what the number stands for.
        assert kept[1].expired()


def test_a_tensor_that_is_resized_within_its_memory_shows_what_it_showed(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with nanhunt.watch(model, out=tmp_path / "run", level="ops"):
        model(torch.ones(4, 4))
        bad = torch.log(-torch.ones(16))
        bad.resize_(4, 4)
        model(torch.ones(4, 4) * bad).sum().backward()
        optimizer.step()
    report = report_of(tmp_path / "run")
    origin = next(f for f in report["findings"] if f["id"] == report["verdict"]["origin"])
    assert origin["op"] == "aten::log" and origin["class"] == "invalid"
