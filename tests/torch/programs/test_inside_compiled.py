# SPDX-License-Identifier: Apache-2.0
"""What goes bad inside of compiled code is told as in the program as it is written: operation, module and line."""

from __future__ import annotations

import functools
import gc
import inspect
from contextlib import nullcontext

import pytest
import torch
from own_programs import Told, assert_silent, told
from step_runs import run_once
from torch import nn
from torch.nn import functional as F

BAD, STEPS = 3, 6
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
pytestmark = [
    pytest.mark.usefixtures("library"),
    pytest.mark.skipif(VERSION < (2, 6), reason="before PyTorch 2.6 less is known of what a graph was made of"),
]


@pytest.fixture(autouse=True)
def graphs_come_from_the_compiler():
    """Each is compiled here, and none comes out of a cache without its operations."""
    from torch._functorch import config

    torch.compiler.reset()
    with config.patch(enable_autograd_cache=False) if hasattr(config, "enable_autograd_cache") else nullcontext():
        yield
    torch.compiler.reset()


class Part(nn.Module):
    """Of a sum: a weight times what a subclass computes of its input."""

    good, bad = 1.0, 1.0  # what all of its input is

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def input(self, spoilt):
        return torch.full((3, 4), self.bad if spoilt else self.good)


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

    bad, phase, op = -1.0, "backward", "aten::sqrt"

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


PARTS = [Exponential, Logarithm, Quotient, Outside, Power, Cosine, Row, Deep, RootAtZero, NormAtZero, Chosen, Hidden,
         Saved]


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        for kind in PARTS:
            setattr(self, kind.__name__.lower(), kind())

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
            model({k.__name__.lower(): getattr(net, k.__name__.lower()).input(i == BAD and k is spoilt)
                   for k in PARTS}).backward()
            opt.step()

        return step, net, opt

    return build


def line_of(kind, mark="# HERE"):
    lines, first = inspect.getsourcelines(kind)
    return first + next(n for n, line in enumerate(lines) if mark in line)


def assert_named(said: Told, op, module, line, phase):
    at = f"test_inside_compiled.py:{line}"
    assert said.status == "fault" and said.first["op"] == op and said.first["module"] == module, said.show()
    assert said.first["step"] == BAD and said.first["phase"] == phase, said.show()
    assert said.first["call_site"].endswith(at) and len(said.loud) == 1, (said.show(), said.first["call_site"], at)


@pytest.mark.parametrize("kind", PARTS)
def test_an_operation_of_a_compiled_module_is_named_as_it_is_written(kind, tmp_path):
    said = told(sum_of_parts(kind), tmp_path, "live", STEPS)
    inner = Exponential if kind is Deep else kind
    module = kind.__name__.lower() + (".inner.0" if kind is Deep else "")
    assert_named(said, kind.op, module, line_of(inner), getattr(kind, "phase", "forward"))


@pytest.mark.parametrize("level", ["live", "ops"])
def test_a_compiled_module_that_goes_on_is_silent(level, tmp_path):
    assert_silent(sum_of_parts(), tmp_path, level, STEPS)


def test_level_ops_names_the_same_operation(tmp_path):
    assert_named(told(sum_of_parts(Logarithm), tmp_path, "ops", STEPS), "aten::log", "logarithm", line_of(Logarithm),
                 "forward")


# Programs of their own: how they compile, and what.
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


PROGRAMS = {
    "a model": (training(Classifier), Classifier, "aten::exp", "", "forward"),
    "a model with dropout": (training(lambda: Classifier(nn.Dropout)), Classifier, "aten::exp", "", "forward"),
    "a model that writes buffers": (training(lambda: Classifier(Normalised)), Classifier, "aten::exp", "", "forward"),
    "batches of many sizes": (training(Classifier, lambda n: torch.compile(n, dynamic=True), rows=lambda i: 5 + i),
                              Classifier, "aten::exp", "", "forward"),
    "a graph that breaks": (training(Broken), Broken, "aten::exp", "", "forward"),
    "fp16": (training(Float16, spoil=lambda x: x * 1e6), Float16, "aten::_to_copy", "first", "forward"),
    "bf16": (training(Bfloat16), Bfloat16, "aten::exp", "", "forward"),
    "a function of its own": (training(OwnFunction, spoil=torch.zeros_like), Squared, "aten::div", None, "backward"),
    "one module of many": (training(lambda: Eager(Quiet(Tail)), lambda n: n), Tail, "aten::exp", "model.tail",
                           "forward"),
    "a loss": (compiled_loss, compiled_loss, "aten::log", None, None),
    "a buffer": (training(Reach, spoil=lambda x: x - 99), Reach, "aten::log", "", "forward"),
    "what an optimizer is given": (compiled_update, compiled_update, "aten::div", None, None),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_compiles_is_told_as_it_is_written(name, tmp_path):
    program, where, op, module, phase = PROGRAMS[name]
    said = told(program(BAD), tmp_path / "bad", "live", STEPS)
    assert said.first["op"] == op and said.first["step"] == BAD and len(said.loud) == 1, said.show()
    assert module is None or (said.first["module"] or "").removeprefix(where.__name__) == module, said.show()
    assert phase in (None, said.first["phase"]), said.show()
    assert said.first["call_site"].endswith(f"test_inside_compiled.py:{line_of(where)}"), said.first["call_site"]
    torch.compiler.reset()
    assert_silent(program(None), tmp_path / "twin", "live", STEPS)


def graphs_in_use():
    from torch._inductor.output_code import CompiledFxGraph

    return [one for one in gc.get_objects() if type(one) is CompiledFxGraph]


def test_a_kernel_that_computes_otherwise_than_the_program_is_told_as_that(tmp_path):
    """A compiler's mistake, planted: in one step a kernel gives an infinity that the program does not."""

    def program(bad):
        def build():
            step, net, opt = training(Quiet)(None)()

            def spoilt(i):
                if i != bad:
                    return step(i)
                own = [(graph, graph.current_callable) for graph in graphs_in_use()]

                def wrong(inputs, kernel):
                    results = kernel(inputs)
                    if results[0].shape == (8, 3):
                        results[0][2, 1] = float("inf")
                    return results

                for graph, kernel in own:
                    graph.current_callable = functools.partial(wrong, kernel=kernel)
                step(i)
                for graph, kernel in own:
                    graph.current_callable = kernel

            return spoilt, net, opt

        return build

    said = told(program(BAD), tmp_path / "bad", "live", STEPS)
    assert said.what[:3] == ("kernel_dependent", "compiled_graph", "forward"), said.show()
    assert said.first["step"] == BAD and "[2, 1]" in said.first["explanation"], said.first["explanation"]
    assert "keep-roundings" in [a["id"] for a in said.first["advice"]] and len(said.loud) == 1, said.show()
    torch.compiler.reset()
    assert_silent(program(None), tmp_path / "twin", "live", STEPS)


calls: list[int] = []


@torch.library.custom_op("nanhunt_tests::scaled", mutates_args=(), schema="(Tensor x) -> Tensor")
def scaled(x):
    calls.append(1)
    return x * 1e3


@scaled.register_fake
def _(x):
    return torch.empty_like(x)


def test_operations_of_the_program_inside_of_a_graph_do_not_run_again(tmp_path):
    def build(bad=BAD):
        model = torch.compile(lambda x: scaled(x).exp())

        def step(i):
            net(model(torch.full((2, 6), 1.0 if i == bad else 0.01))).sum().backward()
            opt.step()
            opt.zero_grad()

        net = nn.Linear(6, 1)
        opt = torch.optim.SGD(net.parameters(), lr=1e-9)
        return step, net, opt

    calls.clear()
    said = told(build, tmp_path, "live", STEPS)
    assert len(calls) == 2 * STEPS, len(calls)  # beside the run there is one that nobody watches
    assert said.first["op"] == "compiled_graph" and said.first["step"] == BAD, said.show()
    assert any("nanhunt_tests" in line for line in said.first["evidence"]), said.first["evidence"]


def with_counters(build, out=None):
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    run = run_once(build, STEPS, out)
    return run.digest, {key: dict(of) for key, of in counters.items() if key in ("stats", "frames", "graph_break")}


@pytest.mark.parametrize("make", [lambda: Classifier(nn.Dropout), lambda: Classifier(Normalised), OwnFunction])
def test_a_run_with_a_graph_that_is_opened_ends_with_the_same_bits_and_compiles_as_often(make, tmp_path):
    build = training(make, spoil=torch.zeros_like if make is OwnFunction else lambda x: x * 1e3)(BAD)
    assert with_counters(build, tmp_path / "run") == with_counters(build)


class Noisy(Classifier):
    def forward(self, x):
        return self.last(F.dropout(self.first(x) * 0 + x.square().mean()).exp())


class Wide(Classifier):
    """In between it would take 400 MB."""

    def forward(self, x):
        far = (torch.arange(10000.0)[:, None] - torch.arange(10000.0)[None, :] * x.mean()).abs().sum(1).mean()
        return self.last(self.first(x) * (far * 1e-9 + 1)) + (x.mean() + 4).log()


@pytest.mark.parametrize(
    ("make", "spoil", "why"),
    [(Noisy, lambda x: torch.full_like(x, 7.0), None), (Wide, lambda x: x - 99, "too much memory")],
)
def test_what_cannot_be_computed_again_as_it_was_is_not_blamed_on_the_compiler(make, spoil, why, tmp_path):
    said = told(training(make, spoil=spoil)(BAD), tmp_path, "live", STEPS)
    assert said.first["class"] != "kernel_dependent" and said.first["step"] == BAD, said.show()
    assert why is None or any(why in line for line in said.first["evidence"]), said.first["evidence"]


def test_of_two_models_in_one_graph_the_right_one_is_named(tmp_path):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = Quiet(Tail), Quiet(Tail)

        def forward(self, x, z):
            return self.student(x) + self.teacher(z)

    def build():
        torch.manual_seed(0)
        net = Both()
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)
        both = torch.compile(lambda a, b, x, z: a(x) + b(z))

        def step(i):
            x, y = a_batch()
            net(x, x)  # names its parts
            opt.zero_grad()
            F.cross_entropy(both(net.student, net.teacher, x, x * 1e3 if i == BAD else x), y).backward()
            opt.step()

        return step, net, opt

    said = told(build, tmp_path, "live", STEPS)
    assert said.first["op"] == "aten::exp" and said.first["module"] == "teacher.tail", said.show()


def test_what_pytorch_warns_of_inside_is_not_printed_into_the_run(tmp_path, capfd):
    class Single(Quiet):
        def forward(self, x):
            return self.last(self.first(x) + x[:1].std(0).sum() * x.amin().sign().clamp(max=0))

    said = told(training(Single, spoil=lambda x: x - 99)(BAD), tmp_path, "live", STEPS)
    assert said.status == "fault", said.show()
    assert "degrees of freedom" not in capfd.readouterr().err


def test_parameters_that_a_compiled_function_writes_end_a_step(tmp_path):
    said = told(in_place(BAD), tmp_path / "bad", "live", STEPS)
    found = [f for f in said.run.report["findings"] if f["op"] == "aten::div"]
    assert [f["step"] for f in found] == [BAD] and found[0]["call_site"].endswith(f":{line_of(in_place)}"), said.show()
    torch.compiler.reset()
    assert_silent(in_place(None), tmp_path / "twin", "live", STEPS)


def test_a_backward_that_an_eager_loss_gave_nan_is_no_fault_of_the_graph(tmp_path):
    def build(bad=BAD):
        step_of = training(Quiet)(None)
        _, net, opt = step_of()
        model = torch.compile(net)

        def step(i):
            opt.zero_grad()
            y = model(a_batch()[0])
            (y - y.detach() if i == bad else y).abs().sum(1).sqrt().sum().backward()  # 0 * inf, outside
            opt.step()

        return step, net, opt

    said = told(build, tmp_path / "bad", "live", STEPS)
    assert said.first["op"] not in (None, "compiled_graph") and said.first["step"] == BAD, said.show()
    assert not {"kernel_dependent", "unexplained"} & {cls for cls, _ in said.loud}, said.show()


@pytest.mark.parametrize("spoilt", [0, 1])
def test_of_two_calls_before_their_backwards_none_is_told_of_the_other(spoilt, tmp_path):
    def build(bad=BAD):
        torch.manual_seed(0)
        net = Sum()
        opt = torch.optim.SGD(net.parameters(), lr=1e-9)
        model = torch.compile(net)

        def step(i):
            opt.zero_grad()
            outs = []
            for n in range(2):
                outs.append(model({k.__name__.lower(): getattr(net, k.__name__.lower()).input(
                    i == bad and k is Saved and n == spoilt) for k in PARTS}))
            for out in outs:
                out.backward()
            opt.step()

        return step, net, opt

    said = told(build, tmp_path / "bad", "live", STEPS)
    assert said.status == "fault" and said.first["step"] == BAD, said.show()
    assert "kernel_dependent" not in {cls for cls, _ in said.loud}, said.show()
