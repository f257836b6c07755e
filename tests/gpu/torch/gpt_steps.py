# SPDX-License-Identifier: Apache-2.0
"""Steps of a transformer in eager PyTorch, as gpu_engine times its own: equal model, fp16 autocast, fused AdamW.

    python3 gpt_steps.py SIZE plain|fused [--device cuda]      the protocol of tests/gpu/pairs.py

`fused`: attention as one op, which the engine does not have; `plain`: with the ops that it has.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

# As in tests/gpu/gpt_like.cpp: vocabulary, layers, dims, heads, batch, tokens.
SIZES = {
    "gpt124m": (50257, 12, 768, 12, 8, 512),
    "gpt124m-small-batch": (50257, 12, 768, 12, 2, 256),
    "gpt10m": (96, 6, 384, 6, 8, 256),
    "gpt1m": (96, 4, 128, 4, 4, 64),
}


class Attention(nn.Module):
    def __init__(self, dims: int, heads: int, tokens: int, fused: bool):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(dims, dims) for _ in range(4))
        self.heads, self.fused = heads, fused
        self.register_buffer("later", torch.ones(tokens, tokens, dtype=torch.bool).triu(1))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-2, -1) * (x.shape[-1] // self.heads) ** -0.5
            mixed = scores.masked_fill(self.later, float("-inf")).softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, dims: int, heads: int, tokens: int, fused: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dims), nn.LayerNorm(dims)
        self.attention = Attention(dims, heads, tokens, fused)
        self.fc1, self.fc2 = nn.Linear(dims, 4 * dims), nn.Linear(4 * dims, dims)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int, layers: int, dims: int, heads: int, tokens: int, fused: bool):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, dims), nn.Embedding(tokens, dims)
        self.blocks = nn.ModuleList(Block(dims, heads, tokens, fused) for _ in range(layers))
        self.norm = nn.LayerNorm(dims)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        x = self.token(x) + self.position(places)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("size", choices=list(SIZES))
    parser.add_argument("attention", choices=("plain", "fused"))
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    vocabulary, layers, dims, heads, batch, tokens = SIZES[args.size]
    torch.manual_seed(1)
    kind = args.device.split(":")[0]
    model = Gpt(vocabulary, layers, dims, heads, tokens, args.attention == "fused").to(args.device)
    text = torch.randint(96, (batch, tokens + 1), device=args.device)
    inputs, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler(kind, init_scale=1024.0)

    def wait() -> None:
        if kind == "cuda":
            torch.cuda.synchronize()

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=torch.float16):
            logits = model(inputs)
            loss = F.cross_entropy(logits.view(-1, vocabulary), targets.view(-1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()  # as the engine's trainer does it

    loss = step()
    print("ready", sum(p.numel() for p in model.parameters()), loss, torch.__version__, flush=True)
    done = 1
    for line in sys.stdin:
        took = []
        wait()
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            wait()
            took.append(1e3 * (time.perf_counter() - start))
        print(done, *(f"{ms:.6f}" for ms in took), flush=True)
        done += len(took)


if __name__ == "__main__":
    main()
