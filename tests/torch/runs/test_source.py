# SPDX-License-Identifier: Apache-2.0
"""A report has the program's code, versions and commit as they were in the run, though the files are gone."""
from __future__ import annotations

import os
import subprocess
import sys

import nanhunt
import pytest
import torch
from hunting import hunt

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


def watched(folder, code=None):
    """A step of which code is a part, in a process that goes on."""
    model = torch.nn.Linear(2, 1)
    with nanhunt.watch(out=folder, level="ops", quiet=True) as watch:
        loss = model(torch.ones(1, 2)).sum()
        if code is not None:
            exec(code, names := {"torch": torch})
            loss = loss + names["x"].sum()
        loss.backward()
    return nanhunt.load(watch.path)


def test_lines_are_read_where_they_can_be_had(tmp_path, library):
    file = tmp_path / "a.py"
    file.write_bytes(b"".join(b"line %d \xff\r\n" % n for n in range(1, 21)))

    def lines_around(number, name, line):
        code = compile("\n" * (line - 1) + "x = torch.log(torch.zeros(2))", name, "exec")
        frame = watched(tmp_path / f"run {number}", code).findings[0].raw["frames"][0]
        assert frame["line"] == line, frame
        return frame["first_line"], frame["code"]

    long = tmp_path / "long.py"
    long.write_text("f(" + "a, " * 80 + ")\nx\n" + "b" * 240 + "\n")
    _, text = lines_around(5, str(long), 2)
    assert [len(line) for line in text] == [241, 1, 240] and text[0].endswith("…")  # which says that it was cut

    first, text = lines_around(0, str(file), 2)
    assert first == 1 and text[1] == "line 2 \ufffd" and len(text) == 6
    for number, missing in enumerate((str(tmp_path), "<string>", str(tmp_path / "none.py")), 1):
        assert lines_around(number, missing, 1)[1] == []
    assert lines_around(4, str(file), 21)[1] == []


def git(folder, *arguments):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True,
                   capture_output=True, env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull})


@pytest.fixture
def state_of(monkeypatch, tmp_path, library):
    """Commit, and state of the tree, as they are recorded of a program in a folder."""
    count = iter(range(9))

    def found(folder):
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(folder / "train.py"), raising=False)
        (rank,) = watched(tmp_path / f"run {next(count)}").data["run"]["ranks"]
        return rank["commit"], rank["tree"]

    return found


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "inner" / "a.py").write_text("a\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def test_a_commit_and_its_tree_are_read_from_a_folder_inside(repository, state_of):
    commit, tree = state_of(repository / "inner")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True)
    assert (commit, tree) == (head.stdout.strip(), "clean")
    (repository / "new.py").write_text("not tracked\n")
    os.utime(repository / "inner" / "a.py", (1, 1))  # touched, not changed
    assert state_of(repository) == (commit, "clean")
    git(repository, "pack-refs", "--all")
    git(repository, "gc", "-q")
    assert state_of(repository) == (commit, "clean")


def test_what_changed_staged_or_not_or_is_gone_shows(repository, state_of):
    (repository / "inner" / "a.py").write_text("b\n")
    assert state_of(repository)[1] == "changed"
    git(repository, "add", ".")
    assert state_of(repository)[1] == "changed"
    git(repository, "commit", "-qm", "two")
    assert state_of(repository)[1] == "clean"
    (repository / "inner" / "a.py").unlink()
    assert state_of(repository)[1] == "changed"


def test_a_worktree_has_its_own_commit(repository, tmp_path, state_of):
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    assert state_of(tmp_path / "other") == state_of(repository)


@pytest.mark.parametrize("damage", [b"", b"DIRC\0\0\0\2\0\0\0\t", b"DIRC\0\0\0\4\0\0\0\0" + bytes(20), b"x" * 99])
def test_an_index_that_cannot_be_read_leaves_the_tree_unknown(repository, damage, state_of):
    (repository / ".git" / "index").write_bytes(damage)
    commit, tree = state_of(repository)
    assert commit and tree is None


def test_reading_a_repository_changes_nothing_in_it(repository, state_of):
    hook = repository / ".git" / "hooks" / "fsmonitor"
    hook.write_text("#!/bin/sh\ntouch ../ran\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", ".git/hooks/fsmonitor")
    before = {p: p.stat().st_mtime_ns for p in repository.rglob("*")}
    state_of(repository)
    assert {p: p.stat().st_mtime_ns for p in repository.rglob("*")} == before


def test_outside_of_a_repository_nothing_is_known(tmp_path, state_of):
    (tmp_path / ".git").write_text("gitdir: nowhere")
    (tmp_path / "inner").mkdir()
    assert state_of(tmp_path / "inner") == (None, None)


def packages(folder):
    (rank,) = watched(folder).data["run"]["ranks"]
    return {package["name"]: package["value"] for package in rank["packages"]}


def test_versions_are_those_of_imported_packages_without_pythons_own(tmp_path, library):
    found = packages(tmp_path / "run")
    assert found["torch"] == torch.__version__ and next(iter(found)) == "torch"
    assert "json" not in found and "re" not in found


def test_a_module_that_does_things_when_it_is_asked_is_not_asked(tmp_path, monkeypatch, library):
    class Lazy:
        asked = []

        def __getattr__(self, name):
            Lazy.asked.append(name)
            raise AssertionError(name)

    monkeypatch.setitem(sys.modules, "lazy_thing", Lazy())
    Lazy.asked.clear()
    assert "lazy_thing" not in packages(tmp_path / "run")
    assert "__version__" not in Lazy.asked
