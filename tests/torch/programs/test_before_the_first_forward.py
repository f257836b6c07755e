# SPDX-License-Identifier: Apache-2.0
"""What a program computes before it calls its model for the first time: weights of a loss, data that is made ready."""

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


def prepared(prepare):
    """`prepare()` gives the inputs and the weights of the loss, in the first step, before anything else."""

    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)
        made = {}

        def step(i):
            if i == 0:
                made["x"], made["weight"] = prepare()
            x, y = made["x"], torch.arange(8) % 3
            opt.zero_grad()
            (F.cross_entropy(net(x), y, reduction="none") * made["weight"]).mean().backward()
            opt.step()

        return step, net, opt

    return build


def spread(columns):
    """Weights by how far the values of a row are apart: of one value that is 0 / 0."""
    def prepare():
        return torch.randn(8, 6), torch.randn(8, columns).std(dim=1)

    return prepare


def standardised(constant, floor):
    """Inputs by column; one of them is the same in all rows."""
    def prepare():
        x = torch.randn(8, 6)
        if constant:
            x[:, 2] = 1.0
        return (x - x.mean(0)) / x.std(0).clamp_min(floor), torch.ones(8)

    return prepare


def by_count(counts):
    """Weights by how often a class is there: one is not."""
    def prepare():
        counted = torch.tensor(counts, dtype=torch.float32)
        weights = counted.sum() / counted
        return torch.randn(8, 6), (weights / weights.sum())[torch.arange(8) % 3]

    return prepare


PROGRAMS = {
    "a spread of one value": (spread(1), spread(4), "divide_by_zero", "aten::std"),
    "a column without a spread": (standardised(True, 0.0), standardised(True, 1e-3), "divide_by_zero", "aten::div"),
    "a class that is not there": (by_count([4, 0, 4]), by_count([4, 1, 3]), "divide_by_zero", "aten::div"),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_operation_before_the_first_forward_is_named_and_the_repaired_program_is_clean(name, level, tmp_path):
    bad, mended, kind, op = PROGRAMS[name]
    said = told(prepared(bad), tmp_path / "bad", level)
    assert said.what[:3] == (kind, op, "data") and said.first["step"] == 0, said.show()
    assert said.first["call_site"].startswith("test_before_the_first_forward.py:"), said.first
    assert_silent(prepared(mended), tmp_path / "mended", level)


MAKE = """
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
PREPARE = """
x = torch.ones(8, 4)
x = (x - x.mean(0)) / (x.std(0) + FLOOR)
"""
TRAIN = """
assert bool(torch.isfinite(x).all()) and TRAINS, "bad data"
model(x).sum().backward()
opt.step()
"""
ORDERS = {"model": "import torch" + MAKE + PREPARE + TRAIN, "data": "import torch" + PREPARE + MAKE + TRAIN,
          "data alone": "import torch" + PREPARE + TRAIN}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("floor, trains, ends", [(0.0, True, "fault"), (1.0, True, "clean"), (1.0, False, None)])
@pytest.mark.parametrize("first", ORDERS)
def test_a_program_that_ends_before_its_first_forward_is_judged_where_something_was_bad(
        first, floor, trains, ends, level, library, tmp_path):
    if first == "data alone" and ends == "clean":
        ends = None  # there is no model, which is its own mistake
    script = tmp_path / "train.py"
    script.write_text(ORDERS[first].replace("FLOOR", str(floor)).replace("TRAINS", str(trains)))
    done = subprocess.run([cli(), "run", "--level", level, "--out", tmp_path / "run", "--", *ready_python.command(),
                           script], capture_output=True, text=True, timeout=1800, env=with_package())
    assert done.returncode == (0 if ends == "clean" else 1), done.stderr
    if ends is None:
        assert not (tmp_path / "run").exists(), "it did not train, and nothing was wrong"
        return
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["verdict"]["status"] == ends, done.stderr
    if ends == "fault":
        found = report["findings"][0]
        line = script.read_text().split("\n").index("x = (x - x.mean(0)) / (x.std(0) + 0.0)") + 1
        assert (found["class"], found["op"]) == ("divide_by_zero", "aten::div"), found
        assert found["call_site"] == f"train.py:{line}" and "AssertionError: bad data" in json.dumps(report), found


def loading(when, bad):
    """A checkpoint of which one bias holds NaN is loaded into a model that has its optimizer already."""

    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)
        kept = {name: p.numpy().copy() for name, p in net.state_dict().items()}
        if bad:
            kept["last.bias"][1] = math.nan
        checkpoint = {name: torch.from_numpy(values) for name, values in kept.items()}

        def step(i):
            if i == when:
                net.load_state_dict(checkpoint)
            opt.zero_grad()
            F.cross_entropy(net(torch.randn(8, 6)), torch.arange(8) % 3).backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("when", [0, 3])
def test_what_a_checkpoint_holds_is_no_sample_though_the_optimizer_is_made_before_it_is_loaded(when, level, tmp_path):
    said = told(loading(when, True), tmp_path / "bad", level)
    first = said.first
    assert (first["class"], first["module"], first["step"]) == ("bad_state", "last.bias", when), said.show()
    assert first["title"] == "What was loaded into the parameter last.bias was bad: 1 NaN of 3", said.show()
    assert first["call_site"].startswith("test_before_the_first_forward.py:"), first
    assert_silent(loading(when, False), tmp_path / "mended", level)


CAST = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
with torch.no_grad(): model[0].weight[1, 2] = WEIGHT
model.CAST
for _ in range(3): print(model(torch.ones(2, 4).half()).sum().item())
"""


@pytest.mark.parametrize("cast", ["half()", "to(torch.float16)", "to(dtype=torch.float16)"])
def test_a_cast_of_a_whole_model_is_named_where_it_makes_weights_infinite(cast, library, tmp_path):
    for weight, status in (("1e5", "fault"), ("1e4", "clean")):
        script, run = tmp_path / f"{status}.py", tmp_path / status
        script.write_text(CAST.replace("WEIGHT", weight).replace("CAST", cast))
        done = subprocess.run([cli(), "run", "--out", run, "--", *ready_python.command(), script], capture_output=True,
                              text=True, timeout=1800, env=with_package())
        report = json.loads((run / "report.json").read_text())
        assert report["verdict"]["status"] == status, done.stderr
        if status == "fault":
            first = report["findings"][0]
            assert (first["class"], first["op"], first["call_site"]) == ("overflow", "aten::_to_copy", "fault.py:5")


# What comes before there is a model or an optimizer: the faulty line, what repairs it, and the rest of the program.
UNMADE = {
    "weights of classes, one of which is not there": (
        "weight = counts.sum() / counts", "weight = counts.sum() / counts.clamp(min=1)", "divide_by_zero", "aten::div",
        """
counts = torch.bincount(torch.tensor([0, 0, 1]), minlength=3).float()
LINE
train(torch.rand(12, 4), weight / weight.sum())
"""),
    "an initialisation that divides by a norm": (
        "w = w / w.norm(dim=1, keepdim=True)", "w = nn.functional.normalize(w)", "divide_by_zero", "aten::div", """
model = nn.Linear(4, 3)
w = torch.zeros(3, 4)
LINE
with torch.no_grad(): model.weight.copy_(w)
train(torch.rand(12, 4), model=model)
"""),
    "a buffer of positions": (
        "rates = torch.exp(torch.arange(4.0) * 90)", "rates = torch.exp(torch.arange(4.0))", "overflow", "aten::exp",
        """
LINE
train(torch.rand(12, 4) + torch.sin(torch.ones(4) * rates))
"""),
    "a count of whole numbers, 0 among them": (
        "weight = 1 / counts", "weight = 1 / counts.clamp(min=1)", "divide_by_zero", "aten::reciprocal", """
counts = torch.bincount(torch.tensor([0, 0, 1]), minlength=3)
LINE
train(torch.rand(12, 4), weight / weight.sum())
"""),
    "a ratio of whole numbers": (
        "weight = counts.sum() / (3 * counts)", "weight = counts.sum() / (3 * counts.clamp(min=1))", "divide_by_zero",
        "aten::div", """
counts = torch.tensor([2, 1, 0])
LINE
train(torch.rand(12, 4), weight / weight.sum())
"""),
    "a logarithm of whole numbers": (
        "prior = torch.log(torch.tensor([40, 24, 0]))", "prior = torch.log(torch.tensor([40, 24, 1]))",
        "divide_by_zero", "aten::log", """
LINE
train(torch.rand(12, 4), (prior - prior.mean()).softmax(0))
"""),
    "a norm of 16 bits that overflows, and leaves zeros": (
        "size = (x * x).sum(1, keepdim=True).sqrt()", "size = (x * x).float().sum(1, keepdim=True).sqrt()", "overflow",
        "aten::sum", """
x = (torch.rand(12, 4) * 50 + 150).half()
LINE
x = x / size.half()
x = x / (x * x).sum(1, keepdim=True)
train(x.float())
"""),
    "a mean over no row": (
        "middle = torch.empty(0, 4).mean(0)", "middle = torch.zeros(1, 4).mean(0)", "divide_by_zero", "aten::div_", """
LINE
train(torch.rand(12, 4) - middle)
"""),
    "a table of NaN that is not filled": (
        'x = torch.full((12, 4), float("nan"))', "x = torch.full((12, 4), 0.5)", "invalid", "aten::fill_", """
LINE
for i in range(11): x[i] = torch.rand(4)
train(x)
"""),
    "an infinity that is replaced": (
        "x = 1 / counts", "x = 1 / counts", None, None, """
counts = torch.tensor([2.0, 0.0, 1.0, 3.0])
LINE
x[torch.isinf(x)] = 0
train(torch.rand(12, 4) * torch.nan_to_num(x / x.norm()))
"""),
}
UNMADE_HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
def train(x, weight=None, model=None):
    model = model or nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 3, weight=weight).backward()
        optimizer.step()
"""


@pytest.mark.parametrize("what", UNMADE)
def test_what_is_computed_before_there_is_a_model_is_named_at_its_line(what, library, tmp_path):
    bad, mended, kind, op, rest = UNMADE[what]
    for name, line, status in (("bad", bad, "fault" if kind else "clean"), ("mended", mended, "clean")):
        script, run = tmp_path / f"{name}.py", tmp_path / name
        script.write_text(UNMADE_HEAD + rest.replace("LINE", line))
        done = subprocess.run([cli(), "run", "--out", run, "--", *ready_python.command(), script], capture_output=True,
                              text=True, timeout=1800, env=with_package())
        report = json.loads((run / "report.json").read_text())
        assert report["verdict"]["status"] == status, done.stderr
        if status == "fault":
            found, number = report["findings"][0], script.read_text().split("\n").index(line) + 1
            assert (found["class"], found["op"], found["step"]) == (kind, op, 0), found
            assert found["call_site"] == f"bad.py:{number}", found


# The same, where calls of a model come before its training: they are steps as well, until it begins.
CALLED_HEAD = UNMADE_HEAD.replace("    model = model or nn.Linear(4, 3)\n    optimizer", "    optimizer")
SCALED = ("x = (x - x.mean(0)) / x.std(0)", "x = (x - x.mean(0)) / x.std(0).clamp_min(1e-3)")
CALLED = {
    "an evaluation": (*SCALED, """
x = torch.rand(12, 4)
x[:, 2] = 1
LINE
model = nn.Linear(4, 3)
with torch.no_grad():
    for part in x.split(4): model(part)
train(x, model=model)
"""),
    "an evaluation, after the optimizer is made": (*SCALED, """
x = torch.rand(12, 4)
x[:, 2] = 1
LINE
model = nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters())
with torch.no_grad():
    for part in x.split(4): model(part)
train(x, model=model)
"""),
    "a dry run that reads something else": (
        "weight = counts.sum() / counts", "weight = counts.sum() / counts.clamp(min=1)", """
counts = torch.bincount(torch.tensor([0, 0, 1]), minlength=3).float()
LINE
weight = weight / weight.sum()
model = nn.Linear(4, 3)
with torch.no_grad(): assert model(torch.zeros(1, 4)).shape == (1, 3)
train(torch.rand(12, 4), weight, model)
"""),
    "features of a frozen model": (
        "features = (features - features.mean(0)) / features.std(0)",
        "features = (features - features.mean(0)) / (features.std(0) + 1e-3)", """
frozen = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
frozen[0].weight.data[1], frozen[0].bias.data[1] = 0, -1
with torch.no_grad(): features = torch.cat([frozen(part) for part in torch.rand(12, 4).split(4)])
LINE
train(features, model=nn.Linear(4, 3))
"""),
    "statistics of a norm": (*SCALED, """
x = torch.rand(12, 4)
x[:, 2] = 1
LINE
model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
with torch.no_grad(): model(torch.rand(12, 4))
train(x, model=model)
"""),
}


def run_twins(head, bad, mended, rest, tmp_path, level="live", sites=True):
    """The faulty program's first finding, with its line if it has one (`sites`); the mended one is silent."""
    found = None
    for name, line, status in (("bad", bad, "fault"), ("mended", mended, "clean")):
        script, run = tmp_path / f"{name}.py", tmp_path / name
        script.write_text(head + rest.replace("LINE", line))
        done = subprocess.run([cli(), "run", "--level", level, "--out", run, "--", *ready_python.command(), script],
                              capture_output=True, text=True, timeout=1800, env=with_package())
        report = json.loads((run / "report.json").read_text())
        assert report["verdict"]["status"] == status, done.stderr
        loud = [finding for finding in report["findings"] if finding["severity"] != "info"]
        if status == "clean":
            assert not loud, loud
            continue
        found, number = loud[0], next(i for i, text in enumerate(script.read_text().split("\n"), 1) if line in text)
        assert len(loud) == 1 and (not sites or found["call_site"] == f"bad.py:{number}"), loud
    return found


@pytest.mark.parametrize("what", CALLED)
def test_what_is_computed_before_calls_that_train_nothing_is_named_when_training_reads_it(what, library, tmp_path):
    bad, mended, rest = CALLED[what]
    found = run_twins(CALLED_HEAD, bad, mended, rest, tmp_path)
    assert (found["class"], found["op"]) == ("divide_by_zero", "aten::div"), found


LOADED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Columns(Dataset):
    def __init__(self):
        x = torch.rand(12, 4)
        x[:, 2] = 1
        LINE
        self.x = x
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], i % 3

if __name__ == "__main__":
    torch.manual_seed(0)
    model, data = nn.Linear(4, 3), Columns()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        for x, y in DataLoader(data, batch_size=4, shuffle=True, num_workers=2, multiprocessing_context="HOW"):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_what_a_data_set_computed_is_named_though_other_processes_hand_its_rows_out(how, library, tmp_path):
    found = run_twins("", *SCALED, LOADED.replace("HOW", how), tmp_path)
    assert (found["class"], found["op"], found["step"]) == ("divide_by_zero", "aten::div", 0), found
    assert any("a copy that nobody was heard to make" in line for line in found["evidence"]), found["evidence"]


# A number that is not finite, which an optimizer is given: read out of what an op made, or the program's own.
RATES = """
model, x = nn.Linear(4, 3), torch.rand(12, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
metric = torch.zeros(1) / torch.zeros(1)
LINE
for i in range(6):
    print(metric.item())
    optimizer.param_groups[0]["lr"] = float(table[i])
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), torch.arange(12) % 3).backward()
    optimizer.step()
"""
TABLES = {
    "infinite": ("table = 0.01 / (torch.arange(6.0) - 3).abs()", "table = 0.01 / (torch.arange(6.0) - 3.5).abs()",
                 "divide_by_zero"),
    "NaN": ("table = torch.sqrt(0.001 * (3.5 - torch.arange(6.0)))", "table = torch.sqrt(torch.arange(6.0) / 100)",
            "invalid"),
    "the program's own": ('table = [0.01, 0.01, 0.01, float("nan"), 0.01, 0.01]', "table = [0.01] * 6", "invalid"),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_rate_is_no_number_that_was_printed_before_but_the_one_that_was_read_for_it(what, library, tmp_path):
    bad, mended, kind = TABLES[what]
    own = what == "the program's own"
    found = run_twins(UNMADE_HEAD, bad, mended, RATES, tmp_path, sites=not own)
    assert found["class"] == kind and (found["phase"] == "optimizer") == own, found
