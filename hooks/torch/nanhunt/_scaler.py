# SPDX-License-Identifier: Apache-2.0
"""What a loss scaler and gradient clipping did, as scaler rows.

On the CPU everything is read. Elsewhere nothing is waited for that the scaler has not waited for itself: the scale is
computed along by torch's own rule, and read again only when something else wrote it.
"""
from __future__ import annotations

import ctypes
import math
import struct
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._listener import Listener

if TYPE_CHECKING:
    from nanhunt._session import Session

_PEEK: dict[torch.dtype, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double,
                                 torch.int32: ctypes.c_int32, torch.int64: ctypes.c_int64}


def peek(t: Any) -> float | None:
    """The number in a tensor of one element, without an op that anything could see; None where that would take one."""
    if not isinstance(t, torch.Tensor):
        return float(t) if isinstance(t, (int, float)) else None
    if not t.is_cpu or t.numel() != 1 or type(t) not in (torch.Tensor, torch.nn.Parameter):
        return None
    kind = _PEEK.get(t.dtype)
    if kind is not None:
        return float(kind.from_address(t.data_ptr()).value)
    if t.dtype == torch.float16:
        return float(struct.unpack("e", ctypes.string_at(t.data_ptr(), 2))[0])
    if t.dtype == torch.bfloat16:  # the upper half of a float
        return float(struct.unpack("<f", b"\0\0" + ctypes.string_at(t.data_ptr(), 2))[0])
    return None


def as_f32(number: float) -> float:
    """As torch stores it."""
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


class ScalerState:
    """What is known of one scaler."""

    __slots__ = ("scaler", "scale", "tracker", "versions", "skipped")

    def __init__(self, scaler: Any) -> None:
        self.scaler = weakref.ref(scaler)
        self.scale, self.tracker = 1.0, 0
        self.versions: tuple[int, ...] = ()  # of its tensors, when scale and tracker were as above
        self.skipped = False                 # since the last update: one of its optimizers was held back


def found_inf(scaler: Any, optimizer: Any) -> bool | None:
    """Whether the scaler found bad gradients of this optimizer; None: only the device knows."""
    state = getattr(scaler, "_per_optimizer_states", {})
    state = state.get(id(optimizer), {}) if hasattr(state, "get") else {}
    flags = [peek(flag) for flag in state.get("found_inf_per_device", {}).values()]
    return None if any(flag is None for flag in flags) else any(flag > 0 for flag in flags if flag is not None)


def reads_flag_itself(optimizer: Any) -> bool:
    """A fused optimizer: GradScaler.step calls it in any case, and it holds itself back."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def held_back(scaler: Any, optimizer: Any, ran: bool) -> bool:
    """Whether GradScaler.step kept the optimizer from changing anything. `ran`: its step was called."""
    if not getattr(scaler, "_enabled", True):
        return False
    found = found_inf(scaler, optimizer)
    if found is not None:
        return found
    if not reads_flag_itself(optimizer):
        return not ran
    # A flag on another device that nothing has waited for.
    state = scaler._per_optimizer_states.get(id(optimizer), {})
    return any(float(flag) > 0 for flag in state.get("found_inf_per_device", {}).values())


class ScalerWatch(Listener):
    def __init__(self, session: Session) -> None:
        self.session = session
        self._states: dict[int, ScalerState] = {}
        self._clip_bound = 0.0
        self._in_scaler = 0  # a scaler's own calls of itself

    def _event(self, action: int, scaler: Any = None, optimizer: Any = None, **fields: Any) -> None:
        session = self.session
        recorder = session.open()
        if recorder is None:
            return
        if scaler is not None:
            state = self._states[id(scaler)]
            session.last_scale = state.scale
            fields.setdefault("growth_tracker", state.tracker)
        recorder.scaler(step=session.step, micro_batch=session.micro_batch, action=action,
                        optimizer=session.number_of(optimizer) if optimizer is not None else 0,
                        scale=session.last_scale, **fields)

    # What the scaler holds.
    def _look(self, scaler: Any) -> ScalerState:
        """The scaler's state, known to be that of now. What nothing watched has set is told."""
        state = self._states.get(id(scaler))
        if state is None or state.scaler() is not scaler:
            state = self._states[id(scaler)] = ScalerState(scaler)
            self._read(scaler, state)
            self._event(lib.CREATE, scaler, dynamic=1, text="torch.amp", **_options(scaler))
        elif state.versions != _versions(scaler):
            before = state.scale, state.tracker
            self._read(scaler, state)
            if before != (state.scale, state.tracker):
                self._event(lib.SET, scaler)  # load_state_dict, or a hand on its tensors
        return state

    def _read(self, scaler: Any, state: ScalerState) -> None:
        scale, tracker = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
        if scale is None:
            state.scale = as_f32(float(getattr(scaler, "_init_scale", 1.0)))
        else:
            number = peek(scale)
            state.scale = float(scale) if number is None else number
        if tracker is None:
            state.tracker = int(getattr(scaler, "_init_growth_tracker", 0))
        else:
            number = peek(tracker)
            state.tracker = int(tracker) if number is None else int(number)
        state.versions = _versions(scaler)

    def _follow(self, scaler: Any, state: ScalerState) -> None:
        """After an update: on the CPU what the scaler holds, elsewhere what it must hold by its own rule."""
        scale = getattr(scaler, "_scale", None)
        if scale is None or scale.is_cpu:
            self._read(scaler, state)
            return
        if state.skipped:
            state.scale = as_f32(state.scale * float(scaler._backoff_factor))
            state.tracker = 0
        elif state.tracker + 1 == int(scaler._growth_interval):
            grown = as_f32(state.scale * float(scaler._growth_factor))
            state.scale = grown if math.isfinite(grown) else state.scale
            state.tracker = 0
        else:
            state.tracker += 1
        state.versions = _versions(scaler)

    # What happens to it.
    def before_scale(self, scaler: Any, loss: Any) -> None:
        if not getattr(scaler, "_enabled", True):
            return
        self._look(scaler)
        session = self.session
        number = peek(loss)
        if number is not None and math.isnan(session.loss):
            session.loss = number

    def after_scale(self, scaler: Any, scaled: Any) -> None:
        if getattr(scaler, "_enabled", True) and id(scaler) in self._states:
            state = self._states[id(scaler)]
            state.versions = _versions(scaler)  # the first call makes its tensors
            self._event(lib.SCALED, scaler)

    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        if getattr(scaler, "_enabled", True):
            self._look(scaler)

    def after_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer, error: BaseException | None) -> None:
        if not getattr(scaler, "_enabled", True):
            return
        if error is not None:
            if not self._in_scaler:  # else the call around it tells
                self._event(lib.REFUSED, scaler, optimizer, text=str(error))
            return
        self._event(lib.UNSCALED, scaler, optimizer, found_inf=int(found_inf(scaler, optimizer) or False))

    def before_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        if getattr(scaler, "_enabled", True):
            self._look(scaler)
            self._in_scaler += 1

    def after_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer, error: BaseException | None) -> None:
        from nanhunt._taps import optimizer_ran

        if not getattr(scaler, "_enabled", True):
            return
        self._in_scaler = max(0, self._in_scaler - 1)
        if error is not None:
            if not optimizer_ran():  # else it is the optimizer's own
                self._event(lib.REFUSED, scaler, optimizer, text=str(error))
            return
        skipped = held_back(scaler, optimizer, optimizer_ran())
        state = self._states[id(scaler)]
        state.skipped = state.skipped or skipped
        self._event(lib.SKIPPED if skipped else lib.STEPPED, scaler, optimizer, found_inf=int(skipped))

    def before_update(self, scaler: Any) -> None:
        if not getattr(scaler, "_enabled", True):
            return
        state = self._look(scaler)
        flags = [flag for known in getattr(scaler, "_per_optimizer_states", {}).values()
                 for flag in known.get("found_inf_per_device", {}).values()]
        known = [peek(flag) for flag in flags]
        if None not in known:  # also of optimizers that were unscaled and never stepped
            state.skipped = any(flag > 0 for flag in known if flag is not None)

    def after_update(self, scaler: Any, error: BaseException | None) -> None:
        from nanhunt._taps import scale_was_given

        if not getattr(scaler, "_enabled", True) or id(scaler) not in self._states:
            return
        if error is not None:
            self._event(lib.REFUSED, scaler, text=str(error))
            return
        state = self._states[id(scaler)]
        given = scale_was_given()
        if given:
            self._read(scaler, state)
        else:
            self._follow(scaler, state)
        state.skipped = False
        self._event(lib.SET if given else lib.UPDATED, scaler, dynamic=1, **_options(scaler))

    def before_clip(self, parameters: Sequence[torch.Tensor], name: str, bound: float) -> None:
        self._clip_bound = bound

    def after_clip(self, total_norm: Any) -> None:
        norm = peek(total_norm)  # elsewhere reading it would wait for the device; by value there is none
        self._event(lib.CLIPPED, total_norm=0.0 if norm is None else norm, max_norm=self._clip_bound)


def _versions(scaler: Any) -> tuple[int, ...]:
    versions: list[int] = []
    for tensor in (getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)):
        versions += (id(tensor), tensor._version) if tensor is not None else (0, 0)
    if versions[0] == 0:  # not made yet: what it will be made from
        versions += (hash(getattr(scaler, "_init_scale", 1.0)), int(getattr(scaler, "_init_growth_tracker", 0)))
    return tuple(versions)


def _options(scaler: Any) -> dict[str, Any]:
    return {"growth_factor": float(getattr(scaler, "_growth_factor", 0.0)),
            "backoff_factor": float(getattr(scaler, "_backoff_factor", 0.0)),
            "growth_interval": int(getattr(scaler, "_growth_interval", 0))}
