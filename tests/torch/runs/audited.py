# SPDX-License-Identifier: Apache-2.0
"""Trains six steps for each kind of mistake that the first argument names, "eps,softmax"; with `--fixed` its repaired
twin."""
from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F

KIND, FIXED = "", "--fixed" in sys.argv


class Head(nn.Module):
    def forward(self, x):
        warm = x.float() * 1.5
        # Autocast would have chosen by itself; the softmax needs fp32.
        return warm.half() if KIND == "half_result" and not FIXED else warm


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4), Head())


def main():
    torch.manual_seed(0)
    model = net()
    if KIND == "narrow" and not FIXED:
        model.half()
    eps = 1e-4 if FIXED else 1e-8
    if KIND == "foreign" and not FIXED:
        optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaled = KIND in ("bf16_scaler", "half_result") or (KIND in ("unscaled", "narrow") and FIXED)
    scaled = scaled and not (KIND == "bf16_scaler" and FIXED)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    formats = {"unscaled": torch.float16, "own_scale": torch.float16, "half_result": torch.float16,
               "bf16_scaler": torch.bfloat16, "inside": torch.bfloat16, "narrow": torch.float16}
    for _ in range(6):
        x, y = torch.randn(4, 8), torch.randint(0, 4, (4,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=formats.get(KIND, torch.bfloat16), enabled=KIND in formats):
            out = model(x)
            if KIND in ("softmax", "log_softmax"):
                narrow = out if FIXED else out.half()
                loss = F.nll_loss(narrow.softmax(-1).log() if KIND == "softmax" else narrow.log_softmax(-1), y)
            elif KIND == "targets":
                loss = F.mse_loss(out, torch.zeros(4, 4, dtype=torch.float32 if FIXED else torch.float64))
            elif KIND == "eps":
                rows = out.half()
                loss = (rows / (rows.norm(dim=-1, keepdim=True) + eps)).float().square().mean()
            else:
                loss = F.cross_entropy(out, y)
            if KIND == "inside" and not FIXED:
                loss.backward()
        if KIND == "own_scale":
            (loss * 128).backward()
            for p in model.parameters():
                p.grad.div_(128)
            optimizer.step()
        elif KIND != "inside" or FIXED:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()


for KIND in sys.argv[1].split(","):  # noqa: B007 - it is read by its name
    main()
