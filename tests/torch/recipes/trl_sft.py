# SPDX-License-Identifier: Apache-2.0
from datasets import Dataset
from support import QUIET, sentence, tiny_model, tiny_tokenizer
from trl import SFTConfig, SFTTrainer

data = Dataset.from_list([{"text": sentence(i)} for i in range(12)])
SFTTrainer(tiny_model(), SFTConfig(**QUIET), train_dataset=data, processing_class=tiny_tokenizer()).train()
