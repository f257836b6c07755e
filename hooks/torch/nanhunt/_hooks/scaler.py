# SPDX-License-Identifier: Apache-2.0
"""What a loss scaler and gradient clipping did, as scaler rows.

On the CPU everything is read. Elsewhere nothing is waited for that the scaler has not waited for itself: the scale is
computed along by torch's own rule, and read again only when something else wrote it. A flag that only a fused optimizer
reads is fetched, and rows wait for it.
"""
from __future__ import annotations

import ctypes
import math
import struct
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _device
from nanhunt import _library as lib
from nanhunt._device_reader import Readings
from nanhunt._listener import Listener
from nanhunt._pytorch import shows_saved
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session

_PEEK: dict[torch.dtype, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double,
                                 torch.int32: ctypes.c_int32, torch.int64: ctypes.c_int64}


def peek(t: Any) -> float | None:
    """The number in a tensor of one element, without an op that anything could see; None where that would take one."""
    kind = type(t)
    if kind is float:
        return t  # type: ignore[no-any-return]
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        return float(t) if isinstance(t, (int, float)) else None
    if t.numel() != 1 or not t.is_cpu:
        return None
    number = _PEEK.get(t.dtype)
    if number is not None:
        return float(number.from_address(t.data_ptr()).value)
    if t.dtype == torch.float16:
        return float(struct.unpack("e", ctypes.string_at(t.data_ptr(), 2))[0])
    if t.dtype == torch.bfloat16:  # the upper half of a float
        return float(struct.unpack("<f", b"\0\0" + ctypes.string_at(t.data_ptr(), 2))[0])
    return None


_SAME_NUMBER = {"ToCopyBackward0", "ViewBackward0", "ReshapeAliasBackward0", "SqueezeBackward0", "UnsqueezeBackward0"}
_FACTORS = ("MulBackward0", "DivBackward0")
_MOST_NODES = 6  # casts, views and factors, from the loss on


def factor_of(loss: Any, gradient: Any = None) -> float | None:
    """By which number, one that learns nothing, a loss was multiplied last; `gradient`: with which its backward begins.
    A division that makes it smaller is a mean over micro-batches, and what came before it counts. Read from its graph:
    no op is called, and no hook of the program's on what is saved. None: by none, or it cannot be read so."""
    found = peek(gradient) if gradient is not None else None
    if found is not None and found != 1:
        return found
    node = getattr(loss, "grad_fn", None)
    for _ in range(_MOST_NODES):
        if node is None:
            break
        name = node.name()
        if name not in _SAME_NUMBER:
            number = _factor_at(node, name) if name in _FACTORS else None
            found = number if number is not None else found
            if number is None or name != "DivBackward0" or not abs(number) < 1:
                break
        node = next((to for to, _ in node.next_functions if to is not None), None)
    return found


unread: list[str] = []  # factors that were met and that this PyTorch does not show


def _factor_at(node: Any, name: str) -> float | None:
    """Of a node of the graph: by which number that learns nothing it multiplies."""
    learns = tuple([to is not None for to, _ in node.next_functions])
    if learns == (True, False):
        side = "other"
    elif learns == (False, True) and name == "MulBackward0":
        side = "self"
    else:
        return None
    if not shows_saved:
        unread.append(name)
        return None
    try:
        saved = getattr(node, f"_raw_saved_{side}")
        number = peek(saved.data) if saved.unpack_hook is None else None
    except (AttributeError, RuntimeError):  # not saved, or freed
        return None
    return 1 / number if number and name == "DivBackward0" else number


_Numbers = tuple[float, int]  # scale and growth tracker


def read(t: Any) -> float | None:
    """As `peek`; of a tensor on a device as well, which is waited for. For levels that wait anyway."""
    number = peek(t)
    if number is not None or not isinstance(t, torch.Tensor) or t.is_cpu or t.numel() != 1:
        return number
    try:
        with unheard(), torch.no_grad():
            return float(t)
    except (RuntimeError, TypeError, ValueError):
        return None


def as_f32(number: float) -> float:
    """As torch stores it."""
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


class ScalerState:
    """What is known of one scaler."""

    __slots__ = ("scaler", "scale", "tracker", "versions", "skipped", "unread")

    def __init__(self, scaler: Any) -> None:
        self.scaler = weakref.ref(scaler)
        self.scale, self.tracker = 1.0, 0
        self.versions: tuple[int, ...] = ()  # of its tensors, when scale and tracker were as above
        self.skipped = False                 # since the last update: one of its optimizers was held back
        self.unread = False                  # ... flags that would tell could not be read


def flags_of(scaler: Any, optimizer: Any) -> list[torch.Tensor]:
    state = getattr(scaler, "_per_optimizer_states", {})
    state = state.get(id(optimizer), {}) if hasattr(state, "get") else {}
    return list(state.get("found_inf_per_device", {}).values())


def found_inf(scaler: Any, optimizer: Any) -> bool | None:
    """Whether the scaler found bad gradients of this optimizer; None: only the device knows."""
    flags = [peek(flag) for flag in flags_of(scaler, optimizer)]
    return None if any(flag is None for flag in flags) else any(flag > 0 for flag in flags if flag is not None)


def reads_flag_itself(optimizer: Any) -> bool:
    """A fused optimizer: GradScaler.step calls it in any case, and it holds itself back."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def held_back(scaler: Any, optimizer: Any, ran: bool) -> bool | None:
    """Whether GradScaler.step kept the optimizer from changing anything. `ran`: its step was called. None: only the
    device knows."""
    found = found_inf(scaler, optimizer)
    if found is not None:
        return found
    if not reads_flag_itself(optimizer):
        return not ran
    return None


class ScalerWatch(Listener):
    def __init__(self, session: Session) -> None:
        self.session = session
        self._states: dict[int, ScalerState] = {}
        self._in_scaler = 0  # a scaler's own calls of itself

    def _event(self, action: int, scaler: Any = None, optimizer: Any = None, known: _Numbers | None = None,
               **fields: Any) -> None:
        """`known`: scale and tracker, as they were just read."""
        session = self.session
        if session.open() is None:
            return
        state = self._states[id(scaler)] if scaler is not None else None
        number = session.number_of(optimizer) if optimizer is not None else 0
        step, micro_batch = session.state.step, session.state.micro_batch

        def write() -> None:
            if state is not None and known is not None:
                state.scale, state.tracker = known
            self._write(action, state, step, micro_batch, number, fields)

        session.pending.later(write)

    def _write(self, action: int, state: ScalerState | None, step: int, micro_batch: int, optimizer: int,
              fields: dict[str, Any]) -> None:
        session, recorder = self.session, self.session.recorder
        if recorder is None:
            return
        if state is not None:
            session.last_scale, session.has_scaler = state.scale, True
            fields.setdefault("growth_tracker", state.tracker)
        recorder.scaler(step=step, micro_batch=micro_batch, action=action, optimizer=optimizer,
                        scale=session.last_scale, **fields)

    # What the scaler holds.
    def _look(self, scaler: Any) -> ScalerState:
        """The scaler's state, known to be that of now. What nothing watched has set is told."""
        state = self._states.get(id(scaler))
        if state is None or state.scaler() is not scaler:
            state = self._states[id(scaler)] = ScalerState(scaler)
            self._event(lib.CREATE, scaler, known=self._read(scaler, state), dynamic=1, text="torch.amp",
                        **_options(scaler))
        elif state.versions != _versions(scaler):
            known = self._read(scaler, state)
            step, micro_batch = self.session.state.step, self.session.state.micro_batch

            def write() -> None:
                before = state.scale, state.tracker
                state.scale, state.tracker = known
                if before != known:  # load_state_dict, or a hand on its tensors
                    self._write(lib.SET, state, step, micro_batch, 0, {})

            if self.session.open() is not None:
                self.session.pending.later(write)
        return state

    def _read(self, scaler: Any, state: ScalerState, why: str = "a scale that was set") -> _Numbers:
        scale, tracker = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
        state.versions = _versions(scaler)
        first = as_f32(float(getattr(scaler, "_init_scale", 1.0))) if scale is None else self._number(scale, why)
        if tracker is None:
            return first, int(getattr(scaler, "_init_growth_tracker", 0))
        return first, int(self._number(tracker, why))

    def _number(self, t: Any, why: str) -> float:
        number = peek(t)
        if number is None:
            self.session.note(f"waits for the device that the watch has added: {why}")
            number = float(t)
        return number

    def _follow(self, scaler: Any, state: ScalerState) -> None:
        """After an update elsewhere than on the CPU: what the scaler must hold by its own rule."""
        if state.skipped:
            state.scale = as_f32(state.scale * float(scaler._backoff_factor))
            state.tracker = 0
        elif state.tracker + 1 == int(scaler._growth_interval):
            grown = as_f32(state.scale * float(scaler._growth_factor))
            state.scale = grown if math.isfinite(grown) else state.scale
            state.tracker = 0
        else:
            state.tracker += 1

    # What happens to it.
    def before_scale(self, scaler: Any, loss: Any) -> None:
        self._look(scaler)
        facts, number = self.session.facts, peek(loss)
        if number is not None and (facts.loss is None or math.isnan(facts.loss)):
            facts.loss = number

    def after_scale(self, scaler: Any, loss: Any, scaled: Any, error: BaseException | None) -> None:
        if id(scaler) in self._states:
            state = self._states[id(scaler)]
            state.versions = _versions(scaler)  # the first call makes its tensors
            self._event(lib.SCALED, scaler)

    def before_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._look(scaler)

    def after_unscale(self, scaler: Any, optimizer: torch.optim.Optimizer, result: None,
                      error: BaseException | None) -> None:
        if error is not None:
            if not self._in_scaler:  # else the call around it tells
                self._event(lib.REFUSED, scaler, optimizer, text=str(error))
            return
        self._event(lib.UNSCALED, scaler, optimizer, found_inf=int(found_inf(scaler, optimizer) or False))

    def before_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        self._look(scaler)
        self._in_scaler += 1

    def after_scaler_step(self, scaler: Any, optimizer: torch.optim.Optimizer, result: Any,
                          error: BaseException | None) -> None:
        self._in_scaler = max(0, self._in_scaler - 1)
        if error is not None:
            if not self.session.optimizer_ran:  # else it is the optimizer's own
                self._event(lib.REFUSED, scaler, optimizer, text=str(error))
            return
        session, state = self.session, self._states[id(scaler)]
        skipped = held_back(scaler, optimizer, self.session.optimizer_ran)
        if skipped is None:
            self._fetch_flag(scaler, optimizer, state)
            return
        held = skipped

        def write() -> None:
            state.skipped = state.skipped or held

        session.pending.later(write)
        self._event(lib.SKIPPED if held else lib.STEPPED, scaler, optimizer, found_inf=int(held))

    def _fetch_flag(self, scaler: Any, optimizer: torch.optim.Optimizer, state: ScalerState) -> None:
        """What a fused optimizer has read on the device."""
        session, facts = self.session, self.session.facts
        step, micro_batch, number = session.state.step, session.state.micro_batch, session.number_of(optimizer)

        def write(held: bool) -> None:
            state.skipped, facts.skipped = state.skipped or held, facts.skipped or held
            self._write(lib.SKIPPED if held else lib.STEPPED, state, step, micro_batch, number,
                        {"found_inf": int(held)})

        self._fetch(flags_of(scaler, optimizer), state, write)

    def _fetch(self, flags: Sequence[torch.Tensor], state: ScalerState, act: Callable[[bool], None]) -> None:
        """`act` gets whether one of them is set, once they have come."""
        readings = Readings(self.session)
        for flag in flags:
            readings.number(flag)
        if not readings.send():
            state.unread = True
            return

        def arrived() -> None:
            readings.take()
            act(any(flag > 0 for flag in readings.numbers))

        self.session.pending.expect(readings.fetches, arrived)

    def before_update(self, scaler: Any, given: bool) -> None:
        state = self._look(scaler)
        states = list(getattr(scaler, "_per_optimizer_states", {}).values())
        flags = [flag for its in states for flag in its.get("found_inf_per_device", {}).values()]
        known = [peek(flag) for flag in flags]
        if None not in known:  # also of optimizers that were unscaled and never stepped
            skipped = any(flag > 0 for flag in known if flag is not None)

            def write() -> None:
                state.skipped = skipped

            self.session.pending.later(write)
            return
        unread = [flag for its in states if getattr(its.get("stage"), "name", "") != "STEPPED"
                  for flag in its.get("found_inf_per_device", {}).values()]

        def hold(held: bool) -> None:
            state.skipped = state.skipped or held

        if unread:
            self._fetch(unread, state, hold)

    def after_update(self, scaler: Any, given: bool, result: None, error: BaseException | None) -> None:
        if id(scaler) not in self._states:
            return
        if error is not None:
            self._event(lib.REFUSED, scaler, text=str(error))
            return
        state = self._states[id(scaler)]
        scale = getattr(scaler, "_scale", None)
        known = self._read(scaler, state) if given or scale is None or not _device.is_away(scale) else None
        if known is None and state.unread and not _device.is_capturing():  # its rule needs what could not be read
            known = self._read(scaler, state, "a scale whose flags could not be read")
        state.unread = False
        state.versions = _versions(scaler)

        def follow() -> None:
            if known is None:
                self._follow(scaler, state)
            state.skipped = False

        self.session.pending.later(follow)
        self._event(lib.SET if given else lib.UPDATED, scaler, known=known, dynamic=1, **_options(scaler))

    def after_clip(self, parameters: Sequence[torch.Tensor], bound: float, total_norm: Any,
                   error: BaseException | None) -> None:
        norm, session = peek(total_norm), self.session
        if norm is None and isinstance(total_norm, torch.Tensor) and _device.is_away(total_norm) and (
                session.open() is not None):
            readings = Readings(session)
            readings.number(total_norm)
            if readings.send():
                step, micro_batch = session.state.step, session.state.micro_batch

                def write() -> None:
                    readings.take()
                    self._write(lib.CLIPPED, None, step, micro_batch, 0,
                               {"total_norm": readings.numbers[0], "max_norm": bound})

                session.pending.expect(readings.fetches, write)
                return
        self._event(lib.CLIPPED, total_norm=0.0 if norm is None else norm, max_norm=bound)  # by value there is none


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
