# SPDX-License-Identifier: Apache-2.0
"""What the files of the user's code are called where a line is named: the shortest path that tells them apart; cells of
a notebook by their number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nanhunt
import pytest

pytestmark = pytest.mark.usefixtures("library", "no_watch_left")
LEVELS = pytest.mark.parametrize("level", ["ops", "live"])
PACKAGE = Path(__file__).resolve().parents[3] / "hooks" / "torch"
MODEL = "import torch\n\n\ndef make(x):\n    return torch.log(x - {shift})\n"
TRAIN = """
import sys, torch, nanhunt
{imports}
p = torch.nn.Linear(2, 1)
o = torch.optim.SGD(p.parameters(), lr=0.1)
with nanhunt.watch(p, o, out="run", level=sys.argv[1], quiet=True):
    for _ in range(3):
        o.zero_grad()
        loss = p(torch.ones(2)).sum()
        loss = {loss}
        loss.backward()
        o.step()
"""


def site(tmp_path, level, imports, loss):
    """The call site of the finding, of a program in a folder with a/model.py and b/model.py."""
    return findings(tmp_path, level, imports, loss)[0].call_site


def findings(tmp_path, level, imports, loss):
    for name, shift in (("a", 0), ("b", 1e9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(MODEL.format(shift=shift))
    return findings_of(tmp_path, level, TRAIN.format(imports=imports, loss=loss))


def findings_of(tmp_path, level, program):
    (tmp_path / "train.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "train.py", level],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1800,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
    )
    assert done.returncode == 0, done.stderr
    return nanhunt.load(tmp_path / "run").findings


@LEVELS
def test_two_files_of_one_name_are_told_apart_by_their_folders(tmp_path, level):
    assert (
        site(tmp_path, level, "import a.model, b.model", "b.model.make(a.model.make(loss ** 2 + 1))") == "b/model.py:5"
    )


@LEVELS
def test_one_file_of_a_name_needs_no_folder(tmp_path, level):
    assert site(tmp_path, level, "import b.model", "b.model.make(loss)") == "model.py:5"


SEVERAL = """
import importlib.util, sys, types, torch, nanhunt
def at(path, is_module=True):
    spec = importlib.util.spec_from_file_location("made_up_" + path.replace("/", "_"), path)
    module = importlib.util.module_from_spec(spec)
    if is_module: sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.make
def run(filename):
    exec(compile("x = torch.log(x)", filename, "exec"), {"torch": torch, "x": torch.ones(2)})
"""


def call_sites(tmp_path, body, files):
    """Where the logarithms of a program stand, that has such files beside its working directory."""
    from saved import records_of

    home = tmp_path / "home"
    for file in files:
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(MODEL.format(shift=0))
    lines = [f"    {line}\n" for line in body.splitlines()]
    (home / "train.py").write_text(SEVERAL + "with nanhunt.watch(out='../run', level='ops', quiet=True):\n"
                                   "    torch.nn.Linear(2, 1)(torch.ones(1, 2))\n" + "".join(lines))
    done = subprocess.run([sys.executable, "train.py"], cwd=home, capture_output=True, text=True, timeout=1800,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE)})
    assert done.returncode == 0, done.stderr
    return [row["call_site"].rpartition(":")[0] for row in records_of(tmp_path / "run", "ops")
            if row["op"] == "aten::log"]


def test_names_are_the_shortest_that_tell_apart_and_end_at_the_working_directory(tmp_path, library):
    files = ["x/net/model.py", "y/net/model.py", "model.py", "../lib/z/model.py"]
    body = f"""all = [at(file) for file in {files}]
for make in all: make(torch.ones(2))
torch.ones(2).log()
run("<string>")"""
    assert call_sites(tmp_path, body, files) == ["x/net/model.py", "y/net/model.py", "model.py", "z/model.py",
                                                 "train.py", "<string>"]


def test_a_file_that_is_met_later_is_told_from_one_that_was_met_before(tmp_path, library):
    body = """first = at("b/model.py", False)
first(torch.ones(2))
at("c/model.py", False)(torch.ones(2))
first(torch.ones(2))"""
    assert call_sites(tmp_path, body, ["b/model.py", "c/model.py"]) == ["model.py", "c/model.py", "model.py"]


def test_cells_of_a_notebook_are_called_by_their_number(tmp_path, library):
    body = """run("<ipython-input-12-0123abcd>")
cells = {"/tmp/ipykernel_7/12345.py": 3}
name_of = lambda name: ("Cell", f"In[{cells[name]}]") if name in cells else None
made_up = types.SimpleNamespace(compile=types.SimpleNamespace(format_code_name=name_of))
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: made_up)
run("/tmp/ipykernel_7/12345.py")
cells["/tmp/ipykernel_7/12345.py"] = 8  # the same text again
run("/tmp/ipykernel_7/12345.py")
run("/tmp/other.py")"""
    assert call_sites(tmp_path, body, ["model.py"]) == ["In[12]", "In[3]", "In[8]", "other.py"]


@LEVELS
def test_the_line_of_a_cell_is_named_in_the_report(tmp_path, level):
    code = (
        TRAIN.format(imports="", loss="torch.log(loss - 1e9)")
        .replace('out="run"', "out=OUT")
        .replace("sys.argv[1]", "LEVEL")
    )
    exec(compile(code, "<ipython-input-4-abc>", "exec"), {"OUT": tmp_path / "run", "LEVEL": level})
    found = nanhunt.load(tmp_path / "run").data["findings"][0]
    assert found["call_site"] == "In[4]:10" and found["frames"][0]["file"] == "In[4]"


TRACED = {
    "aot_eager": ("torch.compile(a.model.make, backend='aot_eager')", "model.py:5"),
    "eager": ("torch.compile(a.model.make, backend='eager')", "model.py:5"),
    "export": ("torch.export.export(Whole(), (torch.ones(()),)).module()", "train.py:7"),  # remembers no function below
}
WHOLE = """
import a.model
class Whole(torch.nn.Module):
    def forward(self, x):
        return a.model.make(x)
make = {}
"""


@LEVELS
@pytest.mark.parametrize("kind", TRACED)
def test_code_that_was_traced_is_named_by_the_line_that_it_was_traced_from(tmp_path, level, kind):
    make, line = TRACED[kind]
    assert site(tmp_path, level, WHOLE.format(make), "make(loss * 0)") == line


@pytest.mark.parametrize("kind", TRACED)
def test_traced_code_that_is_sound_is_silent(tmp_path, kind):
    assert not findings(tmp_path, "live", WHOLE.format(TRACED[kind][0]), "make(loss ** 2 + 1)")


DEEP = """
import os
sys.path.insert(0, os.path.abspath("lib/site-packages"))
import deep
"""


@LEVELS
def test_a_line_far_below_the_programs_own_in_a_package_is_named_by_that(tmp_path, level):
    package = tmp_path / "lib" / "site-packages"
    package.mkdir(parents=True)
    (package / "deep.py").write_text(
        "import torch\n\n\ndef make(x, n):\n    return make(x, n - 1) if n else torch.log(x)\n"
    )
    assert site(tmp_path, level, DEEP, "deep.make(loss * 0, 20)") == "train.py:14"


CALLERS = """
def length(v):
    return torch.sqrt(v)
def far(v):
    return length(v + 1)
def near(v):
    return length(v * 0)
"""


@LEVELS
@pytest.mark.parametrize(
    "loss, callers",
    [("far(loss ** 2) + near(loss ** 2)", []), ("near(loss ** 2)", ["near", "<module>"])],
    ids=["two callers", "one caller"],
)
def test_a_backward_has_the_callers_that_all_calls_of_its_line_have_in_common(tmp_path, level, loss, callers):
    found = findings(tmp_path, level, CALLERS, loss)[0].raw
    assert (found["phase"], found["call_site"]) == ("backward", "train.py:5"), found
    assert [frame["function"] for frame in found["frames"]] == ["length", *callers]


ALONE = """
import sys, torch, nanhunt
w = torch.nn.Parameter(torch.ones(3))
o = torch.optim.SGD([w], lr=0.1)
with nanhunt.watch(out="run", level=sys.argv[1], quiet=True):
    for _ in range(3):
        o.zero_grad()
        loss = torch.log(w - 1).sum()
        loss.backward()
        o.step()
"""


@LEVELS
def test_what_is_computed_of_parameters_where_no_model_is_called_is_part_of_the_loss(tmp_path, level):
    found = findings_of(tmp_path, level, ALONE)[0].raw
    assert (found["op"], found["phase"], found["call_site"]) == ("aten::log", "loss", "train.py:8"), found
