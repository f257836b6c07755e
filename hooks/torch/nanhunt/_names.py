# SPDX-License-Identifier: Apache-2.0
"""Modules and their paths as the user wrote them, without what torch's wrappers add."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def plain_module(module: torch.nn.Module) -> torch.nn.Module:
    """The user's module inside of torch's wrappers: what his names are about."""
    for _ in range(4):
        name = type(module).__name__
        inner = getattr(module, "_orig_mod", None) if name == "OptimizedModule" else (
            getattr(module, "module", None) if name in ("DistributedDataParallel", "DataParallel") else None)
        if inner is None:
            break
        module = inner
    return module


_DEPTH = 16


def first_parameter(module: torch.nn.Module) -> Any:
    """What `next(module.parameters(), None)` gives. Most often the first modules hold it: torch's own way is dear."""
    inner: Any = module
    for _ in range(_DEPTH):  # a module may be part of itself
        if not isinstance(inner.__dict__.get("_parameters"), dict):
            break
        for parameter in inner._parameters.values():
            if parameter is not None:
                return parameter
        following = next(iter(inner._modules.values()), None)
        if following is None:
            break
        inner = following
    return next(module.parameters(), None)


_INNER = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))


def plain_path(*parts: str) -> str:
    """A path as the user wrote it, without what torch's wrappers of inner modules add to it."""
    path = ".".join(part for part in parts if part)
    return ".".join(p for p in path.split(".") if p not in _INNER) if "_" in path else path
