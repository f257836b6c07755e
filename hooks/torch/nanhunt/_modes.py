# SPDX-License-Identifier: Apache-2.0
"""The program's own dispatch and function modes: they do not see what we compute."""
from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch
from torch.utils._python_dispatch import _disable_current_modes

_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_nothing = nullcontext()


def modes_aside() -> AbstractContextManager[object]:
    """Around what is ours, where code of the program's may have modes on."""
    if not _dispatch_modes() and not _function_modes():
        return _nothing
    stack = ExitStack()
    stack.enter_context(_disable_current_modes())
    stack.enter_context(torch._C.DisableTorchFunction())
    return stack
