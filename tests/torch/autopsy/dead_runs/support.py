# SPDX-License-Identifier: Apache-2.0
"""What the dead runs share: a small model, data, and the loggers that users have. Nothing here knows of nanhunt."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn


def folder() -> Path:
    """Where the run writes its logs: the first argument."""
    torch.manual_seed(1)
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    return out


def net(hidden: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 4))


def batch(step: int, size: int = 16):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, 8, generator=generator)
    return x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


class Lines:
    """One JSON object a line."""

    def __init__(self, out: Path):
        self.path = out / "metrics.jsonl"
        self.path.write_text("", encoding="utf-8")

    def log(self, step: int, **values: float) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")

    def close(self) -> None:
        pass


class Text:
    """What a loop prints."""

    def __init__(self, out: Path):
        del out

    def log(self, step: int, **values: float) -> None:
        print(f"step {step} " + " ".join(f"{name} {value:.5g}" for name, value in values.items()), flush=True)

    def close(self) -> None:
        pass


class Board:
    """TensorBoard."""

    def __init__(self, out: Path):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(out))

    def log(self, step: int, **values: float) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"train/{name}", value, step)

    def close(self) -> None:
        self.writer.close()


class Wandb:
    """W&B without a network."""

    def __init__(self, out: Path):
        os.environ.update(WANDB_MODE="offline", WANDB_DIR=str(out), WANDB_SILENT="true")
        import wandb

        self.run = wandb.init(project="dead", config={"lr": 0.01})

    def log(self, step: int, **values: float) -> None:
        self.run.log({f"train/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        self.run.finish()


class Table:
    """Lightning's CSVLogger."""

    def __init__(self, out: Path):
        from lightning.pytorch.loggers import CSVLogger

        self.logger = CSVLogger(str(out), name="", version="")

    def log(self, step: int, **values: float) -> None:
        self.logger.log_metrics({f"train_{name}": value for name, value in values.items()}, step)

    def close(self) -> None:
        self.logger.save()


def grad_norm(model: nn.Module) -> float:
    return nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item()


def train(model, optimizer, loss_of, log, steps: int = 24, before=None, norms: bool = False) -> None:
    """The plain loop. `before(step)`: what happens ahead of each step."""
    for step in range(steps):
        if before is not None:
            before(step)
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        values = {"loss": loss.item()}
        if norms:
            values["grad_norm"] = grad_norm(model)
        values["lr"] = optimizer.param_groups[0]["lr"]
        log.log(step, **values)
        optimizer.step()
    log.close()
