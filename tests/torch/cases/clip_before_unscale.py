# SPDX-License-Identifier: Apache-2.0
"""Gradients are clipped while they still carry the loss scale. Repaired by unscale_ before the clip."""

from __future__ import annotations

import torch
from support import digits, finish, options, rename_layers
from torch import nn
from torch.nn.utils import clip_grad_norm_

BATCH = 32


def main():
    args = options(__doc__, steps=12)
    images, labels = digits(args.device)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scaler = torch.amp.GradScaler(args.device, init_scale=1024.0)
    losses = []
    for _ in range(args.steps):
        chosen = torch.randint(len(images), (BATCH,))
        with torch.autocast(args.device, dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if args.fixed:
            scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
