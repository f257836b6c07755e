# SPDX-License-Identifier: Apache-2.0
"""What a program computes with gradients off: what its models give, and the numbers that it makes of that, losses and
metrics, as far as operations are heard."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._device import is_away
from nanhunt._nested import tensors_in
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._steps.reading import Reader


class Validation:
    def __init__(self, session: Session, reader: Reader) -> None:
        self._session, self._reader = session, reader
        self.seen = False  # in this step
        self.first = ""     # what is bad

    def on_output(self, output: Any) -> None:
        self.seen = True
        here = [t for _, t in tensors_in(output) if t.is_floating_point() and not is_away(t)]
        bad = self._reader.bad_among([(lib.MARK_OUTPUT, "", t) for t in here])
        # An infinity among many is a mask as likely as not.
        if bad and any(t.numel() == 1 or _has_nan(t) for t in here):
            self.first = self.first or "what a model gave"

    def judge(self) -> bool:
        """Whether what was computed so far is bad."""
        tap = self._session.tap
        if self.seen and tap is not None:
            self.seen = False
            self.first = self.first or tap.bad_number()
        return bool(self.first)


def _has_nan(t: torch.Tensor) -> bool:
    with unheard():
        return bool(torch.isnan(t).any())
