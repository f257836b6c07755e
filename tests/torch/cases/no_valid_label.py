# SPDX-License-Identifier: Apache-2.0
"""Cross entropy of a batch in which every label is ignored (pytorch/pytorch#70348, #75181; meta-
pytorch/torchtune#2341).

The prompts of one batch fill their windows, so the answers were cut off and nothing is left to learn: 0 / 0 labels.
The model computes its own loss and returns it in a dataclass, as instruction tuning does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from support import finish, options, rename_layers, text
from torch import nn

BAD_STEP = 11
BATCH, TOKENS, WIDTH, VOCABULARY = 4, 20, 32, 128
IGNORED = -100


@dataclass
class CausalOutput:
    loss: torch.Tensor | None
    logits: torch.Tensor


class TokenLoss(nn.Module):
    def __init__(self, at_least_one: bool):
        super().__init__()
        self.criterion = nn.CrossEntropyLoss(ignore_index=IGNORED, reduction="sum" if at_least_one else "mean")
        self.at_least_one = at_least_one

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = self.criterion(logits.flatten(0, 1), labels.flatten())
        return loss / (labels != IGNORED).sum().clamp(min=1) if self.at_least_one else loss


class CausalLM(nn.Module):
    def __init__(self, at_least_one: bool):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY)
        self.token_loss = TokenLoss(at_least_one)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> CausalOutput:
        logits = self.lm_head(self.rnn(self.embed(input_ids))[0])
        return CausalOutput(None if labels is None else self.token_loss(logits, labels), logits)


def main() -> None:
    args = options(__doc__, steps=20)
    model = CausalLM(at_least_one=args.fixed)
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
    corpus = text(args.device)
    losses = []
    for step in range(args.steps):
        starts = torch.randint(len(corpus) - TOKENS - 1, (BATCH,)).tolist()
        windows = torch.stack([corpus[s : s + TOKENS + 1] for s in starts])
        labels = windows[:, 1:].clone()
        labels[:, : TOKENS if step == BAD_STEP else TOKENS // 2] = IGNORED  # the prompt
        output = model(input_ids=windows[:, :-1], labels=labels)
        output.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(output.loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
