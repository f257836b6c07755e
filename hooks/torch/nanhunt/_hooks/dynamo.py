# SPDX-License-Identifier: Apache-2.0
"""torch.compile goes past what is ours: it compiles as if we were not there."""
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

_skip = getattr(getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None), "skip_code", None)


def hide_from_dynamo(modules: Sequence[Any] = ()) -> None:
    """Our functions are not to be compiled: under a compiled function every frame of ours would be looked at."""
    if _skip is None:
        return
    for module in modules or [module for name, module in sys.modules.items() if name.startswith("nanhunt.")]:
        for owner in [module, *[k for k in vars(module).values() if isinstance(k, type)]]:
            if getattr(owner, "__module__", module.__name__) != module.__name__:
                continue
            for function in list(vars(owner).values()):
                _hide(getattr(getattr(function, "__func__", function), "__code__", None))


def hide_function(function: Any) -> None:
    if _skip is not None:
        _skip(function.__code__)


def _hide(code: Any) -> None:
    if code is not None and _skip is not None:
        _skip(code)
        for constant in code.co_consts:  # functions and comprehensions inside of it
            if hasattr(constant, "co_consts"):
                _hide(constant)


def tell_dynamo(before: Callable[..., Any], now: Callable[..., Any]) -> None:
    """What it compares torch.nn.Module.__call__ with."""
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        known = sys.modules.get(name)
        if known is not None and getattr(known, "unpatched_nn_module_call", None) is before:
            known.unpatched_nn_module_call = now  # type: ignore[attr-defined]
