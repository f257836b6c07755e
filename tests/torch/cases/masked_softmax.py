# SPDX-License-Identifier: Apache-2.0
"""Attention rows with every key masked (pytorch/pytorch#41508, #27968; huggingface/transformers#17433).

Prompts padded on the left and a causal mask leave the first queries of a short prompt without a key. They are
dropped before the loss, which stays finite; their zero gradient times NaN reaches the weights all the same.
"""

from __future__ import annotations

import math

import torch
from support import finish, options, rename_layers, text
from torch import nn
from torch.utils.data import DataLoader, Dataset

BAD_STEP = 9
BATCH, TOKENS, WIDTH, HEADS, VOCABULARY = 8, 12, 32, 4, 128
PAD = 0


class Prompts(Dataset):
    """Windows of prose. Those of one batch are of two lengths, so the short ones are padded on the left."""

    def __init__(self, count: int):
        self.corpus = text()
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        length = TOKENS // 2 if index // BATCH == BAD_STEP and index % 2 else TOKENS
        start = index * 97 % (len(self.corpus) - TOKENS - 1)
        return self.corpus[start : start + length + 1]


def pad_left(samples: list[torch.Tensor]) -> torch.Tensor:
    batch = torch.full((len(samples), TOKENS + 1), PAD)
    for row, sample in enumerate(samples):
        batch[row, -len(sample) :] = sample
    return batch


class SelfAttention(nn.Module):
    def __init__(self, see_self: bool):
        super().__init__()
        self.see_self = see_self
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (part.view(batch, tokens, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1) | padding[:, None, None, :]
        if self.see_self:
            hidden = hidden & ~torch.eye(tokens, dtype=torch.bool, device=x.device)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, WIDTH))


class Decoder(nn.Module):
    def __init__(self, see_self: bool):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PAD)
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = SelfAttention(see_self)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        x = x + self.attention(self.norm1(x), ids == PAD)
        x = x + self.mlp(self.norm2(x))
        return self.head(x)


def main() -> None:
    args = options(__doc__, steps=20)
    model = Decoder(see_self=args.fixed)
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    loader = DataLoader(Prompts(args.steps * BATCH), batch_size=BATCH, num_workers=2, collate_fn=pad_left)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, foreach=True)
    losses = []
    for batch in loader:
        batch = batch.to(args.device)
        ids, targets = batch[:, :-1], batch[:, 1:]
        real = ids != PAD
        loss = nn.functional.cross_entropy(model(ids)[real], targets[real])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
