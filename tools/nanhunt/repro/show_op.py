#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows the bad result of one operation, from the numbers it read in a training run.

Needs NumPy only. Reads inputs.safetensors beside it, computes the operation in the formats it had in the run, and again
in float64. Exit status: 0 the bad result is there again, 1 it is not, 2 something is missing.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import numpy as np
except ImportError:
    sys.exit("this program needs NumPy: pip install numpy, or apt install python3-numpy")

CASE: dict[str, Any] = json.loads("{}")

Array = np.ndarray
FORMATS: dict[str, Any] = {
    "F16": np.float16, "BF16": np.uint16, "F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32,
    "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip


def read_arrays(path: Path) -> dict[str, Array]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        numbers = np.frombuffer(raw[8 + length + begin : 8 + length + end], FORMATS[entry["dtype"]])
        if entry["dtype"] == "BF16":
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = numbers.reshape(entry["shape"])
    return arrays


def stored(x: Array, dtype: str) -> Array:
    """Rounded once to the format, to the nearest, ties to even."""
    if dtype == "fp16":
        return x.astype(np.float16)
    if dtype == "bf16":
        wide = np.ascontiguousarray(x.astype(np.float32))
        bits = wide.view(np.uint32).astype(np.uint64)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        return np.where(np.isnan(wide), wide, rounded.reshape(wide.shape))
    return x.astype({"fp32": np.float32, "fp64": np.float64}[dtype])


class Use:
    """An operation's arguments, in the format in which it computes."""

    def __init__(self, arrays: dict[str, Array], work: type) -> None:
        self.work = work
        self.inputs: list[Array] = []
        self.by_slot: dict[str, Array] = {}
        for entry in CASE["inputs"]:
            array = arrays[entry["array"]]
            array = array.astype(work) if array.dtype.kind == "f" else array
            self.inputs.append(array)
            self.by_slot.setdefault(entry["slot"], array)
        self.shape: tuple[int, ...] = tuple(CASE["output"]["shape"])
        self.wanted: str = CASE["output"]["slot"].removeprefix("grad_")

    def __getitem__(self, slot: str) -> Array:
        return self.by_slot[slot]

    def has(self, slot: str) -> bool:
        return slot in self.by_slot

    def number(self, name: str, otherwise: float | None = None) -> Any:
        value = CASE["scalars"].get(name, otherwise)
        if value is None:
            raise KeyError(name)
        return self.work(float(value))

    def integer(self, name: str) -> int:
        return int(CASE["scalars"][name])

    def other(self) -> Any:
        return self["other"] if self.has("other") else self.number("other")

    @property
    def grad(self) -> Array:
        return self["grad_output"]

    def axis(self) -> int | None:
        return self.integer("dim") if "dim" in CASE["scalars"] else None

    def reduced(self, x: Array) -> Array:
        """Summed over what was broadcast."""
        while x.ndim > len(self.shape):
            x = x.sum(axis=0, dtype=self.work)
        for d, size in enumerate(self.shape):
            if size == 1 and x.shape[d] != 1:
                x = x.sum(axis=d, keepdims=True, dtype=self.work)
        return x


def add(u: Use, sign: int = 1) -> Array:
    if not u.has("other"):
        return u["self"] + sign * u.number("other")
    return u["self"] + u.work(sign) * u.number("alpha", 1) * u["other"]


def reduce(u: Use, how: Callable[..., Array]) -> Array:
    axis = u.axis()
    return np.asarray(how(u["self"], axis=axis, dtype=u.work)).reshape(u.shape)


def norm(u: Use) -> Array:
    return np.sqrt(np.sum(u["self"] * u["self"], axis=u.axis(), dtype=u.work)).reshape(u.shape)


def softmax(u: Use) -> Array:
    x, axis = u["self"], u.integer("dim")
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True, dtype=u.work)


def log_softmax(u: Use) -> Array:
    x, axis = u["self"], u.integer("dim")
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True, dtype=u.work))


def softmax_backward(u: Use, log: bool) -> Array:
    g, y, axis = u.grad, u["result"], u.integer("dim")
    if log:
        return g - np.exp(y) * g.sum(axis=axis, keepdims=True)
    return y * (g - (g * y).sum(axis=axis, keepdims=True))


def work_type() -> type:
    """Sums of a norm may be kept in fp16; everything else widens to float32 before it is stored."""
    if CASE["compute"] == "fp16" and CASE["op"] == "native_layer_norm":
        return np.float16
    return np.float64 if CASE["compute"] == "fp64" else np.float32


def row_mean(u: Use, x: Array) -> Array:
    if u.work is not np.float16:
        return x.mean(axis=-1, keepdims=True, dtype=u.work)
    # A kernel that adds up in fp16 adds one term after the other, and rounds each sum.
    total = np.cumsum(x, axis=-1, dtype=np.float16)[..., -1:]
    return (total.astype(np.float32) / np.float32(x.shape[-1])).astype(np.float16)


def layer_norm(u: Use) -> Array:
    x = u["input"]
    centered = x - row_mean(u, x)
    y = centered * (u.work(1) / np.sqrt(row_mean(u, centered * centered) + u.number("eps")))
    if u.has("weight"):
        y = y * u["weight"]
    return y + u["bias"] if u.has("bias") else y


def nll_loss(u: Use) -> Array:
    target = u["target"]
    counted = [(row, int(c)) for row, c in enumerate(target) if c != u.integer("ignore_index")]
    total = -np.sum([u["self"][at] for at in counted], dtype=u.work) if counted else u.work(0)
    return np.asarray(total / u.work(len(counted)))


def pair_loss(u: Use, term: Callable[[Array], Array]) -> Array:
    # Each element's loss is stored in the operands' format before the mean.
    each = term(u["self"] - u["target"])
    if u.work is not np.float64:
        each = stored(each, CASE["inputs"][0]["dtype"]).astype(u.work)
    return np.asarray(each.mean(dtype=u.work))


def smooth_l1(u: Use) -> Array:
    beta = u.number("beta")
    return pair_loss(u, lambda d: np.where(abs(d) < beta, d * d / 2 / beta, abs(d) - beta / 2))


def matmul_backward(u: Use, left: str, right: str) -> Array:
    if u.wanted == left:
        return u.grad @ np.swapaxes(u[right], -1, -2)
    if u.wanted == right:
        return np.swapaxes(u[left], -1, -2) @ u.grad
    return u.reduced(u.grad)  # a bias


def mul_backward(u: Use) -> Array:
    other = u["self"] if u.wanted == "other" else u.other()
    return u.reduced(u.grad * other)


def div_backward(u: Use) -> Array:
    if u.wanted == "other":
        return u.reduced(-u.grad * (u["self"] / u["other"]) / u["other"])
    return u.reduced(u.grad / u.other())


def norm_backward(u: Use) -> Array:
    x, axis = u["self"], u.axis()
    if axis is None:
        length, g = u["result"], u.grad
    else:
        shape = [*x.shape[:axis], 1, *x.shape[axis + 1 :]]
        length, g = u["result"].reshape(shape), u.grad.reshape(shape)
    return np.where(length == 0, 0, x * (g / length))


def spread(u: Use) -> Array:
    axis = u.axis()
    g = u.grad if axis is None or u.grad.ndim == len(u.shape) else np.expand_dims(u.grad, axis)
    return np.broadcast_to(g, u.shape)


def mean_backward(u: Use) -> Array:
    axis = u.axis()
    return spread(u) / u.work(math.prod(u.shape) if axis is None else u.shape[axis])


def lerp(u: Use) -> Array:
    w, x, y = u.number("weight"), u["self"], u["end"]
    return x + w * (y - x) if w < 0.5 else y - (y - x) * (1 - w)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gelu(u: Use) -> Array:
    x = u["self"]
    if u.integer("approximate") != 0:
        return u.work(0.5) * x * (1 + np.tanh(u.work(math.sqrt(2 / math.pi)) * (x + u.work(0.044715) * x**3)))
    erf = np.vectorize(math.erf, otypes=[u.work])
    return u.work(0.5) * x * (1 + erf(x * u.work(math.sqrt(0.5))))


ELEMENTWISE: dict[str, Callable[[Use], Array]] = {
    "_amp_foreach_non_finite_check_and_unscale": lambda u: u["self"] * u.number("inv_scale"),
    "_to_copy": lambda u: u["self"],
    "abs": lambda u: abs(u["self"]),
    "abs_backward": lambda u: u.grad * np.sign(u["self"]),
    "add": add,
    "addcdiv": lambda u: u["self"] + u.number("value") * u["tensor1"] / u["tensor2"],
    "addcmul": lambda u: u["self"] + u.number("value") * u["tensor1"] * u["tensor2"],
    "clamp": lambda u: np.minimum(np.maximum(u["self"], u.number("min")), u.number("max")),
    "div": lambda u: u["self"] / u.other(),
    "exp": lambda u: np.exp(u["self"]),
    "exp_backward": lambda u: u.grad * u["result"],
    "gelu": gelu,
    "lerp": lerp,
    "log": lambda u: np.log(u["self"]),
    "log_backward": lambda u: u.grad / u["self"],
    "masked_fill": lambda u: np.where(u["mask"], u.number("value"), u["self"]),
    "mul": lambda u: u["self"] * u.other(),
    "neg": lambda u: -u["self"],
    "neg_backward": lambda u: -u.grad,
    "pow": lambda u: u["self"] ** u.number("exponent"),
    "pow_backward": lambda u: u.grad * (u.number("exponent") * u["self"] ** (u.number("exponent") - 1)),
    "reciprocal": lambda u: 1 / u["self"],
    "reciprocal_backward": lambda u: -u.grad * (u["result"] * u["result"]),
    "relu": lambda u: np.where(u["self"] < 0, 0, u["self"]),
    "rsqrt": lambda u: 1 / np.sqrt(u["self"]),
    "rsqrt_backward": lambda u: u.work(-0.5) * u.grad * u["result"] ** 3,
    "sigmoid": lambda u: sigmoid(u["self"]),
    "silu": lambda u: u["self"] / (1 + np.exp(-u["self"])),
    "sqrt": lambda u: np.sqrt(u["self"]),
    "sqrt_backward": lambda u: u.grad / (2 * u["result"]),
    "sub": lambda u: add(u, -1),
    "tanh": lambda u: np.tanh(u["self"]),
    "where": lambda u: np.where(u["condition"], u["self"], u["other"]),
}
MATMULS: dict[str, tuple[str, str]] = {"mm": ("self", "mat2"), "bmm": ("self", "mat2"), "addmm": ("mat1", "mat2")}
OPS: dict[str, Callable[[Use], Array]] = {
    **ELEMENTWISE,
    "addmm": lambda u: u["mat1"] @ u["mat2"] + u["self"],
    "addmm_backward": lambda u: matmul_backward(u, "mat1", "mat2"),
    "bmm": lambda u: u["self"] @ u["mat2"],
    "bmm_backward": lambda u: matmul_backward(u, "self", "mat2"),
    "div_backward": div_backward,
    "log_softmax": log_softmax,
    "log_softmax_backward": lambda u: softmax_backward(u, log=True),
    "mean": lambda u: reduce(u, np.mean),
    "mean_backward": mean_backward,
    "mm": lambda u: u["self"] @ u["mat2"],
    "mm_backward": lambda u: matmul_backward(u, "self", "mat2"),
    "mse_loss": lambda u: pair_loss(u, lambda d: d * d),
    "mul_backward": mul_backward,
    "native_layer_norm": layer_norm,
    "nll_loss": nll_loss,
    "norm": norm,
    "norm_backward": norm_backward,
    "smooth_l1_loss": smooth_l1,
    "softmax": softmax,
    "softmax_backward": lambda u: softmax_backward(u, log=False),
    "sum": lambda u: reduce(u, np.sum),
    "sum_backward": spread,
}


def operands(u: Use, at: tuple[int, ...]) -> list[str]:
    """What met in that element, as far as the operation tells."""
    op, lines = CASE["op"], []
    if op in MATMULS:
        left, right = MATMULS[op]
        row, column = u[left][(*at[:-2], at[-2])], u[right][(*at[:-2], slice(None), at[-1])]
        products = row.astype(np.float64) * column.astype(np.float64)
        lines.append(f"{len(products)} products of {left} row {at[-2]} and {right} column {at[-1]}; the largest:")
        for k in np.argsort(-abs(products), kind="stable")[:3]:
            lines.append(f"  {left} {row[k]} * {right} {column[k]} = {products[k]}")
        lines.append(f"their sum in float64: {products.sum()}")
    for entry, array in zip(CASE["inputs"], u.inputs, strict=True):
        slot = ascii(entry["slot"])[1:-1]
        try:
            seen = np.broadcast_to(array, u.shape)
        except ValueError:
            seen = None
        # Elements of a matrix product's operands do not meet by their place.
        by_place = op in ELEMENTWISE or (array.shape == u.shape and "mm" not in op)
        if seen is not None and by_place:
            lines.append(f"{slot} = {seen[at]}")
        elif array.dtype.kind == "f" and array.size:
            bad = array.size - int(np.isfinite(array).sum())
            finite = array[np.isfinite(array)]
            reach = f"{finite.min()} to {finite.max()}" if finite.size else "nothing finite"
            lines.append(f"{slot}: {list(array.shape)}, {reach}, {bad} not finite")
    for name, value in CASE["scalars"].items():
        lines.append(f"{ascii(name)[1:-1]} = {value} (a constant)")
    return lines


def counts(x: Array) -> str:
    kinds = [("NaN", np.isnan(x)), ("Inf", np.isposinf(x)), ("-Inf", np.isneginf(x))]
    found = [f"{int(which.sum())} {name}" for name, which in kinds if which.any()]
    return (" and ".join(found) or "nothing bad") + f" among {x.size}"


def same_kind(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or a == b


def main() -> int:
    if CASE.get("op") not in OPS:
        print("this program holds no operation to show")
        return 2
    arrays = read_arrays(Path(__file__).resolve().parent / "inputs.safetensors")
    with np.errstate(all="ignore"):
        narrow_use = Use(arrays, work_type())
        narrow = stored(np.asarray(OPS[CASE["op"]](narrow_use)), CASE["output"]["dtype"])
        wide = np.asarray(OPS[CASE["op"]](Use(arrays, np.float64)))
    bad = np.flatnonzero(~np.isfinite(narrow))
    flat = CASE["element"] if CASE["element"] is not None and CASE["element"] < narrow.size else 0
    if bad.size and np.isfinite(narrow.flat[flat]):
        flat = int(bad[0])
    at = tuple(int(i) for i in np.unravel_index(flat, narrow.shape))
    print(f"{CASE['op']}, {ascii(CASE['place'])[1:-1]}")
    print(f"element {flat}, at {list(at)}:")
    for line in operands(narrow_use, at):
        print(f"  {line}")
    value = float(narrow.flat[flat])
    print(f"  result in {CASE['output']['dtype']}: {value}")
    print(f"  result in float64: {float(wide.flat[flat])}")
    print(f"in {CASE['output']['dtype']}: {counts(narrow)}")
    print(f"in float64: {counts(wide)}")
    recorded = CASE["recorded"]
    shown = not math.isfinite(value) and (recorded is None or same_kind(value, float(recorded)))
    if recorded is None:
        print("a bad result, as in the run" if shown else "NO bad result")
    else:
        print(f"in the run it was {recorded}: {'shown again' if shown else 'NOT shown again'}")
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
