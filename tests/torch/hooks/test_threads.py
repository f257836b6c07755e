# SPDX-License-Identifier: Apache-2.0
"""Programs that train in several threads at once: they do not crash and end with the same bits, one thread is watched,
and the report says that the others were not."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import nanhunt
import pytest
import ready_python
import torch
from hunting import cli, needs_cli, with_package
from saved import records_of
from torch import nn

HERE = Path(__file__).resolve().parents[1]
pytestmark = needs_cli
RUNS = int(os.environ.get("NANHUNT_THREAD_RUNS", "2"))  # of each kind; more by hand, on a machine under load

# Threads change places as often as Python lets them; models are made in the main thread or in their own.
PROGRAM = """
import hashlib, os, sys, threading, torch
from torch import nn
torch.set_num_threads(1)
sys.setswitchinterval(1e-5)
THREADS, HERE, BAD = {threads}, {here}, {bad}
def make(s):
    g = torch.Generator().manual_seed(s)
    m = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 3))
    with torch.no_grad():
        for p in m.parameters(): p.copy_(torch.randn(p.shape, generator=g) * 0.3)
    return m, torch.optim.AdamW(m.parameters(), 1e-2), g
made = [make(s) for s in range(THREADS)] if HERE else [None] * THREADS
done = [None] * THREADS
go = threading.Barrier(THREADS)
def train(s):
    m, o, g = made[s] or make(s)
    go.wait()
    for i in range(30):
        o.zero_grad()
        x = torch.randn(16, 8, generator=g) * (float("nan") if BAD and i > 20 else 1)
        nn.functional.cross_entropy(m(x), torch.randint(0, 3, (16,), generator=g)).backward()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        o.step()
    done[s] = hashlib.sha256(b"".join(t.numpy().tobytes() for t in m.state_dict().values())).hexdigest()
ts = [threading.Thread(target=train, args=(s,)) for s in range(THREADS)]
[t.start() for t in ts]; [t.join() for t in ts]
print(done)
"""


def ran(tmp_path, level=None, **what):
    script = tmp_path / "threads.py"
    script.write_text(PROGRAM.format(**{"threads": 3, "here": True, "bad": False, **what}))
    command = [*ready_python.command(), script]
    if level is not None:
        command = [cli(), "run", "--level", level, "--out", tmp_path / "run", "--", *command]
    environment = with_package()
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("level", ["live", "ops"])
@pytest.mark.parametrize("here", [True, False], ids=["made by the main thread", "made by each thread"])
def test_threads_that_train_side_by_side_end_with_the_same_bits_and_are_not_called_clean(
    tmp_path, library, level, here
):
    alone = [ran(tmp_path, here=here)]
    assert alone[0][0] == 0
    for _ in range(RUNS):
        status, output, told = ran(tmp_path, level, here=here)
        if output != alone[0][1]:  # by itself the program ends otherwise now and then, when its threads begin at once
            alone += [ran(tmp_path, here=here) for _ in range(3)]
        assert (status, output) in [one[:2] for one in alone], told
        report = json.loads((tmp_path / "run" / "report.json").read_text())
        assert report["verdict"]["status"] == "inconclusive", (report["verdict"], report["findings"])
        assert "other threads" in report["verdict"]["headline"] and report["coverage"]["steps"] == 30
        assert not any("errors inside" in line for line in report["coverage"]["unwatched"])


@pytest.mark.parametrize("level", ["live", "ops"])
@pytest.mark.parametrize("bad", [True, False])
def test_one_thread_that_is_not_the_main_one_is_watched_like_it(tmp_path, library, level, bad):
    status, _, told = ran(tmp_path, level, threads=1, bad=bad)
    verdict = json.loads((tmp_path / "run" / "report.json").read_text())["verdict"]
    assert (status, verdict["status"]) == (0, "fault" if bad else "clean"), told


# A helper differentiates something of its own before training begins: it ends, or lives on and runs ops meanwhile.
HELPED = """
import sys, threading, torch
from torch import nn
torch.set_num_threads(1)
BAD, LIVES, HELPER = {bad}, {lives}, {helper}
over, warm = threading.Event(), threading.Event()
def differentiate():
    w = torch.ones(4, requires_grad=True)
    (w * w).sum().backward()
    warm.set()
    while LIVES and not over.is_set(): torch.ones(3).log_()
def train():
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for i in range(14):
        optimizer.zero_grad()
        out = model(torch.randn(16, 8))
        if BAD and i == 10: out = out + torch.log(out - out.detach())
        nn.functional.cross_entropy(out, torch.randint(0, 3, (16,))).backward()
        optimizer.step()
    over.set()
other = threading.Thread(target=differentiate if HELPER else train)
if HELPER:
    other.start()
    warm.wait()
    if not LIVES: other.join()
    train()
else:
    w = torch.ones(4, requires_grad=True)
    (w * w).sum().backward()
    other.start()
other.join()
"""


@pytest.mark.parametrize("level", ["live", "ops"])
@pytest.mark.parametrize(
    "who",
    [{"helper": True, "lives": False}, {"helper": True, "lives": True}, {"helper": False, "lives": False}],
    ids=["a helper that ends", "a helper that lives on", "the main thread, and another one trains"],
)
@pytest.mark.parametrize("bad", [True, False])
def test_who_differentiates_before_training_begins_does_not_keep_the_watch_from_who_trains(
    bad, who, level, tmp_path, library
):
    script = tmp_path / "helped.py"
    script.write_text(HELPED.format(bad=bad, **who))
    command = [cli(), "run", "--level", level, "--out", tmp_path / "run", "--", *ready_python.command(), script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=with_package(), check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["verdict"]["status"] == ("fault" if bad else "clean"), (report["verdict"], report["coverage"])
    assert report["coverage"]["steps"] == 14 and not any("errors" in s for s in report["coverage"]["unwatched"])
    found = [(f["class"], f["op"], f["step"]) for f in report["findings"] if f["severity"] == "fault"]
    assert found[:1] == ([("divide_by_zero", "aten::log", 10)] if bad else []), report["findings"]


def test_finding_the_model_of_a_module_lets_other_threads_make_their_tuples(tmp_path, library):
    # Given parts of models that are called by themselves: their models are looked for,
    made, failed, ends = [nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU()) for _ in range(30)], [], []
    made[-1][0][0].weight.data.fill_(math.nan)

    def make_tuples():
        while not ends:
            try:
                assert tuple(i for i in range(30))
            except SystemError as error:
                failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=make_tuples) for _ in range(3)]
    # when other threads make tuples,
    with nanhunt.watch(out=tmp_path / "run", level="ops", quiet=True) as watch:
        for thread in threads:
            thread.start()
        try:
            for model in made:
                model[0][0](torch.ones(1, 2)).sum().backward()
        finally:
            ends.append(True)
            sys.setswitchinterval(before)
            for thread in threads:
                thread.join()
    # then they are whole, and each part is called by its place in its model.
    assert not failed
    modules = {row["module"] for row in records_of(watch.path, "ops") if row["op"] == "aten::addmm"}
    assert modules == {"0.0", *(f"Sequential{n or ''}.0.0" for n in [0, *range(2, 30)])}
