# SPDX-License-Identifier: Apache-2.0
"""What is known of a model ends with it: one that takes a dead one's place in memory has its own names."""
from __future__ import annotations

import gc

import pytest
import torch
from op_rows import watched_ops
from step_runs import Holds
from torch import nn

TRIES = 2000


def train(model, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def in_place_of(ids, make):
    """A model whose inner module has one of these ids."""
    others = []  # they keep what is no match from being tried again
    for _ in range(TRIES):
        model = make()
        if id(getattr(model, model.name)) in ids:
            return model
        others.append(model)
    pytest.skip("no dead module's memory was used again")


def test_a_model_in_the_memory_of_a_dead_one_has_its_own_paths():
    with watched_ops() as watched:
        models = [Holds("old", nn.Linear(4, 4)) for _ in range(5)]
        for model in models:
            train(model)
        ids = {id(model.old) for model in models}
        del model, models
        gc.collect()
        model = in_place_of(ids, lambda: Holds("new", nn.Linear(4, 4)))
        watched.ops.clear()
        watched.recorder.marks.clear()
        train(model)
        modules = {op.module for op in watched.ops}
        marks = {path for _, path, _ in watched.recorder.marks}
    assert any(path.endswith("new") for path in modules) and not any("old" in path for path in modules), modules
    assert any(path.endswith("new.weight") for path in marks) and not any("old" in path for path in marks), marks


def test_names_end_with_their_parameters():
    with watched_ops() as watched:
        for _ in range(3):
            train(nn.Linear(4, 4))
        gc.collect()
        assert watched.known_parameters() <= 2


def test_what_an_optimizer_has_written_unheard_shows_other_contents():
    with watched_ops() as watched:
        weight, other = nn.Parameter(torch.ones(3)), torch.ones(3)
        weight.sum().backward()
        values = watched.values
        before = [values.identity(t) for t in (weight, weight.grad, other)]
        watched.write_unheard([weight])
        after = [values.identity(t) for t in (weight, weight.grad, other)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 0]
