# SPDX-License-Identifier: Apache-2.0
"""What scaler_script.cpp does, with torch.amp.GradScaler("cpu"). Needs torch and nothing else."""

import math
import struct
import sys

import torch

GRADIENTS = 3


class CountingOptimizer(torch.optim.Optimizer):
    def __init__(self):
        super().__init__([torch.zeros(1, requires_grad=True) for _ in range(GRADIENTS)], {})
        self.steps = 0

    def step(self):
        self.steps += 1

    @property
    def tensors(self):
        return self.param_groups[0]["params"]


def shown(value: float) -> str:
    return "nan" if math.isnan(value) else struct.pack(">f", value).hex()


def float_of(bits: str) -> float:
    return struct.unpack(">f", bytes.fromhex(bits))[0]


class Script:
    def start(self, init, growth, backoff, interval):
        self.scaler = torch.amp.GradScaler("cpu", float(init), float(growth), float(backoff), int(interval))
        self.optimizers = {name: CountingOptimizer() for name in "AB"}

    def state(self) -> str:
        scale = torch.tensor(self.scaler.get_scale(), dtype=torch.float32).item()
        return f" | {shown(scale)} {self.scaler._get_growth_tracker()}"

    def run(self, line: str) -> str:
        call, *words = line.split()
        if call == "new":
            self.start(*words)
            return "new" + self.state()
        try:
            outcome = self.call(call, words)
        except (RuntimeError, AssertionError, ValueError) as refused:
            outcome = f"refused: {refused}"
        return outcome + self.state()

    def call(self, call: str, words: list[str]) -> str:
        if call == "grads":
            for tensor, bits in zip(self.optimizers[words[0]].tensors, words[1:], strict=True):
                tensor.grad = None if bits == "-" else torch.tensor([float_of(bits)])
            return "set"
        if call == "unscale":
            self.scaler.unscale_(self.optimizers[words[0]])
            return "unscaled" + self.gradients(words[0])
        if call == "step":
            optimizer = self.optimizers[words[0]]
            before = optimizer.steps
            self.scaler.step(optimizer)
            return ("ran" if optimizer.steps > before else "skipped") + self.gradients(words[0])
        if call == "scale":
            return shown(self.scaler.scale(torch.tensor(float_of(words[0]))).item())
        if call == "update":
            self.scaler.update()
        elif call == "set":
            self.scaler.update(float(words[0]))
        elif call == "interval":
            self.scaler.set_growth_interval(int(words[0]))
        elif call == "growth":
            self.scaler.set_growth_factor(float(words[0]))
        elif call == "backoff":
            self.scaler.set_backoff_factor(float(words[0]))
        elif call == "reload":
            fresh = torch.amp.GradScaler("cpu")
            fresh.load_state_dict(self.scaler.state_dict())
            self.scaler = fresh
        else:
            raise SystemExit(f"unknown call '{call}'")
        return "done"

    def gradients(self, name: str) -> str:
        tensors = self.optimizers[name].tensors
        return "".join(" -" if t.grad is None else f" {shown(t.grad.item())}" for t in tensors)


if __name__ == "__main__":
    torch.set_num_threads(1)
    script = Script()
    for text in sys.stdin:
        print(script.run(text.strip()))
