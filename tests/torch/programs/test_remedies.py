# SPDX-License-Identifier: Apache-2.0
"""Advice was tried on the numbers that the origin read: what it names, put into the program as it stands, cures it, and
what stayed bad is not advised.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from own_programs import Net, assert_silent, data, told
from step_runs import run_once
from torch import nn
from torch.nn import functional as F

LEVEL = "live"  # the one at which origins are computed again
Term = Callable[..., torch.Tensor]


def training(term: Term, numbers: list[float] | None = None) -> Callable[[], Any]:
    """`term(out, x, bad, numbers)` is the loss; `numbers`: of the advice, which it takes. None: as it was."""

    def build() -> Any:
        net = nn.Linear(6, 4)
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i: int) -> None:
            x, _ = data()
            opt.zero_grad()
            term(net(x), x, 0.0 if i == 3 else 1.0, numbers).backward()
            opt.step()

        return step, net, opt

    return build


def guarded_log(out, x, on, numbers):
    q = out.pow(2) * on + (1 - on) * 0
    return -torch.log(q.clamp(min=numbers[0]) if numbers else q + 1e-3 * on).mean()


def two_logs(out, x, on, numbers):
    """What comes together in their sum is bad of either: a remedy of one of them is judged without the other."""
    return guarded_log(out, x, on, numbers) + guarded_log(out.flip(0) * 2, x, on, numbers)


def length(out, x, on, numbers):
    y = out * on
    return (torch.linalg.vector_norm(y, dim=-1) if numbers is not None else y.pow(2).sum(-1).sqrt()).mean()


def share(out, x, on, numbers):
    y = out.pow(2) * on
    whole = y.sum(-1, keepdim=True)
    return (y / (whole + numbers[0] if numbers else whole)).pow(2).mean()


def quotient(out, x, on, numbers):
    r = torch.linspace(0, 1, 4) if on == 0 else torch.linspace(0.1, 1, 4)
    made = out / r if numbers is None else torch.where(r == 0, 0.0, out / torch.where(r == 0, 1.0, r))
    return made.pow(2).mean() * 1e-3


def mean_of_some(out, x, on, numbers):
    """A mean over what a mask leaves, of each row."""
    kept = (x[:, :4] > -9 + 99 * (1 - on)).float()
    count = kept.sum(-1)
    return ((out * kept).sum(-1) / (count if numbers is None else count.clamp(min=1))).mean()


def means(out, x, on, numbers):
    """The same line twice, on what it made: a mean over no neighbour, as two layers of a graph have it."""
    h, count = out * on, torch.full((1,), on)
    for _ in range(2):
        h = torch.tanh(h * count / (count + numbers[0] if numbers else count))
    return h.pow(2).mean()


def penalty_by_hand(out, x, on, numbers):
    """The gradient of a length is part of the loss: its derivative is the length's second one."""
    v = (x[:, :4] * on + out * 0).detach().requires_grad_()
    w = v * out.mean(0)
    square = w.pow(2).sum(-1)
    size = (square + numbers[0] if numbers else square).sqrt()
    slope, = torch.autograd.grad(size.sum(), v, create_graph=True)
    return size.mean() + slope.pow(2).sum(-1).mean()


def penalty(out, x, on, numbers):
    v = (x[:, :4] * on + out * 0).detach().requires_grad_()
    w = v * out.mean(0)
    size = (w.pow(2).sum(-1) + numbers[0]).sqrt() if numbers else torch.linalg.vector_norm(w, dim=-1)
    slope, = torch.autograd.grad(size.sum(), v, create_graph=True)
    return size.mean() + slope.pow(2).sum(-1).mean()


def exponential(out, x, on, numbers):
    h = (out + 12 * (1 - on)).half()
    e = torch.exp(h if numbers is None else h.float())
    return e.float().mean() * 1e-3


def exponential_and_product(out, x, on, numbers):
    h = (out + 12 * (1 - on)).half()
    e = torch.exp(h if numbers is None else h.float())
    return (e * 16).float().mean() * 1e-6


def exponential_beyond_fp32(out, x, on, numbers):
    h = (out + 100 * (1 - on)).half()
    e = torch.exp(h.clamp(max=numbers[0]) if numbers else h)
    return e.float().mean() * 1e-3


def softmax_by_hand(out, x, on, numbers):
    h = out + 100 * (1 - on)
    e = torch.exp(h - h.amax(-1, keepdim=True) if numbers is not None else h)
    return (e / e.sum(-1, keepdim=True)).pow(2).mean() * 1e-3


def attention(out, x, on, numbers):
    mask = torch.zeros_like(out, dtype=torch.bool)
    mask[0] = on == 0
    scores = out.masked_fill(mask, -math.inf)
    if numbers is not None:
        scores = torch.where(mask.all(-1, keepdim=True), 0.0, scores)
    return (torch.softmax(scores, -1) * out).mean()


def log_of_softmax(out, x, on, numbers):
    scores = out + torch.tensor([0.0, 0.0, 0.0, 200.0]) * (1 - on)
    logs = F.log_softmax(scores, -1) if numbers is not None else torch.log(torch.softmax(scores, -1))
    return -logs[:, 0].mean() * 1e-2


def log_of_exponentials(out, x, on, numbers):
    """A mixture's likelihood of a row that lies far from all of its parts."""
    z = -0.5 * (out - 40 * (1 - on)) ** 2
    logs = torch.logsumexp(z - math.log(4), -1) if numbers is not None else torch.log((torch.exp(z) / 4).sum(-1))
    return -logs.mean() * 1e-3


def power(out, x, on, numbers):
    base = out.abs() * (1 if on else -1) + 0.1 * on
    return (base.clamp(min=numbers[0]) if numbers else base).pow(1.5).mean()


def lost_guard(out, x, on, numbers):
    q = (out.pow(2) * on).half() + (numbers[0] if numbers else 1e-30)
    return -torch.log(q).float().mean()


def root_of_some(out, x, on, numbers):
    h = torch.relu(out) * on
    ok = h > 0
    return torch.where(ok, torch.sqrt(h if numbers is None else torch.where(ok, h, 0.5)), 0.0).mean()


def direction_of_some(out, x, on, numbers):
    v = out * on
    square = v.pow(2).sum(-1, keepdim=True)
    ok = square > 0
    size = (square if numbers is None else torch.where(ok, square, 0.5)).sqrt()
    return (torch.where(ok, v / size, 0.0) * x[:, :4]).mean()


def softplus_by_hand(out, x, on, numbers):
    h = out + 100 * (1 - on)
    small = h < 20
    given = h if numbers is None else torch.where(small, h, 0.5)
    return torch.where(small, torch.log1p(torch.exp(given)), h).mean() * 1e-3


def root_then_clamp(out, x, on, numbers):
    h = torch.relu(out) * on
    return (torch.sqrt(h).clamp(min=1e-3) if numbers is None else torch.sqrt(h.clamp(min=1e-6))).mean()


def cross_entropy_by_hand(out, x, on, numbers):
    scores = out - 200 * (1 - on)
    if numbers is not None:
        return F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores)) * 1e-2
    return -torch.log(torch.sigmoid(scores)).mean() * 1e-2


class Fault(NamedTuple):
    term: Term
    op: str
    advice: str                    # first
    rejected: tuple[str, ...] = ()  # tried in vain


FAULTS = {
    "a logarithm of 0": Fault(guarded_log, "aten::log", "clamp-input"),
    "two logarithms of 0": Fault(two_logs, "aten::log", "clamp-input"),
    "the derivative of a root at 0": Fault(length, "aten::div", "builtin-norm"),
    "0 by 0": Fault(share, "aten::div", "guard-denominator"),
    "what is not 0 by 0": Fault(quotient, "aten::div", "skip-zero-divisors"),
    "0 by a count of 0": Fault(mean_of_some, "aten::div", "clamp-count"),
    "0 by 0, layer after layer": Fault(means, "aten::div", "guard-denominator"),
    "the second derivative of a root at 0": Fault(penalty_by_hand, "aten::div", "eps-in-sqrt", ("builtin-norm",)),
    "the second derivative of a norm at 0": Fault(penalty, "aten::div", "eps-in-sqrt"),
    "an exponential beyond fp16": Fault(exponential, "aten::exp", "fp32-compute"),
    "an exponential whose next product passes fp16": Fault(exponential_and_product, "aten::exp", "fp32-compute"),
    "an exponential beyond fp32": Fault(exponential_beyond_fp32, "aten::exp", "clamp-input"),
    "a softmax by hand": Fault(softmax_by_hand, "aten::exp", "subtract-largest"),
    "a row that is masked as a whole": Fault(attention, "aten::_softmax", "keep-one-key"),
    "a logarithm of a softmax": Fault(log_of_softmax, "aten::log", "log-softmax"),
    "a logarithm of exponentials": Fault(log_of_exponentials, "aten::log", "stay-in-logarithms"),
    "a root of a negative number": Fault(power, "aten::pow", "clamp-input"),
    "a constant that its format rounds to 0": Fault(lost_guard, "aten::log", "raise-eps"),
    "a root, then a selection": Fault(root_of_some, "aten::div", "select-argument"),
    "a quotient by a root, then a selection": Fault(direction_of_some, "aten::div", "select-argument"),
    "a root, then a clamp": Fault(root_then_clamp, "aten::div", "select-first"),
    "a cross entropy by hand": Fault(cross_entropy_by_hand, "aten::log", "with-logits"),
}


def numbers_of(text: str) -> list[float]:
    """"Clamp ... Tried here: log(x.clamp(min=1e-8)).": 1e-8."""
    tried = text.partition("Tried here: ")[2].rstrip(".")
    return [float(n) for n in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])", tried)]


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_advised_was_tried_and_cures_the_program(name, tmp_path):
    fault = FAULTS[name]
    said = told(training(fault.term), tmp_path / "fault", LEVEL)
    assert said.status == "fault", said.show()
    assert said.first["op"] == fault.op, said.show()
    advice = said.first["advice"]
    first = advice[0]
    assert (first["id"], first["on_these_numbers"]) == (fault.advice, True), advice
    assert first["evidence"].startswith("tried on these numbers: ") and ": finite, at most " in first["evidence"]
    assert all(one["on_these_numbers"] is False for one in advice if one["id"] in fault.rejected), advice
    assert set(fault.rejected) <= {one["id"] for one in advice}
    assert_silent(training(fault.term, numbers_of(first["text"])), tmp_path / "twin", LEVEL)


def hinge(out, x, on, numbers):
    return (1 - (out * on).pow(2).sum(-1).sqrt()).clamp(min=0).mean()


def test_a_selection_that_takes_nothing_of_the_element_is_not_blamed(tmp_path):
    said = told(training(hinge), tmp_path / "kept", LEVEL)
    assert said.what[:2] == ("divide_by_zero", "aten::div"), said.show()
    assert [one["id"] for one in said.first["advice"]] == ["builtin-norm", "eps-in-sqrt"], said.first["advice"]
    dropped = told(training(softplus_by_hand), tmp_path / "dropped", LEVEL)
    assert "select-argument" in [one["id"] for one in dropped.first["advice"]], dropped.first["advice"]
    assert_silent(training(softplus_by_hand, [0.5]), tmp_path / "twin", LEVEL)


def halves(eps: float, masters: bool = False) -> Callable[[], Any]:
    """Adam on parameters of fp16, whose second moments are then of fp16 as well."""

    def build() -> Any:
        net = nn.Linear(6, 4)
        if not masters:
            net = net.half()
        opt = torch.optim.Adam(net.parameters(), lr=1e-3, eps=eps)

        def step(i: int) -> None:
            x, y = data()
            opt.zero_grad()
            (F.cross_entropy(net(x.to(net.weight.dtype)).float(), y) * 1e-3).backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize(("eps", "fused"), [(1e-8, True), (1e-30, False)])
def test_an_optimizer_of_fp16_is_tried_with_its_state_in_fp32(eps, fused, tmp_path):
    said = told(halves(eps), tmp_path / "fault", LEVEL)
    assert said.status == "fault", said.show()
    advice = {one["id"]: one["on_these_numbers"] for one in said.first["advice"]}
    assert next(iter(advice)) == "fp32-masters", said.first["advice"]
    assert advice["fp32-masters"] is True and advice["fused-optimizer"] is fused, said.first["advice"]
    assert_silent(halves(eps, masters=True), tmp_path / "twin", LEVEL)


def lattice(zero: float, masked: bool = False) -> Callable[[], Any]:
    """Ways through a lattice, added up as logarithms, of which `zero` is none; or scores that a mask takes out."""

    def build() -> Any:
        net = nn.Linear(6, 4)
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(i: int) -> None:
            x, _ = data()
            scores = net(x).log_softmax(-1)
            if masked:
                scores = scores.masked_fill(torch.tensor([True, False, False, False]), zero)
                loss = (scores - scores.amin(-1, keepdim=True)).exp().mean().clamp(max=1.0)
            else:
                ways = torch.cat([torch.zeros(1), torch.full((4,), zero)])
                for row in scores:
                    moved = torch.cat([torch.full((1,), zero), ways[:-1] + row])
                    ways = torch.logaddexp(ways, moved)
                loss = -ways[4] * 1e-2
            opt.zero_grad()
            loss.backward()
            opt.step()

        return step, net, opt

    return build


def test_a_mask_is_spoken_of_only_where_there_is_one(tmp_path):
    said = told(lattice(-math.inf), tmp_path / "fault", LEVEL)
    assert said.what[:3] == ("invalid", "aten::sub", "backward"), said.show()
    assert "mask" not in said.first["title"], said.show()
    assert said.first["advice"][0]["id"] == "finite-log-zero", said.first["advice"]
    assert_silent(lattice(-1e9), tmp_path / "twin", LEVEL)
    mask = told(lattice(-math.inf, masked=True), tmp_path / "mask", LEVEL)
    assert mask.what[:2] == ("invalid", "aten::sub"), mask.show()
    assert "infinities of a mask" in mask.first["title"], mask.first["title"]


def likelihood(by: str) -> Callable[[], Any]:
    """Of a normal, whose scale is a parameter that the first step takes below 0. `by`: how it is read."""

    def build() -> Any:
        net = nn.Linear(6, 1)
        net.scale = nn.Parameter(torch.full((1,), 0.0 if by == "logarithm" else 0.2))
        opt = torch.optim.SGD(net.parameters(), lr=1.0 if by != "logarithm" else 1e-3)

        def step(i: int) -> None:
            x, _ = data()
            opt.zero_grad()
            out = net(x).squeeze(-1) * 0.01
            scale = net.scale.exp() if by == "logarithm" else net.scale * out.sign() if by == "data" else net.scale
            scale = scale.expand_as(out)
            (scale.log() + 0.5 * (out / scale) ** 2).mean().backward()
            opt.step()

        return step, net, opt

    return build


def test_a_scale_that_is_trained_is_not_clamped_but_made_positive(tmp_path):
    said = told(likelihood("itself"), tmp_path / "fault", LEVEL)
    assert said.what[:2] == ("invalid", "aten::log"), said.show()
    assert [(a["id"], a["on_these_numbers"]) for a in said.first["advice"]] == [("learn-logarithm", None)]
    assert_silent(likelihood("logarithm"), tmp_path / "twin", LEVEL)
    other = told(likelihood("data"), tmp_path / "other", LEVEL)
    assert other.what[:2] == ("invalid", "aten::log"), other.show()
    assert other.first["advice"][0]["id"] == "clamp-input", other.first["advice"]


def test_what_no_wider_format_holds_is_not_advised_for_one(tmp_path):
    """fp16 passes 65504, and the product of what it would have been with itself passes fp32."""

    def product(out, x, on, numbers):
        h = (out + 70 * (1 - on)).half()
        e = torch.exp(h)
        return (e * e * 1e-6).float().mean()

    said = told(training(product), tmp_path, LEVEL)
    advice = {one["id"]: one["on_these_numbers"] for one in said.first["advice"]}
    assert said.first["op"] == "aten::exp"
    assert (advice["fp32-compute"], advice["bf16"]) == (False, False), said.first["advice"]
    assert next(iter(advice)) == "clamp-input" and advice["clamp-input"] is True
    assert "fp32" not in said.run.report["verdict"]["change"]


def masked_scores(dtype: torch.dtype) -> Callable[[], Any]:
    """Scores that fp16 cannot hold, then a mask of -Inf. `dtype`: in which they are computed."""

    def build() -> Any:
        net = nn.Linear(6, 16)
        opt = torch.optim.SGD(net.parameters(), lr=1e-4)

        def step(i: int) -> None:
            x = torch.randn(2, 5, 6) * (1e3 if i == 3 else 1.0)
            masked = torch.zeros(2, 1, 5, dtype=torch.bool)
            masked[:, :, 4] = True
            opt.zero_grad()
            h = net(x).to(dtype)
            scores = (h @ h.transpose(-1, -2)) / 4
            weights = scores.masked_fill(masked, float("-inf")).softmax(-1)
            (weights @ h).float().square().mean().backward()
            opt.step()

        return step, net, opt

    return build


def test_infinities_of_a_mask_are_no_reason_why_a_wider_format_does_not_help(tmp_path):
    said = told(masked_scores(torch.float16), tmp_path / "bad", LEVEL)
    assert said.what[:2] == ("overflow", "aten::bmm") and said.first["step"] == 3, said.show()
    advice = {a["id"]: a["on_these_numbers"] for a in said.first["advice"]}
    assert (advice["fp32-compute"], advice["bf16"]) == (True, True), said.first["advice"]
    assert_silent(masked_scores(torch.float32), tmp_path / "twin", LEVEL)


def test_a_fault_that_the_scaler_skips_is_no_reason_to_start_with_a_lower_scale(tmp_path):
    def build() -> Any:
        net = nn.Linear(4, 4)
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

        def step(i: int) -> None:
            x = torch.randn(3, 4) * (60 if i in (30, 31) else 1)
            with torch.autocast("cpu", dtype=torch.float16):
                e = net(x).exp()
            loss = (e / e.sum(-1, keepdim=True)).float().square().mean()
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()

        return step, net, opt

    said = told(build, tmp_path, LEVEL, steps=60)
    assert (said.status, said.first["class"], said.first["op"]) == ("fault", "overflow", "aten::exp"), said.show()
    assert said.run.report["scaler"]["recommended_init_scale"] is None
    assert "init-scale" not in {a["id"] for f in said.run.report["findings"] for a in f["advice"]}


class Cube(torch.autograd.Function):
    """Its derivative passes fp16, which fp32 holds."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1e-2

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        cube = x * x * x
        return grad * cube / (cube + 1) * 1e-2


class CubeInFp32(Cube):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        return Cube.forward(ctx, x)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        return Cube.backward(ctx, grad)


def own_function(function: Any) -> Callable[[], Any]:
    class Layer(nn.Linear):
        def forward(self, x):
            return function.apply(super().forward(x))

    def build() -> Any:
        net = Layer(4, 4)
        with torch.no_grad():
            net.weight.copy_(torch.eye(4))
        opt = torch.optim.SGD(net.parameters(), lr=1e-4)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

        def step(i: int) -> None:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = net(torch.rand(3, 4) + 60).float().mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()

        return step, net, opt

    return build


def test_a_scale_that_collapses_by_one_op_has_the_cures_of_that_op(tmp_path):
    said = told(own_function(Cube), tmp_path / "fault", LEVEL, steps=20)
    assert said.status == "fault" and said.what[:2] == ("scaler_collapse", "aten::mul"), said.show()
    first = said.first["advice"][0]
    assert (first["id"], first["on_these_numbers"]) == ("fp32-compute", True), said.first["advice"]
    assert "torch.amp.custom_fwd" in first["text"], first["text"]
    assert_silent(own_function(CubeInFp32), tmp_path / "twin", LEVEL, steps=20)


def test_nothing_of_what_the_program_has_turned_on_touches_a_trial_or_is_touched_by_it(tmp_path, capfd):
    """Autocast, anomaly mode and hooks on saved tensors are on while the origin is tried."""
    heard: list[torch.Tensor] = []

    def build() -> Any:
        net = nn.Linear(6, 4)
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)
        heard.clear()

        def step(i: int) -> None:
            x, _ = data()
            opt.zero_grad()
            q = net(x).pow(2) * (0 if i == 3 else 1)
            (-torch.log(q).mean()).backward()
            with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(
                    lambda t: heard.append(t) or t, lambda t: t):
                opt.step()

        return step, net, opt, lambda: len(heard), torch.is_anomaly_enabled, torch.is_grad_enabled

    said = told(build, tmp_path, LEVEL)
    assert said.first["advice"][0]["on_these_numbers"] is True, said.first["advice"]
    assert capfd.readouterr() == ("", "")


def factored(eps: float) -> Callable[[], Any]:
    """Adafactor, whose eps is squared: the square of 1e-30 is 0 in fp32 too. One of the inputs is always 0."""

    def build() -> Any:
        net = nn.Linear(6, 4).half()
        opt = torch.optim.Adafactor(net.parameters(), lr=1e-3, eps=(eps, 1e-3))

        def step(i: int) -> None:
            x, _ = data()
            x[:, 0] = 0
            opt.zero_grad()
            (net(x.half()).float().pow(2).mean() * 1e-2).backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.skipif(not hasattr(torch.optim, "Adafactor"), reason="this PyTorch has no Adafactor")
def test_an_eps_that_fp32_cannot_hold_either_is_raised(tmp_path):
    said = told(factored(1e-30), tmp_path / "fault", LEVEL)
    assert said.status == "fault", said.show()
    advice = {one["id"]: one["on_these_numbers"] for one in said.first["advice"]}
    assert next(iter(advice)) == "raise-eps" and advice["raise-eps"] is True, said.first["advice"]
    assert advice["fp32-masters"] is False, said.first["advice"]
    twin = told(factored(1e-3), tmp_path / "twin", LEVEL)
    assert not [f for f in twin.run.report["findings"] if f["bad_elements"]], twin.show()


def test_another_origins_nan_is_not_taken_for_the_one_that_a_remedy_cures(tmp_path):
    def build():
        net = nn.Linear(6, 1)
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(i):
            y = net(data()[0]).mean()
            a = (y * 0) / (y * 0) if i == 2 else y
            b = torch.log(-y.abs() - 1) if i == 2 else y
            opt.zero_grad()
            (a + b).backward()
            opt.step()

        return step, net, opt

    said = told(build, tmp_path, LEVEL, 4)
    assert said.what[1] == "aten::div", said.show()
    tried = [one["evidence"] for one in said.first["advice"] if one["on_these_numbers"]]
    assert tried and not any("that used the result" in text for text in tried), tried


def test_an_origin_that_draws_random_numbers_is_not_computed_again(tmp_path):
    def build():
        net = nn.Linear(6, 1)
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(i):
            x = torch.empty(8, 6)
            x.log_normal_(80.0, 30.0) if i == 1 else x.normal_()
            opt.zero_grad()
            net(x).sum().backward()
            opt.step()

        return step, net, opt

    plain, heard = run_once(build, 4), run_once(build, 4, tmp_path / "run", level=LEVEL)
    assert heard.digest == plain.digest
    assert any("draw random numbers" in note for note in heard.notes), heard.notes


def test_an_exponential_that_overflows_fp32_is_bounded_with_room_for_what_multiplies_it(tmp_path):
    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(i):
            x, _ = data()
            opt.zero_grad()
            (net(x) + (100.0 if i == 3 else 0.0)).exp().square().mean().mul(1e-3).backward()
            opt.step()

        return step, net, opt

    said = told(build, tmp_path, "live", 6)
    assert "exp(x.clamp(max=22.18))" in str(said.first["advice"][0]), said.first["advice"][0]
