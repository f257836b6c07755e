# SPDX-License-Identifier: Apache-2.0
"""Trains one of three models for some steps and prints the bits of what came out. One batch overflows on the way."""

from __future__ import annotations

import argparse
import json
import random

import numpy as np
import torch
import torch.nn.functional as F
from digest import digest
from torch import nn

BATCH = 8


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2)
        self.norm2 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout2d(0.2)
        self.fc = nn.Linear(8, 10)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x.view(-1, 1, 8, 8))), inplace=True)
        x = self.drop(F.relu(self.norm2(self.conv2(x))))
        return self.fc(x.mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        rows = self.embed(x.view(-1, 8, 8))
        mask = nn.Transformer.generate_square_subsequent_mask(8, device=x.device)
        return self.head(self.encoder(rows, mask=mask, is_causal=True)[:, -1])


def build(name: str, device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    if name == "mlp":
        model = nn.Sequential()
        for _ in range(3):
            model.append(nn.Linear(64, 64)).append(nn.LayerNorm(64)).append(nn.GELU())
        model = model.append(nn.Linear(64, 10)).to(device)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    if name == "cnn":
        model = CNN().to(device)
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    model = Transformer().to(device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=("mlp", "cnn", "transformer"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--bad-step", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    kind = torch.device(args.device).type
    if kind != "cpu":
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    images, labels = torch.rand(256, 64).to(args.device), torch.randint(10, (256,)).to(args.device)
    model, optimizer = build(args.model, args.device)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    scaler = torch.amp.GradScaler(kind, init_scale=2.0**10, growth_interval=25)
    losses, gradients = [], []
    for step in range(args.steps):
        chosen = torch.randint(len(images), (BATCH,)).to(args.device)
        x = images[chosen] + 0.01 * random.random() + 0.01 * float(np.random.rand())
        if step == args.bad_step:
            x = x * 3e6  # beyond fp16 where the first layer casts it
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for part in (slice(0, BATCH // 2), slice(BATCH // 2, BATCH)):
            with torch.autocast(kind, dtype=torch.float16):
                loss = F.cross_entropy(model(x[part]), labels[chosen[part]]) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if step % 50 == 10:
            gradients.append(digest([p.grad for p in model.parameters()]))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        losses.append(loss.item())
    states = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]
    if kind == "cuda":
        states.append(torch.cuda.get_rng_state())
    result = {
        "weights": digest(dict(model.named_parameters())),
        "buffers": digest(dict(model.named_buffers())),
        "gradients": digest(gradients),
        "optimizer": digest(optimizer.state_dict()),
        "scaler": digest(scaler.state_dict()),
        "losses": digest(losses),
        "random": digest(states),
        "skipped": sum(loss != loss for loss in losses),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
