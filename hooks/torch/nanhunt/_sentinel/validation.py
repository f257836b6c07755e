# SPDX-License-Identifier: Apache-2.0
"""What a program computes with gradients off: what its models give, and the numbers that it makes of that, losses and
metrics. In a step that is not watched the tap hears the ops outside of modules after the first calls, and after those
that follow a bad number; else it looks at single numbers alone.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._device import is_away
from nanhunt._sentinel.live import FIRST, KEPT, KEPT_WRITTEN
from nanhunt._sentinel.origin import prove
from nanhunt._sentinel.tape import tensors_of

if TYPE_CHECKING:
    from nanhunt._sentinel.reading import Reader
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_GLANCE, _STRAIGHT = 2, 3  # State::deaf of the tap
UNREAD = "losses and metrics that were computed with gradients off"


class Validation:
    def __init__(self, session: Session, values: Values, reader: Reader, may_keep: Callable[[int], bool]) -> None:
        self._session, self._values, self._reader, self._may_keep = session, values, reader, may_keep
        self.can_listen: Callable[[], bool] = lambda: True
        self.listens = False    # the tap hears what follows a model's call
        self._holds = False      # ... and rows of ops, until it is known whether they are wanted
        self._first = FIRST if session.options.budget > 0 else 0
        self._left = self._first  # calls after which ops are still heard
        self._seen = False  # in this step
        self.is_bad = False
        self.first = ""     # what is bad, where that is known

    def on_call(self) -> None:
        """What goes on inside is the module's business. The tap stays on: that is dear to switch."""
        if self.listens:
            self._session.state.deaf = _STRAIGHT

    def on_output(self, output: Any, taped: bool) -> None:
        """`taped`: within a step, whose ops go on the tape: a teacher, say."""
        self._seen = True
        tensors = [t for t in tensors_of(output) if t.is_floating_point()]
        here = [t for t in tensors if not is_away(t)]
        bad = self._reader.bad_among([(lib.MARK_OUTPUT, "", t) for t in here])
        # An infinity among many is a mask as likely as not.
        if bad and any(t.numel() == 1 or bool(torch.isnan(t).any()) for t in here):
            self._note("what a model gave")
        if self._session.live or taped:
            return  # the tap hears it all
        self._left -= 1
        if self.listens:
            self._session.state.deaf = 0 if self._holds and self._left >= 0 else _GLANCE
            return
        tap = self._values.tap
        if tap is None or len(here) < len(tensors) or not self.can_listen():
            self._session.note(UNREAD)
            return
        recorder = self._session.recorder
        self._holds = self._left >= 0 and not self.is_bad and recorder is not None
        if self._holds and recorder is not None:
            tap.forget()
            tap.hold(lib.HOLD, KEPT, KEPT_WRITTEN)
        tap.on()
        self._session.state.deaf = 0 if self._holds else _GLANCE
        self.listens = True

    def stop(self) -> None:
        """Gradients are on again, or the step ends."""
        if not self.listens:
            return
        self.listens = False
        self._session.state.deaf = 0
        tap, recorder = self._values.tap, self._session.recorder
        if tap is None or recorder is None:
            return
        tap.off()
        told = tap.bad_number()
        keeps = self._holds and bool(told) and not self.is_bad and self._may_keep(self._session.step)
        if told:
            self._note(told)
            self._left = self._first
        if not self._holds:
            return
        self._holds = False
        tap.hold(lib.KEEP if keeps else lib.DROP)
        if keeps:
            prove(self._session, tap)
        tap.keep(0)

    def judge(self) -> bool:
        """Whether what was computed so far is bad. Nothing is listened to any more."""
        self.stop()
        if self._seen and self._values.tap is not None:
            self._seen = False
            told = self._values.tap.bad_number()
            if told:
                self._note(told)
        return self.is_bad

    def _note(self, first: str) -> None:
        if not self.is_bad:
            self.is_bad, self.first = True, first

    def begin_step(self) -> None:
        self.is_bad, self.first = False, ""
