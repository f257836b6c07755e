# SPDX-License-Identifier: Apache-2.0
"""Tensors as torch has them: what can be asked without running a user's code."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nanhunt import _library as lib

# Of these types every property is torch's own: no user's code runs when it is asked for.
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
DTYPES: dict[torch.dtype, int] = {
    torch.float16: lib.F16, torch.bfloat16: lib.BF16, torch.float32: lib.F32, torch.float64: lib.F64,
    torch.int64: lib.I64, torch.int32: lib.I32, torch.uint8: lib.U8, torch.bool: lib.BOOL}
for _name, _number in (("float8_e4m3fn", lib.E4M3FN), ("float8_e5m2", lib.E5M2)):
    if hasattr(torch, _name):
        DTYPES[getattr(torch, _name)] = _number


def local(t: Any) -> Any:
    """This rank's part of a tensor that is sharded over ranks; any other tensor itself."""
    return t if type(t) in PLAIN else getattr(t, "_local_tensor", t)


# PyTorch's own numbers of its types, as ops are given them.
_DTYPE_OF = {0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
             6: torch.float32, 7: torch.float64, 9: torch.complex64, 10: torch.complex128, 11: torch.bool,
             15: torch.bfloat16}


def call_of(op: str, overload: str, values: Sequence[Any]) -> tuple[Any, list[Any], dict[str, Any]]:
    """The function of an op ("aten::log"; "": the default overload), and its arguments as Python gives them."""
    namespace, name = op.split("::")
    func = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for arg, value in zip(func._schema.arguments, values):
        if isinstance(value, int) and "ScalarType" in str(arg.real_type):
            value = _DTYPE_OF[value]
        if arg.kwarg_only:
            kwargs[arg.name] = value
        else:
            args.append(value)
    return func, args, kwargs
