# SPDX-License-Identifier: Apache-2.0
"""Modes that a program has on: dispatch and function modes, which do not see what we compute, and autocast."""
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

T = TypeVar("T")

# How many of either kind are on. Asked at each hook, where a function of ours around them would cost as much again.
MODES: tuple[Callable[[], int], Callable[[], int]] = (
    torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack)
_dispatch_modes, _function_modes = MODES
# For any device.
is_autocast_on: Callable[[], bool] = getattr(
    torch._C, "_is_any_autocast_enabled", lambda: any(torch.is_autocast_enabled(d) for d in ("cpu", "cuda")))
_nothing = nullcontext()


def modes_aside() -> AbstractContextManager[object]:
    """Around what is ours, where code of the program's may have modes on."""
    if not _dispatch_modes() and not _function_modes():
        return _nothing
    stack = ExitStack()
    stack.enter_context(_disable_current_modes())
    stack.enter_context(torch._C.DisableTorchFunction())
    return stack


def without_modes(act: Callable[..., T], *args: Any) -> T:
    """Calls it with them aside. Most often none is on: a context costs as much as what is done in it."""
    if not _dispatch_modes() and not _function_modes():
        return act(*args)
    with modes_aside():
        return act(*args)
