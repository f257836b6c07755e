# SPDX-License-Identifier: Apache-2.0
"""Programs as people write them, run in this process at a level: what the report says of the fault, and of its twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from step_runs import Run, watched
from torch import nn
from torch.nn import functional as F

LEVELS = ("live", "ops")  # the first as it is by default


@dataclass
class Told:
    """What a report says first. Compared by the tests with `what()`."""

    run: Run

    @property
    def status(self) -> str:
        return self.run.report["verdict"]["status"]

    @property
    def first(self) -> dict[str, Any]:
        return self.run.headline or next(iter(self.run.report["findings"]), {})

    @property
    def what(self) -> tuple[str | None, ...]:
        return tuple(self.first.get(key) for key in ("class", "op", "phase", "module"))

    @property
    def loud(self) -> list[tuple[str, str]]:
        """Classes of warnings and faults."""
        return [(f["class"], f["title"]) for f in self.run.report["findings"] if f["severity"] != "info"]

    def show(self) -> str:
        lines = [f"{self.status}"]
        for f in self.run.report["findings"]:
            lines.append(
                f"{f['severity']} {f['class']} | {f['op']} | {f['phase']} | {f['module']} | step {f['step']} | "
                f"{f['title']} | {f.get('sinks')}"
            )
        return "\n".join(lines)


def told(build: Callable[[], Any], folder: Path, level: str, steps: int = 6) -> Told:
    return Told(watched(build, folder, steps, level=level))


def assert_silent(build: Callable[[], Any], folder: Path, level: str, steps: int = 6) -> None:
    said = told(build, folder, level, steps)
    assert said.status == "clean" and not said.loud, said.show()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def data(rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 6).clamp(-3, 3), torch.randint(0, 3, (rows,))


def classifier(
    before: Callable[..., object] = lambda i, net, opt, x: None,
    after: Callable[..., object] = lambda i, net, x, y: None,
    model: Callable[[], nn.Module] = Net,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    lr: float = 1e-2,
    **options: Any,
) -> Callable[[], Any]:
    """Learns three classes. `before(i, net, opt, x)` runs before the forward of step i, `after(i, net, x, y)` when the
    optimizer has stepped."""

    def build() -> Any:
        torch.manual_seed(0)
        net = model()
        opt = optimizer(net.parameters(), lr=lr, **options)

        def step(i: int) -> None:
            x, y = data()
            before(i, net, opt, x)
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
            after(i, net, x, y)

        return step, net, opt

    return build


def loop(
    step: Callable[..., object],
    model: Callable[[], nn.Module] = Net,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    lr: float = 1e-2,
) -> Callable[[], Any]:
    """`step(i, net, opt)` is all that a step does."""

    def build() -> Any:
        torch.manual_seed(0)
        net = model()
        opt = optimizer(net.parameters(), lr=lr)
        return lambda i: step(i, net, opt), net, opt

    return build


def adversarial(init: float, bad: int | None = None, device: str = "cpu") -> Callable[[], Any]:
    """Two networks in turn under one scaler: what one's loss leaves in the other's gradients is cleared unused."""

    def build() -> Any:
        made, judge = Net().to(device), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
        makes = torch.optim.AdamW(made.parameters(), lr=1e-3)
        judges = torch.optim.AdamW(judge.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler(device, init_scale=init)

        def step(i: int) -> None:
            x, real = data()[0].to(device), torch.randn(8, 3).to(device)
            with torch.autocast(device, torch.float16):
                fake = made(x)
                loss = F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(real)).mean()
            judges.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(judges)
            with torch.autocast(device, torch.float16):
                loss = F.softplus(-judge(fake)).mean() * 64
            if i == bad:
                loss = loss + (-loss).log()
            makes.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(makes)
            nn.utils.clip_grad_norm_(made.parameters(), 1.0)
            scaler.step(makes)
            scaler.update()

        return step, made, makes

    return build
