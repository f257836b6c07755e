# SPDX-License-Identifier: Apache-2.0
"""nanhunt: which operation made the first bad number of a training run, why, and does it matter.

    import nanhunt
    watch = nanhunt.watch(model, optimizer, out="run")   # also as a context manager
    ...                                                  # train as before
    print(watch.report())

Importing this does not import torch.
"""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["ignore", "load", "watch"]

if TYPE_CHECKING:
    from nanhunt._ignored import ignore
    from nanhunt._load import Run, StrPath
    from nanhunt._watch import watch

_HOMES = {"ignore": "nanhunt._ignored", "watch": "nanhunt._watch"}  # imported when they are first asked for


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def load(run: StrPath) -> Run:
    """A saved run: its verdict, findings and records. See nanhunt._load.Run."""
    from nanhunt._load import Run

    return Run(run)
