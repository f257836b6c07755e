# SPDX-License-Identifier: Apache-2.0
"""What is bad before a program trains, or where it trains nothing: whether that is a fault, and what is left of it."""

from __future__ import annotations

import json
import math
import subprocess

import pytest
import ready_python
import torch
from hunting import cli, with_package
from own_programs import LEVELS, Net, assert_silent, told
from torch.nn import functional as F


class Recorded(Net):
    """Keeps losses, of which most were not written yet."""

    def __init__(self):
        super().__init__()
        self.register_buffer("history", torch.full((12,), math.nan))


def by_place(net, i, loss):
    net.history[i] = loss


def by_mask(net, i, loss):
    net.history[torch.arange(12) == (i if i > 1 else 99)] = loss  # at first there is none


def as_queue(net, i, loss):
    net.history = torch.cat([net.history[1:], loss[None]])


def moved_on(net, i, loss):
    net.history.copy_(net.history.roll(1))
    net.history[0] = loss


def averaged(net, i, loss):
    net.history.mul_(0.9).add_(loss, alpha=0.1)


def computed(net, i, loss):
    net.history[i] = loss / (loss - loss) * 0 if i == 3 else loss


def recorded(write, reads=False):
    def build():
        torch.manual_seed(0)
        net = Recorded()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            opt.zero_grad()
            loss = F.cross_entropy(net(torch.randn(8, 6)), torch.arange(8) % 3)
            (loss + net.history.mean() if reads else loss).backward()
            opt.step()
            with torch.no_grad():
                write(net, i, loss.detach())

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("write", [by_place, by_mask, as_queue, moved_on])
def test_a_buffer_of_nan_that_is_filled_while_training_was_not_written_yet(write, level, tmp_path):
    assert_silent(recorded(write), tmp_path, level, 10)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("write, reads, op", [(by_place, True, "aten::full"), (averaged, False, "aten::full"),
                                              (computed, False, "aten::div")])
def test_a_buffer_of_nan_that_is_read_or_computed_with_is_a_fault(write, reads, op, level, tmp_path):
    said = told(recorded(write, reads), tmp_path, level, 10)
    assert said.status == "fault" and said.first["op"] == op, said.show()


def run_script(text, tmp_path, *options):
    """How it ends, and its report; None: there is none."""
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(text)
    done = subprocess.run([cli(), "run", *options, "--out", run, "--", *ready_python.command(), script],
                          capture_output=True, text=True, timeout=1800, env=with_package())
    return done, json.loads((run / "report.json").read_text()) if run.exists() else None


FROZEN = """
import numpy, torch
torch.manual_seed(0)
data = torch.randn(24, 6)
WRITES
encoder = torch.nn.Linear(6, 4)
with torch.no_grad():
    x = torch.cat([encoder(rows) for rows in data.split(SPLIT)])
SORTS
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
WRITES = {"written": "data[3, 2] = float('nan')", "loaded": """
rows = data.numpy().copy()
rows[3, 2] = numpy.nan
data = torch.from_numpy(rows)
"""}
SORTS = {"dropped": "x = x[~x.isnan().any(1)]", "imputed": "x = x.nan_to_num()",
         "ranked": "x = x[x[:, 0].masked_fill(x[:, 0].isnan(), -float('inf')).topk(8).indices]", "kept": ""}


@pytest.mark.parametrize("split", [24, 8])
@pytest.mark.parametrize("written", WRITES)
@pytest.mark.parametrize("sorted_out", SORTS)
def test_rows_that_are_sorted_out_between_a_frozen_model_and_a_training_are_no_fault(
        sorted_out, written, split, library, tmp_path):
    text = FROZEN.replace("WRITES", WRITES[written]).replace("SORTS", SORTS[sorted_out]).replace("SPLIT", str(split))
    done, report = run_script(text, tmp_path)
    loud = [line for line in done.stderr.split("\n") if line.startswith(("nanhunt: forward", "nanhunt: step"))]
    if sorted_out == "kept":
        assert report["verdict"]["status"] == "fault" and loud, done.stderr
        return
    assert report["verdict"]["status"] == "clean" and not loud, done.stderr
    assert [(f["severity"], f["step"]) for f in report["findings"]] == [("info", 0)], report["findings"]
    assert "none of it came to the training" in str(report["findings"][0]["evidence"])
    assert "before the training began" not in str(report["coverage"]), report["coverage"]


@pytest.mark.parametrize("stops", [False, True])
def test_data_of_a_program_that_trains_nothing_are_told_when_it_ends_or_at_once_where_it_is_to_stop(
        stops, library, tmp_path):
    text = FROZEN.replace("WRITES", WRITES["loaded"]).partition("SORTS")[0].replace("SPLIT", "8") + "print('the end')"
    done, report = run_script(text, tmp_path, *["--stop-on-fault"] * stops)
    assert report["verdict"]["status"] == "fault" and "nanhunt: forward 0: The batch" in done.stderr, done.stderr
    assert ("the end" in done.stdout) != stops


PREPARE_AND_END = """
import os, signal, time, torch
x = torch.zeros(3)
mean = x / x
weight = mean.nan_to_num()
rates = 1 / x
END
"""
ENDS = {"Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", False),
        "of a matrix": ("torch.linalg.cholesky(-torch.eye(3))", False),
        "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", False),
        "of a check": ("assert not mean.isnan().any()", True)}


@pytest.mark.parametrize("how", ENDS)
def test_a_program_that_ends_while_it_prepares_leaves_a_run_only_where_a_bad_number_ended_it(how, library, tmp_path):
    end, is_fault = ENDS[how]
    done, report = run_script(PREPARE_AND_END.replace("END", end), tmp_path)
    assert done.returncode != 0
    assert (report is not None) == is_fault, done.stderr
    if is_fault:
        assert report["verdict"]["status"] == "fault", report["verdict"]
        assert report["findings"][0]["op"] == "aten::div", report["findings"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("root", ["x.sqrt()", "(x * 2).pow(2).sum().sqrt()", "x.pow(0.5)"])
def test_the_pole_of_a_root_is_named_in_a_program_without_a_model_and_an_optimizer(root, level, library, tmp_path):
    for at, status in (("zeros", "fault"), ("ones", "clean")):
        folder = tmp_path / at
        folder.mkdir()
        done, report = run_script(
            f"import torch\nx = torch.{at}(4, requires_grad=True)\n{root}.sum().backward()\nprint(x.grad)\n", folder,
            "--level", level)
        assert report["verdict"]["status"] == status, done.stderr
        if status == "fault":
            found = report["findings"][0]
            assert (found["class"], found["phase"]) == ("divide_by_zero", "backward"), found
            assert found["call_site"] == "train.py:3", found
