# SPDX-License-Identifier: Apache-2.0
"""Small networks with two places where a hand-written layer may stand. Every part has a random name."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from settings import Settings
from torch import nn

WIDTH, CLASSES, ROWS, LENGTH, WORDS = 16, 4, 8, 5, 20
Body = Callable[[torch.Tensor], torch.Tensor]


class Chain(nn.Module):
    def __init__(self, drawn: Settings, *parts: nn.Module) -> None:
        super().__init__()
        self.order = [drawn.word() for _ in parts]
        for name, part in zip(self.order, parts, strict=True):
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.order:
            x = getattr(self, name)(x)
        return x


class Site(nn.Module):
    """The hand-written layer: what a kind puts there."""

    def __init__(self) -> None:
        super().__init__()
        self.body: Body | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.body is None else self.body(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.all(x).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(WIDTH), -1)
        return self.out(weights.to(v.dtype) @ v)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Recurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(x[:, 0])
        states = []
        for t in range(x.shape[1]):
            state = torch.tanh(self.cell(torch.cat([x[:, t], state], -1))).to(x.dtype)
            states.append(state)
        return torch.stack(states, 1)


class Pool(nn.Module):
    """Over time, or over the picture."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1) if x.dim() == 3 else x.mean((-1, -2))


def make_model(drawn: Settings) -> tuple[nn.Module, tuple[Site, Site]]:
    first, second = Site(), Site()

    def chain(*parts: nn.Module) -> Chain:
        return Chain(drawn, *parts)

    parts: list[nn.Module]
    if drawn.model == "mlp":
        parts = [nn.Linear(8, WIDTH), first, nn.SiLU(), nn.Linear(WIDTH, WIDTH), second, nn.SiLU()]
    elif drawn.model == "convolution":
        block = chain(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU())
        parts = [nn.Conv2d(1, WIDTH, 3, padding=1), nn.GroupNorm(4, WIDTH), first, nn.ReLU(), block, second, Pool()]
    elif drawn.model == "transformer":
        feed = chain(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), second, nn.GELU(), nn.Linear(32, WIDTH))
        attention = Residual(chain(nn.LayerNorm(WIDTH), Attention()))
        parts = [nn.Linear(8, WIDTH), first, attention, Residual(feed), Pool()]
    elif drawn.model == "recurrent":
        parts = [nn.Linear(8, WIDTH), first, Recurrence(), second, Pool()]
    else:
        parts = [nn.Embedding(WORDS, WIDTH), first, chain(nn.Linear(WIDTH, WIDTH), nn.SiLU()), second, Pool()]
    return chain(*parts, nn.Linear(WIDTH, CLASSES)), (first, second)


def make_batch(drawn: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.randint(CLASSES, (ROWS,))
    if drawn.model == "embedding":
        return torch.randint(WORDS, (ROWS, LENGTH)), y
    shape = {"mlp": (ROWS, 8), "convolution": (ROWS, 1, 6, 6)}.get(drawn.model, (ROWS, LENGTH, 8))
    return torch.randn(shape).clamp(-3, 3), y


def make_optimizer(drawn: Settings, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if drawn.optimizer in ("sgd", "momentum"):
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9 if drawn.optimizer == "momentum" else 0.0)
    kind = torch.optim.Adam if drawn.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=5e-3)


def pass_the_format(x: torch.Tensor) -> torch.Tensor:
    """Two products of which the second overflows."""
    largest = max(float(x.detach().abs().max()), 2**-10)
    return x * (16 / largest) * (torch.finfo(x.dtype).max / 2)
