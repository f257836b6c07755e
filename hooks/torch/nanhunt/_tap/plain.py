# SPDX-License-Identifier: Apache-2.0
"""Tensors as torch has them: what can be asked without running a user's code."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nanhunt import _library as lib

# Of these types every property is torch's own: no user's code runs when it is asked for.
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
NARROW = (torch.float16, torch.bfloat16)
DTYPES: dict[torch.dtype, int] = {
    torch.float16: lib.F16, torch.bfloat16: lib.BF16, torch.float32: lib.F32, torch.float64: lib.F64,
    torch.int64: lib.I64, torch.int32: lib.I32, torch.uint8: lib.U8, torch.bool: lib.BOOL}
for _name, _number in (("float8_e4m3fn", lib.E4M3FN), ("float8_e5m2", lib.E5M2)):
    if hasattr(torch, _name):
        DTYPES[getattr(torch, _name)] = _number


def local(t: Any) -> Any:
    """This rank's part of a tensor that is sharded over ranks; any other tensor itself."""
    return t if type(t) in PLAIN else getattr(t, "_local_tensor", t)


# PyTorch's own numbers of its types, as ops are given them (c10/core/ScalarType.h): fixed since releases of serialised
# programs depend on them. A release may lack one.
_SCALAR_TYPES = (
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool qint8 quint8 qint32 "
    "bfloat16 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 float8_e5m2 float8_e4m3fn float8_e5m2fnuz "
    "float8_e4m3fnuz uint16 uint32 uint64 uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7 "
    "float8_e8m0fnu float4_e2m1fn_x2").split()
_DTYPE_OF = {number: getattr(torch, name) for number, name in enumerate(_SCALAR_TYPES) if hasattr(torch, name)}


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
