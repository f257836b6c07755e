# SPDX-License-Identifier: Apache-2.0
"""Small models of other kinds, written out: each makes a model and a call that gives its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Made = tuple[nn.Module, Callable[[], torch.Tensor]]


class Call(nn.Module):
    """A module whose forward is a function of its parts."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self._forward = forward

    def forward(self, *given: Any) -> Any:
        return self._forward(self, *given)


def convolution(before: int, after: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(after), nn.ReLU()
    )


def classifier(model: nn.Module, size: int = 16) -> Made:
    x, y = torch.randn(4, 3, size, size), torch.randint(10, (4,))
    return model, lambda: F.cross_entropy(model(x), y)


def head(width: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def vgg() -> Made:
    return classifier(
        nn.Sequential(convolution(3, 16), nn.MaxPool2d(2), convolution(16, 32), nn.MaxPool2d(2), head(32))
    )


def residual(width: int, inner: nn.Module) -> nn.Module:
    return Call(lambda self, x: F.relu(x + self.inner(x)), inner=inner)


def resnet() -> Made:
    block = nn.Sequential(convolution(16, 16), nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16))
    return classifier(nn.Sequential(convolution(3, 16), residual(16, block), head(16)))


def densenet() -> Made:
    def grow(self: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x

    layers = nn.ModuleList(convolution(16 + 8 * i, 8) for i in range(3))
    return classifier(nn.Sequential(convolution(3, 16), Call(grow, layers=layers), head(40)))


def se_resnext() -> Made:
    gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(), nn.Conv2d(4, 16, 1), nn.Sigmoid())
    block = Call(lambda self, x: F.relu(x + self.body(x) * self.gate(x)), body=convolution(16, 16, groups=4), gate=gate)
    return classifier(nn.Sequential(convolution(3, 16), block, head(16)))


def mobilenet() -> Made:
    block = nn.Sequential(nn.Conv2d(16, 32, 1), nn.Hardswish(), convolution(32, 32, groups=32), nn.Conv2d(32, 16, 1))
    return classifier(nn.Sequential(convolution(3, 16, stride=2), residual(16, block), head(16)))


def recurrent(kind: str) -> Callable[[], Made]:
    def make() -> Made:
        cells = getattr(nn, kind)(16, 32, num_layers=2, batch_first=True)
        model = Call(lambda self, ids: self.out(self.cells(self.embed(ids))[0]), embed=nn.Embedding(50, 16),
                     cells=cells, out=nn.Linear(32, 50))  # fmt: skip
        ids = torch.randint(50, (4, 12))
        return model, lambda: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return make


def speech() -> Made:
    model = Call(lambda self, x: self.out(self.cells(x)[0]).log_softmax(-1), cells=nn.GRU(8, 32, batch_first=True),
                 out=nn.Linear(32, 12))  # fmt: skip
    x, targets = torch.randn(3, 20, 8), torch.randint(1, 12, (3, 5))
    lengths = torch.full((3,), 20), torch.full((3,), 5)
    return model, lambda: F.ctc_loss(model(x).float().transpose(0, 1), targets, *lengths)


def diffusion() -> Made:
    def denoise(self: Any, x: torch.Tensor, noise_level: torch.Tensor) -> torch.Tensor:
        time = self.time(torch.cat([noise_level.sin(), noise_level.cos()], 1))[:, :, None, None]
        high = self.first(x) + time
        low = self.down(high)
        return self.last(torch.cat([high, F.interpolate(low, scale_factor=2)], 1))

    def block(before: int, after: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(4, after), nn.SiLU())

    model = Call(denoise, time=nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 16)), first=block(3, 16),
                 down=block(16, 16, 2), last=nn.Conv2d(32, 3, 3, 1, 1))  # fmt: skip
    x, noise, level = torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16), torch.rand(4, 1)
    keep = (1 - level)[:, :, None, None]
    return model, lambda: F.mse_loss(model(keep.sqrt() * x + (1 - keep).sqrt() * noise, level), noise)


def graph() -> Made:
    def spread(self: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            messages = layer(x)[edges[0]]
            count = torch.zeros(len(x), 1).index_add(0, edges[1], torch.ones(edges.shape[1], 1)).clamp(min=1)
            x = F.relu(torch.zeros(len(x), messages.shape[1], dtype=messages.dtype).index_add(0, edges[1], messages)
                       / count)  # fmt: skip
        return self.out(x)

    model = Call(spread, layers=nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 16)]), out=nn.Linear(16, 4))
    x, edges, y = torch.randn(30, 8), torch.randint(30, (2, 90)), torch.randint(4, (30,))
    return model, lambda: F.cross_entropy(model(x, edges), y)


def gan() -> Made:
    """Both losses in one call: the generator's and, of what it does not learn from, the discriminator's."""
    model = nn.ModuleDict({
        "generator": nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 16)),
        "discriminator": nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)),
    })  # fmt: skip
    real, noise = torch.randn(8, 16), torch.randn(8, 8)

    def loss() -> torch.Tensor:
        made, judge = model["generator"](noise), model["discriminator"]
        bce = F.binary_cross_entropy_with_logits
        return (bce(judge(made), torch.ones(8, 1)) + bce(judge(real), torch.ones(8, 1))
                + bce(judge(made.detach()), torch.zeros(8, 1)))  # fmt: skip

    return model, loss


def ppo() -> Made:
    model = Call(lambda self, x: (self.policy(x), self.value(x)), policy=nn.Sequential(nn.Linear(6, 32), nn.Tanh(),
                 nn.Linear(32, 4)), value=nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1)))  # fmt: skip
    x, taken, advantage, returns = torch.randn(32, 6), torch.randint(4, (32,)), torch.randn(32), torch.randn(32)
    with torch.no_grad():
        before = model(x)[0].log_softmax(-1).gather(1, taken[:, None])[:, 0]

    def loss() -> torch.Tensor:
        logits, value = model(x)
        chances = logits.log_softmax(-1)
        ratio = (chances.gather(1, taken[:, None])[:, 0] - before).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        entropy = -(chances.exp() * chances).sum(-1).mean()
        return F.mse_loss(value[:, 0], returns) - gain - 0.01 * entropy

    return model, loss


def dpo() -> Made:
    def language_model() -> nn.Module:
        return nn.Sequential(nn.Embedding(40, 24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 40))

    model, reference = language_model(), language_model().requires_grad_(False)
    chosen, rejected = torch.randint(40, (4, 9)), torch.randint(40, (4, 9))

    def chance(of: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return of(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).sum((1, 2))

    def loss() -> torch.Tensor:
        with torch.no_grad():
            usual = chance(reference, chosen) - chance(reference, rejected)
        return -F.logsigmoid(0.1 * (chance(model, chosen) - chance(model, rejected) - usual)).mean()

    return model, loss


def quantised() -> Made:
    """Trains with weights as they will be rounded."""
    def rounded(self: Any, x: torch.Tensor) -> torch.Tensor:
        scale = self.layer.weight.detach().abs().max() / 127
        weight = torch.fake_quantize_per_tensor_affine(self.layer.weight.float(), float(scale), 0, -128, 127)
        return F.linear(x, weight.to(x.dtype), self.layer.bias)

    model = nn.Sequential(Call(rounded, layer=nn.Linear(16, 32)), nn.ReLU(), Call(rounded, layer=nn.Linear(32, 4)))
    x, y = torch.randn(8, 16), torch.randint(4, (8,))
    return model, lambda: F.cross_entropy(model(x), y)


def variational() -> Made:
    def encode(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp()), mean, log_variance

    model = Call(encode, encoder=nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8)),
                 decoder=nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20)))  # fmt: skip
    x = torch.randn(8, 20)

    def loss() -> torch.Tensor:
        made, mean, log_variance = model(x)
        return F.mse_loss(made, x) - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()

    return model, loss


def flow() -> Made:
    def couple(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = torch.zeros(len(x))
        for layer in self.layers:
            a, b = x.chunk(2, 1)
            scale, shift = layer(a).chunk(2, 1)
            scale = scale.tanh()
            x, total = torch.cat([b * scale.exp() + shift, a], 1), total + scale.sum(1)
        return x, total

    layers = nn.ModuleList(nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6)) for _ in range(3))
    model, x = Call(couple, layers=layers), torch.randn(16, 6)

    def loss() -> torch.Tensor:
        z, log_det = model(x)
        return (0.5 * z.square().sum(1) - log_det).mean()

    return model, loss


def contrastive() -> Made:
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))
    a, b = torch.randn(8, 12), torch.randn(8, 12)
    return model, lambda: F.cross_entropy(
        F.normalize(model(a), dim=1) @ F.normalize(model(b), dim=1).T / 0.1, torch.arange(8)
    )


def siren() -> Made:
    model = Call(lambda self, x: self.c(torch.sin(30 * self.b(torch.sin(30 * self.a(x))))), a=nn.Linear(2, 32),
                 b=nn.Linear(32, 32), c=nn.Linear(32, 3))  # fmt: skip
    x, y = torch.rand(64, 2), torch.rand(64, 3)
    return model, lambda: F.mse_loss(model(x), y)


def u_net() -> Made:
    def both(self: Any, x: torch.Tensor) -> torch.Tensor:
        high = self.first(x)
        return self.last(torch.cat([high, self.up(self.down(high))], 1))

    model = Call(both, first=convolution(3, 8), down=convolution(8, 16, 2), up=nn.ConvTranspose2d(16, 8, 2, 2),
                 last=nn.Conv2d(16, 1, 1))  # fmt: skip
    x, y = torch.randn(2, 3, 16, 16), torch.randn(2, 1, 16, 16)
    return model, lambda: F.l1_loss(model(x), y)


FAMILIES: dict[str, Callable[[], Made]] = {
    "vgg": vgg, "resnet": resnet, "densenet": densenet, "se-resnext": se_resnext, "mobilenet": mobilenet,
    "rnn": recurrent("RNN"), "lstm": recurrent("LSTM"), "gru": recurrent("GRU"), "ctc speech": speech,
    "diffusion u-net": diffusion, "u-net": u_net, "graph network": graph, "gan": gan, "ppo": ppo, "dpo": dpo,
    "quantisation-aware": quantised, "vae": variational, "flow": flow, "contrastive": contrastive, "siren": siren,
}  # fmt: skip
