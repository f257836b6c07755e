# SPDX-License-Identifier: Apache-2.0
"""Reading gradients, parameters, state and buffers: norms, largest magnitudes, and which are bad."""
from __future__ import annotations

import ctypes as c
import weakref
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._device import is_away
from nanhunt._device_reader import UNREAD as UNREAD_VALUES
from nanhunt._device_reader import read_now
from nanhunt._pytorch import unwrapped
from nanhunt._step_mode import StepMode
from nanhunt._tap.tap_build import TapMissing
from nanhunt._tap.tap_library import load_tap

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
_PLAIN = (_Tensor, torch.nn.Parameter)
UNREAD = "unread gradients: their numbers are not in memory as strided tensors"  # the analyzer knows its beginning

# Paths, norms and amaxes, and the paths of bad ones.
Here = tuple[list[str], tuple[Sequence[float], Sequence[float]], list[str]]
GRADIENTS, WEIGHTS, UNHEARD_WEIGHTS = range(3)  # tap/gradients.h


class _Plain:
    """Parameters in the CPU's memory, whose gradients C++ collects. Whoever has it keeps them."""

    def __init__(self, items: Sequence[tuple[_Tensor, str]], layouts: Sequence[int]) -> None:
        library, n = load_tap(), len(items)
        self._items, self.paths = items, [path for _, path in items]
        given = array("q", [p._cdata for p, _ in items]), array("q", layouts)
        of = library.gradients_of(*[numbers.buffer_info()[0] for numbers in given], n)
        weakref.finalize(self, library.gradients_free, of).atexit = False
        self.pairs, self.which, self.others = (array("q", bytes(8 * size)) for size in (2 * n, n, n + 1))
        self.places = [numbers.buffer_info()[0] for numbers in (self.pairs, self.which, self.others)]
        self.collect, self.of = library.gradients, of
        self.readings, self.bad = (lib.Reading * max(n, 1))(), c.c_size_t()
        self.at_pairs, self.at_bad = c.c_char_p(self.places[0]), c.byref(self.bad)
        self.numbers = memoryview(self.readings).cast("B").cast("d")

    def read(self, what: int) -> tuple[list[str], array[int], list[tuple[_Tensor, str]]]:
        """Paths of gradients, or weights, address and layout of each, and the parameters whose are of another kind."""
        n, others = self.collect(self.of, what, *self.places), self.others
        rest = [] if others[0] < 0 else [self._items[i] for i in others[:others.index(-1)]]
        if n == len(self.paths):
            return self.paths, self.pairs, rest
        return [self.paths[i] for i in self.which[:n]], self.pairs[:2 * n], rest


class Reader:
    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self._layouts: dict[Any, int] = {}
        self._parameters: Sequence[tuple[_Tensor, str]] = ()
        self._plain: _Plain | None = None  # of those
        self._rest: Sequence[tuple[_Tensor, str]] = ()
        self.away: list[tuple[str, _Tensor]] = []  # what the last reading of gradients left on a device
        self.unread = False  # ... it could not read some

    def gradients(self, parameters: Sequence[tuple[_Tensor, str]], weights: bool = False) -> Here:
        """Paths, norms and amaxes of all gradients, or weights, and the paths of bad ones: one pass over each. Those
        on a device are left in `away`."""
        heard, recorder = self.session.mode is not StepMode.UNHEARD, self.session.recorder
        what = GRADIENTS if not weights else WEIGHTS if heard else UNHEARD_WEIGHTS
        assert recorder is not None
        plain = self._plain
        if plain is not None and parameters is self._parameters and not self._rest:  # the usual case, in one call
            self.away, self.unread = [], False
            n = plain.collect(plain.of, what, *plain.places)
            if n >= 0 and plain.others[0] < 0:
                readings, numbers = plain.readings, plain.numbers
                paths = plain.paths if n == len(plain.paths) else [plain.paths[i] for i in plain.which[:n]]
                if n and recorder.slow.nanhunt_read(recorder.handle, plain.at_pairs, n, lib.READ_NORM, readings,
                                                    plain.at_bad) != lib.OK:
                    recorder.refused += 1
                    return paths, ([0.0] * n, [0.0] * n), []
                bad = [path for path, r in zip(paths, readings) if r.bad] if n and plain.bad.value else []
                return paths, (numbers[:4 * n:4].tolist(), numbers[1:4 * n:4].tolist()), bad
        paths, pairs, hosts = self._collect(parameters, what)
        n = len(paths)
        if not n:
            return paths, ((), ()), []
        readings, _ = recorder.read(pairs, lib.READ_NORM)
        del hosts
        read = readings[:n]
        return paths, ([r.norm for r in read], [r.amax for r in read]), [
            path for path, r in zip(paths, read) if r.bad]

    def checksum(self, parameters: Sequence[tuple[_Tensor, str]]) -> int:
        """Of the bits of all parameters, in their order; 0: some are not in the CPU's memory."""
        paths, pairs, hosts = self._collect(parameters, UNHEARD_WEIGHTS)
        recorder = self.session.recorder
        if recorder is None or not paths or len(paths) != len(parameters):
            return 0
        readings, _ = recorder.read(pairs, lib.READ_CHECKSUM)
        del hosts
        all_of_them = 0xCBF29CE484222325
        for checksum in memoryview(readings).cast("B").cast("Q")[2:4 * len(paths):4]:
            all_of_them = (all_of_them ^ checksum) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        return all_of_them or 1

    def _collect(self, parameters: Sequence[tuple[_Tensor, str]], what: int
                 ) -> tuple[list[str], array[int], list[_Tensor]]:
        """Paths, addresses and layouts of what is in memory, and what must live until they are read."""
        weights = what != GRADIENTS
        self.away = []
        self.unread = False
        if parameters is not self._parameters:
            self._prepare(parameters)
        paths: list[str] = []
        pairs, rest = array("q"), self._rest
        if self._plain is not None:
            paths, pairs, others = self._plain.read(what)
            rest = [*others, *rest] if others else rest
        hosts = []
        if rest:
            paths, pairs = list(paths), pairs[:]
        for p, path in rest:
            g = p if weights else p.grad
            if g is None:
                continue
            try:
                if is_away(getattr(g, "_local_tensor", g)):
                    self.away.append((path, g))
                    continue
                host = self._in_memory(g)
                if host is None or host.numel() and not host.data_ptr():  # a class that keeps it elsewhere
                    raise TypeError("no numbers in memory")
                hosts.append(host)
                pair = host.data_ptr(), self._layout_of(host)
            except Exception:
                if not weights:  # those may be frozen
                    self.session.note(UNREAD)
                    self.unread = True
                continue
            pairs.extend(pair)
            paths.append(path)
        return paths, pairs, hosts

    def _prepare(self, parameters: Sequence[tuple[_Tensor, str]]) -> None:
        """Which of them are plain tensors in the CPU's memory, of a type that the library reads."""
        self._parameters, self._plain, self._rest = parameters, None, parameters
        plain, layouts, rest = [], [], []
        for p, path in parameters:
            try:
                if not (type(p) in _PLAIN and p.is_cpu and p.layout is torch.strided):
                    raise TypeError("of another kind")
                layouts.append(self.values.dense_layout(p))
                plain.append((p, path))
            except Exception:  # or of a type that it does not read
                rest.append((p, path))
        with suppress(TapMissing):
            self._plain, self._rest = _Plain(plain, layouts), rest

    def _layout_of(self, g: _Tensor) -> int:
        number = self._layouts[(g.dtype, g.shape, g.stride())] = self.values.layout(g)
        return number

    def _in_memory(self, g: _Tensor) -> _Tensor | None:
        local = getattr(g, "_local_tensor", g)  # of a DTensor: this rank's part
        if not isinstance(local, _Tensor):
            return None
        if local.layout is not torch.strided:
            return local._values().detach() if local.layout is torch.sparse_coo else None
        local = local.detach()  # inside of a transform that stands around it again
        return unwrapped(torch.view_as_real(local) if local.is_complex() else local)

    def bad_among(self, items: Sequence[tuple[int, str, _Tensor]]) -> list[tuple[int, str]]:
        """Kinds and paths of those that are not finite. Waits where they are on a device."""
        items = [(kind, path, unwrapped(t)) for kind, path, t in items]
        away = [i for i, (_, _, t) in enumerate(items) if is_away(getattr(t, "_local_tensor", t))]
        if away:
            wrong = {int(r.name) for r in read_now(self.session, [(str(i), items[i][2]) for i in away]) if r.bad}
            wrong |= {i for i in range(len(items)) if i not in set(away) and self.bad_among([items[i]])}
            return [(kind, path) for i, (kind, path, _) in enumerate(items) if i in wrong]
        pairs: list[int] = []
        names = []
        hosts = []
        for kind, path, t in items:
            try:
                plain = t.is_cpu and type(t) in (_Tensor, torch.nn.Parameter) and not t.is_complex()
                host = t if plain else self._in_memory(t)
                if host is None:
                    raise TypeError("no numbers in memory")
                hosts.append(host)
                pairs += (host.data_ptr(), self._layout_of(host))
                names.append((kind, path))
            except Exception:
                self.session.note(UNREAD_VALUES + "they are not in memory as strided tensors")
        recorder = self.session.recorder
        if not names or recorder is None:
            return []
        readings, bad = recorder.read(pairs, lib.READ_NORM)
        return [name for name, r in zip(names, readings) if r.bad] if bad else []
