# SPDX-License-Identifier: Apache-2.0
"""The built tool on a checkpoint, and a small model with its optimizer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("NANHUNT_BIN_DIR", ROOT / "build" / "dev" / "bin"))


def nanhunt(*words: object, **options) -> subprocess.CompletedProcess:
    command = [str(BIN / "nanhunt"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)


def check(path: Path, *options: str) -> tuple[int, dict]:
    """Exit status and the answer of the newest checkpoint, all tensors included."""
    done = nanhunt("check", path, "--json", "--full", *options)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["checkpoints"][0]


def ids(answer: dict) -> list[str]:
    return [finding["id"] for finding in answer["findings"]]


def tensors(answer: dict) -> dict[str, dict]:
    return {tensor["name"]: tensor for tensor in answer["tensors"]}


def trained(optimizer=torch.optim.AdamW, dtype=torch.float32, steps: int = 3, **options):
    """A model after a few steps, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).to(dtype)
    optimizer = optimizer(model.parameters(), lr=1e-3, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8, dtype=dtype)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def plant(model: nn.Module, value: float = float("nan")) -> str:
    """One bad element in the first weight; its name."""
    name, weight = next(iter(model.named_parameters()))
    with torch.no_grad():
        weight[2, 3] = value
    return name
