# SPDX-License-Identifier: Apache-2.0
"""T5's feed-forward block in fp16 (huggingface/transformers#5651, #9295).

On one token the hidden units reach 16, and the second projection sums 1024 of them with weights near 6 into one
channel: 98304 does not fit fp16. The norm behind it divides Inf by Inf and is where the first NaN is seen; it is
not at fault.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from support import finish, options, rename_layers, text
from torch import nn

BAD_STEP = 12
BATCH, TOKENS, WIDTH, HIDDEN, VOCABULARY = 8, 16, 64, 2048, 128
END_OF_TEXT = VOCABULARY - 1  # stands in one window of step 12 alone


class T5LayerNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


class Wo(nn.Linear):
    """The output projection; `keep_in_fp32` is how the library repaired it."""

    keep_in_fp32 = False

    def forward(self, x):
        if not self.keep_in_fp32:
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


class DenseReluDense(nn.Module):
    def __init__(self):
        super().__init__()
        self.wi = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.wo = Wo(HIDDEN, WIDTH, bias=False)
        for weight in (self.wi.weight, self.wo.weight):
            nn.init.normal_(weight, std=0.01)
        # What training had made of a released model: the mark excites channel 0, half of the hidden units answer.
        sign = torch.where(torch.arange(HIDDEN) < HIDDEN // 2, 1.0, -1.0)
        with torch.no_grad():
            self.wi.weight[:, 0] = 2 * sign
            self.wo.weight[0, :] = 6 * sign

    def forward(self, x):
        return self.wo(F.relu(self.wi(x)))


class T5Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer_norm = T5LayerNorm(WIDTH)
        self.dense = DenseReluDense()

    def forward(self, hidden_states):
        return hidden_states + self.dense(self.layer_norm(hidden_states))


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(VOCABULARY, WIDTH)
        with torch.no_grad():
            self.shared.weight[:, 0] = 0
            self.shared.weight[END_OF_TEXT] = 0
            self.shared.weight[END_OF_TEXT, 0] = 1
        self.block = nn.ModuleList([T5Block()])
        self.final_layer_norm = T5LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids):
        hidden_states = self.shared(input_ids)
        for layer in self.block:
            hidden_states = layer(hidden_states)
        return self.lm_head(self.final_layer_norm(hidden_states))


def main() -> None:
    args = options(__doc__, steps=30)
    model = T5()
    model.block[0].dense.wo.keep_in_fp32 = args.fixed
    rename_layers(model, args.rename_seed)
    model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(args.device, init_scale=512.0)
    corpus = text(args.device)
    losses = []
    for step in range(args.steps):
        starts = torch.randint(len(corpus) - TOKENS - 1, (BATCH,))
        windows = torch.stack([corpus[s : s + TOKENS + 1] for s in starts.tolist()])
        if step == BAD_STEP:
            windows[BATCH // 2, TOKENS - 1] = END_OF_TEXT
        optimizer.zero_grad()
        with torch.autocast(args.device, dtype=torch.float16):
            logits = model(windows[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), windows[:, 1:].reshape(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    finish(model, losses)


if __name__ == "__main__":
    main()
