# SPDX-License-Identifier: Apache-2.0
"""fp16 with a scale that never falls: from step 10 on scaled gradients pass 65504 while the loss is finite."""

import torch
from support import Table, batch, folder, grad_norm, net

out = folder()
model = net().half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
log = Table(out)
for step in range(20):
    x, _ = batch(step)
    scale = 2.0**10 if step < 10 else 2.0**24
    loss = model(x.half()).float().square().mean()
    optimizer.zero_grad()
    (loss * scale).backward()
    for parameter in model.parameters():
        parameter.grad /= scale
    log.log(step, loss=loss.item(), grad_norm=grad_norm(model))
    optimizer.step()
log.close()
