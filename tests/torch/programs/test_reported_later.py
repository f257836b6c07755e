# SPDX-License-Identifier: Apache-2.0
"""Further public reports, of 2024 to 2026, written anew and small. The line that each is about is marked; README.md has
what was said of each before any change."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path

import pytest
import torch
from own_programs import LEVELS, Net, data, loop, told
from torch import nn
from torch.nn import functional as F

BAD, STEPS = 3, 6


def training(make, loss, optimizer=lambda net: torch.optim.AdamW(net.parameters(), lr=1e-3)):
    """`loss(net, i)` of step i."""

    def build():
        torch.manual_seed(0)
        net = make()
        opt = optimizer(net)

        def step(i):
            opt.zero_grad()
            loss(net, i).backward()
            opt.step()

        return step, net, opt

    return build


class Adapted(nn.Module):
    """A frozen weight of which one row is 0; magnitude and direction of what is added to it are apart."""

    def __init__(self, repaired):
        super().__init__()
        self.repaired = repaired
        self.weight = nn.Parameter(torch.randn(8, 6) * (torch.arange(8) != 5)[:, None], requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(2, 6) * 0.1), nn.Parameter(torch.zeros(8, 2))
        self.magnitude = nn.Parameter(self.weight.norm(dim=1))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        weight = self.weight + self.up @ self.down
        length = weight.detach().norm(dim=1)
        if self.repaired:
            length = length.clamp(min=1e-6)
        ratio = self.magnitude / length  # BUG
        return self.head(F.linear(x, weight) * ratio)


def classified(net, i):
    x, y = data()
    return F.cross_entropy(net(x), y)


def adapter(repaired):
    """huggingface/peft#2049 (September 2024), #3237 (May 2026)."""
    return training(lambda: Adapted(repaired), classified)


class Straight(torch.autograd.Function):
    """Both sides of a product in fp8, by rows; backward as if they were not."""

    @staticmethod
    def rows(x, repaired):
        amax = x.abs().amax(-1, keepdim=True)
        if repaired:
            amax = amax.clamp(min=1e-12)
        scale = amax / 448
        return (x / scale).to(torch.float8_e4m3fn).float() * scale  # BUG

    @staticmethod
    def forward(ctx, x, w, repaired):
        ctx.save_for_backward(x, w)
        return Straight.rows(x, repaired) @ Straight.rows(w, repaired).t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x, None


def rows_in_fp8(repaired):
    """pytorch/ao#3356 (November 2025), #4713 (August 2026). A padded row has no largest number to divide by."""

    def loss(net, i):
        x, y = data()
        keep = torch.arange(len(x)) < (6 if i == BAD else 8)
        out = net.last(torch.tanh(Straight.apply(x * keep[:, None], net.first.weight, repaired)))
        return (F.cross_entropy(out, y, reduction="none") * keep).sum() / keep.sum()

    return training(Net, loss)


def unit_rows_in_half(repaired):
    """huggingface/diffusers#13316 (March 2026). F.normalize's constant is 0 in fp16."""

    def loss(net, i):
        x, y = data()
        out = (x * (0.0 if i == BAD else 1.0)) @ net.first.weight.t()
        unit = F.normalize(out if repaired else out.half(), dim=1, eps=1e-3 if repaired else 1e-12)  # BUG
        return F.cross_entropy(net.last(unit.float()), y)

    return training(Net, loss)


def alike_in_half(repaired):
    """The constant of F.cosine_similarity, 1e-8, is 0 in fp16; PyTorch raises to it in place, as a tensor."""

    def loss(net, i):
        x, y = data()
        rows = (x @ net.first.weight.t()).half()
        other = torch.zeros_like(rows) if i == BAD else torch.ones_like(rows)
        alike = F.cosine_similarity(rows, other, eps=1e-3 if repaired else 1e-8)  # BUG
        return F.cross_entropy(net(x) * alike.float()[:, None], y)

    return training(Net, loss)


def spread_of_marked(r, repaired):
    count = (~r.isnan()).sum(1, keepdim=True)
    squares = (r - r.nanmean(1, keepdim=True)).square().nansum(1, keepdim=True)
    return (squares / (count - 1).clamp(min=1 if repaired else 0)).sqrt()  # BUG


def marked_rewards(repaired):
    """huggingface/trl#5773 (May 2026). NaN marks a reward that nobody could give; of one group a single one is left."""

    def loss(net, i):
        x, _ = data()
        reward = torch.rand(2, 4)
        reward[0, i % 4] = math.nan
        if i == BAD:
            reward[1, 1:] = math.nan
        advantage = (reward - reward.nanmean(1, keepdim=True)) / (spread_of_marked(reward, repaired) + 1e-4)
        advantage = torch.where(reward.isnan(), 0.0, advantage)
        return -(torch.log_softmax(net(x), -1)[:, 0] * advantage.flatten()).mean()

    return training(Net, loss)


def logarithm(q, repaired):
    """Of a unit quaternion."""
    w, v = q[:, :1], q[:, 1:]
    length = v.norm(dim=-1, keepdim=True).clamp(min=1e-8)
    if repaired:
        return v * torch.atan2(length, w) / length
    return v * torch.acos(w.clamp(-1, 1)) / length  # BUG


def identity_pose(repaired):
    """kornia/kornia#4007 (August 2026). At the identity the value is right and the slope 0 times infinity."""

    def loss(net, i):
        x, _ = data()
        moves = torch.arange(8) != (2 if i == BAD else 8)
        q = torch.cat([torch.ones(8, 1), net(x) * moves[:, None]], 1)
        return (logarithm(q / q.norm(dim=1, keepdim=True), repaired) - 0.1).square().mean()

    return training(Net, loss)


def action_at_its_bound(repaired):
    """pytorch/rl#2199 (June 2024). An action of the replay buffer is exactly 1."""

    def loss(net, i):
        x, _ = data()
        action = torch.rand(8, 3) * 1.8 - 0.9
        action[4, 1] = 1.0 if i == BAD else 0.5
        if repaired:
            action = action.clamp(1e-6 - 1, 1 - 1e-6)
        raw = torch.atanh(action)  # BUG
        return (net(x) - raw).square().mean()

    return training(Net, loss)


def clamped_too_late(repaired):
    """OpenRLHF/OpenRLHF#1335 (September 2026). The clamp hides what exp made; its gradient is 0 times infinity."""

    def loss(net, i):
        x, _ = data()
        apart = net(x) + torch.eye(8, 3) * (120.0 if i == BAD else 0.0)
        if repaired:
            apart = apart.clamp(max=10)
        return (apart.exp() - apart - 1).clamp(max=10).mean()  # BUG

    return training(Net, loss)


class Scaled(torch.optim.Optimizer):
    """Its first scale is a power of the mean fourth power of a gradient."""

    def __init__(self, parameters, repaired):
        super().__init__(parameters, {})
        self.least = 1e-20 if repaired else 0.0

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["scale"] = p.grad.pow(4).mean().clamp(min=self.least).pow(-0.125)  # BUG
            p.sub_(1e-3 * p.grad * state["scale"])


def first_scale(repaired):
    """HomebrewML/HeavyBall#55 (March 2025). Behind a layer that starts at 0 there is no gradient yet."""

    def make():
        net = Net()
        nn.init.zeros_(net.last.weight)
        return net

    return training(make, classified, lambda net: Scaled(net.parameters(), repaired))


class Gated(nn.Module):
    """Linear attention in which a gate lets what came before fade."""

    def __init__(self, repaired):
        super().__init__()
        self.repaired = repaired
        self.embed, self.gate, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.embed(x)
        faded = F.logsigmoid(self.gate(h)).cumsum(0)
        if self.repaired:
            apart = (faded[:, None] - faded[None]).clamp(max=0).exp()
            scores = torch.einsum("id,ijd,jd->ij", h, apart, h)
        else:
            scores = (h * faded.exp()) @ (h * (-faded).exp()).t()  # BUG
        return self.head(torch.tanh(scores.tril() @ h))


def fading(repaired):
    """fla-org/flash-linear-attention#77 (November 2024). The inverse of a strong decay has no number."""

    def loss(net, i):
        x, y = data()
        return F.cross_entropy(net(x * (200.0 if i == BAD else 1.0)), y)

    return training(lambda: Gated(repaired), loss)


def unscored_token(repaired):
    """huggingface/trl#6297 (July 2026). The sampler gives None for a token, and the list is padded into NaN."""

    def loss(net, i):
        x, y = data()
        known = [-1.1] * 7 + [None if i == BAD else -1.1]
        sampled = torch.tensor([math.nan if p is None else p for p in known])
        now = torch.log_softmax(net(x), -1)[torch.arange(8), y]
        if repaired:
            sampled = torch.where(sampled.isnan(), now.detach(), sampled)
        weight = (now.detach() - sampled).exp()  # BUG
        return -(weight * now).mean()

    return training(Net, loss)


class Averaging(torch.optim.Optimizer):
    """The weight of a step in the average is its squared rate, over the sum of those so far."""

    def __init__(self, parameters, repaired):
        super().__init__(parameters, {"lr": 0.05})
        self.total, self.least, self.count = torch.zeros(()), 1e-12 if repaired else 0.0, 0

    @torch.no_grad()
    def step(self, closure=None):
        rate = torch.tensor(0.05 * min(self.count / 4, 1))  # a warm-up that begins at 0
        self.count += 1
        self.total += rate**2
        part = rate**2 / self.total.clamp(min=self.least)  # BUG
        for p in self.param_groups[0]["params"]:
            fast = self.state[p].setdefault("fast", p.clone())
            fast.sub_(rate * p.grad)
            p.lerp_(fast, part)


def first_rate_of_0(repaired):
    """facebookresearch/schedule_free#5 (April 2024)."""
    return training(Net, classified, lambda net: Averaging(net.parameters(), repaired))


def weight_of_noise(repaired):
    """huggingface/diffusers#9451, zituitui/BELM#8 (2024). The last timestep has no signal: min(0, 5) / 0."""

    def loss(net, i):
        x, _ = data()
        signal = torch.linspace(1, 0.1, 8)
        signal[3] = 0.0 if i == BAD else 0.5
        ratio = signal / (1.1 - signal)
        weight = ratio.clamp(max=5) / (ratio + 1 if repaired else ratio)  # BUG
        return (net(x).square().mean(1) * weight).mean()

    return training(Net, loss)


def group_of_one(repaired):
    """StarsfieldAI/R1-V#69 (2025). The spread of one reward is NaN; sampling from what was learnt then raises."""

    def loss(net, i):
        x, _ = data()
        with torch.no_grad():
            chosen = torch.multinomial(torch.softmax(net(x), -1).nan_to_num(1.0), 1)[:, 0]
        reward = (chosen == 1).float()[:, None]
        spread = reward.std(dim=1, correction=0 if repaired else 1)  # BUG
        advantage = (reward - 0.5)[:, 0] / (spread + 1.0)
        return -(torch.log_softmax(net(x), -1)[torch.arange(8), chosen] * advantage).mean()

    return training(Net, loss)


def clipping_in_half(repaired):
    """tracel-ai/burn#5699 (September 2026), ray-project/ray#45055 (April 2024). Squares of gradients of 300 overflow;
    the factor is 0, and nothing is learnt."""

    def build():
        torch.manual_seed(0)
        net = Net().half()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            x, y = data()
            opt.zero_grad()
            (F.cross_entropy(net(x.half()).float(), y) * 3e3).backward()
            grads = [p.grad.float() if repaired else p.grad for p in net.parameters()]
            total = torch.stack([g.square().sum() for g in grads]).sum().sqrt()  # BUG
            for p in net.parameters():
                p.grad.mul_((1.0 / (total + 1e-6)).clamp(max=1.0))
            opt.step()

        return step, net, opt

    return build


class Rounded(torch.autograd.Function):
    """Straight through, with gradients of unit size; the backward alone divides."""

    @staticmethod
    def forward(ctx, x, repaired):
        ctx.save_for_backward(x)
        ctx.repaired = repaired
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g = g * (x.abs() <= 1)
        largest = g.abs().amax(dim=1, keepdim=True)
        if ctx.repaired:
            largest = largest.clamp(min=1e-6)
        return g / largest, None  # BUG


def rounded(repaired):
    """tenstorrent/tt-metal#55585. A row that is out of range as a whole has no gradient, and a size of 0."""

    def loss(net, i):
        x, y = data()
        out = Rounded.apply(net.first(x * (0.1 if i < BAD else 400.0)), repaired)
        return F.cross_entropy(net.last(out), y)

    return training(Net, loss)


def kernel_of_alike_rows(value):
    """A Gaussian process whose batch holds the same experiment twice: its kernel has no inverse."""

    def program(repaired):
        def loss(net, i):
            x, _ = data()
            if i == BAD:
                x = torch.cat([x[:-2], x[:2]])
            z = torch.tanh(net.first(x)) * 20
            kernel = torch.exp(-(z[:, None] - z).square().sum(-1)) + (1e-3 if repaired else 0) * torch.eye(len(x))
            return value(kernel, x[:, 0]) / len(x)

        return training(Net, loss)

    return program


def fit(kernel, y):
    return y @ torch.linalg.solve_ex(kernel, y)[0]  # BUG


def volume(kernel, y):
    return kernel.sum() * 1e-3 - torch.logdet(kernel)  # BUG


class Narrow(torch.optim.Optimizer):
    """Adam with its betas in the format of the parameters: 0.999 is 1 in bf16."""

    def __init__(self, params, repaired):
        super().__init__(params, {"lr": 1e-3})
        self.repaired = repaired

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state.update(t=0, v=torch.zeros_like(p))
                state["beta"] = torch.tensor(0.999, dtype=torch.float32 if self.repaired else p.dtype)
            state["t"] += 1
            state["v"].mul_(state["beta"]).add_(p.grad.square() * (1 - state["beta"]))
            v = state["v"] / (1 - state["beta"] ** state["t"])  # BUG
            p.sub_(p.grad / (v.sqrt() + 1e-8), alpha=1e-3)


def narrow_betas(repaired):
    def loss(net, i):
        x, y = data()
        return F.cross_entropy(net(x.bfloat16()).float(), y)

    return training(lambda: Net().bfloat16(), loss, lambda net: Narrow(net.parameters(), repaired))


# What must be said: class, op, phase (None: one between those of its neighbours), step.
REPORTED = {
    "adapter": (adapter, "divide_by_zero", "aten::div", "forward", 0),
    "rows in fp8": (rows_in_fp8, "divide_by_zero", "aten::div", None, BAD),
    "unit rows in half": (unit_rows_in_half, "eps_underflow", "aten::div", None, BAD),
    "alike in half": (alike_in_half, "eps_underflow", "aten::div", None, BAD),
    "marked rewards": (marked_rewards, "divide_by_zero", "aten::div", None, BAD),
    "identity pose": (identity_pose, "divide_by_zero", "aten::rsqrt", "backward", BAD),
    "action at its bound": (action_at_its_bound, "divide_by_zero", "aten::atanh", None, BAD),
    "clamped too late": (clamped_too_late, "overflow", "aten::exp", "loss", BAD),
    "first scale": (first_scale, "divide_by_zero", "aten::pow", "optimizer", 0),
    "fading": (fading, "overflow", "aten::exp", "forward", BAD),
    "unscored token": (unscored_token, "bad_input", "<batch>", None, BAD),
    "first rate of 0": (first_rate_of_0, "divide_by_zero", "aten::div", "optimizer", 0),
    "weight of noise": (weight_of_noise, "divide_by_zero", "aten::div", None, BAD),
    "group of one": (group_of_one, "divide_by_zero", "aten::std", None, 0),
    "rounded": (rounded, "divide_by_zero", "aten::div", "backward", BAD),
    "clipping in half": (clipping_in_half, "overflow", "aten::pow", "clip", 0),
    "a solution of alike rows": (
        kernel_of_alike_rows(fit), "divide_by_zero", "aten::_linalg_solve_ex", None, BAD),
    "the volume of alike rows": (
        kernel_of_alike_rows(volume), "divide_by_zero", "aten::_linalg_slogdet", None, BAD),
    "narrow betas": (narrow_betas, "divide_by_zero", "aten::div", "optimizer", 0),
}
ADVICE = {"a solution of alike rows": "regular-matrix", "the volume of alike rows": "regular-matrix",
          "narrow betas": "difference-in-fp32"}  # fmt: skip


@functools.cache
def lines():
    return Path(__file__).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", REPORTED)
def test_a_reported_fault_is_named_with_its_line_and_its_repaired_twin_is_not(name, level, tmp_path):
    program, cls, op, phase, step = REPORTED[name]
    said = told(program(False), tmp_path, level, steps=STEPS)
    first = said.first
    assert said.status == "fault" and (first["class"], first["op"], first["step"]) == (cls, op, step), said.show()
    assert phase in (None, first["phase"]), said.show()
    line = int(first["call_site"].rpartition(":")[2])
    assert lines()[line - 1].endswith("# BUG"), (first["call_site"], lines()[line - 1])
    assert ADVICE.get(name) in (None, first["advice"][0]["id"]), first["advice"]
    twin = told(program(True), tmp_path, level, steps=STEPS)
    assert twin.status == "clean" and not twin.loud, twin.show()


def narrow_activations(factor, dtype):
    def loss(net, i):
        x, y = data()
        x = x * (factor if i == BAD else 1.0)
        return F.cross_entropy(net(x.to(dtype).float()), y)

    return training(Net, loss)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_a_cast_that_overflows_8_bits_is_computed_again_without_an_error_of_ours(name, level, tmp_path):
    dtype = getattr(torch, name)
    if torch.tensor([1e6]).to(dtype).float().isfinite().all():
        pytest.skip(f"this PyTorch ends a cast to {name} at its largest number")
    said = told(narrow_activations(1e6, dtype), tmp_path / "fault", level, steps=STEPS)
    assert said.what[:2] == ("overflow", "aten::_to_copy"), said.show()
    coverage = said.run.report["coverage"]
    assert not [note for note in coverage["unwatched"] if "error" in note], coverage
    twin = told(narrow_activations(1.0, dtype), tmp_path / "twin", level, steps=STEPS)
    assert twin.status == "clean" and not twin.loud, twin.show()


class Scores(Net):
    """Products that fp16 cannot hold in step 3; `cast` and `outside`: how the program takes them."""

    cast, outside, factor = False, False, 1.0

    def forward(self, x):
        q = torch.tanh(self.first(x)) * self.factor
        with torch.autocast("cpu", torch.float16, enabled=not self.outside):
            q = q.float() if self.cast else q
            scores = q @ q.t()
        return self.last(torch.tanh(self.first(x))) + scores.float().mean() * 1e-9


def in_autocast(**how):
    def step(i, net, opt):
        vars(net).update(how, factor=400.0 if i == 3 else 1.0)
        x, y = data()
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            F.cross_entropy(net(x).float(), y).backward()
        opt.step()

    return loop(step, Scores)


@pytest.mark.parametrize("level", LEVELS)
def test_fp32_under_autocast_is_advised_outside_of_it_as_a_cast_alone_is_undone(level, tmp_path):
    for how in ({}, {"cast": True}):
        said = told(in_autocast(**how), tmp_path / str(len(how)), level)
        assert said.what[:2] == ("overflow", "aten::mm"), said.show()
        assert "enabled=False" in next(a["text"] for a in said.first["advice"] if a["id"] == "fp32-compute")
    fixed = told(in_autocast(cast=True, outside=True), tmp_path / "twin", level)
    assert not [title for cls, title in fixed.loud if cls != "api_misuse"], fixed.show()


def one_outlier(limit=None):
    def loss(net, i):
        x, y = data()
        spread = net(x)[:, 0]
        spread = torch.cat([spread[:7], spread[7:] + (200.0 if i == BAD else 0.0)])
        deviation = torch.exp(spread if limit is None else spread.clamp(max=limit))
        return F.cross_entropy(net(x), y) + deviation.mean() * 1e-6

    return training(Net, loss)


def test_a_limit_is_advised_that_makes_no_result_a_thousand_times_the_others(tmp_path):
    said = told(one_outlier(), tmp_path / "fault", "live", steps=STEPS)
    assert said.what[:2] == ("overflow", "aten::exp"), said.show()
    limit = float(re.search(r"clamp\(max=([\d.]+)\)", said.first["advice"][0]["text"]).group(1))
    assert math.exp(limit) < 3e3, said.first["advice"]
    twin = told(one_outlier(limit), tmp_path / "twin", "live", steps=STEPS)
    assert twin.status == "clean" and not twin.loud, twin.show()
