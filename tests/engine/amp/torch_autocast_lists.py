# SPDX-License-Identifier: Apache-2.0
"""Prints as JSON, for CUDA and for the CPU, every op for which torch.amp has a kernel, with what that kernel does to
its arguments; and of each op of the engine the format of its result for inputs of each format. Needs torch, but no GPU:
tensors are fake. Null: torch cannot fake that op.

What a kernel does is seen by calling it with arguments made up from its schema: it casts before shapes are looked at.
"""

import json
import logging
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

F = torch.nn.functional
FORMATS = {"fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
LABELS = (4,)
LOW = torch.float16

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
    "expm1": ("expm1", lambda x: x.expm1()),
    "log10": ("log10", lambda x: x.log10()),
    "log2": ("log2", lambda x: x.log2()),
    "log1p": ("log1p", lambda x: x.log1p()),
    "sinh": ("sinh", lambda x: x.sinh()),
    "cosh": ("cosh", lambda x: x.cosh()),
    "tan": ("tan", lambda x: x.tan()),
    "asin": ("asin", lambda x: x.asin()),
    "acos": ("acos", lambda x: x.acos()),
    "atan2": ("atan2", lambda x: torch.atan2(x, x)),
    "softplus": ("softplus", F.softplus),
    "prelu": ("prelu", lambda x: F.prelu(x, x[0, :1])),
    "logsumexp": ("logsumexp", lambda x: x.logsumexp(0)),
    "mv": ("mv", lambda x: x.mv(x[0])),
    "dot": ("dot", lambda x: x[0].dot(x[0])),
    "addmv": ("addmv", lambda x: torch.addmv(x[0], x, x[0])),
    "addr": ("addr", lambda x: torch.addr(x, x[0], x[0])),
    "baddbmm": ("baddbmm", lambda x: torch.baddbmm(x[None], x[None], x[None])),
    "rms_norm": ("rms_norm", lambda x: F.rms_norm(x, (4,))),
    "margin_ranking_loss": ("margin_ranking_loss", lambda x: F.margin_ranking_loss(x, x, x)),
    "hinge_embedding_loss": ("hinge_embedding_loss", lambda x: F.hinge_embedding_loss(x, x)),
    "triplet_margin_loss": ("triplet_margin_loss", lambda x: F.triplet_margin_loss(x, x, x)),
    "cosine_embedding_loss": ("cosine_embedding_loss", lambda x: F.cosine_embedding_loss(x, x, x[0])),
    "poisson_nll_loss": ("poisson_nll_loss", lambda x: F.poisson_nll_loss(x, x)),
    "cosine_similarity": ("cosine_similarity", lambda x: F.cosine_similarity(x, x)),
    "huber_loss": ("huber_loss", lambda x: F.huber_loss(x, x)),
    "binary_cross_entropy": ("binary_cross_entropy", lambda x: F.binary_cross_entropy(x, x)),
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
    return torch.empty(LABELS, dtype=torch.int64, device=device)


class Casts(TorchDispatchMode):
    """The formats to which tensors are cast, and those in which ops are asked to give their result."""

    def __init__(self):
        super().__init__()
        self.casts, self.asked = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default:
            self.casts.append(kwargs.get("dtype"))
        elif kwargs.get("dtype") is not None:
            self.asked.append(kwargs["dtype"])
        elif func in (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default) and args[2]:
            self.asked.append(torch.float32)
        return func(*args, **kwargs)


# For an argument that has no default, by the name of its type.
STAND_INS = {"int": 1, "SymInt": 1, "float": 0.5, "bool": False, "number": 2, "Scalar": 2, "str": "none",
             "List[int]": [1, 1], "List[SymInt]": [1, 1], "List[float]": [0.5], "Dimname": "x",
             "ScalarType": torch.float32}  # fmt: skip


def stand_in(kind: str, tensors) -> object:
    if kind == "Tensor":
        return next(tensors)
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return [next(tensors), next(tensors)]
    if kind.startswith("Optional["):
        return None
    return STAND_INS[kind]


def seen(op, formats, **kwargs):
    """Casts, result formats asked for, and the error, of a call whose tensors have these formats in turn."""

    def tensors():
        for i in range(100):
            yield torch.empty(4, 4, dtype=formats[min(i, len(formats) - 1)], device=device)

    source = tensors()
    arguments = [stand_in(str(a.type), source) for a in op._schema.arguments
                 if not a.has_default_value() and not a.kwarg_only]  # fmt: skip
    error = ""
    with Casts() as casts:
        try:
            op(*arguments, **kwargs)
        except Exception as failed:  # noqa: BLE001 - what comes after the casts may find its arguments wrong
            error = str(failed)
    return casts.casts, casts.asked, error


def policy_of(op) -> str | None:
    """In the words of src/core/ops/autocast."""
    low, f32, f64 = LOW, torch.float32, torch.float64
    of_low, of_f32, of_both = seen(op, [low]), seen(op, [f32]), seen(op, [low, f32])
    if "unsafe to autocast" in of_low[2]:
        return "kBanned"
    if low in of_f32[0]:
        return "kLow"
    takes_dtype = any(a.name == "dtype" for a in op._schema.arguments)
    if takes_dtype and f32 in of_low[0] + of_low[1]:
        named = seen(op, [low], dtype=f64)
        if f32 not in named[0] + named[1]:
            return "kFp32Output"
    if f32 in of_low[0]:
        return "kFp32"
    if f32 in of_low[1]:
        return "kAppendDtype"
    return "kPromote" if f32 in of_both[0] and not of_f32[0] else None


def intercepted() -> dict[str, str | None]:
    found = {}
    for name in torch._C._dispatch_get_all_op_names():
        key = f"Autocast{device.upper()}"
        if not name.startswith("aten::") or not torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            continue
        op, _, overload = name.removeprefix("aten::").partition(".")
        found[f"{op}.{overload or 'default'}"] = policy_of(getattr(getattr(torch.ops.aten, op), overload or "default"))
    return found


def result_format(call, dtype) -> str | None:
    try:
        result = call(torch.empty(4, 4, dtype=dtype, device=device)).dtype
    except RuntimeError as failed:
        return "banned" if "unsafe to autocast" in str(failed) else None  # "not linked with support for cuda devices"
    return next((name for name, wanted in FORMATS.items() if wanted == result), str(result))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    answers = {}
    for device in ("cuda", "cpu"):
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, LOW)
        with FakeTensorMode():
            answers[device] = {
                "intercepted": intercepted(),
                "results": {
                    op: {"aten": name, **{given: result_format(call, dtype) for given, dtype in FORMATS.items()}}
                    for op, (name, call) in OPS.items()
                },
            }
        torch.set_autocast_enabled(device, False)
    print(json.dumps(answers))
