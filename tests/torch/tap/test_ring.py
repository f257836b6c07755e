# SPDX-License-Identifier: Apache-2.0
"""Rows of steps that are watched as they run: they stay in the tap, unread, until a number is not finite."""

from __future__ import annotations

import math

import pytest
import torch
from op_rows import handed_over
from step_runs import batch, net, watched

pytestmark = pytest.mark.usefixtures("library")
AT_ONCE = {0, 1}  # steps whose rows the recorder gets as they come: what needs no failure to be wrong shows there
BAD = 20


@pytest.fixture
def told(monkeypatch):
    """Steps of which the recorder was told ops, and how many words that were."""
    return handed_over(monkeypatch)


def trained(loss, between=lambda model, i: None, optimizer=lambda p: torch.optim.SGD(p, lr=0.01)):
    def build():
        model = net()
        optimize = optimizer(model.parameters())

        def step(i):
            x, _ = batch()
            optimize.zero_grad()
            loss(model(x), i).backward()
            between(model, i)
            optimize.step()

        return step, model, optimize

    return build


def square(y, i):
    return y.square().mean()


def run(build, folder, steps=24, **options):
    found = watched(build, folder, steps, **options)
    assert not any("errors inside" in note for note in found.notes), found.notes
    return found


def what(found):
    origin = found.headline
    return tuple(origin[key] for key in ("class", "op", "phase", "module", "step", "call_site"))


def test_rows_of_healthy_steps_stay_where_they_are(told, tmp_path):
    found = run(trained(square), tmp_path)
    assert set(told) == AT_ONCE and {row["step"] for row in found.records("ops")} == {0}
    assert found.report["verdict"]["status"] == "clean" and found.report["coverage"]["steps"] == 24


def test_all_rows_of_a_step_come_when_a_number_is_not_finite(told, tmp_path):
    found = run(trained(lambda y, i: torch.log(y * 0 if i == BAD else y.square() + 1).sum()), tmp_path)
    assert {row["step"] for row in found.records("ops")} >= {0, BAD}
    assert BAD in told and told[BAD] >= 0.85 * told[1] and set(told) >= AT_ONCE | {BAD}  # marks come on their own
    assert what(found)[1] == "aten::log" and what(found)[4] == BAD
    assert found.headline["confidence"] == "proved", found.headline


def test_a_mask_of_infinities_in_each_step_hands_nothing_over(told, tmp_path):
    mask = torch.arange(3) > 1
    found = run(trained(lambda y, i: torch.softmax(y.masked_fill(mask, -math.inf), 1)[:, :2].square().sum()), tmp_path)
    assert set(told) == AT_ONCE and found.report["findings"] == []


def test_an_overflow_that_is_swallowed_is_looked_at_once(told, tmp_path):
    def loss(y, i):
        wide = (y.detach().abs() + 1).half() * 60000.0 * 60000.0
        return y.square().mean() + wide.clamp(max=1.0).float().mean()

    run(trained(loss), tmp_path)
    assert set(told) == AT_ONCE | {2, 3}  # once kept, once found to be harmless


def own_clipping(model, i):
    if i == BAD:
        for p in model.parameters():
            p.grad.div_(p.grad.norm() * 0.0)


def tiny_gradients(model, i):
    if i == BAD:
        for p in model.parameters():
            p.grad.mul_(1e-30)


ORIGINS = {
    "in forward": trained(lambda y, i: torch.log(y * 0 if i == BAD else y.square() + 1).sum()),
    "in place": trained(square, own_clipping),
    "in backward": trained(lambda y, i: torch.sqrt(y.square() * (0 if i == BAD else 1)).sum()),
    "in the optimizer": trained(
        square, tiny_gradients, lambda p: torch.optim.Adam(p, lr=0.01, eps=0.0, betas=(0.0, 0.0))
    ),
    "in a loss that overflows": trained(lambda y, i: y.square().sum() * (1e39 if i == BAD else 1e-2)),
}


@pytest.mark.parametrize("where", ORIGINS)
def test_an_origin_is_the_one_that_level_ops_names(where, told, tmp_path):
    found = run(ORIGINS[where], tmp_path / "live")
    assert AT_ONCE | {BAD} <= set(told)
    full = run(ORIGINS[where], tmp_path / "ops", level="ops")
    assert what(found) == what(full) and what(found)[4] == BAD


def test_what_does_not_fit_into_memory_goes_and_is_counted(tmp_path):
    many = [torch.ones(()) for _ in range(40_000)]

    def loss(y, i):
        if i == 2:
            for _ in range(20):
                torch._foreach_mul_(many, 1.0)
        return square(y, i)

    found = run(trained(loss), tmp_path, steps=4)
    assert found.notes["operations of a step that did not fit into memory"] > 0
    assert found.report["verdict"]["status"] == "clean"


def counted(largest):
    """A loss has a little of how many there were, as fp16."""
    def loss(y, i):
        count = torch.tensor([largest if i == BAD else 1000]).to(torch.float16)
        return y.square().mean() + (count.float() * 1e-9).sum()

    return trained(loss)


def test_a_whole_number_that_no_fp16_holds_is_the_origin_and_one_that_fits_is_none(tmp_path):
    origin = run(counted(100_000), tmp_path).headline
    assert (origin["class"], origin["op"], origin["step"]) == ("overflow", "aten::_to_copy", BAD), origin
    assert run(counted(60_000), tmp_path).headline is None


def test_a_product_is_read_where_its_number_can_make_it_infinite_and_only_there(tmp_path):
    origin = run(trained(lambda y, i: ((y * 1e30) * (1e30 if i == BAD else 0.5)).sum() * 1e-30), tmp_path).headline
    assert (origin["class"], origin["op"], origin["step"]) == ("overflow", "aten::mul", BAD), origin
    assert run(trained(lambda y, i: ((y * 1e30) * 0.5).sum() * 1e-30), tmp_path).headline is None
