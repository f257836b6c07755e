# SPDX-License-Identifier: Apache-2.0
"""Reading tensors where they are: a few launches for all of them, and one small copy to the host.

Finiteness comes from the largest magnitude, never from the 2-norm, which overflows while all elements are finite. Both
are summed up in fp32, fp64 in fp64.
"""
from __future__ import annotations

import ctypes as c
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from nanhunt import _device
from nanhunt import _library as lib
from nanhunt._device import Fetch, alone
from nanhunt._tap.plain import DTYPES

if TYPE_CHECKING:
    from nanhunt._recorder import Recorder
    from nanhunt._session import Session

_Tensor = torch.Tensor
_NORMED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WIDE = (torch.float64, torch.complex128)
_PLAIN = (_Tensor, torch.nn.Parameter)
UNREAD = "unread values: "  # the analyzer knows it
OVERFLOWN = "norms on a device whose squares leave fp32: the largest magnitude stands for them"


@dataclass
class Reading:
    """Of one tensor. `bad`: an element is not finite; then norm and amax are not numbers."""

    name: str
    norm: float
    amax: float
    bad: bool

    @property
    def bits(self) -> int:
        """Equal where both numbers are, NaN included."""
        return hash((str(self.norm), str(self.amax)))


_Pack = tuple[torch.device, torch.dtype]  # what is packed into one tensor
_AT_ONCE = 4096  # tensors that the library is asked for together


class Look(Fetch):
    """Statistics that the library takes on the stream that is current."""

    def __init__(self, recorder: Recorder, quads: array[int]) -> None:
        self._recorder, self._count, self._number = recorder, len(quads) // 4, 0
        self._number = recorder.look(quads)
        if not self._number:
            raise RuntimeError("the library has no room for readings")

    def is_here(self) -> bool:
        return self._recorder.has_come(self._number)

    def wait(self) -> None:
        self._recorder.settle()

    def stats(self) -> c.Array[lib.Stats]:
        found = self._recorder.look_stats(self._number, self._count)
        if any(one.numel <= 0 for one in found[:self._count]):  # none of them is empty
            raise RuntimeError("some of it was not read")
        return found

    def __del__(self) -> None:
        if self._number and self._recorder.handle:
            self._recorder.forget_look(self._number)


class Readings:
    """Lists of tensors that are read together. `add` and `number`, then `send`; once it is here, `take`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tensors: list[list[tuple[str, _Tensor]]] = []  # until they are sent
        self._scalars: list[_Tensor] = []
        self._names: list[list[str]] = []
        self._places: list[list[tuple[_Pack | None, int, int]]] = []  # of each list: pack, norm and amax in it
        self._scalar_places: list[tuple[_Pack, int]] = []
        self._sent: list[tuple[list[_Pack], Fetch]] = []
        self._looks: list[tuple[Look, list[tuple[int, int]]]] = []  # by the library: of which lists, and which in them
        self.unread = False                     # some cannot be read there
        self.waited = False                     # a device had to be waited for
        self.lists: list[list[Reading]] = []
        self.numbers: list[float] = []

    @property
    def fetches(self) -> list[Fetch]:
        return [*(fetch for _, fetch in self._sent), *(look for look, _ in self._looks)]

    def add(self, items: Iterable[tuple[str, _Tensor]]) -> int:
        """A list of named tensors: which of `lists` it will be. What cannot be read there is noted."""
        kept = [(name, self._plain(t)) for name, t in items]
        self._tensors.append([(name, t) for name, t in kept if t is not None])
        return len(self._tensors) - 1

    def number(self, t: _Tensor) -> int:
        """One number: which of `numbers` it will be."""
        self._scalars.append(t)
        return len(self._scalars) - 1

    def _plain(self, t: _Tensor) -> _Tensor | None:
        t = getattr(t, "_local_tensor", t)  # of a DTensor: this rank's part
        if not isinstance(t, _Tensor) or t.is_meta:
            return None
        if t.layout is torch.sparse_coo:
            t = t._values()
        if type(t) not in _PLAIN or t.layout is not torch.strided:
            self._leave_out("tensors on a device that are not strided")
            return None
        t = t.detach()
        if t.is_complex():
            t = torch.view_as_real(t)
        if t.dtype not in _NORMED:
            if t.is_floating_point():
                self._leave_out(f"{t.dtype} on a device".removeprefix("torch."))
            return None
        return t

    def _leave_out(self, what: str) -> None:
        self.unread = True
        self._session.note(UNREAD + what)

    def send(self) -> bool:
        """Reads, without waiting. False: it could not be done, which is noted."""
        if _device.is_capturing():
            self._session.note("steps that are captured into a CUDA graph")
            return False
        try:
            with alone():
                self._send()
            return True
        except torch.OutOfMemoryError:
            self._session.note(UNREAD + "readings on a device, for want of memory there")
        except Exception as error:
            self._session.note(f"{UNREAD}readings on a device: {type(error).__name__}")
        self._sent, self._looks, self._tensors, self._scalars = [], [], [], []
        return False

    def _send(self) -> None:
        groups: dict[tuple[torch.device, torch.dtype, bool], list[tuple[int, int, _Tensor]]] = {}
        quads: dict[torch.device, tuple[int, array[int], list[tuple[int, int]]]] = {}  # of those that the library reads
        layouts: dict[tuple[torch.dtype, int], int] = {}
        recorder, values = self._session.recorder, self._session.values
        for i, items in enumerate(self._tensors):
            self._names.append([name for name, _ in items])
            self._places.append([(None, 0, 0)] * len(items))
            for j, (_, t) in enumerate(items):
                n = t.numel()
                if not n:
                    continue
                if t.device not in quads:
                    word = values.streams.word_for_reading(t.device) if values is not None else 0
                    quads[t.device] = word, array("q"), []
                stream, words, places = quads[t.device]
                if stream > 0 and recorder is not None and t.is_contiguous():
                    kind = t.dtype, n
                    if kind not in layouts:
                        layouts[kind] = recorder.layout(DTYPES[t.dtype], (n,), (1,))
                    words.extend((t.data_ptr(), 0, 0, layouts[kind] | stream))
                    places.append((i, j))
                else:  # those that are not contiguous take another way, alone
                    groups.setdefault((t.device, t.dtype, t.is_contiguous()), []).append((i, j, t))
        for _, words, places in quads.values():
            for first in range(0, len(places), _AT_ONCE):
                assert recorder is not None
                look = Look(recorder, words[4 * first:4 * (first + _AT_ONCE)])
                self._looks.append((look, places[first:first + _AT_ONCE]))
        packs: dict[_Pack, list[_Tensor]] = {}
        for (device, dtype, _), members in groups.items():
            key = device, _wide(dtype)
            pack = packs.setdefault(key, [])
            at, tensors = len(pack), [t for _, _, t in members]
            pack += _norms(tensors, 2.0, key[1])
            pack += _norms(tensors, math.inf, key[1])
            for n, (i, j, _) in enumerate(members):
                self._places[i][j] = key, at + n, at + len(members) + n
        for t in self._scalars:
            key = t.device, _wide(t.dtype)
            pack = packs.setdefault(key, [])
            self._scalar_places.append((key, len(pack)))
            pack.append(t.detach().reshape(()).to(key[1]))
        for device in dict.fromkeys(device for device, _ in packs):
            lane = _device.lane_of(device)
            self.waited = self.waited or lane.waits
            mine = [key for key in packs if key[0] == device]
            self._sent.append((mine, lane.send([torch.stack(packs[key]) for key in mine])))
        self._tensors, self._scalars = [], []  # gradients are not kept alive by us

    def take(self) -> None:
        """Once all is here."""
        found: dict[_Pack, list[float]] = {}
        for keys, fetch in self._sent:
            found.update(zip(keys, fetch.numbers()))
        for names, places in zip(self._names, self._places):
            self.lists.append([Reading(name, 0.0, 0.0, False) if key is None else
                               self._reading(name, found[key][norm], found[key][amax])
                               for name, (key, norm, amax) in zip(names, places)])
        for look, its in self._looks:
            for (i, j), one in zip(its, look.stats()):
                self.lists[i][j] = self._looked(self._names[i][j], one)
        self.numbers = [found[key][at] for key, at in self._scalar_places]

    def _looked(self, name: str, one: lib.Stats) -> Reading:
        if one.nan or one.pos_inf or one.neg_inf:
            return Reading(name, math.nan if one.nan else math.inf, math.nan, True)
        if math.isinf(one.sum_sq):
            self._session.note(OVERFLOWN)
        return Reading(name, math.sqrt(one.sum_sq) if math.isfinite(one.sum_sq) else one.amax, one.amax, False)

    def _reading(self, name: str, norm: float, amax: float) -> Reading:
        if not math.isfinite(amax) or math.isnan(norm):
            return Reading(name, math.nan if math.isnan(amax) or math.isnan(norm) else math.inf, math.nan, True)
        if math.isinf(norm):
            self._session.note(OVERFLOWN)
            norm = amax
        return Reading(name, norm, amax, False)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in _WIDE else torch.float32


def _norms(tensors: list[_Tensor], order: float, dtype: torch.dtype) -> Sequence[_Tensor]:
    return torch._foreach_norm(tensors, order, dtype=dtype)  # type: ignore[no-any-return]


def read_now(session: Session, items: Iterable[tuple[str, _Tensor]]) -> list[Reading]:
    """Where a wait does no harm: of a bad step."""
    readings = Readings(session)
    readings.add(items)
    if not readings.send():
        return []
    for fetch in readings.fetches:
        fetch.wait()
        if not fetch.is_here():
            return []
    readings.take()
    return readings.lists[0]
