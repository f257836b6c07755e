# SPDX-License-Identifier: Apache-2.0
"""Every op that the dispatcher runs, in forward, loss, backward, unscale, clip, optimizer and update."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._listener import Listener, RootCall
from nanhunt._tap.lasting import LastingWatch
from nanhunt._tap.marks import Marks, mark_left_out
from nanhunt._tap.places import Places
from nanhunt._tap.tap import Tap, TensorSet

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor


class OpsLevel(Listener):
    """Keeps the tap on from the first root call to the end. `marks` and `lasting` are called only where something is
    marked or compared, for a call costs as much as an op."""

    def __init__(self, session: Session, values: Values) -> None:
        self.session, self.values = session, values
        self.marks, self.lasting = Marks(session, values), LastingWatch(session, values)
        self.listeners: list[Listener] = [self, self.marks, self.lasting]
        self._places: Places | None = None

    def _on(self) -> Tap | None:
        tap = self.values.tap
        if tap is not None:
            if self.session.places is None:
                self._places = self.session.places = self._places or Places(tap)
            tap.on()
        return tap

    def on_root_enter(self, call: RootCall) -> None:
        session, lasting = self.session, self.lasting
        tap = session.tap
        if tap is None or not tap.is_on or session.places is None:
            tap = self._on()
        if tap is None or session.places is None:
            return
        if call.index == 0:
            tap.begin_step()
        number = session.places.roots.get(id(call.module))
        tap.enter_root(session.places.add_root(call) if number is None else number)
        # Marks come after the tap is on: what is marked before an op has the identity that the op reads.
        self.marks.mark_call(tap, call)
        if lasting.looks_for_graphs:
            lasting.look_for_graphs()
        if call.index == 0:
            if lasting.compares:
                lasting.look_at_root(call)
            tap.look_at_copies()

    def on_step_begin(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tap = self._on()
        if tap is not None:
            tap.begin_step()  # without a root module, too

    def before_backward(self, tensors: Sequence[_Tensor]) -> None:
        session = self.session
        if session.leaves:  # no module's call has switched it on
            self._on()
        if not session.state.held:
            self.marks.mark_losses(tensors)
        if session.leaves and self.lasting.compares:
            self.lasting.look_at_leaves()

    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        tap = self.session.tap
        if tap is not None:
            self.values.checked = None
            tap.owners(self.values.tensors_of(optimizer).owned.handle)

    def before_clip(self, parameters: Sequence[torch.Tensor], bound: float) -> None:
        names = self.session.parameter_names
        if self.session.tap is not None:
            tap = self.session.tap
            owned = [p for p in parameters if isinstance(p, _Tensor)]
            clipped = TensorSet(owned, [tap.text(names.get(id(p), "")) for p in owned])
            tap.owners(clipped.handle)

    def after_clip(self, parameters: Sequence[torch.Tensor], bound: float, total_norm: Any,
                   error: BaseException | None) -> None:
        if self.session.tap is not None:
            self.session.tap.owners(None)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        session = self.session
        tap = session.tap
        if tap is None or not tap.is_on or session.places is None:
            tap = self._on()
        if tap is None:
            return
        self.values.checked = None
        tap.owners(self.values.tensors_of(optimizer).owned.handle)
        if not session.state.held:
            self.marks.mark_boundary(optimizer)
        if self.lasting.compares:
            self.lasting.look_at(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.values.checked = None
        tap = self.session.tap
        if tap is None:
            return
        tap.owners(None)
        if not self.session.state.held:
            self.marks.mark_updated(tap, optimizer)
        if self.lasting.prepares or tap.misses_subclasses:
            self.lasting.leave_step(tap, optimizer)

    def after_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer, result: Any,
                          error: BaseException | None) -> None:
        self.values.checked = None
        if not self.session.optimizer_ran and not self.session.state.held:
            self.marks.mark_boundary(optimizer)

    def on_step_end(self, step: int, skipped: bool) -> None:
        tap = self.session.tap
        if tap is not None:
            tap.settle(False)
            if not self.session.state.held:
                self.marks.mark_buffers(tap)
                if self.session.state.bad_number:
                    mark_left_out(self.session)

    def on_close(self) -> None:
        tap = self.session.tap
        if tap is None:
            return
        tap.off()
        pending = tap.settle(True)
        if pending:
            self.session.note("collectives that had not ended", pending)
