# SPDX-License-Identifier: Apache-2.0
"""Programs that are their own optimizer: a step is forward, backward and a write of parameters, by whomever."""

from __future__ import annotations

import pytest
import torch
from own_programs import LEVELS, Net, assert_silent, data, loop, told
from torch import nn
from torch.nn import functional as F

BAD = 7


def by_data(net, lr):
    for p in net.parameters():
        p.data.add_(p.grad, alpha=-lr)
        p.grad = None


@torch.no_grad()
def in_place(net, lr):
    for p in net.parameters():
        p -= lr * p.grad
    net.zero_grad()


@torch.no_grad()
def cleared_in_place(net, lr):
    for p in net.parameters():
        p.data.sub_(lr * p.grad.data)
    for p in net.parameters():
        p.grad.detach_()
        p.grad.zero_()


class Momentum:
    """A class of the program's own, as libraries have it."""

    def __init__(self):
        self.seen = {}

    @torch.no_grad()
    def __call__(self, net, lr):
        for p in net.parameters():
            v = self.seen.setdefault(p, torch.zeros_like(p))
            v.mul_(0.9).add_(p.grad)
            p.add_(v, alpha=-lr)
            p.grad = None


@torch.no_grad()
def all_at_once(net, lr):
    parameters = list(net.parameters())
    torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-lr)
    net.zero_grad(set_to_none=False)


UPDATES = {"data": lambda: by_data, "in place": lambda: in_place, "cleared": lambda: cleared_in_place,
           "momentum": Momentum, "foreach": lambda: all_at_once}  # fmt: skip


def training(update, bad=None, accumulate=1, bad_data=None):
    """In micro-batches; step `bad` takes a logarithm of a negative number, `bad_data` has a sample that is NaN."""

    def build():
        torch.manual_seed(0)
        net, own = Net(), UPDATES[update]()

        def step(i):
            for _ in range(accumulate):
                x, y = data()
                if i == bad_data:
                    x[3, 3] = float("nan")
                loss = F.cross_entropy(net(x), y) / accumulate
                if i == bad:
                    loss = loss + (-loss).log()
                loss.backward()
            own(net, 1e-2)

        return step, net

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("update", UPDATES)
def test_each_update_by_hand_ends_a_step(update, level, tmp_path):
    said = told(training(update, bad=BAD), tmp_path, level, steps=10)
    assert said.what[:3] == ("invalid", "aten::log", "loss") and said.first["step"] == BAD, said.show()
    assert len(said.run.records("steps")) == 10, said.show()
    assert len(said.loud) == 1, said.show()
    assert_silent(training(update), tmp_path, level, steps=10)


@pytest.mark.parametrize("update", UPDATES)
def test_the_last_update_by_hand_ends_its_step_though_no_forward_follows(update, tmp_path):
    said = told(training(update, bad=BAD), tmp_path, "live", steps=BAD + 1)
    assert [row["ending"] for row in said.run.records("steps")] == ["optimizer"] * (BAD + 1), said.show()
    assert "no optimizer" not in " ".join([said.first["explanation"], *said.first["evidence"]]), said.first["evidence"]


def regression(update, lr):
    def build():
        torch.manual_seed(0)
        net, own = nn.Sequential(nn.Linear(5, 16), nn.Linear(16, 1)), UPDATES[update]()

        def step(i):
            x = torch.randn(32, 5)
            F.mse_loss(net(x * 50), 150 * x.sum(1, keepdim=True) + 1000).backward()
            own(net, lr)

        return step, net

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("update", UPDATES)
def test_training_that_diverges_under_updates_by_hand_is_told_as_that(update, level, tmp_path):
    said = told(regression(update, 0.01), tmp_path, level, steps=8)
    assert said.what[0] == "exploding" and len(said.loud) == 1, said.show()
    assert said.first["advice"][0]["id"] == "lower-lr", said.show()
    assert_silent(regression(update, 1e-5), tmp_path, level, steps=8)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("update", UPDATES)
def test_data_that_are_made_before_a_forward_are_of_its_step(update, level, tmp_path):
    said = told(training(update, bad_data=BAD), tmp_path, level, steps=10)
    assert said.what[:3] == ("invalid", "aten::copy_", "data") and said.first["step"] == BAD, said.show()
    steps = said.first["bad_steps"]
    assert (steps["first_step"], steps["last_step"], steps["count"]) == (BAD, 9, 3), steps


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_are_added_up_end_no_step(level, tmp_path):
    said = told(training("in place", bad=BAD, accumulate=3), tmp_path, level, steps=10)
    assert said.what[1] == "aten::log" and said.first["step"] == BAD, said.show()
    assert len(said.run.records("steps")) == 10, said.show()


def test_the_steps_level_counts_them_as_well(tmp_path):
    for update in UPDATES:
        said = told(training(update, bad=BAD), tmp_path / update, "steps", steps=10)
        assert said.status == "fault" and said.first["step"] == BAD, (update, said.show())
        assert len(said.run.records("steps")) == 10, (update, said.show())


def between_backwards(act):
    """Gradients are added up over four backwards; `act` runs after each, before the optimizer has ever stepped."""

    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3)

        def step(i):
            for _ in range(4):
                x, y = data()
                (F.cross_entropy(net(x), y) / 4).backward()
                act(net)
            opt.step()
            opt.zero_grad()

        return step, net, opt

    return build


@torch.no_grad()
def clamp_weights(net):
    net.first.weight.clamp_(-1, 1)


def clip(net):
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)


def perturbed(bad):
    """Weights are moved along their gradients, differentiated there, and put back, as SAM does."""

    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            x, y = data()
            F.cross_entropy(net(x), y).backward()
            moves = [p.grad * 0.05 / (p.grad.norm() + 1e-12) for p in net.parameters()]
            with torch.no_grad():
                for p, move in zip(net.parameters(), moves, strict=True):
                    p.add_(move)
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            if i == bad:
                loss = loss + (-loss).log()
            loss.backward()
            with torch.no_grad():
                for p, move in zip(net.parameters(), moves, strict=True):
                    p.sub_(move)
            opt.step()
            opt.zero_grad()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", (*LEVELS, "steps"))
@pytest.mark.parametrize("act", [clamp_weights, clip])
def test_what_is_written_before_an_optimizer_steps_for_the_first_time_ends_no_step(act, level, tmp_path):
    said = told(between_backwards(act), tmp_path, level, steps=3)
    assert len(said.run.records("steps")) == 3, said.show()


@pytest.mark.parametrize("level", LEVELS)
def test_weights_that_are_moved_and_put_back_end_no_step(level, tmp_path):
    said = told(perturbed(bad=3), tmp_path, level)
    assert said.what[1] == "aten::log" and said.first["step"] == 3, said.show()


def in_one_buffer(bad=None):
    """Parameters and gradients are views of two buffers, which the program updates as wholes."""

    def build():
        torch.manual_seed(0)
        net = Net()
        flat = torch.cat([p.data.reshape(-1) for p in net.parameters()])
        gradients, first = torch.zeros_like(flat), 0
        for p in net.parameters():
            last = first + p.numel()
            p.data, p.grad = flat[first:last].view_as(p), gradients[first:last].view_as(p)
            first = last
        squares = torch.zeros_like(flat)

        def step(i):
            gradients.zero_()
            x, y = data()
            F.cross_entropy(net(x), y).backward()
            squares.mul_(0.99).addcmul_(gradients, gradients, value=0.01)
            with torch.no_grad():
                flat.addcdiv_(gradients, (squares.sqrt() + 1e-6) * (0.0 if i == bad else 1.0), value=-1e-3)

        return step, net, None

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_an_update_of_all_parameters_as_one_buffer_is_named_and_harms_them(level, tmp_path):
    said = told(in_one_buffer(BAD), tmp_path / "bad", level, steps=10)
    assert said.what[:3] == ("divide_by_zero", "aten::addcdiv_", "optimizer"), said.show()
    assert said.first["step"] == BAD and len(said.loud) == 1, said.show()
    assert any(sink.startswith("parameter ") for sink in said.first["sinks"]), said.first["sinks"]
    assert_silent(in_one_buffer(), tmp_path / "twin", level, steps=10)


def sharpness_aware(epsilon):
    """Weights go up along their gradient and back: two backwards make one update. Gradients of step `BAD` are all 0."""

    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        @torch.no_grad()
        def climb():
            norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
            before = [p.clone() for p in net.parameters()]
            for p in net.parameters():
                p.add_(p.grad * (0.05 / (norm + epsilon)))
            opt.zero_grad()
            return before

        def step(i):
            x, y = data()
            (F.cross_entropy(net(x), y) * (0.0 if i == BAD else 1.0)).backward()
            before = climb()
            F.cross_entropy(net(x), y).backward()
            with torch.no_grad():
                for p, old in zip(net.parameters(), before, strict=True):
                    p.copy_(old)
            opt.step()
            opt.zero_grad()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_weights_that_a_climb_made_bad_are_no_gradients_that_were_kept(level, tmp_path):
    said = told(sharpness_aware(0.0), tmp_path, level, steps=10)
    assert said.what[:2] == ("divide_by_zero", "aten::reciprocal") and len(said.loud) == 1, said.show()
    assert_silent(sharpness_aware(1e-12), tmp_path, level, steps=10)


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_a_climb_has_used_are_not_given_up(level, tmp_path):
    # Given weights that are bad from a climb on, when bad gradients are cleared after each further one,
    said = told(sharpness_aware(0.0), tmp_path, level, steps=10)
    # then two backwards are one step still, and none was skipped.
    steps = said.first["bad_steps"]
    assert (steps["first_step"], steps["last_step"], steps["count"]) == (BAD, 9, 3), steps
    assert len(said.run.records("steps")) == 10 and "skipped" not in said.show(), said.show()


def tensors_alone(clear, bad=None):
    """No module: tensors that a loop trains. `clear(p)` ends the use of a gradient."""

    def build():
        torch.manual_seed(0)
        w = (torch.randn(6, 8) * 0.1).requires_grad_()
        b = torch.zeros(8, requires_grad=True)

        def step(i):
            x, y = data()
            loss = F.cross_entropy(torch.tanh(x @ w + b), y)
            if i == bad:
                loss = loss + (-loss).log()
            loss.backward()
            with torch.no_grad():
                for p in (w, b):
                    p -= 1e-2 * p.grad
                    clear(p)

        return (step,)

    return build


def drops_it(p):
    p.grad = None


def zeroes_it(p):
    p.grad.zero_()


@pytest.mark.parametrize("level", [*LEVELS, "steps"])
@pytest.mark.parametrize("clear", [drops_it, zeroes_it])
def test_each_update_of_tensors_that_no_module_has_ends_a_step(clear, level, tmp_path):
    said = told(tensors_alone(clear, bad=BAD), tmp_path, level, steps=10)
    assert said.first["phase"] == "loss" and said.first["step"] == BAD, said.show()
    assert len(said.run.records("steps")) == 10, said.show()
    if level != "steps":
        assert said.what[1] == "aten::log" and len(said.loud) == 1, said.show()
    assert_silent(tensors_alone(clear), tmp_path, level, steps=10)


def asks_for_gradients(bad=None, views=1, updates=True):
    """torch.autograd.grad of a module's parameters. `views`: calls of the module in a step."""

    def build():
        torch.manual_seed(0)
        net = Net()

        def step(i):
            x, y = data()
            out = sum(net(x + view) for view in range(views))
            loss = F.cross_entropy(out, y)
            if i == bad:
                loss = (loss - loss.detach()) / torch.zeros(())
            gradients = torch.autograd.grad(loss, net.parameters())
            with torch.no_grad():
                for p, g in zip(net.parameters(), gradients, strict=False):
                    p.sub_(1e-2 * g) if updates else g.norm()

        return step, net

    return build


@pytest.mark.parametrize("level", [*LEVELS, "steps"])
def test_each_update_by_gradients_of_a_module_that_are_asked_for_ends_a_step(level, tmp_path):
    said = told(asks_for_gradients(bad=BAD), tmp_path, level, steps=10)
    assert said.first["phase"] == "loss" and said.first["step"] == BAD, said.show()
    assert [row["ending"] for row in said.run.records("steps")] == ["optimizer"] * 10, said.show()
    if level != "steps":
        assert said.what[1] == "aten::div" and len(said.loud) == 1, said.show()
    assert_silent(asks_for_gradients(), tmp_path, level, steps=10)


@pytest.mark.parametrize("level", LEVELS)
def test_the_calls_before_a_first_backward_are_part_of_its_step_where_its_loss_is_bad(level, tmp_path):
    said = told(asks_for_gradients(bad=0, views=2), tmp_path, level, steps=6)
    assert said.what[1] == "aten::div" and len(said.loud) == 1, said.show()
    assert "loss" in " ".join(said.first["sinks"]), said.show()
    assert_silent(asks_for_gradients(views=2), tmp_path, level, steps=6)


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_are_only_looked_at_are_no_fault(level, tmp_path):
    assert_silent(asks_for_gradients(updates=False), tmp_path, level, steps=6)


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_a_program_asks_for_in_two_ways_train_nothing(level, tmp_path):
    def build():
        torch.manual_seed(0)
        net = Net()

        def step(i):
            x, y = data()
            loss = F.cross_entropy(net(x), y)
            try:
                torch.autograd.grad(loss, [*net.parameters(), torch.zeros(1, requires_grad=True)])
            except RuntimeError:  # one of them has no part in it
                torch.autograd.grad(F.cross_entropy(net(x), y), dict(net.named_parameters()).values())

        return step, net

    assert_silent(build, tmp_path, level, steps=12)


@pytest.mark.parametrize("level", LEVELS)
def test_losses_that_a_dictionary_holds_are_seen(level, tmp_path):
    def build(bad):
        def step(i, net, opt):
            x, y = data()
            losses = {"one": F.cross_entropy(net(x), y), "two": net(x).square().mean()}
            if bad and i == 4:
                losses["two"] = (losses["two"] * 0).log()
            opt.zero_grad()
            torch.autograd.backward(losses.values())
            opt.step()

        return loop(step)

    said = told(build(True), tmp_path / "bad", level, steps=6)
    assert said.what[1] == "aten::log" and said.first["step"] == 4, said.show()
    assert_silent(build(False), tmp_path / "twin", level, steps=6)
