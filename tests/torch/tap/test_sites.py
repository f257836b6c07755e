# SPDX-License-Identifier: Apache-2.0
"""What the files of the user's code are called where a line is named: the shortest path that tells them apart; cells of
a notebook by their number."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import nanhunt
import pytest
import torch
from nanhunt._tap import sites

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
    for name, shift in (("a", 0), ("b", 1e9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text(MODEL.format(shift=shift))
    (tmp_path / "train.py").write_text(TRAIN.format(imports=imports, loss=loss))
    done = subprocess.run(
        [sys.executable, "train.py", level],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1800,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
    )
    assert done.returncode == 0, done.stderr
    return nanhunt.load(tmp_path / "run").findings[0].call_site


@LEVELS
def test_two_files_of_one_name_are_told_apart_by_their_folders(tmp_path, level):
    assert (
        site(tmp_path, level, "import a.model, b.model", "b.model.make(a.model.make(loss ** 2 + 1))") == "b/model.py:5"
    )


@LEVELS
def test_one_file_of_a_name_needs_no_folder(tmp_path, level):
    assert site(tmp_path, level, "import b.model", "b.model.make(loss)") == "model.py:5"


@pytest.fixture
def known(monkeypatch, tmp_path):
    """Files of modules that are imported, and the working directory."""
    monkeypatch.setattr(sites, "MET", {})
    monkeypatch.setattr(sites, "_HERE", str(tmp_path / "home"))

    def with_modules(*files):
        for i, file in enumerate(files):
            module = types.ModuleType(f"made_up_{i}")
            module.__file__ = file
            monkeypatch.setitem(sys.modules, module.__name__, module)

    return with_modules


def test_names_are_the_shortest_that_tell_apart_and_end_at_the_working_directory(known, tmp_path):
    home = tmp_path / "home"
    known(f"{home}/x/net/model.py", f"{home}/y/net/model.py", f"{home}/model.py", "/lib/z/model.py", f"{home}/train.py")
    assert sites.file_name(f"{home}/x/net/model.py") == "x/net/model.py"
    assert sites.file_name(f"{home}/y/net/model.py") == "y/net/model.py"
    assert sites.file_name(f"{home}/model.py") == "model.py"
    assert sites.file_name("/lib/z/model.py") == "z/model.py"
    assert sites.file_name("train.py") == sites.file_name(f"{home}/train.py") == "train.py"
    assert sites.file_name("<string>") == "<string>"
    assert sites.file_name(torch.__file__) == "" == sites.file_name(sites.__file__)


def test_a_file_that_is_met_later_is_told_from_one_that_was_met_before(known):
    assert sites.file_name("/a/b/model.py") == "model.py"
    assert sites.file_name("/a/c/model.py") == "c/model.py"
    assert sites.file_name("/a/b/model.py") == "model.py"


def test_cells_of_a_notebook_are_called_by_their_number(known, monkeypatch):
    assert sites.file_name("<ipython-input-12-0123abcd>") == "In[12]"
    cells = {"/tmp/ipykernel_7/12345.py": 3}
    compiler = types.SimpleNamespace(
        format_code_name=lambda name: ("Cell", f"In[{cells[name]}]") if name in cells else None
    )
    made_up = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(compile=compiler))
    monkeypatch.setitem(sys.modules, "IPython", made_up)
    assert sites.file_name("/tmp/ipykernel_7/12345.py") == "In[3]"
    cells["/tmp/ipykernel_7/12345.py"] = 8  # the same text again
    assert sites.file_name("/tmp/ipykernel_7/12345.py") == "In[8]"
    assert sites.file_name("/tmp/train.py") == "train.py"


@LEVELS
def test_the_line_of_a_cell_is_named_in_the_report(tmp_path, level):
    code = (
        TRAIN.format(imports="", loss="torch.log(loss - 1e9)")
        .replace('out="run"', "out=OUT")
        .replace("sys.argv[1]", "LEVEL")
    )
    exec(compile(code, "<ipython-input-4-abc>", "exec"), {"OUT": tmp_path / "run", "LEVEL": level})
    assert nanhunt.load(tmp_path / "run").findings[0].call_site == "In[4]:10"
