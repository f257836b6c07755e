# SPDX-License-Identifier: Apache-2.0
"""Programs of public reports of 2026, written anew and small. README.md has what was said of each before any change."""

from __future__ import annotations

import math

import pytest
import torch
from own_programs import LEVELS, data, told
from torch import nn
from torch.nn import functional as F


class PaddedAttention(nn.Module):
    """Attention in bf16 to what came before. Its causal and padding masks are added up, or joined while they are
    truths."""

    def __init__(self, joined: bool) -> None:
        super().__init__()
        self.joined = joined
        self.embed = nn.Embedding(11, 8)
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 11)
        self.to(torch.bfloat16)

    def mask(self, kept: torch.Tensor) -> torch.Tensor:
        size = kept.shape[1]
        later = torch.ones(size, size, dtype=torch.bool).triu()
        padded = ~kept[:, None, :].expand(-1, size, -1)
        lowest = torch.finfo(torch.bfloat16).min
        zeros = torch.zeros(kept.shape[0], size, size, dtype=torch.bfloat16)
        if self.joined:
            return zeros.masked_fill(later | padded, lowest)
        return zeros.masked_fill(later, lowest) + zeros.masked_fill(padded, lowest)

    def forward(self, tokens: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(8) + self.mask(kept)
        return self.head(x + torch.softmax(scores, -1) @ v).float()


def masks_added_up(repaired):
    """NVIDIA-NeMo/Automodel#2658, June 2026. Twice the lowest number of bf16 is -Inf, in a
    row that both masks hide whole."""

    def build():
        net = PaddedAttention(repaired)
        opt = torch.optim.SGD(net.parameters(), lr=0.5)

        def step(i):
            tokens = torch.randint(1, 11, (3, 6))
            kept = torch.ones(3, 6, dtype=torch.bool)
            if i == 3:  # the only ragged batch
                kept[1] = False
            opt.zero_grad()
            out = net(tokens, kept)
            loss = F.cross_entropy(out[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
            weight = kept[:, 1:].flatten().float()
            ((loss * weight).sum() / weight.sum()).backward()
            opt.step()

        return step, net, opt

    return build


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.embed(tokens))
        return torch.log_softmax(logits, -1).gather(-1, tokens[..., None])[..., 0]


def divergence_by_exp(repaired):
    """huggingface/trl#5984, June 2026, of #3015: exp(reference - policy) - (reference - policy) - 1."""

    def build():
        policy = Policy()
        reference = Policy()
        reference.load_state_dict(policy.state_dict())
        opt = torch.optim.Adam(policy.parameters(), lr=1e-3)

        def step(i):
            tokens = torch.randint(0, 11, (4, 6))
            with torch.no_grad():
                ahead = reference(tokens)
            now = policy(tokens)
            if i == 3:  # a token that the policy has all but ruled out
                now = now - torch.eye(4, 6) * 95.0
            apart = ahead - now
            if repaired:
                apart = apart.clamp(max=20.0)
            away = torch.exp(apart) - apart - 1
            advantage = torch.randn(4, 1)
            gain = torch.exp(now - now.detach()) * advantage
            opt.zero_grad()
            (0.04 * away - gain).mean().backward()
            opt.step()

        return step, policy, opt

    return build


class Mixed(nn.Module):
    """A body in fp16 under a head in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8).half()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x.half())).float())


def overflow_forgotten(repaired):
    """flagos-ai/Torch-FL#235, August 2026. Of the groups of gradients, one for each format, only the last counts."""

    def build():
        net = Mixed()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)
        state = {"scale": 2.0**24}

        def step(i):
            x, y = data()
            opt.zero_grad()
            (F.cross_entropy(net(x), y) * state["scale"]).backward()
            groups: dict[torch.dtype, list[torch.Tensor]] = {}
            for p in net.parameters():
                groups.setdefault(p.grad.dtype, []).append(p.grad)
            found = torch.zeros(())
            for grads in groups.values():
                bad = torch.stack([~torch.isfinite(g).all() for g in grads]).any().float()
                found = torch.maximum(found, bad) if repaired else bad
                for g in grads:
                    g.mul_(1.0 / state["scale"])
            if found.item():
                state["scale"] /= 2
            else:
                opt.step()

        return step, net, opt

    return build


# Where the first bad number is made, as a dispatch mode that reads every result says: class, op, phase, step.
REPORTED = {
    "masks added up": (masks_added_up, ("overflow", "aten::add", "forward"), 3),
    "divergence by exp": (divergence_by_exp, ("overflow", "aten::exp", "loss"), 3),
    "overflow forgotten": (overflow_forgotten, ("overflow", "aten::_to_copy", "backward"), 0),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", REPORTED)
def test_a_reported_fault_is_named_and_its_repaired_twin_is_not(name, level, tmp_path):
    program, what, step = REPORTED[name]
    said = told(program(False), tmp_path, level, steps=8)
    assert said.status == "fault" and said.what[:3] == what and said.first["step"] == step, said.show()
    twin = told(program(True), tmp_path, level, steps=20)
    assert twin.status in ("clean", "calibrating") and not twin.loud, twin.show()
