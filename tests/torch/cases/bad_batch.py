# SPDX-License-Identifier: Apache-2.0
"""One image of the data set has a NaN pixel; layers are called one by one. Repaired by a collate function that
drops it.
"""

from __future__ import annotations

import torch
from support import digits, finish, options, rename_layers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

BAD_STEP = 7
BATCH = 32
BAD_SAMPLE = BAD_STEP * BATCH + 21


def without_nan(samples):
    return default_collate([sample for sample in samples if bool(torch.isfinite(sample[0]).all())])


def main():
    args = options(__doc__, steps=16)
    images, labels = digits()
    images.numpy()[BAD_SAMPLE, 30] = float("nan")  # as it comes from a file
    count = args.steps * BATCH
    loader = DataLoader(
        TensorDataset(images[:count], labels[:count]),
        batch_size=BATCH,
        collate_fn=without_nan if args.fixed else None,
    )
    model = nn.Sequential()
    model.add_module("hidden", nn.Linear(64, 32))
    model.add_module("norm", nn.BatchNorm1d(32))
    model.add_module("output", nn.Linear(32, 10))
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    hidden, norm, output = model
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    losses = []
    for x, y in loader:
        x, y = x.to(args.device), y.to(args.device)
        logits = output(torch.relu(norm(hidden(x))))
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
