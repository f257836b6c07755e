# SPDX-License-Identifier: Apache-2.0
"""Programs that torch.compile compiles, each with a line that goes bad: it ends with `# HERE`."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

BAD, STEPS = 3, 6
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
MARKS = [
    pytest.mark.usefixtures("library", "graphs_come_from_the_compiler"),
    pytest.mark.skipif(VERSION < (2, 6), reason="on PyTorch 2.4 less is known of what a graph was made of"),
]


class Part(nn.Module):
    """Of a sum: a weight times what a subclass computes of its input."""

    good, bad = 1.0, 1.0  # what all of its input is
    rows, width = 3, 4

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(self.width))

    def input(self, spoilt):
        return torch.full((self.rows, self.width), self.bad if spoilt else self.good)


class Exponential(Part):
    bad, op = 100.0, "aten::exp"

    def forward(self, x):
        return (x * self.weight).exp()  # HERE


class Logarithm(Part):
    bad, op = 0.0, "aten::log"

    def forward(self, x):
        return (x * self.weight).log()  # HERE


class Quotient(Part):
    bad, op = 0.0, "aten::div"

    def forward(self, x):
        h = x * self.weight
        return h / h.sum(-1, keepdim=True)  # HERE


class Outside(Part):
    bad, op = -1.0, "aten::sqrt"

    def forward(self, x):
        return (x * self.weight).sqrt()  # HERE


class Power(Part):
    bad, op = 1e13, "aten::pow"

    def forward(self, x):
        return (x * self.weight).pow(3)  # HERE


class Cosine(Part):
    bad, op = 2.0, "aten::acos"
    good = 0.5

    def forward(self, x):
        return torch.acos(x * self.weight)  # HERE


class Row(Part):
    """A row of which all is masked; the compiler takes softmax apart."""

    bad, op = float("-inf"), "aten::sub"

    def forward(self, x):
        return torch.softmax(x + self.weight, -1)  # HERE


class Deep(Part):
    bad, op = 100.0, "aten::exp"

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([Exponential()])

    def forward(self, x):
        return self.inner[0](x) * self.weight


class RootAtZero(Part):
    """Its derivative is infinite at 0."""

    bad, phase, op = 0.0, "backward", "aten::div"

    def forward(self, x):
        return (x * self.weight).sqrt()  # HERE


class NormAtZero(Part):
    bad, phase, op = 0.0, "backward", "aten::div"

    def forward(self, x):
        h = x * self.weight
        return h.square().sum(-1).sqrt() * 2  # HERE


class Chosen(Part):
    """What `where` leaves out has a derivative all the same: 0/0."""

    bad, phase, op = 0.0, "backward", "aten::div"

    def forward(self, x):
        h = x * self.weight
        return torch.where(h > 0, h.log(), 0.0)  # HERE


class Hidden(Part):
    """NaN that `where` leaves out; backward computes it again."""

    bad, op = -1.0, "aten::sqrt"

    def forward(self, x):
        h = x * self.weight
        return torch.where(h > 0, h.sqrt(), 0.0)  # HERE


class Saved(Part):
    """NaN that `where` leaves out; it is saved for backward."""

    bad, op = -1.0, "aten::sqrt"

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.eye(4))

    def forward(self, x):
        h = x * self.weight
        y = torch.softmax(h.sqrt() @ self.mix, -1)  # HERE
        return torch.where(h.amin() >= 0, y, 0.0)


class SavedInfinity(Part):
    """An infinity that `tanh` bounds; it is saved for backward, which makes NaN of it."""

    bad, op = 3e38, "aten::mm"

    def __init__(self):
        super().__init__()
        self.mix, self.gain = nn.Parameter(4 * torch.eye(4)), nn.Parameter(torch.ones(4))

    def forward(self, x):
        h = (x * self.weight) @ self.mix  # HERE
        return (h * self.gain).tanh()


class SavedMask(Part):
    """An infinity that is meant; it is saved for backward, which makes NaN of it."""

    bad, phase, op = -1.0, "backward", "aten::mul"

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x):
        h = (x * self.weight).masked_fill(x < 0, float("-inf"))
        return (h * self.gain).tanh()  # HERE


PARTS = [Exponential, Logarithm, Quotient, Outside, Power, Cosine, Row, Deep, RootAtZero, NormAtZero, Chosen, Hidden,
         Saved, SavedInfinity, SavedMask]


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        for kind in PARTS:
            setattr(self, kind.__name__.lower(), kind())

    def inputs(self, spoilt):
        """Of all parts, by name; bad for the one that is `spoilt`."""
        return {k.__name__.lower(): getattr(self, k.__name__.lower()).input(k is spoilt) for k in PARTS}

    def forward(self, inputs):
        return sum(getattr(self, name)(x).sum() for name, x in inputs.items())


def sum_of_parts(spoilt=None):
    def build():
        torch.manual_seed(0)
        net = Sum()
        opt = torch.optim.SGD(net.parameters(), lr=1e-9)
        model = torch.compile(net)

        def step(i):
            opt.zero_grad()
            model(net.inputs(spoilt if i == BAD else None)).backward()
            opt.step()

        return step, net, opt

    return build


def line_of(kind, mark="# HERE"):
    lines, first = inspect.getsourcelines(kind)
    return first + next(n for n, line in enumerate(lines) if mark in line)


def a_batch(rows=8):
    return torch.randn(rows, 6).clamp(-3, 3), torch.randint(0, 3, (rows,))


class Classifier(nn.Module):
    def __init__(self, tail=nn.Identity):
        super().__init__()
        self.first, self.tail, self.last = nn.Linear(6, 8), tail(), nn.Linear(8, 3)

    def forward(self, x):
        h = self.first(x).exp()  # HERE
        return self.last(self.tail(h))


class Broken(Classifier):
    """A graph break comes between what goes bad and what shows it."""

    def forward(self, x):
        h = self.first(x).tanh()
        torch._dynamo.graph_break()
        return self.last((h * x.square().mean()).exp())  # HERE


class Late(Classifier):
    def forward(self, h):
        return self.last(self.first(h).exp())  # HERE


class Resumed(nn.Module):
    """A graph break comes between two modules, of which the second is handed over as a value."""

    def __init__(self):
        super().__init__()
        self.gate, self.late = Breaking(), Late()

    def forward(self, x):
        return self.late(self.gate(x))


class Breaking(nn.Module):
    def forward(self, x):
        torch._dynamo.graph_break()
        return x * 2


class Float16(Classifier):
    def forward(self, x):
        with torch.autocast("cpu", torch.float16):
            return self.last(self.first(x)).float()  # HERE


class Bfloat16(Classifier):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.last(self.first(x).exp()).float()  # HERE


class Squared(torch.autograd.Function):
    """Its derivative is wrong at 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x * x / x  # HERE


class OwnFunction(Classifier):
    def forward(self, x):
        return self.last(Squared.apply(self.first(x * self.first.weight.sum(0)) - self.first.bias))


class Eager(nn.Module):
    """Of which one module is compiled."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.model.tail.compile()

    def forward(self, x):
        return self.model(x)


class Normalised(nn.BatchNorm1d):
    def __init__(self):
        super().__init__(8)


class Tail(nn.Module):
    def forward(self, h):
        return h.exp()  # HERE


class Quiet(Classifier):
    def forward(self, x):
        return self.last(self.tail(self.first(x)))


def training(make, how=torch.compile, spoil=lambda x: x * 1e3, rows=lambda i: 8, lr=1e-2):
    def program(bad):
        def build():
            torch.manual_seed(0)
            net = make()
            opt = torch.optim.SGD(net.parameters(), lr=lr)
            model = how(net)

            def step(i):
                x, y = a_batch(rows(i))
                opt.zero_grad()
                F.cross_entropy(model(spoil(x) if i == bad else x), y).backward()
                opt.step()

            return step, net, opt

        return build

    return program


def compiled_loss(bad):
    def build():
        torch.manual_seed(0)
        net = Quiet()
        opt = torch.optim.AdamW(net.parameters(), lr=1e-3)

        @torch.compile
        def loss_of(x, t):
            p = net(x).softmax(-1)
            return (t * (t.log() - p.log())).sum(-1).mean()  # HERE

        def step(i):
            t = torch.rand(8, 3).softmax(-1)
            if i == bad:
                t[4] = torch.tensor([1.0, 0.0, 0.0])  # 0 * log 0
            opt.zero_grad()
            loss_of(a_batch()[0], t).backward()
            opt.step()

        return step, net, opt

    return build


def compiled_update(bad):
    """The optimizer's step is compiled: 0/0 where gradients are 0 for the first time."""

    def build():
        torch.manual_seed(0)
        net = Quiet()
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        @torch.compile
        def normalised(gradients):
            return [g / g.abs().amax() for g in gradients]  # HERE

        def step(i):
            x, y = a_batch()
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            (loss * 0 if i == bad else loss).backward()
            for p, g in zip(net.parameters(), normalised([p.grad for p in net.parameters()]), strict=True):
                p.grad.copy_(g)
            opt.step()

        return step, net, opt

    return build


def of_optimizer(how):
    """Steps whose optimizer is compiled, as `how` does it: 0/0 where gradients are 0."""

    def program(bad):
        def build():
            torch.manual_seed(0)
            net = Quiet()
            opt = torch.optim.RMSprop(net.parameters(), lr=1e-3, alpha=0.0, eps=0.0)
            act = how(net, opt)

            def step(i):
                x, y = a_batch()
                act(x, y, 0.0 if i == bad else 1.0)

            return step, net, opt

        return build

    return program


def with_own_step(net, opt):
    @torch.compile
    def update():
        opt.step()  # HERE

    def act(x, y, weight):
        opt.zero_grad()
        (F.cross_entropy(net(x), y) * weight).backward()
        update()

    return act


def with_scaler(net, opt):
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    opt.step = torch.compile(opt.step)

    def act(x, y, weight):
        opt.zero_grad()
        scaler.scale(F.cross_entropy(net(x), y) * weight).backward()
        scaler.step(opt)  # HERE
        scaler.update()

    return act


def as_a_whole(net, opt):
    @torch.compile
    def act(x, y, weight):
        opt.zero_grad()
        (F.cross_entropy(net(x), y) * weight).backward()
        opt.step()  # HERE

    return lambda x, y, weight: act(x, y, torch.tensor(weight))


def with_all_in_it(bad):
    """Forward, loss, scaler and optimizer in one compiled function."""

    def build():
        torch.manual_seed(0)
        net = Quiet()
        opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

        @torch.compile
        def act(x, y):
            opt.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(net(x).float(), y)  # HERE
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()

        def step(i):
            x, y = a_batch()
            act(x * 3e4 if i == bad else x, y)

        return step, net, opt

    return build


def in_place(bad):
    """A compiled function writes parameters: 0/0 where gradients are 0."""

    def build():
        torch.manual_seed(0)
        net = Quiet()

        @torch.compile
        def update(parameters):
            for p in parameters:
                p.sub_(1e-3 * p.grad / p.grad.abs().amax())  # HERE

        def step(i):
            x, y = a_batch()
            loss = F.cross_entropy(net(x), y)
            (loss * 0 if i == bad else loss).backward()
            with torch.no_grad():
                update(list(net.parameters()))
            net.zero_grad()

        return step, net, None

    return build


class Reach(Quiet):
    """A buffer goes bad; what the model gives stays finite."""

    def __init__(self):
        super().__init__()
        self.register_buffer("reach", torch.ones(8))

    def forward(self, x):
        h = self.first(x)
        with torch.no_grad():
            self.reach.mul_((h.mean(0) * 0 + x.amax() + 4).log())  # HERE
        return self.last(h)
