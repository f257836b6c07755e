# SPDX-License-Identifier: Apache-2.0
"""A slice of the zoo: families of each kind, in one precision each. `zoo.py` runs all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "neutral")]

pytestmark = pytest.mark.usefixtures("library")
SLICE = {"resnet": "fp16", "lstm": "fp32", "diffusion u-net": "bf16", "gan": "fp16", "dpo": "fp32",
         "graph network": "bf16", "llama": "fp16", "bert": "bf16", "t5": "fp32", "vit": "fp16"}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread_and_nothing_compiled():
    import torch
    import torch._dynamo.utils as dynamo

    dynamo.counters.clear()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("level", ["default", "ops"])
@pytest.mark.parametrize("family", SLICE)
def test_a_family_is_silent_when_healthy_the_same_to_the_bit_and_its_planted_overflow_is_named(family, level):
    zoo = pytest.importorskip("zoo", reason="a package of the zoo is not installed")
    if family in zoo.hf_models.FAMILIES:
        pytest.importorskip("transformers", reason="transformers is not installed")
    assert zoo.judge(family, SLICE[family], level) == {}


def test_a_plant_that_does_not_overflow_is_not_taken_for_one_that_was_named():
    # Given a healthy run, when it is asked for the module of a plant, then none is named: the check can fail.
    zoo = pytest.importorskip("zoo")
    healthy = zoo.watched("vgg", "fp32", "ops")
    assert not zoo.is_named(healthy.report, zoo.choose("vgg", "fp32", 0).module)
