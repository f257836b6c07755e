# SPDX-License-Identifier: Apache-2.0
"""Ops on a device: the library reads tensors there where it can; else each is copied to the host, with a wait."""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from nanhunt import _device

if TYPE_CHECKING:
    from nanhunt._session import Session

COPIED = "reading tensors where they are, so they are copied to the host: "
CAPTURED = "tensors of a device, while a CUDA graph was captured on their stream"


class Streams:
    """The numbers that the library gives to the streams of this run.

    An op's tensors are read on the stream that is current for their device right after the op: what it has read and
    written is there, memory that is freed is given away behind it on the same stream, and what another stream made the
    run has waited for, or the op itself would have been wrong.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wanted = session.options.level != "steps"
        self._words: dict[tuple[int, int], int] = {}  # by device and stream: number << 32; 0: it cannot read there

    def word_of(self, device: torch.device) -> int:
        """What the layout word of a tensor there gets, so that it is read where it is. 0: it cannot be; -1: not now."""
        if _device.is_capturing():  # a copy that is waited for would break the graph
            place = _device.stream_of(device)
            known = self._words.get(place, 0) if place is not None else 0
            if not known:
                self._session.note(CAPTURED)
            return known or -1
        if not self._wanted:
            return 0  # a few tensors of bad steps, which wait in any case
        place = _device.stream_of(device)
        if place is None:
            return 0
        word = self._words.get(place)
        return self._ask(device, place) if word is None else word

    def word_for_reading(self, device: torch.device) -> int:
        """The same for what is read of any step, at each level. 0: the library does not read there."""
        if _device.is_capturing():
            return 0
        place = _device.stream_of(device)
        if place is None:
            return 0
        word = self._words.get(place)
        return self._ask(device, place) if word is None else word

    def _ask(self, device: torch.device, place: tuple[int, int]) -> int:
        recorder = self._session.open()
        if recorder is None:
            return 0
        if not _device.lasts(device):
            why = "a stream that PyTorch does not own"
        else:
            number, why = recorder.device_stream(*place)
            if number > 0:
                word = self._words[place] = number << 32
                return word
        self._session.note(COPIED + why)
        self._words[place] = 0
        return 0
