# SPDX-License-Identifier: Apache-2.0
"""A loss scaler as programs write it for themselves, and what trains with it."""

from __future__ import annotations

import torch
from own_programs import Net, data
from torch.nn import functional as F


class Half(Net):
    """Layers in fp16, as fp16 training without autocast has them. The output is fp32."""

    def __init__(self):
        super().__init__()
        self.half()

    def forward(self, x):
        return super().forward(x.half()).float()


class Own:
    """A dynamic scaler in plain PyTorch: multiplies the loss, looks at gradients, divides them or skips."""

    def __init__(self, scale=65536.0, dynamic=True, interval=2000, floor=0.0, as_tensor=False, clears=True):
        self.scale, self.dynamic, self.interval, self.floor = scale, dynamic, interval, floor
        self.as_tensor, self.clears, self.clean = as_tensor, clears, 0

    def of(self, loss):
        return loss * (torch.tensor(self.scale) if self.as_tensor else self.scale)

    def is_bad(self, parameters):
        return not all(bool(torch.isfinite(p.grad).all()) for p in parameters)

    def divide(self, parameters):
        for p in parameters:
            p.grad.div_(self.scale)

    def step(self, opt, parameters):
        if self.is_bad(parameters):
            if self.dynamic:
                self.scale, self.clean = max(self.scale / 2, self.floor), 0
            return False
        self.divide(parameters)
        opt.step()
        self.clean += 1
        if self.dynamic and self.clean == self.interval:
            self.scale, self.clean = self.scale * 2, 0
        return True


class Masters:
    def __init__(self, net, lr=1e-3):
        self.net = net
        self.masters = [p.detach().clone().float().requires_grad_() for p in net.parameters()]
        self.opt = torch.optim.SGD(self.masters, lr=lr)

    def take(self, scale):
        for m, p in zip(self.masters, self.net.parameters(), strict=True):
            m.grad = p.grad.float() / scale

    def give(self):
        with torch.no_grad():
            for m, p in zip(self.masters, self.net.parameters(), strict=True):
                p.copy_(m)


def own(make=Own, gain=1.0, bad=None, steps_clear_after=False, model=Net, lr=1e-3):
    """`gain`: of the loss; it decides at which scale gradients leave fp16. `bad(i)`: a further factor of step i."""

    def build():
        net = model()
        opt = torch.optim.SGD(net.parameters(), lr=lr)
        scaler = make()

        def step(i):
            x, y = data()
            if not steps_clear_after:
                opt.zero_grad()
            out = net(x).half().float()  # gradients pass through fp16, as under autocast
            loss = F.cross_entropy(out, y) * gain * (bad(i) if bad else 1.0)
            scaler.of(loss).backward()
            stepped = scaler.step(opt, list(net.parameters()))
            if steps_clear_after and (stepped or scaler.clears):
                opt.zero_grad()

        return step, net, opt

    return build
