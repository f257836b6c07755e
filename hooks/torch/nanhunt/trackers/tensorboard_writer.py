# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's SummaryWriter, of PyTorch or tensorboardX: a thread of its own writes the file."""
from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

_MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
_known: list[weakref.ref[Any]] = []  # that were found
_looked_at: list[int] = []           # how many objects there were when they were looked for


class TensorboardWriter:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, numbers: dict[str, float], step: int) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def alert(self, headline: str, text: str, step: int) -> None:
        self._writer.add_text("nanhunt/fault", text.replace("\n", "  \n"), step)


def _classes() -> tuple[type, ...]:
    found = [getattr(sys.modules.get(name), "SummaryWriter", None) for name in _MODULES]
    return tuple(one for one in found if isinstance(one, type))


def take(given: Any) -> TensorboardWriter | None:
    classes = _classes()
    return TensorboardWriter(given) if classes and isinstance(given, classes) else None


def find() -> list[TensorboardWriter]:
    """Those that are open. The program's objects are gone through where none is known: once for each doubling of their
    number, for nothing says that one was made."""
    classes = _classes()
    if not classes:
        return []
    alive = [writer for writer in (ref() for ref in _known) if _is_open(writer)]
    if not alive:
        objects = gc.get_objects()
        if not _looked_at or len(objects) > 2 * _looked_at[0] or len(_looked_at) < 4:
            _looked_at.insert(0, len(objects))
            alive = [one for one in objects if issubclass(type(one), classes) and _is_open(one)]
            _known[:] = [weakref.ref(one) for one in alive]
    return [TensorboardWriter(writer) for writer in alive]


def _is_open(writer: Any) -> bool:
    """A closed one would open a new file."""
    return writer is not None and getattr(writer, "file_writer", None) is not None
