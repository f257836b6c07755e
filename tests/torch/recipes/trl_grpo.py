# SPDX-License-Identifier: Apache-2.0
from datasets import Dataset
from support import QUIET, sentence, tiny_model, tiny_tokenizer
from trl import GRPOConfig, GRPOTrainer


def reward(completions: list[str], **kwargs: object) -> list[float]:
    return [float(len(set(text.split()))) for text in completions]


data = Dataset.from_list([{"prompt": sentence(i, 4)} for i in range(12)])
config = GRPOConfig(**QUIET, num_generations=2, max_completion_length=6)
GRPOTrainer(tiny_model(), reward, args=config, train_dataset=data, processing_class=tiny_tokenizer()).train()
