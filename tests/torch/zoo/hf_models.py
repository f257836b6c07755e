# SPDX-License-Identifier: Apache-2.0
"""Families of `transformers`, each with a tiny configuration and random weights. Nothing is fetched."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

CAUSAL = """gpt2 gpt_neox gptj opt bloom codegen llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma
gemma2 gemma3_text phi phi3 stablelm falcon mpt olmo olmo2 cohere starcoder2 granite xglm biogpt openai-gpt ctrl
persimmon mamba rwkv glm nemotron helium smollm3 ernie4_5 exaone4 olmoe""".split()
MASKED = """bert roberta albert electra distilbert deberta deberta-v2 mpnet camembert xlm-roberta convbert squeezebert
fnet nystromformer rembert roformer mobilebert layoutlm longformer big_bird megatron-bert ibert yoso xlm flaubert ernie
esm modernbert mra""".split()
SEQ2SEQ = "t5 bart mbart pegasus marian blenderbot mt5 longt5 switch_transformers m2m_100 umt5 plbart".split()
IMAGE = "vit beit dinov2 mobilevit mobilenet_v1 mobilenet_v2 data2vec-vision".split()

# Whatever a configuration calls it.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "dim", "emb_dim", "word_embed_proj_dim"),
                    32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers",
                     "num_decoder_layers", "num_key_value_heads", "num_experts_per_tok", "type_vocab_size"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads",
                     "decoder_attention_heads", "num_local_experts", "num_experts", "rotary_dim"), 4),
    **dict.fromkeys(("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "hidden_dim",
                     "max_position_embeddings", "n_positions", "n_ctx", "max_target_positions", "max_source_positions",
                     "max_seq_len"), 64),
    **dict.fromkeys(("d_kv", "head_dim", "state_size", "linear_key_head_dim", "linear_value_head_dim",
                     "patch_size"), 8),
    "vocab_size": 99, "image_size": 32, "num_channels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "moe_intermediate_size": 32, "sliding_window": 16, "attention_window": [8, 8], "decoder_start_token_id": 1,
}  # fmt: skip


def configuration(name: str) -> Any:
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[name]
    whole = kind()
    known = {key: value for key, value in SMALL.items() if hasattr(whole, key) or key in kind.attribute_map}
    try:
        config = kind(**known)
    except Exception:  # in some families it follows from the others
        config = kind(**{key: value for key, value in known.items() if key != "head_dim"})
    config.decoder_start_token_id = 1
    return config


def maker(auto: str, name: str) -> Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]]:
    def make() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
        import transformers

        model = getattr(transformers, auto).from_config(configuration(name))
        if auto == "AutoModelForImageClassification":
            size = model.config.image_size if isinstance(getattr(model.config, "image_size", None), int) else 32
            given = {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.tensor([0, 1])}
        else:
            ids = torch.randint(3, 99, (2, 16))
            given = {"input_ids": ids, "labels": ids}
        return model, lambda: model(**given).loss

    return make


FAMILIES = {
    name: maker(auto, name)
    for auto, names in (
        ("AutoModelForCausalLM", CAUSAL),
        ("AutoModelForMaskedLM", MASKED),
        ("AutoModelForSeq2SeqLM", SEQ2SEQ),
        ("AutoModelForImageClassification", IMAGE),
    )
    for name in names
}
