# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from support import tiny_model

accelerator = Accelerator(cpu=True)
model = tiny_model()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
for step in range(3):
    ids = torch.randint(0, 64, (2, 8), generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    accelerator.backward(model(input_ids=ids, labels=ids).loss)
    optimizer.step()
