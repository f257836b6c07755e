# SPDX-License-Identifier: Apache-2.0
"""A slice of the campaign on a fixed seed. `campaign.py` runs more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytestmark = pytest.mark.usefixtures("library")
SEED = 3
NAMES = ("0 times -Inf", "everything hidden in a layer", "own unscaling", "gradient surgery", "break", "static",
         "only skips", "one of a group", "a term of the weights", "restores", "softmax by hand")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_fault_is_named_at_ops_and_nothing_is_said_of_its_twin(name, tmp_path):
    from kinds import all_faults
    from runner import judge_fault

    # Given a draw whose fault did harm, by its twin and not by what nanhunt says
    whole = next(one for one in all_faults() if one[1] == name)
    result = judge_fault(whole, f"{SEED} {name}", ["default", "ops"], tmp_path)
    assert result.place is not None, result.redrawn
    # then it is named, and the twin has no fault
    assert all(all(right) for right in result.right.values()), (result.settings, result.place, result.answers)
    assert not any(result.healthy.values()), result.healthy


def test_another_place_or_class_is_not_right():
    from score import Answer, Place, origin_right

    place = Place(3, ("clip",), None, "aten::div")
    assert origin_right(place, Answer("overflow", 3, "clip", "a.b", "aten::div"))
    said = [(4, "clip", "aten::div"), (3, "loss", "aten::div"), (3, "clip", "aten::mul")]
    wrong = [Answer(), *(Answer("overflow", step, phase, None, op) for step, phase, op in said)]
    assert not any(origin_right(place, answer) for answer in wrong)
