# SPDX-License-Identifier: Apache-2.0
"""What needs no failure to be wrong is told at the first step, by default as well, and not of its repaired twin."""
from __future__ import annotations

from pathlib import Path

import pytest
from hunting import Ahead

SCRIPT = Path(__file__).with_name("audited.py")
LEVELS = ("live", "ops")
# Of each kind: the title's beginning, its severity, whether a line of the script is named.
KINDS = {
    "unscaled": ("The model runs under autocast to fp16 without a loss scaler", "warning", True),
    "bf16_scaler": ("A dynamic loss scaler is used with bf16", "info", True),
    "inside": ("backward() is called while autocast to bf16 is on", "info", True),
    "narrow": ("The model was converted to fp16 and runs under autocast as well", "warning", False),
    "half_result": ("A result is cast to fp16 by hand under autocast", "info", True),
    "foreign": ("SGD holds other parameters than the model: training stands still", "fault", True),
    "targets": ("The loss compares fp32 with targets in fp64", "info", True),
    "softmax": ("The logarithm of a softmax is taken in fp16", "warning", True),
    "log_softmax": ("log_softmax is taken in fp16", "info", True),
    "eps": ("eps 1e-8 is 0 in fp16", "fault", True),
}
# Their repaired twins, several in one run: which scaler and which format go together is told of a run.
SCALED = ("unscaled", "narrow", "half_result")
TWINS = (",".join(SCALED), ",".join(kind for kind in (*KINDS, "own_scale") if kind not in SCALED))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    ahead = Ahead()
    folder = tmp_path_factory.mktemp("audits")
    for level in LEVELS:
        for kind in KINDS:
            ahead.start((level, kind), folder / f"{level}-{kind}", level, SCRIPT, kind)
        for twins in TWINS:
            ahead.start((level, twins), folder / f"{level}-{twins}", level, SCRIPT, twins, "--fixed")
    yield ahead
    ahead.close()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_mistake_is_told_with_its_line(runs, kind, level):
    title, severity, has_line = KINDS[kind]
    run = runs.result((level, kind))
    found = [f for f in run.report["findings"] if f["title"].startswith(title)]
    assert len(found) == 1, run.told()
    assert found[0]["severity"] == severity
    assert found[0]["advice"], "no advice"
    if has_line:
        assert found[0]["call_site"].startswith("audited.py:"), found[0]["call_site"]
        assert found[0]["frames"][0]["file"] == str(SCRIPT)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("twins", TWINS)
def test_repaired_twins_are_clean(runs, twins, level):
    run = runs.result((level, twins))
    assert run.verdict == "clean" and not run.report["findings"], run.told()
