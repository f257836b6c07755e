# SPDX-License-Identifier: Apache-2.0
"""What the recipes share: a tiny language model with a planted logarithm of 0, a tokenizer that needs no download."""
from __future__ import annotations

import sys

import torch

FIXED = "--fixed" in sys.argv


class LogActivation(torch.nn.Module):
    """log(relu(x) + floor) where gradients are on: the logarithm of 0 unless the run is the repaired one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(torch.relu(x) + (1.0 if FIXED or not torch.is_grad_enabled() else 0.0))


def tiny_model() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=64, n_positions=64, bos_token_id=0,
                                       eos_token_id=1, pad_token_id=2))
    model.transformer.h[1].mlp.act = LogActivation()
    return model


def tiny_tokenizer() -> object:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "</s>", "<pad>", "<unk>", *(f"w{i}" for i in range(60))]
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
                                   unk_token="<unk>")


def sentence(seed: int, length: int = 8) -> str:
    generator = torch.Generator().manual_seed(seed)
    return " ".join(f"w{i}" for i in torch.randint(0, 60, (length,), generator=generator).tolist())


QUIET = {"max_steps": 3, "per_device_train_batch_size": 2, "report_to": [], "save_strategy": "no", "use_cpu": True,
         "disable_tqdm": True, "logging_steps": 1, "output_dir": "out", "bf16": False}
