# SPDX-License-Identifier: Apache-2.0
"""Compiled and wrapped models, and what a sentinel cannot do again: said with its reason, and the run is left alone."""
from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from sentinel_runs import Root, batch, net, watched
from torch import nn
from torch.nn import functional as F


class Body(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.inner, self.layers = Root(), nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(self.inner(x))


def loop(make, loss=F.cross_entropy, bad=(), wrap=lambda model: model, around=None):
    def build():
        model = make()
        called = wrap(model)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step(i):
            x, y = batch(i in bad)
            opt.zero_grad()
            loss(called(x), y).backward()
            if around is not None:
                around(i, model)
            opt.step()

        return step, model, opt

    return build


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_is_replayed_as_it_was_written(backend, tmp_path, library):
    def wrap(model):
        torch._dynamo.reset()
        return torch.compile(model, backend=backend)

    run = watched(loop(Body, wrap=wrap, bad={3}), tmp_path, steps=4, wanted={2})
    assert run.results == [(2, "reproduced"), (3, "reproduced")], run.texts
    assert (run.headline["op"], run.headline["module"]) == ("aten::sqrt", "inner")


def test_watching_compiles_as_often_as_not_watching(tmp_path, library):
    frames = []

    def wrap(model):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        return torch.compile(model, backend="eager")

    def count(i, model):
        frames.append(dict(torch._dynamo.utils.counters["stats"]))

    watched(loop(Body, wrap=wrap, around=count), tmp_path, steps=3)
    assert frames[:3] == frames[3:]


def test_a_compiled_loss_is_a_custom_function_where_autograd_is_compiled_too(tmp_path, library):
    torch._dynamo.reset()
    loss = torch.compile(lambda out, y: F.cross_entropy(out * 1.5, y), backend="eager")
    run = watched(loop(Body, loss=loss), tmp_path, steps=3, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_a_custom_function_in_the_loss_is_refused_by_name(tmp_path, library):
    run = watched(loop(Body, loss=lambda out, y: F.cross_entropy(Doubled.apply(out), y), bad={3}), tmp_path, steps=4)
    assert run.results == [(3, "refused")]
    assert "custom autograd function Doubled" in run.texts[0]
    assert run.report["verdict"]["status"] == "fault"


def test_a_custom_function_inside_a_model_is_no_obstacle(tmp_path, library):
    class WithFunction(Body):
        def forward(self, x):
            return Doubled.apply(super().forward(x))

    run = watched(loop(WithFunction), tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts


def test_a_run_without_modules_is_refused_with_that_reason(tmp_path, library):
    def build():
        w = torch.nn.Parameter(torch.randn(6, 3))
        opt = torch.optim.SGD([w], lr=0.1)

        def step(i):
            x, y = batch(i == 2)
            opt.zero_grad()
            F.cross_entropy(torch.sqrt(10 - x) @ w, y).backward()
            opt.step()

        return step, w, opt

    run = watched(build, tmp_path, steps=3)
    assert run.results == [(2, "refused")], run.replays
    assert "no call of a module" in run.texts[0]
    assert run.health[2][1] != 0


def test_an_exception_in_forward_is_the_runs_own(tmp_path, library):
    class Raises(Body):
        def forward(self, x):
            if x[0, 0] > 40:
                raise ValueError("not today")
            return super().forward(x)

    def build():
        model = Raises()
        opt = torch.optim.AdamW(model.parameters())

        def step(i):
            x, y = batch(i == 1)
            opt.zero_grad()
            try:
                F.cross_entropy(model(x), y).backward()
            except ValueError as error:
                assert str(error) == "not today"
                return
            opt.step()

        return step, model, opt

    run = watched(build, tmp_path, steps=4, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts


def test_an_exception_in_backward_is_the_runs_own(tmp_path, library):
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.breaks = bool(x[0, 0] > 40)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            if ctx.breaks:
                raise ValueError("not today")
            return g

    class Model(Body):
        def forward(self, x):
            return super().forward(torch.where(x > 9, torch.zeros(()), x)) * Breaks.apply(
                x + self.layers[0].bias.sum() * 0)[:, :1].clamp(-1, 1)

    def build():
        model = Model()
        opt = torch.optim.AdamW(model.parameters())

        def step(i):
            x, y = batch(i == 1)
            opt.zero_grad()
            try:
                F.cross_entropy(model(x), y).backward()
            except ValueError:
                opt.zero_grad()
                return
            opt.step()

        return step, model, opt

    run = watched(build, tmp_path, steps=4)
    assert run.replays == []


def test_an_interrupt_during_a_replay_reaches_the_run_and_leaves_it_whole(tmp_path, library):
    calls = []

    class Interrupted(Body):
        def forward(self, x):
            calls.append(1)
            if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:  # only in a replay
                raise KeyboardInterrupt
            return super().forward(x)

    def build():
        model = Interrupted(nn.BatchNorm1d(8))
        opt = torch.optim.AdamW(model.parameters())

        def step(i):
            x, y = batch()
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            try:
                opt.step()
            except KeyboardInterrupt:
                opt.step()

        return step, model, opt

    run = watched(build, tmp_path, steps=4, wanted={2})
    assert [r[2] for r in run.replays][0] == "begin"


def test_an_input_that_was_overwritten_before_the_boundary_is_refused(tmp_path, library):
    def build():
        model = Body()
        opt = torch.optim.AdamW(model.parameters())
        x = torch.empty(8, 6)

        def step(i):
            fresh, y = batch()
            x.copy_(fresh)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            x.zero_()
            opt.step()

        return step, model, opt

    run = watched(build, tmp_path, wanted={2})
    assert run.results == [(2, "refused")] and "input was written" in run.texts[0]


def test_hooks_of_the_run_that_change_gradients_run_again(tmp_path, library):
    """What changes a gradient is part of the step; what comes after its accumulation belongs to the run."""
    def build():
        model = Body()
        seen = []
        model.layers[0].weight.register_hook(lambda g: g * 0.5)
        model.layers[1].weight.register_post_accumulate_grad_hook(lambda p: seen.append(1))
        opt = torch.optim.AdamW(model.parameters())

        def step(i):
            x, y = batch()
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()

        return step, model, opt, seen

    run = watched(build, tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("unused", [False, True], ids=["plain", "unused parameters"])
def test_a_model_in_data_parallel_is_computed_again(unused, one_rank, tmp_path, library):
    def wrap(model):
        return nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused)

    run = watched(loop(Body, wrap=wrap, bad={3}), tmp_path, steps=4, wanted={2})
    assert run.results == [(2, "reproduced"), (3, "reproduced")], run.texts
    assert (run.headline["op"], run.headline["module"]) == ("aten::sqrt", "inner")
    assert "DistributedDataParallel" not in str(run.headline)


def test_sharded_parameters_are_refused(one_rank, tmp_path, library):
    fully_shard = getattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard", None)
    if fully_shard is None:
        pytest.skip("this PyTorch has no torch.distributed.fsdp.fully_shard")

    def build():
        model = Body()
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
        opt = torch.optim.AdamW(model.parameters())

        def step(i):
            x, y = batch(i == 2)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()

        return step, opt.param_groups[0]["params"][0].to_local

    run = watched(build, tmp_path, steps=3)
    assert run.results == [(2, "refused")], run.replays
    assert "sharded" in run.texts[0] or "distributed tensors" in run.texts[0]
    assert run.health[2][1] & 3


def test_a_step_under_a_dispatch_mode_of_the_program_is_computed_again(tmp_path, library):
    """The program's own dispatch mode stays its own."""
    from torch.utils.flop_counter import FlopCounterMode

    def build():
        model = net()
        opt = torch.optim.AdamW(model.parameters())
        flops = []

        def step(i):
            x, y = batch()
            opt.zero_grad()
            with FlopCounterMode(display=False) as counter:
                F.cross_entropy(model(x), y).backward()
            flops.append(counter.get_total_flops())
            opt.step()

        return step, model, opt, flops

    run = watched(build, tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts


@pytest.mark.parametrize("where", ["an output", "a parameter"])
def test_what_a_hook_on_gradients_made_is_not_told_as_a_fault_of_the_machine(where, tmp_path, library):
    # Given a program whose hook makes a gradient NaN
    def build():
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        spoils = [False]
        if where == "a parameter":
            def spoil(p):
                p.grad.mul_(math.nan if spoils[0] else 1.0)

            next(model.parameters()).register_post_accumulate_grad_hook(spoil)

        def step(i):
            x, y = batch()
            spoils[0] = i == 2
            opt.zero_grad()
            out = model(x)
            if where == "an output":
                out.register_hook(lambda g: g * (math.nan if spoils[0] else 1.0))
            F.cross_entropy(out, y).backward()
            opt.step()

        return step, model, opt

    # then its replay, which comes out finite, says that it does not run.
    run = watched(build, tmp_path, steps=3)
    assert run.results == [(2, "refused")] and "hooks" in run.texts[0], run.texts
    assert run.headline["class"] == "unexplained", run.headline
