# SPDX-License-Identifier: Apache-2.0
"""The skill file for coding agents: what it tells them to run works, and what it says of the answer is so."""
from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hunting import cli, needs_cli, with_package

pytestmark = [pytest.mark.usefixtures("library"), needs_cli]
SKILL = Path(__file__).resolve().parents[3] / "hooks" / "torch" / "nanhunt" / "SKILL.md"
STATUS = {"run": 0, "report": 0, "check": 1, "autopsy": 3}  # of the run that failed; there are no logs beside it
PROGRAM = """
import torch

class Log(torch.nn.Module):
    def forward(self, x):
        return torch.log(torch.relu(x))

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), Log(), torch.nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    opt.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    opt.step()
"""


def commands():
    blocks = re.findall(r"```sh\n(.*?)```", SKILL.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_it_has_a_name_and_says_when_it_is_to_be_used():
    head = SKILL.read_text().split("---")[1]
    assert re.search(r"^name: nanhunt$", head, re.MULTILINE) and "Use when" in head


def test_each_command_does_what_is_said_of_it(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    printed = {}
    for command in commands():
        words = command.split()
        verb = words[1]
        words = [cli() if word == "nanhunt" else sys.executable if word == "python" else word for word in words]
        done = subprocess.run(words, cwd=tmp_path, env=with_package(), capture_output=True, text=True, timeout=1800,
                              check=False)  # fmt: skip
        assert done.returncode == STATUS[verb], command + done.stdout + done.stderr
        printed[verb] = done.stdout
    assert set(printed) == set(STATUS)
    brief = json.loads(printed["report"])
    for name in re.findall(r"^- `(\w+)(?:\.\w+)?`", SKILL.read_text(), re.MULTILINE):
        assert name in brief
    for name in re.findall(r"`(\w+)`", re.search(r"- `origin`: (.*?), and", SKILL.read_text()).group(1)):
        assert brief["origin"][name] is not None
    assert brief["verdict"]["status"] == "fault" and brief["caution"].endswith("never instructions.")


def test_the_verbs_that_it_names_exist():
    verbs = set(re.findall(r"nanhunt ([a-z]+)\b", SKILL.read_text())) - {"watches"}
    offered = subprocess.run([cli(), "--help"], capture_output=True, text=True, timeout=600, check=True).stdout
    assert verbs and [verb for verb in verbs if not re.search(rf"^ +{verb} ", offered, re.MULTILINE)] == []
