# SPDX-License-Identifier: Apache-2.0
"""Custom autograd functions: their forward runs with gradients off, and is part of training all the same."""
from __future__ import annotations

import sys
from typing import Any

import torch

_Context = torch.autograd.function.BackwardCFunction
_MOST = 64  # frames above a call


def function_around() -> str:
    """The name of the node that a custom function around this call makes, whose forward runs; "": there is none."""
    frame: Any = sys._getframe(2)
    for _ in range(_MOST):
        if frame is None:
            break
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount and isinstance(
                context := frame.f_locals.get(code.co_varnames[0]), _Context):
            return type(context).__name__
        frame = frame.f_back
    return ""


# Calls its module again in backward: with gradients on it computes the same.
CHECKPOINT = "CheckpointFunctionBackward"
