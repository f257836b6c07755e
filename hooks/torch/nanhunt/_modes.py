# SPDX-License-Identifier: Apache-2.0
"""Modes that a program has on: dispatch and function modes, which do not see what we compute."""
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, TypeVar

from torch.utils._python_dispatch import _disable_current_modes

from nanhunt._pytorch import dispatch_modes as _dispatch_modes
from nanhunt._pytorch import function_modes as _function_modes
from nanhunt._pytorch import no_function_modes

T = TypeVar("T")

_nothing = nullcontext()


def modes_aside() -> AbstractContextManager[object]:
    """Around what is ours, where code of the program's may have modes on."""
    if not _dispatch_modes() and not _function_modes():
        return _nothing
    stack = ExitStack()
    stack.enter_context(_disable_current_modes())
    stack.enter_context(no_function_modes())
    return stack


def without_modes(act: Callable[..., T], *args: Any) -> T:
    """Calls it with them aside. Most often none is on: a context costs as much as what is done in it."""
    if not _dispatch_modes() and not _function_modes():
        return act(*args)
    with modes_aside():
        return act(*args)
