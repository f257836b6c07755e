# SPDX-License-Identifier: Apache-2.0
"""What the cases share: options, real data, and names that can be changed. Nothing here knows of nanhunt."""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path

import torch
from torch import nn

DATA = Path(__file__).resolve().parents[3] / "src" / "engine" / "data"


def options(description: str, steps: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--fixed", action="store_true", help="train the repaired twin")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rename-seed", type=int, default=None, help="give every layer another name")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    return args


def new_name(seed: int | None, name: str) -> str:
    """The name a layer has under a seed. Positions in a list keep their number."""
    if seed is None or name.isdigit():
        return name
    return f"m{zlib.crc32(f'{seed}/{name}'.encode()):08x}"


def new_path(seed: int | None, path: str) -> str:
    return ".".join(new_name(seed, part) for part in path.split(".")) if path else path


def rename_layers(root: nn.Module, seed: int | None) -> None:
    """Registers every submodule under another name; attributes still lead to it, so forward() works as written."""
    if seed is None:
        return
    for module in list(root.modules()):
        for old, child in list(module._modules.items()):
            del module._modules[old]
            module._modules[new_name(seed, old)] = child
            if not old.isdigit():
                module.__dict__[old] = child


def digits(device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """1797 images of 8 x 8 pixels in 0 .. 1, and what they show."""
    lines = (DATA / "digits.csv").read_text(encoding="utf-8").splitlines()
    rows = torch.tensor([[int(cell) for cell in line.split(",")] for line in lines if line[:1].isdigit()])
    return (rows[:, :64].float() / 16).to(device), rows[:, 64].long().to(device)


def text(device: str = "cpu") -> torch.Tensor:
    """English prose as characters 0 .. 127."""
    raw = (DATA / "text.txt").read_bytes()
    return torch.tensor([byte for byte in raw if byte < 128]).to(device)


def finish(models: nn.Module | list[nn.Module], losses: list[float]) -> None:
    models = models if isinstance(models, list) else [models]
    finite = all(bool(torch.isfinite(p).all()) for model in models for p in model.parameters())
    print(f"{len(losses)} steps, loss {losses[0]:.4g} -> {losses[-1]:.4g}, weights finite: {finite}")
