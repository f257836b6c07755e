# SPDX-License-Identifier: Apache-2.0
"""By which number a program multiplied its loss last, read from the graph."""

from __future__ import annotations

import contextlib

import pytest
import torch
from listening import needs_saved_shown
from scaler_rows import watched_scalers

pytestmark = [needs_saved_shown, pytest.mark.usefixtures("library")]
WEIGHT = torch.tensor([0.5, 2.0], requires_grad=True)


def loss() -> torch.Tensor:
    return (WEIGHT * WEIGHT).sum()


def scale_of(make, gradient=None, how=contextlib.nullcontext) -> float:
    """What is recorded as the scale of a step whose loss is made so. What is no scale is 1."""
    with watched_scalers() as seen:
        optimizer = torch.optim.SGD([WEIGHT], lr=0.0)
        with how():
            scaled = make()
        scaled.backward(gradient)
        optimizer.step()
    (step,) = seen.steps
    return step["scale"]


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
    assert scale_of(FACTORS[name]) == 1024.0


def test_what_a_backward_begins_with_is_a_factor_and_one_is_none():
    assert scale_of(loss, torch.tensor(1024.0)) == 1024.0
    assert scale_of(lambda: loss() * 1024.0, torch.tensor(1.0)) == 1024.0
    assert scale_of(loss, torch.tensor(1.0)) == 1.0
    assert scale_of(lambda: loss() / 4) == 1.0, "of micro-batches"


NONE = {
    "multiplied by nothing": loss,
    "by what learns": lambda: loss() * torch.tensor(1024.0, requires_grad=True),
    "by itself": lambda: torch.mul(*[loss() + 1000.0] * 2),
    "by many": lambda: (loss() * torch.full((3,), 1024.0)).sum(),
    "divided by it": lambda: torch.tensor(1024.0) / loss(),
}


@pytest.mark.parametrize("name", NONE)
def test_a_loss_without_such_a_factor_has_none(name):
    assert scale_of(NONE[name]) == 1.0


def test_hooks_on_what_is_saved_are_called_as_often_as_alone():
    called = []

    def unpack(t):
        called.append(t)
        return t

    def hooked():
        return torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack)

    with hooked():
        alone = loss() * torch.tensor(1024.0)
    alone.backward()
    expected = len(called)
    called.clear()
    assert scale_of(lambda: loss() * torch.tensor(1024.0), how=hooked) == 1.0, "it is not read"
    assert len(called) == expected > 0
