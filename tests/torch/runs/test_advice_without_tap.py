# SPDX-License-Identifier: Apache-2.0
"""Without a tap no place proposes level ops, where no operation would be heard either, and each says how to get one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hunting import cli

pytest.importorskip("torch")

PACKAGE = Path(__file__).resolve().parents[3] / "hooks" / "torch"
PROPOSED = ("--level ops", "evel ops sees", "Level ops")
REASON = "there is no C++ compiler to build the part with that hears operations: install g++"
TRAIN = """
import sys
import torch
m = torch.nn.Linear(2, 1)
o = torch.optim.SGD(m.parameters(), lr=0.1)
for _ in range(2):
    o.zero_grad()
    (m(torch.ones(2)) / float(sys.argv[1])).sum().backward()
    o.step()
"""
LEVELS = pytest.mark.parametrize("level", ["live", "ops"])


def without_compiler(tmp_path):
    return {"NANHUNT_CACHE": str(tmp_path / "cache"), "PATH": str(tmp_path), "CXX": ""}


def done(command, **environment):
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1800,
                           env={**os.environ, "PYTHONPATH": str(PACKAGE), **environment})
    assert ended.returncode in (0, 1), ended.stderr
    return ended


def reported(tmp_path, divisor, options, **environment):
    """What `watch.report()` says, as text, as JSON and as a page."""
    head = f"import torch, nanhunt\nwith nanhunt.watch(out={str(tmp_path / 'run')!r}, {options}) as watch:\n"
    tail = "import json\nprint(json.dumps([watch.report(kind) for kind in ('text', 'json', 'html')]))\n"
    code = head + "".join(f"    {line}\n" for line in TRAIN.splitlines()) + tail
    ended = done([sys.executable, "-c", code, divisor], **environment)
    return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


def advice_of(report):
    return [advice["id"] for finding in json.loads(report)["findings"] for advice in finding["advice"]]


@LEVELS
def test_reports_say_how_to_get_the_tap(tmp_path, library, level):
    (text, as_json, page), errors = reported(tmp_path, "0", f"level={level!r}", **without_compiler(tmp_path))
    assert advice_of(as_json) == ["get-tap"]
    for words in (" ".join(text.split()), as_json, page, errors):
        assert not [proposed for proposed in PROPOSED if proposed in words], words
        assert REASON in words
    assert "Cure Get the tap, which hears the operations of PyTorch" in " ".join(text.split())


@LEVELS
def test_a_healthy_run_without_a_tap_is_clean_and_told_nothing_of_levels(tmp_path, library, level):
    (text, as_json, page), _ = reported(tmp_path, "2", f"level={level!r}", **without_compiler(tmp_path))
    assert json.loads(as_json)["verdict"]["status"] == "clean" and not advice_of(as_json)
    for words in (" ".join(text.split()), as_json, page):
        assert not [proposed for proposed in PROPOSED if proposed in words], words


def test_with_a_tap_it_is_level_ops_that_helps_a_run_without_operations(tmp_path, library):
    (text, as_json, _), _ = reported(tmp_path, "0", "budget=0")
    assert advice_of(as_json) == ["record-ops"] and "--level ops" in text
    (_, as_json, _), _ = reported(tmp_path / "ops", "0", "level='ops'")
    assert json.loads(as_json)["findings"][0]["op"] == "aten::div" and "get-tap" not in advice_of(as_json)


@LEVELS
def test_the_command_line_says_how_to_get_the_tap(tmp_path, library, level):
    program, run, script = cli(), str(tmp_path / "run"), tmp_path / "train.py"
    script.write_text(TRAIN)
    environment = without_compiler(tmp_path)
    train = ["--", sys.executable, str(script), "0"]
    ended = done([program, "run", "--level", level, "--out", run, *train], **environment)
    said = [ended.stderr]
    for verb in (["report"], ["report", "--json"], ["report", "--markdown"], ["advise"], ["advise", "--json"]):
        said.append(done([program, *verb, run], **environment).stdout)
    for words in said:
        assert not [proposed for proposed in PROPOSED if proposed in words], words
        assert REASON in " ".join(words.split()), words
    assert "try: Get the tap" in ended.stderr
    assert [change["id"] for change in json.loads(said[-1])["changes"]] == ["get-tap"]
