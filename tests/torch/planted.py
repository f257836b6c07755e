# SPDX-License-Identifier: Apache-2.0
"""Training runs with a planted fault, on any device: what `step_runs.run_once` builds and steps."""
from __future__ import annotations

import math

import torch
from step_runs import Root, batch, net
from torch import nn
from torch.nn import functional as F


def on(device, tensors):
    return [t.to(device) for t in tensors]


def overflow(bad=(3,), unscale=False, fused=False, clip=False, device="cpu"):
    """fp16 autocast and a scaler; a bad step's input leaves fp16."""

    def build():
        model = net(Root()).to(device)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)

        def step(i):
            x, y = on(device, batch())
            if i in bad:
                x = x * 1e5
            opt.zero_grad()
            with torch.autocast(device, dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(opt)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()

        return step, model, opt, lambda: scaler.state_dict()

    return build


def blow_up(lr=1e30, optimizer=torch.optim.SGD, device="cpu", **options):
    def build():
        model = net().to(device)
        opt = optimizer(model.parameters(), lr=lr, **options)

        def step(i):
            x, y = on(device, batch())
            opt.zero_grad()
            F.mse_loss(model(x), F.one_hot(y, 3).float()).backward()
            opt.step()

        return step, model, opt

    return build


def nan_batch(bad=(2,), extra=(), optimizer=torch.optim.AdamW, device="cpu"):
    def build():
        model = net(*[make() for make in extra]).to(device)
        opt = optimizer(model.parameters(), lr=1e-3)

        def step(i):
            x, y = on(device, batch())
            if i in bad:
                x[1, 2] = math.nan
            opt.zero_grad(set_to_none=False)
            F.cross_entropy(model(x), y).backward()
            opt.step()

        return step, model, opt

    return build
