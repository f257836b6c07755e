# SPDX-License-Identifier: Apache-2.0
"""TensorBoard's SummaryWriter, of PyTorch or tensorboardX: a thread of its own writes the file."""
from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

from nanhunt._setup.instances import instances_of

_MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


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


class Search:
    """Of one session: those that are open. They are looked for once for each thread that writes for one, for nothing
    else says that one was made."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Any]] = []
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # whose writer was looked for

    def __call__(self) -> list[TensorboardWriter]:
        classes = _classes()
        threads = [one for one in threading.enumerate() if type(one).__module__.startswith("tensorboard")]
        if classes and any(one not in self._threads for one in threads):
            self._threads.update(threads)
            self._known = [weakref.ref(one) for one in instances_of(classes)]
        writers = (ref() for ref in self._known)
        return [TensorboardWriter(writer) for writer in writers if _is_open(writer)]


def _is_open(writer: Any) -> bool:
    """A closed one would open a new file."""
    return writer is not None and getattr(writer, "file_writer", None) is not None
