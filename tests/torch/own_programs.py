# SPDX-License-Identifier: Apache-2.0
"""Programs as people write them, run in this process at a level: what the report says of the fault, and of its twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sentinel_runs import Run, watched
from torch import nn

LEVELS = ("sentinel", "ops")  # the first as it is by default


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
    return Told(watched(build, folder, steps, level=level, budget=3.0))


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
