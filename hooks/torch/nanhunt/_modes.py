# SPDX-License-Identifier: Apache-2.0
"""What our dispatch modes have in common: torch.compile compiles as if they were not there."""
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class InfraMode(TorchDispatchMode):
    supports_higher_order_operators = True  # otherwise they would raise

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's wrapper for that costs as much as a row; `hide_from_dynamo` does the same once


def writes_lists(name: str) -> bool:
    """Ops of which torch forgets under a dispatch mode that they write: see `counted`."""
    return name.startswith("aten::_foreach_") and name.endswith("_")


def counted(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs such an op. Alone it counts as a write of each of its tensors; under a mode, kernels that go tensor by
    tensor do not count, and autograd would miss that what it saved was written."""
    tensors = args[0] if args else ()
    first = tensors[0] if tensors and not tensors[0].is_inference() else None
    before = first._version if first is not None else 0
    result = func(*args, **kwargs)
    if first is not None and first._version == before:
        torch.autograd.graph.increment_version(tensors)
    return result


def hide_from_dynamo(modules: Sequence[Any] = ()) -> None:
    """torch.compile must not compile the modes: under a compiled function every frame of ours would be looked at."""
    skip = getattr(getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None), "skip_code", None)
    if skip is None:
        return
    for module in modules or [module for name, module in sys.modules.items() if name.startswith("nanhunt.")]:
        for owner in [module, *[k for k in vars(module).values() if isinstance(k, type)]]:
            if getattr(owner, "__module__", module.__name__) != module.__name__:
                continue
            for function in list(vars(owner).values()):
                _hide(getattr(getattr(function, "__func__", function), "__code__", None), skip)


def _hide(code: Any, skip: Any) -> None:
    if code is not None:
        skip(code)
        for constant in code.co_consts:  # functions and comprehensions inside of it
            if hasattr(constant, "co_consts"):
                _hide(constant, skip)
