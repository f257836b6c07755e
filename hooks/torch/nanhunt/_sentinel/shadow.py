# SPDX-License-Identifier: Apache-2.0
"""boundary=deferred: copies of parameters and optimizer state on their device, as they were when a step was computed.

Its readings come when the optimizer has run. A slot keeps one step until they are here; what it may cost is bounded,
and told.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _device
from nanhunt._device import alone
from nanhunt._sentinel.tape import Held, TapeOfStep, version_of

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
_SHARE = 4           # one in so many bytes that are free on the device may be used, where nothing else was said
_MOST = 2            # slots: the next step's boundary may come before the readings of this one
_LOOK_AGAIN = 64     # boundaries after which state is looked for again
_PLAIN = (_Tensor, torch.nn.Parameter)

_MIB = float(1 << 20)


class Slot:
    """Parameters and state of one step."""

    def __init__(self, parameters: Sequence[_Tensor], states: Sequence[tuple[str, _Tensor]]) -> None:
        self.parameters = list(parameters)
        self.state_names = [name for name, _ in states]
        self.copies = [torch.empty_like(p) for p in parameters]
        self.states = [torch.empty_like(t) for _, t in states]
        self.covered = {id(p): at for at, p in enumerate(parameters)}
        self.versions: list[int] = []
        self.others: list[tuple[_Tensor, int]] = []  # parameters that are not copied, and their versions
        self.numbers: dict[tuple[int, int], _Tensor] = {}  # by id and version: single ones that ops of the step read
        self.taken = False
        self.shown = False   # a replay has given its contents numbers
        self._marks: list[tuple[_device.Lane, Any]] = []

    def fill(self, states: Sequence[tuple[str, _Tensor]]) -> None:
        self._begin()
        groups: dict[Any, tuple[list[_Tensor], list[_Tensor]]] = {}
        for to, source in zip([*self.copies, *self.states], [*self.parameters, *[t for _, t in states]]):
            targets, sources = groups.setdefault((to.device, to.dtype), ([], []))
            targets.append(to)
            sources.append(source.detach())
        for targets, sources in groups.values():
            torch._foreach_copy_(targets, sources)
        self.versions = [p._version for p in self.parameters]
        self._end()

    def _begin(self) -> None:
        """What was queued last for this slot comes first, also where it was on another stream."""
        for lane, mark in self._marks:
            lane.after(mark)

    def _end(self) -> None:
        lanes = {t.device: _device.lane_of(t.device) for t in self.copies}
        self._marks = [(lane, lane.mark()) for lane in lanes.values()]

    def as_it_was(self, t: _Tensor, version: int) -> bool:
        """Whether the slot has it as it was at this version."""
        at = self.covered.get(id(t))
        return at is not None and self.versions[at] == version or (id(t), version) in self.numbers

    def keep_numbers(self, tape: TapeOfStep) -> None:
        """A loss scale, say: it is written in place when the step is over."""
        held = tape.numbers()
        with alone():
            self.numbers = {(id(h.tensor), h.version): h.tensor.detach().clone() for h in held if h.is_unchanged()}

    def number(self, held: Held) -> _Tensor | None:
        return self.numbers.get((id(held.tensor), held.version))

    def copy_of(self, p: _Tensor) -> _Tensor | None:
        at = self.covered.get(id(p))
        return None if at is None else self.copies[at]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The parameters hold what they held then. Not a bit of them is moved, nor their versions."""
        now = [p.data for p in self.parameters]
        self._begin()
        try:
            for p, copy in zip(self.parameters, self.copies):
                p.data = copy
            yield
        finally:
            for p, data in zip(self.parameters, now):
                p.data = data
            self.shown = True
            self._end()


class Shadows:
    def __init__(self, session: Session, values: Values) -> None:
        self._session, self._values = session, values
        self._slots: list[Slot] = []
        self._most = 0
        self._budget: int | None = None
        self._key: Any = None
        self._trained: list[_Tensor] = []
        self._found: list[tuple[str, _Tensor]] = []   # all state there is
        self._states: list[tuple[str, _Tensor]] = []  # ... as far as it is copied
        self._boundaries = 0
        self._told: set[str] = set()

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._session.note(text)

    def fits(self, parameters: Sequence[tuple[_Tensor, str]]) -> bool:
        """Whether there is room for what a step was computed from."""
        self._look(parameters)
        return self._most > 0 or not self._trained

    def take(self, parameters: Sequence[tuple[_Tensor, str]], tape: TapeOfStep) -> tuple[Slot | None, str]:
        """What is there now, in a slot until `give`; or why there is none."""
        self._look(parameters)
        if not self._trained:
            return None, "none of its parameters can be copied, and they had changed when its readings came"
        if not self._most:
            return None, "the shadow copy that boundary=deferred needs for it does not fit into the memory it may use"
        slot = next((s for s in self._slots if not s.taken), None)
        try:
            with alone():
                if slot is None and len(self._slots) < self._most:
                    slot = Slot(self._trained, self._states)
                    self._slots.append(slot)
                    self._tell(self._in_words())
                if slot is None:
                    return None, ("the readings of the steps before it were not there yet, and the shadow copies were "
                                  "theirs")
                if slot.shown:
                    for t in slot.copies:
                        if self._values.knows(t):
                            self._values.written(t)
                    slot.shown = False
                slot.fill(self._states)
                slot.keep_numbers(tape)
        except torch.OutOfMemoryError:
            self._most = len(self._slots)
            self._tell("a shadow copy for boundary=deferred, for want of memory on the device")
            return None, "the device had no memory left for its shadow copy"
        slot.others = [(p, version_of(p)) for p, _ in parameters if id(p) not in slot.covered]
        slot.taken = True
        return slot, ""

    def give(self, slot: Slot | None) -> None:
        if slot is not None:
            slot.taken, slot.numbers = False, {}

    def _in_words(self) -> str:
        what = "parameters and optimizer state" if self._states else "parameters"
        size = len(self._slots) * (_bytes(self._trained) + _bytes([t for _, t in self._states]))
        return (f"what boundary=deferred costs on {self._trained[0].device.type}: {size / _MIB:.1f} MiB of its memory "
                f"for {len(self._slots)} shadow cop{'y' if len(self._slots) == 1 else 'ies'} of {what}")

    def _look(self, parameters: Sequence[tuple[_Tensor, str]]) -> None:
        """What is to be copied, and whether it fits."""
        optimizers = self._session._keep
        key = (id(parameters), len(parameters), tuple((id(o), id(o.state), len(o.state)) for o in optimizers))
        self._boundaries += 1
        if key == self._key and self._boundaries < _LOOK_AGAIN:
            return
        self._key, self._boundaries = key, 0
        trained = [p for p, _ in parameters if p.requires_grad and _is_plain(p)]
        states = []
        for optimizer in optimizers:
            for p, path in self._session.parameters_of(optimizer):
                if p not in optimizer.state:
                    continue
                for name, t in optimizer.state[p].items():
                    if isinstance(t, _Tensor) and t.is_floating_point() and t.numel() > 1 and _is_plain(t):
                        states.append((f"{path}.{name}", t))
        same = ([id(p) for p in trained] == [id(p) for p in self._trained] and
                _geometry([("", p) for p in trained]) == _geometry([("", p) for p in self._trained]) and
                _geometry(states) == _geometry(self._found))
        self._found = states
        if same:
            self._states = states if self._states else []
            return
        self._trained, self._states, self._slots = trained, [], []
        size, more = _bytes(trained), _bytes([t for _, t in states])
        budget = self._room(trained)
        if size + more <= budget:
            self._states = states
            size += more
        elif size <= budget and states:
            self._tell(f"optimizer state in the shadow copy of boundary=deferred: {more / _MIB:.1f} MiB are too many")
        if not trained:
            self._most = 0
            return
        self._most = min(_MOST, budget // max(size, 1)) if size else 0
        if not self._most:
            self._tell(f"a shadow copy for boundary=deferred: {size / _MIB:.1f} MiB of parameters, of "
                       f"{budget / _MIB:.1f} MiB that it may use")

    def _room(self, trained: Sequence[_Tensor]) -> int:
        if self._budget is None:
            given = self._session.options.shadow_mb
            if given is not None:
                self._budget = given * 1_000_000
            else:
                devices = dict.fromkeys(p.device for p in trained)
                try:
                    self._budget = min((_device.lane_of(d).room() // _SHARE for d in devices), default=0)
                except Exception as error:
                    self._session.note(f"the memory that is free on a device: {type(error).__name__}")
                    self._budget = 0
        return self._budget


def _is_plain(t: _Tensor) -> bool:
    return type(t) in _PLAIN and t.layout is torch.strided and not t.is_meta and _device.is_away(t)


def _bytes(tensors: Sequence[_Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _geometry(tensors: Sequence[tuple[str, _Tensor]]) -> list[Any]:
    return [(name, t.device, t.dtype, t.shape) for name, t in tensors]
