# SPDX-License-Identifier: Apache-2.0
from datasets import Dataset
from support import QUIET, sentence, tiny_model, tiny_tokenizer
from trl import DPOConfig, DPOTrainer

data = Dataset.from_list([{"prompt": sentence(i, 4), "chosen": sentence(100 + i, 4), "rejected": sentence(200 + i, 4)}
                          for i in range(12)])
DPOTrainer(tiny_model(), tiny_model(), args=DPOConfig(**QUIET), train_dataset=data,
           processing_class=tiny_tokenizer()).train()
