# SPDX-License-Identifier: Apache-2.0
"""By which number a program multiplied its loss last, read from the graph."""

from __future__ import annotations

import pytest
import torch
from listening import needs_saved_shown
from nanhunt._hooks.scaler import factor_of

pytestmark = needs_saved_shown


def loss() -> torch.Tensor:
    weight = torch.tensor([0.5, 2.0], requires_grad=True)
    return (weight * weight).sum()


FACTORS = {
    "a number of Python": lambda: loss() * 1024.0,
    "from the left": lambda: 1024.0 * loss(),
    "a tensor": lambda: loss() * torch.tensor(1024.0),
    "a tensor from the left": lambda: torch.tensor(1024.0) * loss(),
    "an integer": lambda: loss() * torch.tensor(1024),
    "divided by its inverse": lambda: loss() / 2**-10,
    "cast afterwards": lambda: (loss() * 1024.0).double(),
    "after a weight": lambda: loss() * 0.1 * 1024.0,
    "averaged afterwards": lambda: (loss() * 1024.0) / 4,
    "in fp16": lambda: loss().half() * torch.tensor(1024.0, dtype=torch.float16),
}


@pytest.mark.parametrize("name", FACTORS)
def test_the_last_factor_of_a_loss_is_read(name):
    assert factor_of(FACTORS[name]()) == 1024.0


def test_what_a_backward_begins_with_is_a_factor_and_one_is_none():
    assert factor_of(loss(), torch.tensor(1024.0)) == 1024.0
    assert factor_of(loss() * 1024.0, torch.tensor(1.0)) == 1024.0
    assert factor_of(loss(), torch.tensor(1.0)) == 1.0
    assert factor_of(loss() / 4) == 0.25


NONE = {
    "multiplied by nothing": loss,
    "by what learns": lambda: loss() * torch.tensor(1024.0, requires_grad=True),
    "by itself": lambda: torch.mul(*[loss()] * 2),
    "by many": lambda: (loss() * torch.ones(3)).sum(),
    "divided by it": lambda: torch.tensor(1024.0) / loss(),
    "of no graph": lambda: loss().detach() * 1024.0,
}


@pytest.mark.parametrize("name", NONE)
def test_a_loss_without_such_a_factor_has_none(name):
    assert factor_of(NONE[name]()) is None


def test_hooks_on_what_is_saved_are_not_called_and_backward_is_as_before():
    called = []

    def unpack(t):
        called.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        scaled = loss() * torch.tensor(1024.0)
    assert factor_of(scaled) is None and not called
    scaled.backward()
    assert called


def test_a_graph_that_is_gone_has_none():
    scaled = loss() * 1024.0
    scaled.backward()
    assert factor_of(scaled) is None
