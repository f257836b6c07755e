# SPDX-License-Identifier: Apache-2.0
"""Prints what torch.amp does on CUDA with each op of the engine, as JSON: whether it is intercepted, and the format of
its result for inputs of each format. Needs torch, but no GPU: tensors are fake. Null: torch cannot fake that op.
"""

import json
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

F = torch.nn.functional
FORMATS = {"fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
LABELS = (4,)

# Engine op: (name in aten, call on a square matrix x).
OPS = {
    "add": ("add", lambda x: x + x),
    "sub": ("sub", lambda x: x - x),
    "mul": ("mul", lambda x: x * x),
    "div": ("div", lambda x: x / x),
    "pow": ("pow", lambda x: x**2),
    "addcmul": ("addcmul", lambda x: torch.addcmul(x, x, x)),
    "addcdiv": ("addcdiv", lambda x: torch.addcdiv(x, x, x)),
    "where": ("where", lambda x: torch.where(x > 0, x, x)),
    "masked_fill": ("masked_fill", lambda x: x.masked_fill(x > 0, 1.0)),
    "eq": ("eq", lambda x: x == 1),
    "gt": ("gt", lambda x: x > 1),
    "neg": ("neg", lambda x: -x),
    "abs": ("abs", lambda x: x.abs()),
    "reciprocal": ("reciprocal", lambda x: x.reciprocal()),
    "exp": ("exp", lambda x: x.exp()),
    "log": ("log", lambda x: x.log()),
    "sqrt": ("sqrt", lambda x: x.sqrt()),
    "rsqrt": ("rsqrt", lambda x: x.rsqrt()),
    "relu": ("relu", lambda x: x.relu()),
    "tanh": ("tanh", lambda x: x.tanh()),
    "sigmoid": ("sigmoid", lambda x: x.sigmoid()),
    "clamp": ("clamp", lambda x: x.clamp(-1, 1)),
    "gelu": ("gelu", F.gelu),
    "silu": ("silu", F.silu),
    "to": ("to", lambda x: x.to(x.dtype)),
    "sum": ("sum", lambda x: x.sum(0)),
    "mean": ("mean", lambda x: x.mean(0)),
    "norm": ("norm", lambda x: x.norm()),
    "amax": ("amax", lambda x: x.amax(0)),
    "softmax": ("softmax", lambda x: x.softmax(0)),
    "log_softmax": ("log_softmax", lambda x: x.log_softmax(0)),
    "nll_loss": ("nll_loss", lambda x: F.nll_loss(x, labels())),
    "cross_entropy": ("cross_entropy_loss", lambda x: F.cross_entropy(x, labels())),
    "matmul": ("matmul", lambda x: x @ x),
    "bmm": ("bmm", lambda x: torch.bmm(x[None], x[None])),
    "addmm": ("addmm", lambda x: torch.addmm(x, x, x)),
    "linear": ("linear", lambda x: F.linear(x, x)),
    "embedding": ("embedding", lambda x: F.embedding(labels(), x)),
    "layer_norm": ("layer_norm", lambda x: F.layer_norm(x, (4,))),
    "dropout": ("dropout", lambda x: F.dropout(x, 0.5)),
    "scaled_dot_product_attention": (
        "scaled_dot_product_attention",
        lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    ),
    "conv2d": ("conv2d", lambda x: F.conv2d(x[None, None], x[None, None])),
    "batch_norm": ("batch_norm", lambda x: F.batch_norm(x, x[0], x[0], training=True)),
    "max_pool2d": ("max_pool2d", lambda x: F.max_pool2d(x[None, None], 2)),
    "avg_pool2d": ("avg_pool2d", lambda x: F.avg_pool2d(x[None, None], 2)),
    "upsample_nearest2d": ("upsample_nearest2d", lambda x: F.interpolate(x[None, None], scale_factor=2)),
    "l1_loss": ("l1_loss", lambda x: F.l1_loss(x, x)),
    "mse_loss": ("mse_loss", lambda x: F.mse_loss(x, x)),
    "smooth_l1_loss": ("smooth_l1_loss", lambda x: F.smooth_l1_loss(x, x)),
    "binary_cross_entropy_with_logits": (
        "binary_cross_entropy_with_logits",
        lambda x: F.binary_cross_entropy_with_logits(x, x),
    ),
    "cat": ("cat", lambda x: torch.cat([x, x])),
    "t": ("t", lambda x: x.t()),
    "transpose": ("transpose", lambda x: x.transpose(0, 1)),
    "permute": ("permute", lambda x: x.permute(1, 0)),
    "expand": ("expand", lambda x: x.expand(2, 4, 4)),
    "reshape": ("reshape", lambda x: x.reshape(-1)),
    "flatten": ("flatten", lambda x: x.flatten()),
    "clone": ("clone", lambda x: x.clone()),
    "narrow": ("narrow", lambda x: x.narrow(0, 0, 2)),
    "select": ("select", lambda x: x.select(0, 0)),
}


def labels():
    return torch.empty(LABELS, dtype=torch.int64, device="cuda")


def is_intercepted(name: str) -> bool:
    """Whether an overload of the op has a kernel for autocast on CUDA."""
    overloads = [op for op in torch._C._dispatch_get_all_op_names() if op.split(".")[0] == f"aten::{name}"]
    assert overloads, name
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(op, "AutocastCUDA") for op in overloads)


def result_format(call, dtype) -> str | None:
    try:
        result = call(torch.empty(4, 4, dtype=dtype, device="cuda")).dtype
    except RuntimeError:
        return None  # "not linked with support for cuda devices"
    return next((name for name, wanted in FORMATS.items() if wanted == result), str(result))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    with FakeTensorMode():
        answers = {
            op: {
                "intercepted": is_intercepted(name),
                "results": {given: result_format(call, dtype) for given, dtype in FORMATS.items()},
            }
            for op, (name, call) in OPS.items()
        }
    print(json.dumps(answers))
