# SPDX-License-Identifier: Apache-2.0
"""Calls that have no finite answer are told as what they are, and what is deliberate leads to the op that it harms."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
import warnings

import pytest
import torch
from own_programs import LEVELS, Net, assert_silent, data, told
from torch import nn
from torch.nn import functional as F


def training(term, twin_of=None, bad=(3,), model=Net):
    """`term(out, x, y, bad)` is the loss; only in bad steps does it meet what it cannot bear."""

    def build():
        net = model()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            x, y = data()
            opt.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch's own, of variances of one element
                term(net(x), x, y, i in bad).backward()
            opt.step()

        return step, net, opt

    return build


def std_of_one(out, x, y, bad, correction=1):
    part = out[:1] if bad else out
    return part.std(dim=0, correction=correction).mean() + out.pow(2).mean()


def var_of_one(out, x, y, bad, correction=1):
    part = out[:1] if bad else out
    return part.var(dim=0, correction=correction).mean() + out.pow(2).mean()


def ctc(out, x, y, bad, zero_infinity=False):
    log_probs = F.log_softmax(out.reshape(4, 2, 3), -1)
    targets = torch.tensor([[1, 1], [2, 1]]) if not bad else torch.tensor([[1, 1, 1], [2, 1, 2]])
    lengths = torch.tensor([2, 2]) if not bad else torch.tensor([3, 2])
    return F.ctc_loss(log_probs, targets, torch.tensor([4, 4]), lengths, zero_infinity=zero_infinity)


def mean_of_nothing(out, x, y, bad, guard=False):
    chosen = out[y > (5 if bad else -1)]
    if guard:
        return chosen.sum() / max(chosen.numel(), 1) + out.pow(2).mean()
    return chosen.mean() + out.pow(2).mean()


def all_ignored(out, x, y, bad, guard=False):
    labels = torch.full_like(y, -100) if bad else y
    if guard:
        return F.cross_entropy(out, labels, reduction="sum") / (labels != -100).sum().clamp(min=1)
    return F.cross_entropy(out, labels)


def log_sum_exp(out, x, y, bad, keep=False):
    mask = torch.zeros_like(out, dtype=torch.bool)
    if bad:
        mask[0, 1 if keep else 0 :] = True
    return torch.logsumexp(out.masked_fill(mask, -math.inf), -1).mean()


def softmax(out, x, y, bad, keep=False):
    mask = torch.zeros_like(out, dtype=torch.bool)
    if bad:
        mask[0, 1 if keep else 0 :] = True
    return (torch.softmax(out.masked_fill(mask, -math.inf), -1) * out).mean()


def norm(out, x, y, bad, divisor=1.0):
    return torch.linalg.vector_norm(out * (1e30 if bad else 1.0) / divisor) * 1e-25


def factor(out, x, y, bad, dtype=torch.float16):
    return out.pow(2).mean().to(dtype) * (2.0**26 if bad else 1.0)


def loss_of_nothing(out, x, y, bad, guard=False):
    chosen = torch.zeros(len(out), dtype=torch.bool) if bad else torch.ones(len(out), dtype=torch.bool)
    if guard and not chosen.any():
        return out.pow(2).mean()
    return F.smooth_l1_loss(out[chosen], torch.ones_like(out)[chosen]) + out.pow(2).mean()


def soft_labels_of_nothing(out, x, y, bad, guard=False):
    rows = slice(0, 0) if bad and not guard else slice(None)
    return F.cross_entropy(out[rows], torch.full_like(out[rows], 1 / 3)) + out.pow(2).mean()


def determinant(out, x, y, bad, of_size=False):
    matrix = torch.diag(torch.tensor([-1.0 if bad else 1.0, 1.0, 1.0])) + 0.01 * out[:3]
    return (torch.linalg.slogdet(matrix)[1] if of_size else torch.logdet(matrix)) + out.pow(2).mean()


def largest_of_masked(out, x, y, bad, keep=False):
    mask = torch.zeros_like(out, dtype=torch.bool)
    if bad:
        mask[0, 1 if keep else 0 :] = True
    return (out.masked_fill(mask, -math.inf).max(-1).values * torch.zeros(len(out))).mean() + out.pow(2).mean()


def masked_entropy(out, x, y, bad, guard=0.0):
    mask = torch.zeros_like(out, dtype=torch.bool)
    mask[0, 0] = bool(bad)
    p = torch.softmax(out.masked_fill(mask, -math.inf), -1)
    return -(p * torch.log(p + guard)).sum(-1).mean()


def distance(out, x, y, bad, least=1.0):
    return torch.acosh((1 + out.pow(2) * (0.0 if bad else 1.0)).clamp(min=least)).mean() + out.pow(2).mean()


def density(out, x, y, bad, together=False):
    exponents = -out.pow(2) - (200.0 if bad else 0.0)
    return -(torch.logsumexp(exponents, -1) if together else torch.log(torch.exp(exponents).sum(-1))).mean() * 1e-3


def product_of_exponentials(out, x, y, bad, together=False):
    a = out + (60.0 if bad else 0.0)
    return (a + a if together else torch.log(torch.exp(a) * torch.exp(a))).mean() * 1e-3


def twin(term, **options):
    return lambda out, x, y, bad: term(out, x, y, bad, **options)


# The fault, its twin, and what must be told: class, op, words of the title, advice.
CALLS = {
    "std of one": (
        std_of_one,
        twin(std_of_one, correction=0),
        "divide_by_zero",
        "aten::std",
        "1 element",
        "few-elements",
    ),
    "var of one": (
        var_of_one,
        twin(var_of_one, correction=0),
        "divide_by_zero",
        "aten::var",
        "1 element",
        "few-elements",
    ),
    "CTC without a path": (
        ctc,
        twin(ctc, zero_infinity=True),
        "invalid",
        "aten::_ctc_loss",
        "1 of 2 targets",
        "ctc-lengths",
    ),
    "a mean of nothing": (
        mean_of_nothing,
        twin(mean_of_nothing, guard=True),
        "divide_by_zero",
        "aten::mean",
        "no element",
        "skip-empty",
    ),
    "a loss of nothing": (
        loss_of_nothing,
        twin(loss_of_nothing, guard=True),
        "divide_by_zero",
        "aten::smooth_l1_loss",
        "no element",
        "skip-empty",
    ),
    "a cross entropy of nothing": (
        soft_labels_of_nothing,
        twin(soft_labels_of_nothing, guard=True),
        "invalid",
        "aten::fill_",
        "no element",
        "skip-empty",
    ),
    "a negative determinant": (
        determinant,
        twin(determinant, of_size=True),
        "invalid",
        "aten::scalar_tensor",
        "determinant",
        "slogdet",
    ),
    "the largest of a masked row": (
        largest_of_masked,
        twin(largest_of_masked, keep=True),
        "invalid",
        "aten::mul",
        "infinities of a mask",
        "keep-one-key",
    ),
    "a density that is too small": (
        density,
        twin(density, together=True),
        "divide_by_zero",
        "aten::log",
        "log of 0",
        "clamp-input",
    ),
    "a product of exponentials": (
        product_of_exponentials,
        twin(product_of_exponentials, together=True),
        "overflow",
        "aten::mul",
        "overflows fp32",
        "bound-exponent",
    ),
    "every target ignored": (
        all_ignored,
        twin(all_ignored, guard=True),
        "divide_by_zero",
        "aten::nll_loss_forward",
        "",
        "skip-unlabelled",
    ),
    "softmax of -Inf": (softmax, twin(softmax, keep=True), "invalid", "aten::_softmax", "only -Inf", "keep-one-key"),
    "logsumexp of -Inf": (
        log_sum_exp,
        twin(log_sum_exp, keep=True),
        "invalid",
        "aten::logsumexp",
        "log 0",
        "finite-mask",
    ),
    "a factor beyond fp16": (factor, twin(factor, dtype=torch.float32), "overflow", "aten::mul", "overflows fp16", ""),
    "a norm whose square overflows": (norm, twin(norm, divisor=1e20), "overflow", "aten::linalg_vector_norm", "", ""),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_wrong_with_a_call_is_said(name, level, tmp_path):
    fault, repaired, cls, op, title, advice = CALLS[name]
    said = told(training(fault), tmp_path, level)
    assert said.status == "fault" and (said.first["class"], said.first["op"]) == (cls, op), said.show()
    assert said.first["step"] == 3 and title in said.first["title"], said.show()
    if advice:
        assert advice in [a["id"] for a in said.first["advice"]], said.first["advice"]
    assert_silent(training(repaired), tmp_path, level)


# What the cause says of the ops that came before, by the name of the call.
CAME_OF = {
    "the largest of a masked row": ["on purpose by aten::masked_fill (", "test_calls.py:"],
    "a density that is too small": ["are 0: their exponents, down to -20"],
    "a product of exponentials": ["The numbers came of aten::exp (", "test_calls.py:"],
}


@pytest.mark.parametrize("name", CAME_OF)
def test_what_the_numbers_of_a_call_came_of_is_said(name, tmp_path):
    said = told(training(CALLS[name][0]), tmp_path, "live")
    assert all(part in said.first["explanation"] for part in CAME_OF[name]), said.first["explanation"]


def test_an_entropy_over_masked_entries_is_not_cured_by_a_log_softmax(tmp_path):
    said = told(training(masked_entropy), tmp_path, "live")
    assert said.first["op"] == "aten::log" and said.first["step"] == 3, said.show()
    assert [a["id"] for a in said.first["advice"]][0] == "clamp-input", said.first["advice"]
    assert_silent(training(twin(masked_entropy, guard=1e-9)), tmp_path, "live")


def test_the_derivative_of_acosh_at_1_is_kept_above_1(tmp_path):
    said = told(training(distance), tmp_path, "live")
    first = said.first["advice"][0]
    assert said.first["op"] == "aten::rsqrt" and first["id"] == "clamp-above-1", said.show()
    assert first["evidence"].startswith("tried on these numbers: x.clamp(min=1.000001)"), first
    assert_silent(training(twin(distance, least=1.000001)), tmp_path, "live")


def constant(kind):
    """-Inf as a program writes it, once, before it trains."""
    if kind == "tensor":
        return torch.tensor([0.0, -math.inf, 0.0])
    if kind == "full":
        t = torch.full((3,), -math.inf)
        t[0] = t[2] = 0.0
        return t
    return torch.zeros(3).masked_fill(torch.tensor([False, True, False]), -math.inf)


class Masked(Net):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, x):
        return super().forward(x) + self.mask


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["tensor", "full", "fill", "buffer", "in step"])
def test_an_infinite_constant_is_deliberate_and_what_makes_nan_of_it_is_the_origin(kind, level, tmp_path):
    mask = constant(kind)

    def term(harm):
        def loss(out, x, y, bad):
            shown = out if kind == "buffer" else out + (constant("tensor") if kind == "in step" else mask)
            p = torch.softmax(shown, -1)
            if harm and bad:
                return (p * shown).sum()  # 0 * -Inf
            return (p * out.masked_fill(torch.isinf(out), 0.0)).sum()

        return loss

    model = (lambda: Masked(constant("tensor"))) if kind == "buffer" else Net
    said = told(training(term(True), model=model), tmp_path, level)
    assert said.status == "fault" and said.what[:3] == ("invalid", "aten::mul", "loss"), said.show()
    assert said.first["step"] == 3, said.show()
    assert_silent(training(term(False), model=model), tmp_path, level)


class Padded(nn.Module):
    """Rows past the vocabulary hold NaN. `used`: one of them is selected."""

    def __init__(self, where):
        super().__init__()
        self.table = nn.Embedding(6, 6)
        self.register_buffer("offsets", torch.zeros(6, 6))
        self.last = nn.Linear(6, 3)
        with torch.no_grad():
            (self.table.weight if where == "embedding" else self.offsets)[5] = math.nan

    def forward(self, i):
        return self.last(self.table(i) + self.offsets[i])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("where", ["embedding", "buffer"])
def test_nan_in_padding_is_a_fault_only_where_it_is_selected(where, level, tmp_path):
    def training_(selected):
        def build():
            net = Padded(where)
            opt = torch.optim.SGD(net.parameters(), lr=1e-2)

            def step(i):
                _, y = data()
                index = torch.arange(8) % 5
                if selected and i == 3:
                    index[2] = 5
                opt.zero_grad()
                F.cross_entropy(net(index), y).backward()
                opt.step()

            return step, net, opt

        return build

    said = told(training_(True), tmp_path, level)
    assert said.status == "fault" and said.what[:3] == ("invalid", "aten::fill_", "data"), said.show()
    into = "parameter table.weight" if where == "embedding" else "buffer offsets"
    if not torch.__version__.startswith("2.15"):  # which fills with a number, and not with a tensor of one
        assert said.first["title"] == f"The program writes NaN into {into}", said.show()
    assert said.first["module"] == into.split()[1], said.show()
    assert_silent(training_(False), tmp_path, level)


@pytest.mark.parametrize("level", LEVELS)
def test_a_singular_gradient_names_the_call_that_set_it_up(level, tmp_path):
    def loss(guard):
        def term(out, x, y, bad):
            scale = torch.zeros(()) if bad else torch.ones(())
            return torch.atan(out / (scale + guard)).mean()  # the angle is finite where the quotient is not

        return term

    said = told(training(loss(0.0)), tmp_path, level)
    assert said.status == "fault" and said.first["class"] == "divide_by_zero", said.show()
    assert (said.first["op"], said.first["phase"]) == ("aten::div", "backward"), said.show()
    set_up = [text for text in said.first["evidence"] if text.startswith("The loss set it up: aten::div made ")]
    assert set_up and "aten::atan" in set_up[0] and "test_calls.py:" in set_up[0], said.first["evidence"]
    assert_silent(training(loss(1e-3)), tmp_path, level)


def logarithm(x):
    return x.log()


def in_training(net, x):
    return logarithm(net(x).square() + 1)


def in_evaluation(net, x):
    return logarithm(net(x) * 0)


def shared(bad):
    """A function that training and evaluation call; only the evaluation of step `bad` gives it zeros."""

    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            opt.zero_grad()
            in_training(net, data()[0]).mean().backward()
            opt.step()
            if i == bad:
                with torch.no_grad():
                    in_evaluation(net, data()[0]).mean().item()

        return step, net, opt

    return build


class Twice(Net):
    """Its second call of the same function is given zeros."""

    def forward(self, x):
        first = logarithm(super().forward(x).square() + 1)
        return first + logarithm(first.detach() * self.scale)


def twice(bad):
    def build():
        torch.manual_seed(0)
        net = Twice()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            net.scale = 0.0 if i == bad else 1.0
            opt.zero_grad()
            net(data()[0]).mean().backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_a_fault_is_called_from_where_it_was_called_and_not_from_where_its_line_ran_first(level, tmp_path):
    said = told(shared(bad=5), tmp_path / "evaluation", level, steps=8)
    functions = [frame["function"].rpartition(".")[2] for frame in said.first["frames"]]
    assert functions[:2] == ["logarithm", "in_evaluation"], functions
    said = told(twice(bad=4), tmp_path / "twice", level)
    frames = [(frame["function"], frame["line"]) for frame in said.first["frames"]]
    line = Twice.forward.__code__.co_firstlineno + 2
    assert frames[0][0] == "logarithm" and frames[1] == ("Twice.forward", line), frames


WRAPPER = """
def call(function, *args):
    return function(*args)
"""


class Wrapped(nn.Module):
    """Two of its ops are called by one line of an installed package."""

    def __init__(self, call):
        super().__init__()
        self.call, self.first, self.last = call, nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, bad):
        h = self.call(torch.tanh, self.first(x))
        y = self.last(h)
        z = y - y.detach() if bad else y * y + 1
        return self.call(torch.sqrt, z)  # its derivative


@pytest.mark.parametrize("level", LEVELS)
def test_a_line_of_an_installed_package_is_told_with_the_line_that_called_it_for_this_op(level, tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "wrapping"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(WRAPPER)
    monkeypatch.syspath_prepend(str(package.parent))
    call = importlib.import_module("wrapping").call

    def build(bad=(3,)):
        net = Wrapped(call)
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            opt.zero_grad()
            net(data()[0], i in bad).mean().backward()
            opt.step()

        return step, net, opt

    said = told(build, tmp_path / "bad", level)
    assert said.what == ("divide_by_zero", "aten::div", "backward", "Wrapped"), said.show()
    lines, first = inspect.getsourcelines(Wrapped)
    line = first + next(i for i, text in enumerate(lines) if "# its derivative" in text)
    assert said.first["call_site"] == f"test_calls.py:{line}", said.first["call_site"]
    monkeypatch.delitem(sys.modules, "wrapping")
    assert_silent(lambda: build(()), tmp_path / "twin", level)


@pytest.mark.parametrize("level", LEVELS)
def test_a_division_by_0_is_one_also_where_healthy_steps_have_swallowed_infinities_there(level, tmp_path):
    """Units that are 0 for a whole sample make the root's derivative infinite, and relu's stops it where all are 0."""

    def build(bad=(11,)):
        torch.manual_seed(11)
        first, last = nn.Linear(8, 16), nn.Linear(16, 3)
        opt = torch.optim.AdamW([*first.parameters(), *last.parameters()], lr=1e-3)

        def step(i):
            x = torch.randn(4, 7, 8)
            if i in bad:
                x[1] = x[1, :1]
            deviation = torch.sqrt(torch.relu(first(x)).var(1, unbiased=False))
            loss = F.cross_entropy(last(deviation), torch.randint(0, 3, (4,)))
            opt.zero_grad()
            loss.backward()
            opt.step()

        return step, first, last, opt

    said = told(build, tmp_path / "bad", level, 14)
    assert said.what[:3] == ("divide_by_zero", "aten::div", "backward") and said.first["step"] == 11, said.show()
    assert [one["id"] for one in said.first["advice"]] == ["eps-in-sqrt"], said.first["advice"]


# Operators of the program's own, written in Python.
@torch.library.custom_op("nanhunt_calls::root", mutates_args=(), schema="(Tensor x) -> Tensor")
def custom_root(x: torch.Tensor) -> torch.Tensor:
    return x.pow(-0.5)


custom_root.register_autograd(lambda ctx, g: g * -0.5 * ctx.saved_tensors[0].pow(-1.5),
                              setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


@torch.library.custom_op("nanhunt_calls::shrink", mutates_args=("x",), schema="(Tensor(a!) x, Tensor by) -> ()")
def custom_shrink(x: torch.Tensor, by: torch.Tensor) -> None:
    x.div_(by)


@torch.library.custom_op("nanhunt_calls::unheard", mutates_args=(), schema="(Tensor x) -> Tensor")
def custom_unheard(x: torch.Tensor) -> torch.Tensor:
    numbers = x.numpy()
    return torch.from_numpy(numbers / abs(numbers))


def by_root(out, x, y, bad, guard=0.0):
    return custom_root(out.square() * (0.0 if bad else 1.0) + guard).mean() + out.square().mean()


def by_shrink(out, x, y, bad, guard=0.0):
    weights = torch.ones(4)
    custom_shrink(weights, torch.tensor(0.0 if bad else 1.0) + guard)
    return (out[:, :1] * weights.sum()).square().mean()


def by_numpy(out, x, y, bad, guard=0.0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = custom_unheard(torch.tensor([1.0, 0.0 if bad else 1.0]) + guard)
    return (out[:, :2] * weights).square().mean()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("term", "op"), [(by_root, "aten::pow"), (by_shrink, "aten::div_"),
                                          (by_numpy, "nanhunt_calls::unheard")])
def test_what_an_operator_of_the_programs_own_calls_is_named_where_it_can_be_heard(term, op, level, tmp_path):
    said = told(training(term), tmp_path, level)
    assert said.status == "fault" and said.what[1] == op and said.first["step"] == 3, said.show()
    function = custom_root if term is by_root else custom_shrink if term is by_shrink else by_numpy
    lines, first = inspect.getsourcelines(getattr(function, "_init_fn", function))
    line = int(said.first["call_site"].rsplit(":", 1)[1].split()[0])
    assert first <= line < first + len(lines), said.show()
    assert_silent(training(lambda *given: term(*given, guard=1e-3)), tmp_path, level)
