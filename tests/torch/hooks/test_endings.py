# SPDX-License-Identifier: Apache-2.0
"""However a run ends, its last step is judged: the origin is named, what the program said stands beside it, and the
program's own output and exit status are its own. Each ending has a twin that is sound."""
from __future__ import annotations

import json
import os
import subprocess

import pytest
import ready_python
from hunting import alone, cli, needs_cli, with_package

pytestmark = needs_cli
LEVELS = ("ops", "live")

# BAD makes the loss NaN in step 3. {look} is what the program does about it, {late} what it does after backward.
PROGRAM = """
import os, sys, torch
BAD = {bad}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
for i in range(6):
    optimizer.zero_grad()
    loss = (model(torch.randn(16, 4)) ** 2).mean()
    loss = torch.log(-loss if BAD and i == 3 else loss + 1)
    {look}
    loss.backward()
    optimizer.step()
    {late}
print("end")
"""
STOPS = {
    "assert": ("assert torch.isfinite(loss), 'loss is not finite'", 1, "AssertionError: loss is not finite"),
    "raise": ("if not torch.isfinite(loss): raise FloatingPointError('nan')", 1, "FloatingPointError: nan"),
    "sys.exit": ("if loss != loss: sys.exit(3)", 3, "sys.exit(3)"),
    "os._exit": ("if loss != loss: os._exit(4)", 4, "os._exit(4)"),
    "os._exit by name": ("if loss != loss: os._exit(status=4)", 4, "os._exit(4)"),
    "break": ("if not torch.isfinite(loss): break", 0, ""),
}


def run(tmp_path, level, bad, look="pass", late="pass", before="pass", traceback=True):
    """The report and the exit status. Output, traceback and status are those of the program alone; `traceback` False:
    its frames go through ours, only the last line is compared."""
    script, unwatched = alone(PROGRAM.format(bad=bad, look=look, late=late, before=before))
    watched = subprocess.run([cli(), "run", "--level", *level.split(), "--out", tmp_path / "run", "--",
                              *ready_python.command(), script], capture_output=True, text=True, timeout=1800,
                             env=with_package())
    told = "".join(line for line in watched.stderr.splitlines(keepends=True) if not line.startswith("nanhunt:"))
    expected = unwatched.stderr
    if not traceback:
        told, expected = told.splitlines()[-1:], expected.splitlines()[-1:]
    assert (watched.returncode, watched.stdout, told) == (unwatched.returncode, unwatched.stdout, expected)
    return json.loads((tmp_path / "run" / "report.json").read_text()), watched.returncode


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", STOPS)
def test_a_program_that_stops_at_its_bad_loss_has_a_fault_with_its_origin_and_its_words(tmp_path, library, level, how):
    look, status, words = STOPS[how]
    report, returned = run(tmp_path, level, True, look)
    assert returned == status
    assert report["verdict"]["status"] == "fault"
    finding = report["findings"][0]
    assert (finding["op"], finding["step"], finding["phase"]) == ("aten::log", 3, "loss")
    began = "Step 3 is the last one" if how == "break" else "The program stopped here"
    assert finding["explanation"].startswith(began) and words in finding["explanation"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", STOPS)
def test_its_repaired_twin_is_clean(tmp_path, library, level, how):
    report, returned = run(tmp_path, level, False, STOPS[how][0])
    assert (returned, report["verdict"]["status"], report["findings"]) == (0, "clean", [])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [True, False])
def test_a_step_that_the_program_skips_by_design_is_a_warning_with_how_often(tmp_path, library, level, bad):
    report, _ = run(tmp_path, level, bad, "if not torch.isfinite(loss): continue")
    assert report["verdict"]["status"] == ("warning" if bad else "clean")
    if bad:
        finding = report["findings"][0]
        assert (finding["op"], finding["step"]) == ("aten::log", 3)
        assert finding["explanation"].startswith("The program skipped this step: in 1 of 6 steps")


# What a program may look at before it goes on with the next batch.
SKIPS = {
    "a loss of two results": ("loss = F.nll_loss(torch.log(out), y)", "not torch.isfinite(loss)"),
    "a number of Python's": ("loss = torch.log(out).mean()", "loss.item() != loss.item()"),
    "an array of NumPy's": ("loss = torch.log(out).mean()", "numpy.isnan(loss.detach().numpy())"),
    "losses of all samples": ("losses = -torch.log(out).mean(1); loss = losses.nanmean()", "torch.isnan(losses).any()"),
    "what the model returned": ("loss = torch.log(out).mean()", "not torch.isfinite(torch.log(out)).all()"),
    "outputs of a module alone": ("out = head(out); loss = out.mean()", "not torch.isfinite(out).all()"),
}
SKIPPING = """
import numpy, torch
from torch.nn import functional as F
torch.manual_seed(0)
class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
    def forward(self, x):
        return torch.log(x) * self.scale
model, head = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3), torch.nn.Softmax(1)), Head()
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for i in range(8):
    x, y = torch.randn(16, 4), torch.randint(3, (16,))
    out = model(x) - (2 if {bad} and i == 5 else 0) * (torch.arange(16) < 3)[:, None]
    {loss}
    if {look}:
        continue
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [True, False])
@pytest.mark.parametrize("how", SKIPS)
def test_whatever_a_program_looks_at_before_it_skips_a_step_is_judged(tmp_path, library, how, bad, level):
    loss, look = SKIPS[how]
    script = tmp_path / "train.py"
    script.write_text(SKIPPING.format(bad=bad, loss=loss, look=look))
    subprocess.run([cli(), "run", "--level", *level.split(), "--out", tmp_path / "run", "--", *ready_python.command(),
                    script], check=True, capture_output=True, timeout=1800, env=with_package())
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["verdict"]["status"] == ("warning" if bad else "clean"), report["verdict"]
    if bad:
        finding = report["findings"][0]
        assert (finding["op"], finding["step"]) == ("aten::log", 5), finding


MASKING = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(10):
    x = torch.randn(6, 4)
    scores = model(x).masked_fill(torch.arange(4) > 2, float("-inf"))
    masked = torch.isinf(scores).sum()
    again = model(-x)
    optimizer.zero_grad()
    (scores.softmax(1).square().mean() + again.square().mean()).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("level", LEVELS)
def test_a_question_about_what_is_masked_on_purpose_gives_no_step_up(tmp_path, library, level):
    script = tmp_path / "train.py"
    script.write_text(MASKING)
    subprocess.run([cli(), "run", "--level", *level.split(), "--out", tmp_path / "run", "--", *ready_python.command(),
                    script], check=True, capture_output=True, timeout=1800, env=with_package())
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["verdict"]["status"], report["coverage"]["steps"]) == ("clean", 10), report["verdict"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [True, False])
def test_anomaly_mode_is_quoted_beside_the_origin(tmp_path, library, level, bad):
    look = f"if {bad} and i == 3: loss = loss + 0 * torch.sqrt(loss * 0)"  # infinite slope times 0
    report, returned = run(tmp_path, level, False, look, before="torch.autograd.set_detect_anomaly(True)",
                           traceback=False)
    assert returned == int(bad) and report["verdict"]["status"] == ("fault" if bad else "clean")
    if bad:
        finding = report["findings"][0]
        assert (finding["op"], finding["phase"]) == ("aten::div", "backward")
        assert "returned nan values" in finding["explanation"]


@pytest.mark.parametrize("level", LEVELS)
def test_an_exception_over_sound_numbers_is_no_finding(tmp_path, library, level):
    report, returned = run(tmp_path, level, False, "if i == 3: raise KeyError('labels')")
    assert (returned, report["verdict"]["status"]) == (1, "clean")
    assert any("KeyError" in line for line in report["coverage"]["unwatched"])
    assert """ended with an exception: "KeyError: 'labels'\"""" in report["verdict"]["headline"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("caught", [False, True])
def test_an_exception_between_two_steps_is_told_where_it_ended_the_program(tmp_path, library, level, caught):
    raises = "if i == 3: raise KeyError('labels')"
    late = f"try: exec({raises!r})\n    except KeyError: pass" if caught else raises
    report, returned = run(tmp_path, level, False, late=late)
    assert (returned, report["verdict"]["status"]) == (int(not caught), "clean")
    said = """; the program ended with an exception: "KeyError: 'labels'\""""
    assert report["verdict"]["headline"].endswith(said) == (not caught), report["verdict"]


# In step 3 a layer overflows, or makes a mask; it looks at that and {ends}.
LAYER = """
class Layer(torch.nn.Module):
    def forward(self, x):
        made = x.masked_fill(x < 9, float("-inf")) if {masks} else torch.full_like(x, 2.0) * 3e38
        if i == 3 and not torch.isfinite(made).all():
            {ends}
        return x
model.append(Layer())
"""
ENDS = {"an exception": ('raise ValueError("not finite")', 1), "sys.exit": ("sys.exit(3)", 3)}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", ENDS)
def test_infinities_at_which_a_forward_ends_the_program_are_a_fault_with_their_origin(tmp_path, library, level, how):
    ends, status = ENDS[how]
    report, returned = run(tmp_path, level, False, before=LAYER.format(masks=False, ends=ends))
    assert (returned, report["verdict"]["status"]) == (status, "fault")
    finding = report["findings"][0]
    assert (finding["class"], finding["op"], finding["step"], finding["phase"], finding["module"]) == (
        "overflow", "aten::mul", 3, "forward", "3")
    assert finding["explanation"].startswith("The program stopped here")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", ENDS)
def test_a_forward_that_ends_the_program_over_a_mask_that_it_wrote_is_no_finding(tmp_path, library, level, how):
    ends, status = ENDS[how]
    report, returned = run(tmp_path, level, False, before=LAYER.format(masks=True, ends=ends))
    assert (returned, [f for f in report["findings"] if f["severity"] != "info"]) == (status, [])


LOADER = """
from torch.utils.data import DataLoader, Dataset
class Samples(Dataset):
    def __len__(self): return 16
    def __getitem__(self, i):
        if {fails} and i == 9: raise ValueError("sample 9 is damaged")
        return torch.full((4,), float(i))
batches = iter(DataLoader(Samples(), batch_size=4, num_workers=1))
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fails", [True, False])
def test_an_exception_in_a_worker_of_a_data_loader_is_the_programs_and_no_finding(tmp_path, library, level, fails):
    report, returned = run(tmp_path, level, False, "next(batches) if i < 4 else None", traceback=False,
                           before=LOADER.format(fails=fails))
    assert (returned, report["verdict"]["status"], report["findings"]) == (int(fails), "clean", [])
    assert any("ValueError" in line for line in report["coverage"]["unwatched"]) == fails


VALIDATE = """
def validate(bad):
    model.eval()
    with torch.no_grad():
        x = torch.randn(4, 4)
        x[0] = float("nan") if bad else 0.0
        model(x)
    model.train()
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("bad", [True, False])
def test_a_validation_that_gives_nan_is_a_fault_of_its_own_phase(tmp_path, library, level, last, bad):
    late = f"if i == {5 if last else 2}: validate({bad})"
    report, _ = run(tmp_path, level, False, late=late, before=VALIDATE)
    assert report["verdict"]["status"] == ("fault" if bad else "clean")
    if bad:
        assert report["findings"][0]["phase"] in ("validation", "data")


# Four batches a step. Batch BAD has a loss of NaN, and the program goes on without it.
ACCUMULATED = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(24):
    loss = (model(torch.randn(16, 4)) ** 2).mean() / 4
    if i == {bad}:
        loss = torch.log(-loss)
    if not torch.isfinite(loss):
        continue
    loss.backward()
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [13, 15, None], ids=["amid a step", "its last batch", "none"])
def test_a_batch_that_the_program_leaves_out_of_its_step_is_a_warning(tmp_path, library, level, bad):
    script, _ = alone(ACCUMULATED.format(bad=bad))
    subprocess.run([cli(), "run", "--level", level, "--out", tmp_path / "run", "--", *ready_python.command(), script],
                   check=True, capture_output=True, timeout=1800, env=with_package())
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    if bad is None:
        assert report["verdict"]["status"] == "clean" and not report["findings"], report["findings"]
        return
    found = report["findings"][0]
    assert (report["verdict"]["status"], found["op"], found["step"]) == ("warning", "aten::log", 3), found
    assert "The program left this batch out of its step" in found["explanation"], found


def test_what_was_patched_is_put_back(tmp_path, library):
    import sys

    import nanhunt
    import torch

    before = sys.excepthook, sys.exit, os._exit
    with nanhunt.watch(out=tmp_path / "run"):
        model = torch.nn.Linear(1, 1)
        model(torch.ones(1)).sum().backward()
        assert before != (sys.excepthook, sys.exit, os._exit)
    assert before == (sys.excepthook, sys.exit, os._exit)
