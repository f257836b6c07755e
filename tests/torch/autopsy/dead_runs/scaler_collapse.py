# SPDX-License-Identifier: Apache-2.0
"""From step 8 on the gradient is NaN at any scale: the scaler halves and halves."""

import torch
from support import Text, batch, folder, net
from torch import nn

out = folder()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
log = Text(out)
for step in range(30):
    x, y = batch(step)
    with torch.autocast("cpu", dtype=torch.float16):
        made = model(x)
    loss = nn.functional.cross_entropy(made.float(), y)
    if step >= 8:
        loss = loss + torch.sqrt(made.float()[0] * 0.0).sum()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    log.log(step, loss=loss.item(), loss_scale=scaler.get_scale())
