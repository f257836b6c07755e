# SPDX-License-Identifier: Apache-2.0
"""A watch that is closed leaves torch as it was, and keeps nothing of the run."""
from __future__ import annotations

import functools
import gc
import weakref

import nanhunt
import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import optimizer as optimizers

pytestmark = pytest.mark.usefixtures("library", "no_watch_left")


def train(model, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def made():
    model = nn.Sequential(nn.Linear(3, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def torchs_own():
    scaler = [getattr(GradScaler, name) for name in ("__init__", "scale", "unscale_", "step", "update")]
    hooks = [len(optimizers._global_optimizer_pre_hooks), len(optimizers._global_optimizer_post_hooks)]
    return [nn.Module.__call__, torch.autograd.backward, torch.autograd.grad, nn.utils.clip_grad_norm_,
            nn.utils.clip_grad.clip_grad_norm_, nn.utils.clip_grad_value_, torch.optim.Optimizer.__init__, *scaler,
            *hooks]


def things_of_ours():
    """Objects of the package's classes that live."""
    return sum(str(getattr(type(thing), "__module__", "")).startswith("nanhunt") for thing in gc.get_objects())


@pytest.mark.parametrize("level", ["live", "ops"])
def test_nothing_is_left_in_torch(level, tmp_path):
    before = torchs_own()
    for _ in range(2):
        model, optimizer = made()
        with nanhunt.watch(model, optimizer, out=tmp_path / "run", level=level):
            assert torchs_own() != before
            train(model, optimizer)
        assert torchs_own() == before
    assert nanhunt.load(tmp_path / "run").data["coverage"]["steps"] == 2  # of the second one


@pytest.mark.parametrize("level", ["live", "ops"])
def test_a_closed_watch_that_is_kept_keeps_nothing_of_the_run(level, tmp_path):
    alone = torchs_own()[:-2]
    model, optimizer = made()
    watch = nanhunt.watch(model, optimizer, out=tmp_path / "run", level=level)
    train(model, optimizer)
    ended, weight = weakref.ref(watch), weakref.ref(model[0].weight)
    watch.close()
    assert torchs_own()[:-2] == alone
    del model, optimizer
    gc.collect()
    assert weight() is None
    assert watch.verdict == "clean"
    inside = things_of_ours()
    del watch
    gc.collect()
    assert ended() is None and things_of_ours() < inside
    # What is left of one watch is left of two.
    left = []
    for _ in range(2):
        model, optimizer = made()
        with nanhunt.watch(model, optimizer, out=tmp_path / "run", level=level):
            train(model, optimizer)
        del model, optimizer
        gc.collect()
        left.append(things_of_ours())
    assert left[0] == left[1]


def test_a_watch_can_be_closed_in_the_middle_of_a_step(tmp_path):
    """Also from inside of an optimizer's hooks, which are gone through one by one."""
    alone = torchs_own()[:-2]  # but for optimizers' hooks, which are gone through
    for where in ("forward", "hook"):
        model, optimizer = made()
        watch = nanhunt.watch(model, optimizer, out=tmp_path / where)
        train(model, optimizer, 1)
        if where == "forward":
            handle = model.register_forward_hook(lambda *_, watch=watch: watch.close())
        else:
            handle = optimizers.register_optimizer_step_pre_hook(lambda *_, watch=watch: watch.close())
        train(model, optimizer, 2)
        handle.remove()
        assert torchs_own()[:-2] == alone
    before = torchs_own()
    model, optimizer = made()
    with nanhunt.watch(model, optimizer, out=tmp_path / "after"):
        train(model, optimizer)
    assert nn.Module.__call__ is before[0]
    assert len(optimizers._global_optimizer_pre_hooks) == 0


def test_patches_of_others_on_top_of_ours_stay(tmp_path, monkeypatch):
    seen = []
    model, optimizer = made()
    watch = nanhunt.watch(model, optimizer, out=tmp_path / "first")
    ours = torch.autograd.backward

    @functools.wraps(ours)
    def theirs(*args, **kwargs):
        seen.append(1)
        return ours(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", theirs)
    watch.close()
    assert torch.autograd.backward is theirs
    train(model, optimizer)
    with nanhunt.watch(model, optimizer, out=tmp_path / "second"):
        train(model, optimizer)
    assert nanhunt.load(tmp_path / "second").data["coverage"]["steps"] == 2
    assert len(seen) == 4 and torch.autograd.backward is theirs
    monkeypatch.undo()  # ours comes back
    with nanhunt.watch(model, optimizer, out=tmp_path / "third"):
        train(model, optimizer)
    assert torch.autograd.backward is not ours


class Derived(GradScaler):
    def step(self, optimizer, *args, **kwargs):
        return super().step(optimizer, *args, **kwargs)


def test_scalers_of_derived_classes_are_watched_again(tmp_path):
    own = Derived.step
    model, optimizer = made()
    with nanhunt.watch(model, optimizer, out=tmp_path / "first"):
        scaler = Derived("cpu", init_scale=4.0)
        assert Derived.step is not own
    assert Derived.step is own
    with nanhunt.watch(model, optimizer, out=tmp_path / "second"):
        assert Derived.step is not own
        for _ in range(2):
            scaler.scale(model(torch.ones(2, 3)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert nanhunt.load(tmp_path / "second").data["coverage"]["steps"] == 2
