# SPDX-License-Identifier: Apache-2.0
"""A report has the program's code, versions and commit as they were in the run, though the files are gone."""
from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from hunting import hunt
from nanhunt._program import packages, state_of
from nanhunt._tap.source import lines_around

PROGRAM = '''
import torch
from model import Net

def step(net, x):
    return net(x).sum()

torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = step(net, torch.randn(4, 8))
    loss.backward()
    optimizer.step()
'''
MODEL = '''
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        q = self.q(x)
        return q / (self.k(x) * 0)  # bad
'''


def program(folder):
    (folder / "train.py").write_text(PROGRAM)
    (folder / "model.py").write_text(MODEL)
    return folder / "train.py"


@pytest.mark.parametrize("level", ["live", "ops"])
def test_the_line_its_neighbours_and_its_callers_are_in_the_report(tmp_path, level):
    script = program(tmp_path)
    run = hunt(tmp_path / "run", level, script)
    found = run.headline
    assert found["call_site"].endswith("model.py:11"), run.told()
    frames = found["frames"][:3]  # what forked this process for the test comes behind them
    assert [(f["file"], f["line"]) for f in frames] == [
        (str(tmp_path / "model.py"), 11), (str(script), 6), (str(script), 13)]
    assert frames[0]["function"].endswith("forward")
    assert frames[0]["code"][11 - frames[0]["first_line"]] == "        return q / (self.k(x) * 0)  # bad"
    assert found["module_class"] == "Net"
    assert "(return q / (self.k(x) * 0)  # bad)" in run.report["verdict"]["change"]
    assert {p["name"] for p in run.report["run"]["ranks"][0]["packages"]} >= {"torch"}


def test_source_lines_stay_out_of_the_trace_where_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("NANHUNT_SOURCE", "0")
    frames = hunt(tmp_path / "run", "ops", program(tmp_path)).headline["frames"]
    assert len(frames) >= 3 and all(not f["code"] for f in frames)


def test_lines_are_read_where_they_can_be_had(tmp_path):
    file = tmp_path / "a.py"
    file.write_bytes(b"".join(b"line %d \xff\r\n" % n for n in range(1, 21)))
    first, text = lines_around(str(file), 2)
    assert first == 1 and text.splitlines()[1] == "line 2 \ufffd" and len(text.splitlines()) == 6
    for missing in (str(tmp_path), "<string>", str(tmp_path / "none.py")):
        assert lines_around(missing, 1) == (0, "")
    assert lines_around(str(file), 21) == lines_around(str(file), 0) == (0, "")


def git(folder, *arguments):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True,
                   capture_output=True, env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull})


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "inner" / "a.py").write_text("a\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def test_a_commit_and_its_tree_are_read_from_a_folder_inside(repository):
    commit, tree = state_of(repository / "inner")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True)
    assert (commit, tree) == (head.stdout.strip(), "clean")
    (repository / "new.py").write_text("not tracked\n")
    os.utime(repository / "inner" / "a.py", (1, 1))  # touched, not changed
    assert state_of(repository) == (commit, "clean")
    git(repository, "pack-refs", "--all")
    git(repository, "gc", "-q")
    assert state_of(repository) == (commit, "clean")


def test_what_changed_staged_or_not_or_is_gone_shows(repository):
    (repository / "inner" / "a.py").write_text("b\n")
    assert state_of(repository)[1] == "changed"
    git(repository, "add", ".")
    assert state_of(repository)[1] == "changed"
    git(repository, "commit", "-qm", "two")
    assert state_of(repository)[1] == "clean"
    (repository / "inner" / "a.py").unlink()
    assert state_of(repository)[1] == "changed"


def test_a_worktree_has_its_own_commit(repository, tmp_path):
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    assert state_of(tmp_path / "other") == state_of(repository)


@pytest.mark.parametrize("damage", [b"", b"DIRC\0\0\0\2\0\0\0\t", b"DIRC\0\0\0\4\0\0\0\0" + bytes(20), b"x" * 99])
def test_an_index_that_cannot_be_read_leaves_the_tree_unknown(repository, damage):
    (repository / ".git" / "index").write_bytes(damage)
    commit, tree = state_of(repository)
    assert commit and tree == ""


def test_reading_a_repository_changes_nothing_in_it(repository):
    hook = repository / ".git" / "hooks" / "fsmonitor"
    hook.write_text("#!/bin/sh\ntouch ../ran\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", ".git/hooks/fsmonitor")
    before = {p: p.stat().st_mtime_ns for p in repository.rglob("*")}
    state_of(repository)
    assert {p: p.stat().st_mtime_ns for p in repository.rglob("*")} == before


def test_outside_of_a_repository_nothing_is_known(tmp_path):
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert state_of(tmp_path / "inner") == ("", "")


def test_versions_are_those_of_imported_packages_without_pythons_own():
    import torch

    found = packages()
    assert found["torch"] == torch.__version__ and next(iter(found)) == "torch"
    assert "json" not in found and "re" not in found


def test_a_module_that_does_things_when_it_is_asked_is_not_asked(tmp_path, monkeypatch):
    class Lazy:
        def __getattr__(self, name):
            raise AssertionError(textwrap.dedent(name))

    monkeypatch.setitem(sys.modules, "lazy_thing", Lazy())
    assert "lazy_thing" not in packages()
