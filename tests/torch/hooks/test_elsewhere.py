# SPDX-License-Identifier: Apache-2.0
"""Data that another process or another thread of the program made bad: the report says what would have the line named,
and does so by what ran beside the training alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hunting import cli, needs_cli, with_package

pytestmark = needs_cli

PROGRAM = """
import os, queue, sys, threading, torch
from torch.utils.data import DataLoader, Dataset
where, bad = sys.argv[1:]
class Rows(Dataset):
    def __len__(self): return 12
    def __getitem__(self, i):
        x = torch.arange(4.0) + i
        if bad == "1" and i == 7: x = torch.full((4,), 2.0)
        return (x - x.mean()) / x.std()
def given(q):
    for i in range(3): q.put(torch.stack([Rows()[4 * i + j] for j in range(4)]))
    q.put(None)
    here.wait()
def batches():
    if where == "shared":
        rows = torch.stack([torch.arange(4.0) + i for i in range(12)])
        if bad == "1": rows[7, 2] = torch.frombuffer(bytearray(b"\\x00\\x00\\xc0\\x7f"), dtype=torch.float32)[0]
        yield from rows.share_memory_().split(4)
        return
    if where != "thread":
        yield from DataLoader(Rows(), batch_size=4, num_workers=int(where == "worker"))
        return
    q = queue.Queue()
    thread = threading.Thread(target=given, args=(q,))
    thread.start()
    yield from iter(q.get, None)
    here.set()
    thread.join()
here = threading.Event()
def main():
    m = torch.nn.Linear(4, 1)
    o = torch.optim.SGD(m.parameters(), 1e-3)
    for x in batches():
        o.zero_grad()
        m(x).square().mean().backward()
        o.step()
if __name__ == "__main__": main()
"""
LINE = 10


def report(tmp_path, where, bad):
    (tmp_path / "rows.py").write_text(PROGRAM)
    done = subprocess.run(
        [cli(), "run", "--quiet", "--out", tmp_path / "run", "--", sys.executable, "rows.py", where, bad],
        cwd=tmp_path,
        env=with_package(),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    said = subprocess.run([cli(), "report", tmp_path / "run", "--json"], capture_output=True, text=True, timeout=1800)
    return json.loads(said.stdout)


@pytest.mark.parametrize("where, advice", [("worker", "load-in-training"), ("thread", "make-in-training")])
def test_data_made_bad_where_nothing_is_heard_are_advised_to_be_made_where_it_is(tmp_path, where, advice):
    found = report(tmp_path, where, "1")["findings"]
    assert found[0]["class"] == "bad_input" and advice in [one["id"] for one in found[0]["advice"]], found
    assert ("another process" in found[0]["explanation"]) == (where == "worker"), found


def test_that_advice_names_the_line(tmp_path):
    found = report(tmp_path, "here", "1")["findings"]
    assert found[0]["class"] == "divide_by_zero" and found[0]["call_site"] == f"rows.py:{LINE}", found


@pytest.mark.parametrize("where", ["worker", "thread", "here", "shared"])
def test_sound_data_made_anywhere_are_silent(tmp_path, where):
    said = report(tmp_path, where, "0")
    assert said["verdict"]["status"] == "clean" and not said["findings"], said["findings"]
    assert not any("operations of" in line for line in said["coverage"]["unwatched"]), said["coverage"]


def test_memory_that_is_shared_is_no_other_processs_where_there_is_none(tmp_path):
    found = report(tmp_path, "shared", "1")["findings"]
    assert "another process" not in found[0]["explanation"], found
    assert "load-in-training" not in [one["id"] for one in found[0]["advice"]], found
