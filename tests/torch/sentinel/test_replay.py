# SPDX-License-Identifier: Apache-2.0
"""A step can be done again bit for bit, whatever it is made of, and the run ends as if it had not been."""
from __future__ import annotations

import dataclasses
import random

import numpy
import pytest
import torch
from sentinel_runs import Root, batch, net, watched
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def loop(make, *, bad=(), lr=1e-3, optimizer=torch.optim.AdamW, loss=None, zero=True, forward=None):
    """A plain training loop; in steps `bad` one input is out of the healthy range."""
    loss = loss or F.cross_entropy
    forward = forward or (lambda model, x: model(x))

    def build():
        model = make()
        opt = optimizer(model.parameters(), lr=lr)

        def step(i):
            x, y = batch(i in bad)
            if zero:
                opt.zero_grad()
            loss(forward(model, x), y).backward()
            opt.step()

        return step, model, opt

    return build


class Body(nn.Module):
    """A model whose `inner` gives NaN for inputs that are out of range."""

    def __init__(self, *layers):
        super().__init__()
        self.inner, self.layers = Root(), nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(self.inner(x))


class WithDraws(Body):
    """Draws from generators that are not torch's own."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        if random.random() < 0.5:
            x = x + torch.randn(x.shape, generator=self.generator)
        return super().forward(x * float(numpy.random.rand() + 0.5))


class WithBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.conv, self.norm = Root(), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4)
        self.relu, self.out = nn.ReLU(inplace=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.relu(self.norm(self.conv(self.inner(x)[:, None]))).flatten(1))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.first, self.reentrant = Root(), nn.Linear(6, 8), reentrant
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh())
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(checkpoint(self.body, self.first(self.inner(x)), use_reentrant=self.reentrant))


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    more: dict


class WithDataclass(Body):
    def forward(self, x):
        out = super().forward(x)
        return Output(out, {"twice": [out * 2, None], "name": "x"})


class WithDict(Body):
    def forward(self, x):
        return {"logits": super().forward(x), "aux": (x.sum(),)}


class WithLoss(Body):
    def forward(self, x, labels=None):
        out = super().forward(x)
        return {"loss": F.cross_entropy(out, labels), "logits": out}


class Recurrent(Body):
    """Keeps a state between steps."""

    def __init__(self):
        super().__init__()
        self.mean, self.calls = torch.zeros(6), 0

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.calls += 1
        return super().forward(x - 0.01 * self.mean)


class WritesInput(Body):
    def forward(self, x):
        return super().forward(x.mul_(0.5))


class Counted(Body):
    """Writes a buffer in place, and replaces another."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", torch.zeros(6))

    def forward(self, x):
        self.count += 1
        self.last = x.detach().mean(0)
        return super().forward(x) * (1 + 0.01 * self.count)


class EvaluatedFirst(WithBatchNorm):
    """Its statistics are written from the third call on."""

    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        self.norm.train(self.calls > 2)
        return super().forward(x)


class InList(Body):
    """A normalisation that is not registered."""

    def __init__(self):
        super().__init__()
        self.hidden = [nn.BatchNorm1d(6)]

    def forward(self, x):
        self.hidden[0](x)
        return super().forward(x - 0.01 * self.hidden[0].running_mean)


class Replaced(Body):
    """What it reads is put in the place of another buffer by each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.detach().clamp(-3, 3).mean(0)
        return super().forward(x - self.mean)


MODELS = {
    "dropout": lambda: Body(nn.Dropout(0.5)),
    "other generators": WithDraws,
    "batch norm": WithBatchNorm,
    "batch norm, evaluated first": EvaluatedFirst,
    "batch norm in a list": InList,
    "replaced buffers": Replaced,
    "checkpoint": lambda: Checkpointed(False),
    "reentrant checkpoint": lambda: Checkpointed(True),
    "state": Recurrent,
    "buffers": Counted,
    "spectral norm": lambda: Body(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_healthy_step_is_computed_again_whatever_the_model_has(name, tmp_path, library):
    run = watched(loop(MODELS[name]), tmp_path, wanted={1, 3})
    assert run.results == [(1, "reproduced"), (3, "reproduced")], run.texts
    assert run.report["verdict"]["status"] == "clean"


@pytest.mark.parametrize("name", MODELS)
def test_the_op_that_made_nan_is_named_whatever_the_model_has(name, tmp_path, library):
    run = watched(loop(MODELS[name], bad={3}), tmp_path, steps=4)
    assert run.results == [(3, "reproduced")], run.texts
    found = run.headline
    assert (found["op"], found["module"], found["phase"], found["step"]) == ("aten::sqrt", "inner", "forward", 3)


OUTPUTS = {
    "dataclass": (WithDataclass, lambda out, y: F.cross_entropy(out.logits, y) + 0.1 * out.more["twice"][0].mean()),
    "dict": (WithDict, lambda out, y: F.cross_entropy(out["logits"], y)),
    "edited in place": (Body, lambda out, y: F.cross_entropy(out.mul_(2), y)),
    "with dropout in the loss": (Body, lambda out, y: F.cross_entropy(F.dropout(out, 0.2), y)),
    "with a loss module": (Body, nn.CrossEntropyLoss()),
    "added up from outside": (Body, lambda out, y: torch.zeros(()).add_(F.cross_entropy(out, y))),
    "detached in part": (Body, lambda out, y: F.cross_entropy(out, y) + (out.detach() - out).pow(2).mean()),
    "in views": (Body, lambda out, y: F.cross_entropy(out[:4], y[:4]) + F.cross_entropy(out.view(2, 4, 3)[1], y[4:])),
    "with numbers read back": (Body, lambda out, y: F.cross_entropy(out, y) * (1 + out.detach().abs().mean().item())),
    "in numpy's hands": (Body, lambda out, y: F.cross_entropy(out, y) + 0 * float(out.detach().numpy().mean())),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_step_is_computed_again_whatever_its_loss_does_with_the_outputs(name, tmp_path, library):
    make, loss = OUTPUTS[name]
    run = watched(loop(make, loss=loss), tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts
    run = watched(loop(make, loss=loss, bad={3}), tmp_path, steps=4)
    assert run.results == [(3, "reproduced")], run.texts
    assert (run.headline["op"], run.headline["module"]) == ("aten::sqrt", "inner")


def test_a_step_whose_loss_the_model_makes_is_computed_again(tmp_path, library):
    def build(bad=()):
        model = WithLoss()
        opt = torch.optim.AdamW(model.parameters())

        def step(i):
            x, y = batch(i in bad)
            out = model(x, labels=y)
            (out["loss"] + 0.01 * out["logits"].pow(2).mean()).backward()
            opt.step()
            opt.zero_grad()

        return step, model, opt

    run = watched(build, tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts
    run = watched(lambda: build({3}), tmp_path, steps=4)
    assert (run.headline["op"], run.headline["step"]) == ("aten::sqrt", 3)


def test_an_op_of_the_loss_that_made_nan_is_named(tmp_path, library):
    loss = lambda out, y: (F.softmax(out, -1)[:, 0] - out.detach().abs().max() // 1e3).log().mean()  # noqa: E731
    run = watched(loop(lambda: net(), loss=loss, forward=lambda m, x: m(x) * (1 + 1e4 * (x[0, 0] > 40))), tmp_path)
    assert run.replays == []
    run = watched(loop(lambda: net(), loss=loss, forward=lambda m, x: m(x) * (1 + 1e4 * (x[0, 0] > 40)), bad={2}),
                  tmp_path, steps=3)
    assert run.results == [(2, "reproduced")], run.texts
    assert (run.headline["op"], run.headline["module"], run.headline["phase"]) == ("aten::log", "<loss>", "loss")


def test_gradients_that_are_added_up_come_out_again_and_the_bad_micro_batch_is_named(tmp_path, library):
    """Of two micro-batches the second is bad."""
    def build(bad=()):
        model = Body(nn.Dropout(0.2))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i):
            for micro in range(3):
                x, y = batch(i in bad and micro == 1)
                (F.cross_entropy(model(x), y) / 3).backward()
            opt.step()
            opt.zero_grad()

        return step, model, opt

    run = watched(build, tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts
    run = watched(lambda: build({3}), tmp_path, steps=4)
    assert run.results == [(3, "reproduced")], run.texts
    found = run.headline
    assert (found["op"], found["module"], found["micro_batch"]) == ("aten::sqrt", "inner", 1)


def test_several_calls_of_a_model_in_a_step_are_made_again(tmp_path, library):
    def build(bad=()):
        model = Body()
        opt = torch.optim.AdamW(model.parameters())

        def step(i):
            (a, _), (b, _), (c, _) = batch(), batch(i in bad), batch()
            opt.zero_grad()
            F.triplet_margin_loss(model(a), model(b), model(c)).backward()
            opt.step()

        return step, model, opt

    run = watched(build, tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts
    run = watched(lambda: build({3}), tmp_path, steps=4)
    assert run.results == [(3, "reproduced")], run.texts
    assert run.headline["op"] == "aten::sqrt"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_calls_that_share_the_cache_of_autocast_are_made_again(dtype, tmp_path, library):
    def build():
        model = net()
        opt = torch.optim.AdamW(model.parameters())

        def step(i):
            (a, y), (b, _) = batch(), batch()
            opt.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = F.cross_entropy(model(a), y) + F.cross_entropy(model(b), y)
            loss.backward()
            opt.step()

        return step, model, opt

    run = watched(build, tmp_path, wanted={2, 3})
    assert run.results == [(2, "reproduced"), (3, "reproduced")], run.texts


def test_layers_that_are_called_one_by_one_are_called_again(tmp_path, library):
    def build(bad=()):
        layers = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)])
        opt = torch.optim.AdamW(layers.parameters())

        def step(i):
            x, y = batch(i in bad)
            opt.zero_grad()
            x = x.clamp(-3, 3)
            for layer in layers[:2]:
                x = layer(torch.tanh(x))
            x = torch.rsqrt((x - (x.detach().abs() + 1) * (i in bad)).abs() * 0 + (1 - 2 * (i in bad)))
            F.cross_entropy(layers[2](x), y).backward()
            opt.step()

        return step, layers, opt

    run = watched(build, tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts
    run = watched(lambda: build({3}), tmp_path, steps=4)
    assert run.results == [(3, "reproduced")], run.texts
    assert "aten::rsqrt" in {f["op"] for f in run.report["findings"]} | {run.headline["op"]}


def test_a_step_of_an_optimizer_with_a_closure_is_computed_again(tmp_path, library):
    def build():
        model = Body()
        opt = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def step(i):
            x, y = batch()

            def closure():
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            opt.step(closure)

        return step, model, opt

    watched(build, tmp_path)


def test_the_step_of_a_network_against_another_is_computed_again(tmp_path, library):
    """Two roots and two optimizers: what the second depends on was called before the first stepped."""
    def build(bad=()):
        maker, judge = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), Body(nn.BatchNorm1d(8))
        first, second = torch.optim.Adam(judge.parameters()), torch.optim.Adam(maker.parameters())

        def step(i):
            real, _ = batch(i in bad)
            fake = maker(torch.randn(8, 4))
            first.zero_grad()
            (judge(real)[:, 0].mean() - judge(fake.detach())[:, 0].mean()).backward()
            first.step()
            second.zero_grad()
            judge(fake)[:, 0].mean().backward()
            second.step()

        return step, maker, judge, first, second

    run = watched(build, tmp_path, wanted={2})
    assert [r for _, r in run.results] == ["reproduced", "reproduced"], run.texts
    run = watched(lambda: build({3}), tmp_path, steps=4)
    assert run.results[0][1] == "reproduced", run.texts
    assert (run.headline["op"], run.headline["module"]) == ("aten::sqrt", "Body.inner")


def test_a_gradient_penalty_is_computed_again(tmp_path, library):
    def build():
        model = net()
        opt = torch.optim.Adam(model.parameters())

        def step(i):
            x, y = batch()
            x.requires_grad_()
            opt.zero_grad()
            out = model(x)
            gradient, = torch.autograd.grad(out.sum(), x, create_graph=True)
            (F.cross_entropy(out, y) + (gradient.norm(dim=1) - 1).pow(2).mean()).backward()
            opt.step()

        return step, model, opt

    run = watched(build, tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts


def test_two_backward_calls_through_one_graph_are_made_again(tmp_path, library):
    def build():
        model = net()
        opt = torch.optim.Adam(model.parameters())

        def step(i):
            x, y = batch()
            opt.zero_grad()
            out = model(x)
            F.cross_entropy(out, y).backward(retain_graph=True)
            out.pow(2).mean().backward()
            opt.step()

        return step, model, opt

    run = watched(build, tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts


def test_a_loss_that_is_computed_after_another_ones_backward_is_computed_again(tmp_path, library):
    """It is seen from the second step on."""
    def build():
        a, b = net(), net()
        opt = torch.optim.Adam([*a.parameters(), *b.parameters()])

        def step(i):
            x, y = batch()
            opt.zero_grad()
            first, second = a(x), b(x)
            F.cross_entropy(first, y).backward()
            F.cross_entropy(second, y).backward()
            opt.step()

        return step, a, b, opt

    run = watched(build, tmp_path, wanted={0, 2})
    assert run.results == [(0, "refused"), (2, "reproduced")], run.texts


def test_an_input_that_forward_writes_is_copied_from_the_next_step_on(tmp_path, library):
    run = watched(loop(WritesInput), tmp_path, wanted={0, 2})
    assert run.results == [(0, "refused"), (2, "reproduced")], run.texts
    assert "writes its inputs" in run.texts[0]


def test_of_gradients_that_were_there_before_only_finiteness_is_compared(tmp_path, library):
    run = watched(loop(Body, zero=False), tmp_path, wanted={0, 2})
    assert run.results == [(0, "reproduced"), (2, "reproduced")], run.texts
    assert "only finiteness" in run.texts[1]


def test_several_losses_and_optimizers_are_one_step(tmp_path, library):
    def build():
        a, b = net(), net()
        first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.Adam(b.parameters())

        def step(i):
            x, y = batch()
            first.zero_grad()
            second.zero_grad()
            out = a(x)
            torch.autograd.backward([F.cross_entropy(out, y), F.mse_loss(b(x), out.detach())])
            first.step()
            second.step()

        return step, a, b, first, second

    run = watched(build, tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts


@pytest.mark.parametrize("early", [False, True], ids=["clip alone", "unscale, then clip"])
def test_clipping_does_not_hide_what_was_bad(early, tmp_path, library):
    def build(bad=()):
        model = Body()
        opt = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=early)

        def step(i):
            x, y = batch(i in bad)
            opt.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()

        return step, model, opt, scaler.state_dict

    run = watched(build, tmp_path, wanted={2})
    assert run.results == [(2, "reproduced")], run.texts
    run = watched(lambda: build({3}), tmp_path, steps=4)
    assert run.results == [(3, "reproduced")], run.texts
    assert run.headline["op"] == "aten::sqrt"
