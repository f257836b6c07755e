# SPDX-License-Identifier: Apache-2.0
"""Nothing of nanhunt's is in what a program prints: tracebacks have the program's frames and PyTorch's alone, warnings
come as often and from where they came, and what Python lets one hook is as it was."""
from __future__ import annotations

import os
import subprocess

import pytest
import ready_python
from hunting import cli, needs_cli, with_package

pytestmark = needs_cli
LEVELS = ("ops", "live")

# Some steps are watched live, others are not, and not all are good.
HEAD = """
import sys, threading, traceback, warnings, torch
from torch import nn
class Refuses(nn.Module):
    def __init__(self): super().__init__(); self.inner = nn.Linear(4, 1)
    def forward(self, x):
        if x is None: raise ValueError("forward")
        return self.inner(x)
model = nn.Sequential(Refuses()); optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu")
def step(bad=False):
    optimizer.zero_grad()
    loss = model(torch.ones(3, 4)).pow(2).mean()
    (torch.log(-loss) if bad else loss).backward(); optimizer.step()
def attempt(what):
    try: what()
    except BaseException: print(traceback.format_exc())
def hook(*_): return 1 / 0
def backward():
    handle = model[0].inner.weight.register_hook(hook)
    try: model(torch.ones(3, 4)).sum().backward()
    finally: handle.remove()
def closure(): raise KeyError("closure")
def leave(): sys.exit(3)
def loss(): return torch.ones(3) @ torch.ones(4)
"""
ATTEMPTS = HEAD + """
def all_of_them():
    attempt(lambda: model(None))
    with torch.no_grad(): attempt(lambda: model(None))
    attempt(lambda: torch.ones(3).backward())
    attempt(lambda: torch.autograd.grad(torch.ones(3), torch.ones(3)))
    attempt(backward)
    attempt(lambda: optimizer.step(closure))
    attempt(lambda: nn.utils.clip_grad_norm_(3, 4))
    attempt(lambda: scaler.step(optimizer))
    attempt(lambda: torch.optim.SGD([], 0.1))
    attempt(leave)
    model(torch.ones(3, 4))
    attempt(loss)
step(); all_of_them()
for i in range(12): step(i == 5)
all_of_them()
"""
UNCAUGHT = {
    "forward": "model(None)", "backward": "backward()", "optimizer": "optimizer.step(closure)", "loss": "loss()",
    "thread": "t = threading.Thread(target=lambda: model(None), name='t'); t.start(); t.join()",
    "cause": "try: model(None)\nexcept ValueError as e: raise RuntimeError('from') from e",
}
WARNINGS = HEAD + """
class Warns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1
    @staticmethod
    def backward(ctx, g): warnings.warn("from backward"); return g
print(len(warnings.filters), warnings.showwarning.__module__)
for i in range(14):
    optimizer.zero_grad()
    y = model(torch.ones(3, 4))
    spread = y[:1].std()  # of one element: PyTorch warns in C++
    loss = Warns.apply(y.pow(2).mean()) + 0 * torch.nan_to_num(spread)
    (torch.log(-loss) if i in (3, 11) else loss).backward(); optimizer.step()
print(len(warnings.filters), warnings.showwarning.__module__)
"""

# Derivatives that are tried of a root of complex numbers cast them to real ones, of which PyTorch warns.
WARNED_TRIALS = """
import torch, warnings
w = torch.nn.Parameter(torch.ones(4, dtype=torch.cfloat)); optimizer = torch.optim.SGD([w], 0.1)
for i in range(4):
    optimizer.zero_grad()
    y = (w * 0 if i == 2 else w) * torch.ones(3, 4)
    warnings.warn("of the program's own")
    (y / y.abs()).real.sum().backward(); optimizer.step()
    print(len(warnings.filters), w.isfinite().all().item())
"""


def both(tmp_path, level, text):
    script = tmp_path / "train.py"
    script.write_text(text)
    environment = with_package()

    def done(*before):
        done = subprocess.run([*before, *ready_python.command(), script], capture_output=True, text=True, timeout=1800,
                              env=environment)
        told = [line for line in done.stderr.splitlines() if not line.startswith("nanhunt:")]
        return done.returncode, done.stdout, told

    return done(), done(cli(), "run", "--level", level, "--out", tmp_path / "run", "--")


@pytest.mark.parametrize("level", LEVELS)
def test_tracebacks_that_a_program_prints_have_no_frame_of_ours(tmp_path, library, level):
    alone, watched = both(tmp_path, level, ATTEMPTS)
    assert alone[1].count("Traceback") == 22
    assert watched == alone


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("what", UNCAUGHT)
def test_an_exception_that_nobody_catches_is_printed_as_alone(tmp_path, library, level, what):
    alone, watched = both(tmp_path, level, HEAD + "for i in range(9): step()\n" + UNCAUGHT[what])
    assert watched == alone


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("filters", ["default", "always", "error"])
def test_warnings_come_as_often_and_from_where_they_came(tmp_path, library, level, filters):
    alone, watched = both(tmp_path, level, f"import warnings; warnings.simplefilter({filters!r})\n" + WARNINGS)
    assert any("std()" in line for line in alone[2])
    assert watched == alone


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("filters", ["default", "always"])
def test_a_cure_that_is_tried_warns_of_nothing(tmp_path, library, level, filters):
    alone, watched = both(tmp_path, level, f"import warnings; warnings.simplefilter({filters!r})\n" + WARNED_TRIALS)
    assert alone[0] == 0 and "False" in alone[1], alone
    assert watched == alone


@pytest.mark.parametrize("level", LEVELS)
def test_what_python_lets_one_hook_is_as_it_was(tmp_path, library, level):
    import sys
    import threading
    import warnings

    import nanhunt
    import torch
    import torch._dynamo  # optimizers import it at their first step, and it adds a filter

    def hooked():
        return [sys.excepthook, sys.gettrace(), sys.getprofile(), threading.excepthook, sys.unraisablehook,
                list(warnings.filters), warnings.showwarning, sys.exit, os._exit]

    before = hooked()
    with nanhunt.watch(out=tmp_path / "run", level=level):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for i in range(12):
            loss = model(torch.ones(1)).sum()
            (torch.log(-loss * loss) if i in (3, 10) else loss).backward()
            optimizer.step()
    assert hooked() == before
