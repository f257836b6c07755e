# SPDX-License-Identifier: Apache-2.0
"""Reading gradients, parameters, state and buffers: norms, largest magnitudes, and which are bad."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._values import Values

_Tensor = torch.Tensor
_PLAIN = (_Tensor, torch.nn.Parameter)


class Reader:
    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self._layouts: dict[Any, int] = {}
        self._dense: dict[Any, int] = {}  # layouts of contiguous tensors

    def gradients(self, parameters: Sequence[tuple[_Tensor, str]], weights: bool = False
                  ) -> tuple[list[str], tuple[Sequence[float], Sequence[float]], list[str]]:
        """Paths, norms and amaxes of all gradients, or weights, and the paths of bad ones: one pass over each."""
        recorder = self.session.recorder
        assert recorder is not None
        pairs: list[int] = []
        paths: list[str] = []
        dense = self._dense
        hosts = []
        for p, path in parameters:
            g = p if weights else p.grad
            if g is None:
                continue
            try:
                if type(g) in _PLAIN and g.is_cpu and g.is_contiguous():
                    layout = dense[g.dtype, g.shape]
                else:
                    copy = self._on_host(g)
                    if copy is None:
                        continue
                    g = copy
                    hosts.append(g)
                    layout = self._layout_of(g)
            except KeyError:
                layout = dense[g.dtype, g.shape] = self._layout_of(g)
            except Exception:
                self.session.note("gradients that are not strided tensors")
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

    def _layout_of(self, g: _Tensor) -> int:
        number = self._layouts[(g.dtype, g.shape, g.stride())] = self.values.layout(g)
        return number

    def _on_host(self, g: _Tensor) -> _Tensor | None:
        local = getattr(g, "_local_tensor", g)  # of a DTensor: this rank's part
        if not isinstance(local, _Tensor):
            return None
        if not local.is_cpu:
            self.session.note(f"what waiting costs: tensors on {local.device.type} are copied to the host to be read")
        if local.layout is not torch.strided:
            if local.layout is torch.sparse_coo:
                return local._values().detach().cpu()
            return None
        return local.detach().cpu()

    def bad_among(self, items: Sequence[tuple[int, str, _Tensor]]) -> list[tuple[int, str]]:
        pairs: list[int] = []
        names = []
        hosts = []
        for kind, path, t in items:
            try:
                host = t.detach() if t.is_cpu and type(t) in (_Tensor, torch.nn.Parameter) else self._on_host(t)
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
