# SPDX-License-Identifier: Apache-2.0
"""Which thread is watched: the first that trains. A call of a module that learns or an optimizer's step says that a
thread does; a backward alone may be a helper's, so that who trains takes over from it."""
from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanhunt._session import Session

_ONE_THREAD = (" in other threads than the first that trained: one thread is watched. Train in one thread, or watch a "
               "process for each")
OTHER_THREADS, TRAINING_ELSEWHERE = "calls" + _ONE_THREAD, "training" + _ONE_THREAD


class Threads:
    def __init__(self, session: Session) -> None:
        self._session = session
        self.watched: int | None = None
        self.trains = False             # it has called a module that learns, or stepped an optimizer
        self.others: set[int] = set()   # that were met beside it
        self._claiming = threading.Lock()

    def claim(self) -> bool:
        """Whether the calling thread is the one that is watched, from now on if there was none."""
        if self.watched is None:
            with self._claiming:
                if self.watched is None:
                    self.watched = threading.get_ident()
        return self.is_watched()

    def is_watched(self) -> bool:
        if self.watched == threading.get_ident() or self._session.in_backward():
            return True
        self.others.add(threading.get_ident())
        return False

    def hears(self, trains: bool) -> bool:
        """Of another thread than the watched one, as likely as not."""
        if self.claim() if trains else self.watched is None or self.is_watched():
            return True
        self._session.note(TRAINING_ELSEWHERE if trains else OTHER_THREADS)
        return False

    def begin_training(self) -> None:
        """The calling thread trains: it is the watched one, should that have never done so."""
        session, here = self._session, threading.get_ident()
        with self._claiming:
            before = self.watched
            if self.trains or session.dead or before not in (None, here) and session.is_inside():
                return
            self.watched, self.trains = here, True
        if before is not None and before != here:
            self._take_over(before)

    def _take_over(self, before: int) -> None:
        session = self._session
        self.others.discard(threading.get_ident())
        if before in sys._current_frames():  # else its number is soon another's
            self.others.add(before)
        for text in (OTHER_THREADS, TRAINING_ELSEWHERE):  # this thread's own
            session.notes.pop(text, None)
        session.forget_work()
        if session.tap is not None:
            session.tap.move_here()
