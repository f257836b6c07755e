# SPDX-License-Identifier: Apache-2.0
"""Every op that the dispatcher runs, in forward, loss, backward, unscale, clip, optimizer and update."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._listener import Listener, RootCall
from nanhunt._tap.places import Places
from nanhunt._tap.tap import Tap, TensorSet

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor


class OpsLevel(Listener):
    """Keeps the tap on from the first root call to the end."""

    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self._places: Places | None = None

    def _on(self) -> Tap | None:
        tap = self.values.tap
        if tap is not None:
            if self.session.places is None:
                self._places = self.session.places = self._places or Places(tap)
            tap.on()
        return tap

    def on_root_enter(self, call: RootCall) -> None:
        session = self.session
        if session.tap is None or not session.tap.is_on or session.places is None:
            self._on()
        if session.tap is None or session.places is None:
            return
        if call.index == 0:
            session.tap.begin_step()
        session.tap.enter_root(session.places.number_of(call))

    def on_root_exit(self, call: RootCall, output: Any) -> None:
        tap = self.session.tap
        if tap is not None and self.session.places is not None:
            tap.exit_root()

    def on_step_begin(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tap = self._on()
        if tap is not None:
            tap.begin_step()  # without a root module, too

    def before_backward(self, tensors: Sequence[_Tensor], gradients: Any, kwargs: dict[str, Any]) -> None:
        if self.session.leaves:  # no module's call has switched it on
            self._on()

    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._own(optimizer)

    def before_clip(self, parameters: Sequence[torch.Tensor], name: str, bound: float) -> None:
        names = self.session.parameter_names
        if self.session.tap is not None:
            tap = self.session.tap
            owned = [p for p in parameters if isinstance(p, _Tensor)]
            clipped = TensorSet(owned, [tap.text(names.get(id(p), "")) for p in owned])
            tap.owners(clipped.handle)

    def after_clip(self, total_norm: Any) -> None:
        if self.session.tap is not None:
            self.session.tap.owners(None)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        tap = self.session.tap
        if tap is None or not tap.is_on or self.session.places is None:
            self._on()
        self._own(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.values.checked = None
        if self.session.tap is not None:
            self.session.tap.owners(None)

    def after_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer, error: BaseException | None) -> None:
        self.values.checked = None

    def on_step_end(self, step: int, skipped: bool) -> None:
        if self.session.tap is not None:
            self.session.tap.settle(False)

    def _own(self, optimizer: torch.optim.Optimizer) -> None:
        """Whose parameter, gradient or state a storage is."""
        if self.session.tap is not None:
            self.values.checked = None
            self.session.tap.owners(self.values.tensors_of(optimizer).owned.handle)

    def on_close(self) -> None:
        tap = self.session.tap
        if tap is None:
            return
        tap.off()
        pending = tap.settle(True)
        if pending:
            self.session.note("collectives that had not ended", pending)
