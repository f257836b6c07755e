# SPDX-License-Identifier: Apache-2.0
"""Level ops: every op that the dispatcher runs, in forward, loss, backward, unscale, clip, optimizer and update.
And the same for one step that is run again."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._listener import Listener, RootCall
from nanhunt._tap.places import Places
from nanhunt._tap.tap import NOTHING, Tap

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
KEPT = 256 << 20  # bytes of what ops read at which badness began, in one step that is run again


class OpWriter(lib.HasState):
    """Rows of the ops of one step that is run again. Needs a session whose tap is there."""

    def __init__(self, session: Session, tap: Tap) -> None:
        self.session, self.tap = session, tap
        self.places = Places(tap)
        self.state = lib.State(session.step, session.micro_batch, session.phase, session.state.kernels, streams=0)

    def set_site(self, site: str | None, caller: str | None = None) -> None:
        """Of the op that is done again; None: where the program is now, and `caller` for what called the replay."""
        self.state.site, self.state.caller = (self._text(one) for one in (site, caller))

    def _text(self, site: str | None) -> int:
        recorder = self.session.recorder
        if site is None or recorder is None:
            return -1
        return int(recorder.text(site)) if site else 0  # 0: not known

    def own(self, tensors: Sequence[tuple[_Tensor, str]]) -> None:
        """Whose parameter, gradient or state they are, until the next call."""
        self.tap.own(self.tap.named(tensors))

    @contextmanager
    def listening(self) -> Iterator[None]:
        # Kernels may have been attached for the replay alone.
        self.state.kernels = self.session.state.kernels
        recorder = self.session.recorder
        if recorder is not None and recorder.device_counts().asked:
            recorder.flush()  # rows of the run that wait for a device would hold up these
        self.tap.keep(KEPT, KEPT // 4)
        with self.tap.listening(self.state):
            yield


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
        self._on()
        places = self.session.places
        if places is None:
            return
        if call.index == 0:
            places.begin_step()
        places.enter_root(call)

    def on_root_exit(self, call: RootCall, output: Any) -> None:
        if self.session.places is not None:
            self.session.places.exit_root()

    def on_step_begin(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._on()
        if self.session.places is not None:
            self.session.places.begin_step()  # without a root module, too

    def before_backward(self, tensors: Sequence[_Tensor], gradients: Any, kwargs: dict[str, Any]) -> None:
        if self.session.leaves:  # no module's call has switched it on
            self._on()

    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._own(optimizer)

    def before_clip(self, parameters: Sequence[torch.Tensor], name: str, bound: float) -> None:
        names = self.session.parameter_names
        if self.values.tap is not None:
            tap = self.values.tap
            tap.own(tap.named([(p, names.get(id(p), "")) for p in parameters if isinstance(p, _Tensor)]))

    def after_clip(self, total_norm: Any) -> None:
        if self.values.tap is not None:
            self.values.tap.own(NOTHING)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._on()
        self._own(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.values.forget_optimizer()
        if self.values.tap is not None:
            self.values.tap.own(NOTHING)

    def after_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer, error: BaseException | None) -> None:
        self.values.forget_optimizer()

    def on_step_end(self, step: int, skipped: bool) -> None:
        if self.values.tap is not None:
            self.values.tap.settle()

    def _own(self, optimizer: torch.optim.Optimizer) -> None:
        """Whose parameter, gradient or state a storage is."""
        if self.values.tap is not None:
            self.values.forget_optimizer()
            self.values.tap.own(self.values.tensors_of(optimizer).owned)

    def on_close(self) -> None:
        tap = self.values.tap
        if tap is None:
            return
        tap.off()
        pending = tap.settle(forget=True)
        if pending:
            self.session.note("collectives that had not ended", pending)
