# SPDX-License-Identifier: Apache-2.0
"""Level sentinel, in steps whose ops are not watched: one number of a parameter changed although neither an optimizer
nor an op that PyTorch counts wrote it since it was read last."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from nanhunt._sentinel.audit import is_torchs
from nanhunt._sentinel.unchanged import no_mode

if TYPE_CHECKING:
    from nanhunt._sentinel.reading import Reader
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
Parameters = Sequence[tuple[_Tensor, str]]
_OUTLIER = 1e6        # times the largest number before: no step of an optimizer does that to one number alone
_NEGLIGIBLE = 2**-10  # as kNegligible of the analyzer


class Unseen:
    def __init__(self, session: Session, values: Values, reader: Reader) -> None:
        self.session, self.values, self._reader = session, values, reader
        self._parameters: Parameters = ()
        self._versions: Sequence[int] = ()  # when an optimizer had run last
        self._written: set[str] = set()  # since they were read, by others
        self._seen: dict[str, tuple[int, float]] = {}  # the step that left it so, largest magnitude

    def look(self, parameters: Parameters) -> None:
        """Before anything else writes them: who has written since an optimizer ran?"""
        if parameters is not self._parameters:
            self._parameters, self._versions = parameters, ()
        if not self._versions:
            self._written.update(path for _, path in parameters)
            return
        now = self._reader.versions(parameters, weights=True)
        if now != self._versions:
            paths = self._reader.version_paths(parameters)
            self._written.update(path for path, a, b in zip(paths, now, self._versions) if a != b)
            self._versions = now

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """What torch's own are about to store is audited: what others do is not known."""
        self._versions = self._reader.versions(self._parameters, weights=True)
        if not is_torchs(optimizer) or type(optimizer).__name__ == "LBFGS":
            self._written.update(path for _, path in self._parameters)

    def were_read(self, parameters: Parameters, step: int, paths: Sequence[str], amaxes: Sequence[float],
                  bad: Sequence[str]) -> None:
        """As `step` left them."""
        self.look(parameters)
        wrong = set(bad)
        for path, amax in zip(paths, amaxes):
            if path not in wrong and not amax >= _OUTLIER * max(self._seen.get(path, (0, math.inf))[1], _NEGLIGIBLE):
                self._seen[path] = step, amax
                self._written.discard(path)

    def tell(self, parameters: Parameters, step: int) -> None:
        """Before a bad step is computed again: those of which one number was written past PyTorch."""
        recorder = self.session.recorder
        if recorder is None or not self._seen:
            return
        self.look(parameters)
        paths, (norms, amaxes), bad = self._reader.gradients(parameters, weights=True)
        by_path = {path: p for p, path in parameters}
        wrong = set(bad)
        for path, norm, amax in zip(paths, norms, amaxes):
            before = self._seen.get(path)
            if before is None or path in self._written:
                continue
            p = by_path[path]
            if p.numel() == 1:
                continue
            outlies = amax >= _OUTLIER * max(before[1], _NEGLIGIBLE) and norm <= 1.001 * amax
            if path in wrong and _bad_numbers(p) == 1 or path not in wrong and outlies:
                value = self.values.describe(p.detach())
                if value is not None:
                    recorder.changed(step, value, before[0])
                    self.values.set_as_of(p)  # a replay reads these contents
        self.values.release_hosts()


def _bad_numbers(p: _Tensor) -> int:
    with no_mode(), torch.no_grad():
        return int((~torch.isfinite(p.detach())).sum())
