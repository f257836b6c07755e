# SPDX-License-Identifier: Apache-2.0
"""Processes that a watched program starts and that train: each is watched, whoever ends last, and what is bad in one is
in the verdict of the run."""
from __future__ import annotations

import json
import subprocess

import pytest
import ready_python
from hunting import alone, cli, needs_cli, with_package

pytestmark = needs_cli
LEVELS = ("ops", "live")

TRAIN = """
import multiprocessing, os, sys, torch
def train(bad):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(5):
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 4)) ** 2).mean()
        torch.log(-loss if bad and i == 3 else loss + 1).backward()
        optimizer.step()
"""
FORK = """
{before}
for leave, bad in ((sys.exit, {exits}), (os._exit, {leaves})):
    child = os.fork()
    if child == 0:
        train(bad)
        leave(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
{after}
"""
MULTIPROCESSING = """
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    for bad in {order}:
        child = context.Process(target=train, args=(bad,))
        child.start(); child.join()
        print(child.exitcode)
"""


def run(tmp_path, level, text):
    """The report. The program does what it does alone."""
    script, unwatched = alone(TRAIN + text)
    seen = subprocess.run([cli(), "run", "--level", level, "--out", tmp_path / "run", "--", *ready_python.command(),
                           script], capture_output=True, text=True, timeout=1800, env=with_package())
    told = "".join(line for line in seen.stderr.splitlines(keepends=True) if not line.startswith("nanhunt:"))
    assert (seen.returncode, seen.stdout, told) == (
        unwatched.returncode, unwatched.stdout, unwatched.stderr)
    return json.loads((tmp_path / "run" / "report.json").read_text())


def expect(report, bad):
    assert report["verdict"]["status"] == ("fault" if bad else "clean"), report["verdict"]
    if bad:
        finding = report["findings"][0]
        assert (finding["op"], finding["step"], finding["phase"]) == ("aten::log", 3, "loss")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("before", "after", "bad"),  # the child that is: one that leaves by sys.exit, or by os._exit
    [("", "", "exits"), ("train(False)", "", "leaves"), ("train(False)", "train(False)", "exits"),
     ("", "train(False)", "leaves"), ("", "", None), ("train(False)", "train(False)", None)],
)
def test_forked_children_that_train_are_watched(tmp_path, library, level, before, after, bad):
    which = {"exits": bad == "exits", "leaves": bad == "leaves"}
    expect(run(tmp_path, level, FORK.format(before=before, after=after, **which)), bad is not None)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("method", "order"), [
    ("fork", (True, False)), ("fork", (False, True)), ("fork", (False, False)),
    ("spawn", (True, False)), ("spawn", (False, False)),
])
def test_children_of_multiprocessing_are_judged_together(tmp_path, library, level, method, order):
    report = run(tmp_path, level, MULTIPROCESSING.format(method=method, order=order))
    expect(report, any(order))
    assert len(report["run"]["ranks"]) == 2
    if order == (True, False):  # which of them
        assert any("attempt 0 of rank 0" in line for line in report["findings"][0]["evidence"])


HOGWILD = """
import torch.multiprocessing as shared
def alike(model, bad, started, seed):
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    started.wait()
    for i in range(40):
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 4)) ** 2).mean()
        torch.log(-loss if bad and i == 3 else loss + 1).backward()
        optimizer.step()
if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model.share_memory()
    context = shared.get_context("fork")
    started = context.Barrier(2)
    both = [context.Process(target=alike, args=(model, {bad} and n == 1, started, n)) for n in range(2)]
    for one in both: one.start()
    for one in both: one.join()
    print([one.exitcode for one in both])
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [True, False])
def test_parameters_that_two_processes_train_at_once_are_no_corruption(tmp_path, level, bad):
    report = run(tmp_path, level, HOGWILD.format(bad=bad))
    findings = [(f["class"], f["op"]) for f in report["findings"] if f["severity"] != "info"]
    assert report["verdict"]["status"] == ("fault" if bad else "clean"), findings
    assert not {"corruption", "unseen_kernel", "not_reproducible"} & {cls for cls, _ in findings}, findings
    assert not bad or ("invalid", "aten::log") in findings, findings
