# SPDX-License-Identifier: Apache-2.0
"""Forward, gradient and second gradient of functions in corners of PyTorch, as bits: {name: digest}."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
import torch.nn.functional as F
from digest import digest
from torch import nn
from torch.utils.checkpoint import checkpoint


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad * x**2


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, ::2] += 1
    y[0].mul_(3)
    y.view(-1)[1:4] = x.reshape(-1)[:3]
    return y


def through_out(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out = torch.empty_like(x)
        torch.mul(x, 2, out=out)
    return x + out


def moved(x: torch.Tensor) -> torch.Tensor:
    y = x.t()[1:].flip(0).roll(1, 1)
    return torch.cat([y, torch.zeros(0, y.size(1))]).unfold(0, 2, 1)


def fourier(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.rfft(x).abs()


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sin": torch.sin,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: x.norm(dim=1),
    "std": lambda x: x.std(dim=0),
    "cumsum": lambda x: x.cumsum(1),
    "prod": lambda x: x.prod(dim=1),
    "cumprod": lambda x: x.cumprod(dim=1),
    "matmul": lambda x: x @ x.t(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x.cos()),
    "bmm": lambda x: torch.bmm(x[None], x.t()[None]),
    "gelu": F.gelu,
    "silu": F.silu,
    "elu": F.elu,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x[None], 2),
    "conv1d": lambda x: F.conv1d(x[None], torch.ones(2, x.size(0), 3), padding=1),
    "max_pool": lambda x: F.max_pool1d(x[None], 2),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2, mode="linear"),
    "dropout": lambda x: F.dropout(x, 0.5),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    "gather": lambda x: x.gather(1, torch.arange(x.size(0))[:, None] % x.size(1)),
    "index_put": lambda x: x.index_put((torch.tensor([0, 0]),), x[:2], accumulate=True),
    "sort": lambda x: x.sort(-1).values,
    "where": lambda x: torch.where(x > 0, x, x.exp()),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "in_place": in_place,
    "through_out": through_out,
    "views": moved,
    "complex": fourier,
    "custom": Cube.apply,
    "checkpoint": lambda x: checkpoint(lambda y: F.dropout(y.tanh(), 0.3), x, use_reentrant=False),
    "reentrant": lambda x: checkpoint(lambda y: F.dropout(y.tanh(), 0.3), x, use_reentrant=True),
    "empty": lambda x: x[:0].sum(),
    "half": lambda x: (x.half() @ x.half().t()).float(),
    "bfloat16": lambda x: x.bfloat16().tanh().sum(0).float(),
    "double": lambda x: x.double().svd()[1],
    "random": lambda x: x + torch.randn(x.shape) + torch.rand(x.shape, generator=torch.Generator().manual_seed(5)),
}


class Calls(nn.Module):
    """A root module, so that what runs in it counts as forward."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.weight * x)


def bits_of(name: str) -> str:
    torch.manual_seed(len(name))
    module = Calls(FUNCTIONS[name])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    results = []
    for _ in range(2):
        out = module(torch.linspace(-1, 1, 24).view(4, 6))
        loss = (out.abs() ** 1.5).sum()
        if name not in ("reentrant", "empty"):
            twice = name not in ("attention", "interpolate")
            (first,) = torch.autograd.grad(loss, [module.weight], create_graph=twice, retain_graph=True)
            results += [first]
            if first.requires_grad:
                results += torch.autograd.grad(first.sum(), [module.weight], retain_graph=True, allow_unused=True)
        loss.backward()
        results += [out, loss, module.weight.grad]
        optimizer.step()
        optimizer.zero_grad()
        results.append(module.weight)
    return digest([result.clone() if result is not None else None for result in results])


def main() -> None:
    told = {}
    for name in FUNCTIONS:
        try:
            told[name] = bits_of(name)
        except Exception as error:  # what does not work unwatched must not work watched
            told[name] = f"{type(error).__name__}: {error}"
    told["sparse"] = sparse_embedding()
    told["random state"] = digest(torch.get_rng_state())
    print(json.dumps(told))


def sparse_embedding() -> str:
    torch.manual_seed(1)
    model = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()))
    for _ in range(2):
        model(torch.tensor([1, 4, 4, 7])).square().sum().backward()
        gradient = digest(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
    return digest([model.weight, gradient])


if __name__ == "__main__":
    main()
