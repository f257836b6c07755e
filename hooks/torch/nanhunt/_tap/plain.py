# SPDX-License-Identifier: Apache-2.0
"""Tensors as torch has them: what can be asked without running a user's code."""
from __future__ import annotations

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


# Under it a subclass of the user's is a plain tensor.
no_torch_function: Any = getattr(torch._C, "DisableTorchFunctionSubclass",
                                 getattr(torch._C, "DisableTorchFunction", None))
