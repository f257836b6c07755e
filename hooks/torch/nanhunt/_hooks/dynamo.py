# SPDX-License-Identifier: Apache-2.0
"""torch.compile goes past what is ours: it compiles as if we were not there."""
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nanhunt._pytorch import skip_code

_OURS = str(Path(__file__).parents[1])


def hide_from_dynamo(modules: Sequence[Any] = ()) -> None:
    """Our functions are not to be compiled: under a compiled function every frame of ours would be looked at."""
    if skip_code is None:
        return
    for module in modules or [module for name, module in sys.modules.items() if name.startswith("nanhunt.")]:
        for owner in [module, *[k for k in vars(module).values() if isinstance(k, type)]]:
            if getattr(owner, "__module__", module.__name__) != module.__name__:
                continue
            for function in list(vars(owner).values()):
                for part in (function, getattr(function, "fget", None), getattr(function, "func", None)):
                    part = getattr(part, "__func__", part)
                    for layer in (part, getattr(part, "__wrapped__", None)):  # of a context manager both are ours
                        code = getattr(layer, "__code__", None)
                        if code is not None and code.co_filename.startswith(_OURS):
                            _hide(code)


def hide_function(function: Any) -> None:
    if skip_code is not None:
        skip_code(function.__code__)


def _hide(code: Any) -> None:
    if code is not None and skip_code is not None:
        skip_code(code)
        for constant in code.co_consts:  # functions and comprehensions inside of it
            if hasattr(constant, "co_consts"):
                _hide(constant)


def register_with_dynamo(before: Callable[..., Any], now: Callable[..., Any]) -> None:
    """What it compares torch.nn.Module.__call__ with."""
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        known = sys.modules.get(name)
        if known is not None and getattr(known, "unpatched_nn_module_call", None) is before:
            known.unpatched_nn_module_call = now  # type: ignore[attr-defined]
