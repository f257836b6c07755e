# SPDX-License-Identifier: Apache-2.0
"""Reading gradients, parameters, state and buffers: norms, largest magnitudes, and which are bad."""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _device
from nanhunt import _library as lib
from nanhunt._device import is_away
from nanhunt._device_reader import read_now

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
_PLAIN = (_Tensor, torch.nn.Parameter)
UNREAD = "unread gradients: their numbers are not in memory as strided tensors"  # the analyzer knows its beginning


class Reader:
    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self._layouts: dict[Any, int] = {}
        self._parameters: Sequence[tuple[_Tensor, str]] = ()
        self._ready: list[tuple[_Tensor, str, Any, int]] = []  # of those
        self.away: list[tuple[str, _Tensor]] = []  # what the last reading of gradients left on a device
        self.unread = False  # ... it could not read some

    def gradients(self, parameters: Sequence[tuple[_Tensor, str]], weights: bool = False
                  ) -> tuple[list[str], tuple[Sequence[float], Sequence[float]], list[str]]:
        """Paths, norms and amaxes of all gradients, or weights, and the paths of bad ones: one pass over each. Those
        on a device are left in `away`."""
        recorder = self.session.recorder
        assert recorder is not None
        pairs: list[int] = []
        paths: list[str] = []
        hosts = []
        self.away = []
        self.unread = False
        plain = _PLAIN if _device.pretend is None else ()
        for p, path, dtype, dense in self._prepared(parameters):
            g = p if weights else p.grad
            if g is None:
                continue
            try:
                if g.dtype is dtype and type(g) in plain and g.is_contiguous():
                    layout = dense
                elif is_away(getattr(g, "_local_tensor", g)):
                    self.away.append((path, g))
                    continue
                else:
                    copy = self._plain(g)
                    if copy is None or copy.numel() and not copy.data_ptr():  # a class that keeps it elsewhere
                        raise TypeError("no numbers in memory")
                    g = copy
                    hosts.append(g)
                    layout = self._layout_of(g)
            except Exception:
                if not weights:  # those may be frozen
                    self.session.note(UNREAD)
                    self.unread = True
                continue
            pairs += (g.data_ptr(), layout)
            paths.append(path)
        n = len(paths)
        if not n:
            return paths, ((), ()), []
        readings, bad = recorder.read(pairs, lib.READ_NORM)
        numbers = memoryview(readings).cast("B").cast("d")
        words = numbers[:4 * n:4].tolist(), numbers[1:4 * n:4].tolist()
        return paths, words, [path for path, r in zip(paths, readings) if r.bad] if bad else []

    def _prepared(self, parameters: Sequence[tuple[_Tensor, str]]) -> list[tuple[_Tensor, str, Any, int]]:
        """With the type and the layout that a contiguous gradient has on the CPU; None: it is looked at each time."""
        if parameters is not self._parameters:
            self._parameters, self._ready = parameters, []
            for p, path in parameters:
                dtype, layout = None, 0
                if type(p) in _PLAIN and p.is_cpu and p.layout is torch.strided:
                    with suppress(Exception):  # of a type that the library does not read
                        dtype, layout = p.dtype, self.values.dense_layout(p)
                self._ready.append((p, path, dtype, layout))
        return self._ready

    def _layout_of(self, g: _Tensor) -> int:
        number = self._layouts[(g.dtype, g.shape, g.stride())] = self.values.layout(g)
        return number

    def _plain(self, g: _Tensor) -> _Tensor | None:
        local = getattr(g, "_local_tensor", g)  # of a DTensor: this rank's part
        if not isinstance(local, _Tensor):
            return None
        if local.layout is not torch.strided:
            return local._values().detach() if local.layout is torch.sparse_coo else None
        return torch.view_as_real(local.detach()) if local.is_complex() else local.detach()

    def bad_among(self, items: Sequence[tuple[int, str, _Tensor]]) -> list[tuple[int, str]]:
        """Kinds and paths of those that are not finite. Waits where they are on a device."""
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
                host = t.detach() if t.is_cpu and type(t) in (_Tensor, torch.nn.Parameter) else self._plain(t)
                if host is None:
                    continue
                hosts.append(host)
                pairs += (host.data_ptr(), self._layout_of(host))
                names.append((kind, path))
            except Exception:
                self.session.note("values that are not strided tensors")
        recorder = self.session.recorder
        if not names or recorder is None:
            return []
        readings, bad = recorder.read(pairs, lib.READ_NORM)
        return [name for name, r in zip(names, readings) if r.bad] if bad else []
