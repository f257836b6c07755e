# SPDX-License-Identifier: Apache-2.0
"""Modes that a program has on: dispatch and function modes, which do not see what we compute, and autocast."""
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

T = TypeVar("T")

_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_is_any_autocast_on: Callable[[], bool] = getattr(
    torch._C, "_is_any_autocast_enabled", lambda: any(torch.is_autocast_enabled(d) for d in ("cpu", "cuda")))
_nothing = nullcontext()


def is_autocast_on() -> bool:
    """For any device."""
    return _is_any_autocast_on()


def has_modes() -> bool:
    return _dispatch_modes() > 0 or _function_modes() > 0


def modes_aside() -> AbstractContextManager[object]:
    """Around what is ours, where code of the program's may have modes on."""
    if not has_modes():
        return _nothing
    stack = ExitStack()
    stack.enter_context(_disable_current_modes())
    stack.enter_context(torch._C.DisableTorchFunction())
    return stack


def without_modes(act: Callable[..., T], *args: Any) -> T:
    """Calls it with them aside. Most often none is on: a context costs as much as what is done in it."""
    if not has_modes():
        return act(*args)
    with modes_aside():
        return act(*args)
