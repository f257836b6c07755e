# SPDX-License-Identifier: Apache-2.0
"""What torch calls the backward of each op of the engine, "op name" a line; what anomaly mode says of a root at 0."""

import torch
import torch.nn.functional as F


def calls() -> dict:
    x, v, m = (torch.rand(2, 3, requires_grad=True) for _ in range(3))
    square, b = torch.rand(2, 2, requires_grad=True), torch.rand(2, 2, 3, requires_grad=True)
    im, w = torch.rand(1, 2, 4, 4, requires_grad=True), torch.rand(2, 2, 3, 3, requires_grad=True)
    one, zero = torch.ones(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    mask, labels = torch.tensor([[True, False, True]] * 2), torch.tensor([0, 1])
    return {
        "addmv": torch.addmv(one, square, zero), "addr": torch.addr(square, one, zero),
        "baddbmm": torch.baddbmm(square, b, b.transpose(1, 2)),
        "_prelu_kernel": F.prelu(x, v[0, :1]), "acos": x.acos(), "asin": x.asin(), "atan2": x.atan2(v),
        "binary_cross_entropy": F.binary_cross_entropy(x, torch.rand(2, 3)), "cosh": x.cosh(),
        "dot": torch.dot(one, zero), "expm1": x.expm1(), "huber_loss": F.huber_loss(x, v), "log10": x.log10(),
        "log1p": x.log1p(), "log2": x.log2(), "logsumexp": x.logsumexp(1), "mv": torch.mv(square, one),
        "sinh": x.sinh(), "softplus": F.softplus(x), "tan": x.tan(),
        "_to_copy": x.to(torch.float16), "abs": x.abs(), "add": x + v, "addcdiv": torch.addcdiv(x, v, m),
        "addcmul": torch.addcmul(x, v, m), "addmm": torch.addmm(x, square, v), "avg_pool2d": F.avg_pool2d(im, 2),
        "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits(x, torch.rand(2, 3)),
        "bmm": torch.bmm(b, b.transpose(1, 2)), "cat": torch.cat([x, v], 1), "clamp": x.clamp(0.1, 0.9),
        "clone": x.clone(),
        "convolution": F.conv2d(im, w), "div": x / v, "embedding": F.embedding(labels, x), "exp": x.exp(),
        "expand": x.expand(2, 2, 3), "gelu": F.gelu(x), "log": x.log(), "log_softmax": x.log_softmax(1),
        "masked_fill": x.masked_fill(mask, 0), "max_pool2d_with_indices": F.max_pool2d(im, 2), "mean": x.mean(),
        "mean.dim": x.mean(1), "mm": x.mm(v.t()), "mse_loss": F.mse_loss(x, v), "mul": x * v,
        "narrow": x.narrow(0, 0, 1),
        "native_batch_norm": torch.native_batch_norm(im, one, zero, None, None, True, 0.1, 1e-5)[0],
        "native_dropout": torch.native_dropout(x, 0.5, True)[0],
        "native_layer_norm": torch.native_layer_norm(x, [3], None, None, 1e-5)[0], "neg": -x,
        "nll_loss": F.nll_loss(x.log_softmax(1), labels), "norm": x.norm(), "norm.dim": x.norm(dim=1),
        "permute": b.permute(0, 2, 1), "pow": x ** 1.7, "reciprocal": x.reciprocal(), "relu": x.relu(),
        "rsqrt": x.rsqrt(),
        "select": x.select(1, 2), "sigmoid": x.sigmoid(), "silu": F.silu(x), "smooth_l1_loss": F.smooth_l1_loss(x, v),
        "softmax": x.softmax(1), "sqrt": x.sqrt(), "sub": x - v, "sum": x.sum(), "sum.dim": x.sum(1), "t": x.t(),
        "tanh": x.tanh(), "transpose": b.transpose(0, 2), "upsample_nearest2d": F.interpolate(im, scale_factor=2),
        "view": x.view(6), "where": torch.where(mask, x, v),
    }


def anomaly_of(root_at_zero_times: float) -> str:
    x = torch.zeros(2, requires_grad=True)
    try:
        with torch.autograd.detect_anomaly():
            (x.sqrt() * root_at_zero_times).sum().backward()
    except RuntimeError as stopped:
        return str(stopped)
    return "passes"


for op, result in sorted(calls().items()):
    print(op, result.grad_fn.name())
print("sqrt * 0:", anomaly_of(0))
print("sqrt * 1:", anomaly_of(1))
