# SPDX-License-Identifier: Apache-2.0
import torch
from peft import LoraConfig, get_peft_model
from support import tiny_model

model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for step in range(3):
    ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
