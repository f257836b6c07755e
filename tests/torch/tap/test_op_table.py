# SPDX-License-Identifier: Apache-2.0
"""The op table knows what the steps of usual models dispatch."""
from __future__ import annotations

import re
from pathlib import Path

import nanhunt
import pytest
import torch
from saved import records_of
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("library")
ROWS = (Path(__file__).resolve().parents[3] / "src" / "core" / "ops").glob("rows_*.h")
TABLE = {name for rows in ROWS for name in re.findall(r'op\("([\w:]+)"', rows.read_text())}


def known(op):
    """As op_info() of src/core/ops/op_table.cpp finds it."""
    name = op.removeprefix("aten::").split(".")[0]
    if len(name) > 1 and name.endswith("_"):
        name = name[:-1]
    return name in TABLE or name.removeprefix("_foreach_") in TABLE or (
        name.endswith("_backward") and name[:-len("_backward")] in TABLE)


def train(model, inputs, loss, optimizer=torch.optim.AdamW, clip=True, scaler=True, **options):
    chosen = optimizer(model.parameters(), lr=0.01, **options)
    scale = torch.amp.GradScaler("cpu", enabled=scaler)
    for _ in range(2):
        chosen.zero_grad()
        scale.scale(loss(model(*inputs))).backward()
        scale.unscale_(chosen)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scale.step(chosen)
        scale.update()


def labels(n, classes=4):
    return torch.arange(n) % classes


class Language(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.token, self.place = nn.Embedding(11, 8), nn.Embedding(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation=F.gelu, norm_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 11)
        self.causal = causal

    def forward(self, ids):
        h = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.causal else None
        return self.head(self.body(h, mask=mask, src_key_padding_mask=(ids == 0) if not self.causal else None))


class Attention(nn.Module):
    """Attention and norms as people write them out."""

    def __init__(self):
        super().__init__()
        self.qkv, self.scale = nn.Linear(8, 24, bias=False), nn.Parameter(torch.ones(8))

    def forward(self, x):
        q, k, v = self.qkv(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale).chunk(3, -1)
        scores = torch.einsum("btd,bsd->bts", q, k) / 8 ** 0.5
        scores = scores.masked_fill(torch.tril(torch.ones(5, 5)) == 0, float("-inf"))
        h = F.softmax(scores, dim=-1) @ v
        h = torch.cat([h[..., :4], -h[..., 4:]], -1) * F.silu(F.dropout(h, 0.1))
        return torch.where(h > 0, h, h.exp() - 1).clamp(-5, 5)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.body, self.head = kind(5, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])


def mlp():
    parts = [nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 8), nn.Tanh(),
             nn.Sigmoid(), nn.SiLU(), nn.LeakyReLU(), nn.ELU(), nn.Softplus(), nn.Hardswish(), nn.Mish(), nn.PReLU(),
             nn.BatchNorm1d(8), nn.Linear(8, 4)]
    return nn.Sequential(*parts)


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout2d(0.1),
        nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=4), nn.GroupNorm(2, 8), nn.Upsample(scale_factor=2),
        nn.ConvTranspose2d(8, 4, 2), nn.InstanceNorm2d(4), nn.AvgPool2d(2),
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.ReflectionPad2d(1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 4))


def cross_entropy(out):
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), labels(out.numel() // out.shape[-1]), label_smoothing=0.1)


def many_losses(out):
    other = torch.linspace(0.1, 0.9, out.numel()).reshape(out.shape)
    p = torch.sigmoid(out)
    return (F.mse_loss(out, other) + F.l1_loss(out, other) + F.smooth_l1_loss(out, other) + F.huber_loss(out, other)
            + F.binary_cross_entropy(p, other) + F.binary_cross_entropy_with_logits(out, other)
            + F.kl_div(F.log_softmax(out, -1), F.softmax(other, -1), reduction="batchmean")
            + F.nll_loss(F.log_softmax(out, -1), labels(len(out))) + F.cosine_similarity(out, other).mean()
            + torch.logsumexp(out, -1).mean() + out.var() + out.std() + out.norm() + (out.abs() + 1).log().sum())


class Halved(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(*args)


def hugging_face():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=13, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.arange(10).reshape(2, 5)
    return model, lambda: model(input_ids=ids, labels=ids).loss


STEPS = {
    "mlp": lambda: train(mlp(), (torch.randn(5, 6),), cross_entropy),
    "mlp with many losses": lambda: train(mlp(), (torch.randn(5, 6),), many_losses),
    "cnn": lambda: train(cnn(), (torch.randn(2, 3, 8, 8),), cross_entropy, torch.optim.SGD, momentum=0.9),
    "transformer": lambda: train(Language(), (labels(10, 11).reshape(2, 5),), cross_entropy),
    "transformer with padding": lambda: train(Language(False), (labels(10, 11).reshape(2, 5),), cross_entropy),
    "autocast": lambda: train(Halved(Language()), (labels(10, 11).reshape(2, 5),), cross_entropy),
    "attention by hand": lambda: train(Attention(), (torch.randn(2, 5, 8),), lambda out: out.square().mean()),
    "lstm": lambda: train(Recurrent(nn.LSTM), (torch.randn(2, 3, 5),), cross_entropy),
    "gru": lambda: train(Recurrent(nn.GRU), (torch.randn(2, 3, 5),), cross_entropy),
    "rnn": lambda: train(Recurrent(nn.RNN), (torch.randn(2, 3, 5),), cross_entropy),
}
OPTIMIZERS = [
    (torch.optim.SGD, {"foreach": False, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.SGD, {"fused": True, "momentum": 0.9}), (torch.optim.Adam, {"foreach": False, "amsgrad": True}),
    (torch.optim.Adam, {"foreach": True, "amsgrad": True}), (torch.optim.Adam, {"fused": True}),
    (torch.optim.AdamW, {"fused": True}), (torch.optim.AdamW, {"foreach": False}), (torch.optim.Adagrad, {}),
    (torch.optim.Adagrad, {"foreach": False}), (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (torch.optim.RMSprop, {"foreach": False}), (torch.optim.NAdam, {}), (torch.optim.RAdam, {}),
    (torch.optim.Adamax, {}), (torch.optim.Adadelta, {}), (torch.optim.ASGD, {}), (torch.optim.Rprop, {})]


def unknown_of(folder, run):
    with nanhunt.watch(out=folder, level="ops", quiet=True):
        run()
    ops = {row["op"] for row in records_of(folder, "ops")}
    assert ops
    return sorted(op for op in ops if not known(op))


@pytest.mark.parametrize("name", STEPS)
def test_ops_of_a_usual_step_are_in_the_table(tmp_path, name):
    assert unknown_of(tmp_path / "run", STEPS[name]) == []


def test_ops_of_optimizers_are_in_the_table(tmp_path):
    def run():
        for optimizer, options in OPTIMIZERS:
            model = nn.Linear(3, 4)
            train(model, (torch.randn(2, 3),), cross_entropy, optimizer, scaler=False, **options)

    assert unknown_of(tmp_path / "run", run) == []


def test_ops_of_a_language_model_of_hugging_face_are_in_the_table(tmp_path):
    model, loss = hugging_face()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def run():
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    assert unknown_of(tmp_path / "run", run) == []


def test_an_op_that_nobody_listed_is_found_missing():
    assert not known("aten::no_such_op")
    assert known("aten::add_") and known("aten::_foreach_add_")
