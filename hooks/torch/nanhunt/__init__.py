# SPDX-License-Identifier: Apache-2.0
"""nanhunt: which operation made the first bad number of a training run, why, and does it matter.

    import nanhunt
    watch = nanhunt.watch(model, optimizer, out="run")   # also as a context manager
    ...                                                  # train as before
    print(watch.report())

Importing this does not import torch.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["ignore", "load", "watch"]

if TYPE_CHECKING:
    from nanhunt._load import Run, StrPath
    from nanhunt._watch import watch
else:

    def watch(*args: Any, **kwargs: Any) -> Any:
        """Watches this process: see nanhunt._watch.watch for the arguments."""
        from nanhunt._watch import watch as _watch

        return _watch(*args, **kwargs)


def ignore(what: Any, reason: str) -> None:
    """Names a module, tensor or line of code as harmless: see nanhunt._ignored.ignore."""
    from nanhunt._ignored import ignore as _ignore

    _ignore(what, reason)


def load(run: StrPath) -> Run:
    """A saved run: its verdict, findings and records. See nanhunt._load.Run."""
    from nanhunt._load import Run

    return Run(run)
