# SPDX-License-Identifier: Apache-2.0
"""What a program computes with gradients off: what its models give, and the numbers that it makes of that, losses and
metrics, as far as operations are heard."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._device import is_away
from nanhunt._device_reader import UNREAD
from nanhunt._nested import tensors_in
from nanhunt._pytorch import unwrapped
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._steps.reading import Reader


class Validation:
    def __init__(self, session: Session, reader: Reader) -> None:
        self._session, self._reader = session, reader
        self.seen = False  # in this step
        self.first = ""     # what is bad
        self.waits = ""    # ... should the program turn out to train nothing

    def on_output(self, output: Any) -> None:
        self.seen = True
        given = [t for _, t in tensors_in(output) if t.is_floating_point()]
        here = [t for t in given if not is_away(t)]
        if len(here) < len(given) and self._session.state.course in lib.INFERS:
            self._session.note(UNREAD + "what forwards gave on a device is read at level ops alone")
        bad = self._reader.bad_among([(lib.MARK_OUTPUT, "", t) for t in here])
        # An infinity among many is a mask as likely as not.
        if bad and any(t.numel() == 1 or has_nan(t) for t in here):
            self.first = self.first or "what a model gave"
        if self._session.state.course in lib.INFERS:
            self.first = self.first or self.waits

    def wait(self) -> None:
        """What is bad so far was given by a call that may be a training's first."""
        self.seen, self.first, self.waits = False, "", self.waits or self.first

    def forget(self) -> None:
        self.first = self.waits = ""

    def judge(self) -> bool:
        """Whether what was computed so far is bad."""
        tap = self._session.tap
        if self.seen and tap is not None:
            self.seen = False
            number = tap.bad_number()  # asked in any case, or it would be told of a later step
            self.first = self.first or number
        return bool(self.first)


def has_nan(t: torch.Tensor) -> bool:
    with unheard():
        return bool(torch.isnan(unwrapped(t)).any())
