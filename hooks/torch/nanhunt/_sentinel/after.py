# SPDX-License-Identifier: Apache-2.0
"""What a program itself does with gradients between backward and the optimizer: unscaling, clipping, averaging.

Whether it does is learnt, in steps that are watched and by torch's count of writes: of all gradients in the first
steps, of one later. From then on gradients are read once more before they are used, and the ops go on the tape.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nanhunt._sentinel.tape import version_of

if TYPE_CHECKING:
    import torch

    from nanhunt._sentinel.reading import Reader
    from nanhunt._sentinel.tape import Tape
    from nanhunt._session import Session

_LEARNING = 8  # steps


class After:
    def __init__(self, session: Session, tape: Tape, reader: Reader,
                 parameters: Callable[[], Sequence[tuple[torch.Tensor, str]]]) -> None:
        self._session, self._tape, self._reader, self._parameters = session, tape, reader, parameters
        self._writes = False     # the program writes gradients, as far as that was learnt
        self._may_come = False   # ... and may have done so since a backward or a call of torch's own left them
        self._versions: Any = None  # of gradients as that left them; None: not known
        self._of_all = True      # ... all of them, else of one
        self.unheard = False     # in this step it has written them, and no op of that is known

    def begin(self) -> None:
        """A backward has ended."""
        self._may_come = True
        self._look()
        if self._writes and not self._session.live:
            self._tape.begin_after([p for p, _ in self._parameters()])

    def go_on(self) -> None:
        """Gradients were read, and a call of torch's own begins: unscale, clip."""
        if self._tape.after is not None:
            self._tape.on()

    def torch_has_written(self) -> None:
        self._may_come = True
        self._look()

    def _look(self) -> None:
        self._of_all = self._session.live or self._session.step < _LEARNING
        self._versions = None if self._writes else self._versions_now()

    def _versions_now(self) -> Any:
        if self._of_all:
            return self._reader.versions(self._parameters())
        for p in self._session.drops.with_gradient:  # one, or none
            g = p.grad
            if g is not None:
                return g._cdata, version_of(g)
        return ()

    def came(self) -> bool:
        """Gradients are about to be used: whether the program has written them since torch did."""
        may, self._may_come = self._may_come, False
        before, self._versions = self._versions, None
        if may and not self._writes:
            self._writes = bool(self._session.state.wrote) or (before is not None and before != self._versions_now())
            self.unheard = self._writes and not self._session.live
        return may and self._writes
