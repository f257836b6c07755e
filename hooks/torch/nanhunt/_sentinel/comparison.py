# SPDX-License-Identifier: Apache-2.0
"""What is known of a step and of its replay, and whether they are the same: hunt::compare_replay in Python."""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._device import is_away
from nanhunt._device_reader import Reading, read_now

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.values import Values

_Tensor = torch.Tensor
REPRODUCED, CLEAN, DIFFERS, REFUSED = 1, 2, 3, 4

# (kind, path) -> (finite, checksum, or what stands for it)
Facts = dict[tuple[int, str], tuple[bool, Any]]
_ROUNDING = 1e-5  # of norms: where a gradient lies in memory decides in which order it is summed up

_NAMES = {lib.MARK_PARAMETER: "parameter", lib.MARK_STATE: "state", lib.MARK_BUFFER: "buffer"}


def _name_of(kind: int, path: str) -> str:
    if kind == lib.MARK_LOSS:
        return path
    if kind == lib.MARK_GRADIENT:
        return f"the gradient of {path}"
    if kind == OUTPUT:
        return f"output {path}"
    return f"{_NAMES.get(kind, 'value')} {path}"


OUTPUT = 100  # facts about what modules returned


def _counted(n: int, one: str) -> str:
    return f"{n} {one}{'' if n == 1 else 's'}"


def _compared(facts: Facts) -> str:
    counts: dict[int, int] = {}
    for kind, _ in facts:
        counts[kind] = counts.get(kind, 0) + 1
    parts = []
    for kind, n in sorted(counts.items()):
        if kind == lib.MARK_LOSS:
            parts.append("the loss" if n == 1 else f"{n} losses")
        elif kind == lib.MARK_GRADIENT:
            parts.append(f"{_counted(n, 'gradient')} at the boundary")
        elif kind == OUTPUT:
            parts.append(f"{_counted(n, 'output')} of modules")
        else:
            parts.append(_counted(n, _NAMES.get(kind, "value")))
    if not parts:
        return "nothing"
    return ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]


def compare(original: Facts, replay: Facts, bits: bool = True) -> tuple[int, str]:
    """As hunt::compare_replay: result and a sentence. `bits` False: only finiteness can be the same."""
    different, first = 0, ""
    for (kind, path), (finite, checksum) in original.items():
        again = replay.get((kind, path))
        if again is not None and again[0] == finite and (again[1] == checksum or not bits):
            continue
        different += 1
        if different > 1:
            continue
        name, state = _name_of(kind, path), "finite" if finite else "not finite"
        if again is None:
            first = f"{name} did not come about"
        elif again[0] == finite:
            first = f"{name} is {state} in both, with other bits"
        else:
            first = f"{name} was {state} and is {'finite' if again[0] else 'not finite'} in the replay"
    if different == 0:
        if bits:
            return REPRODUCED, f"The replay gave the same bits as the step: {_compared(original)}."
        return REPRODUCED, f"The replay was finite and not finite where the step was: {_compared(original)}."
    was_bad = any(not finite for finite, _ in original.values())
    is_bad = any(not finite for finite, _ in replay.values())
    result = CLEAN if was_bad and not is_bad else DIFFERS
    text = f"Compared: {_compared(original)}. {different} differ{'s' if different == 1 else ''}; {first}."
    if result == CLEAN:
        text += " Nothing became bad in the replay."
    return result, text


def read_facts(session: Session, values: Values, items: Sequence[tuple[int, str, _Tensor]]) -> Facts:
    """Finiteness and checksum of tensors."""
    recorder = session.recorder
    facts: Facts = {}
    if recorder is None:
        return facts
    pairs: list[int] = []
    named = []
    hosts = []
    for kind, path, t in items:
        try:
            t = t.detach()
            if not t.is_cpu:
                t = t.cpu()
                hosts.append(t)
            pairs += (t.data_ptr(), values.layout(t))
            named.append((kind, path))
        except Exception:
            session.note("gradients that are not strided tensors")
    readings, _ = recorder.read(pairs, lib.READ_NORM | lib.READ_CHECKSUM)
    for name, reading in zip(named, readings):
        facts[name] = (reading.bad == 0, int(reading.checksum))
    return facts


class Measure:
    """What stands for the bits of a gradient that was read on a device."""

    __slots__ = ("norm", "amax")

    def __init__(self, reading: Reading) -> None:
        self.norm, self.amax = reading.norm, math.nan if reading.bad else reading.amax  # of what is bad: none

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Measure):
            return False
        return (_same(self.amax, other.amax) and
                (_same(self.norm, other.norm) or math.isclose(self.norm, other.norm, rel_tol=_ROUNDING)))

    __hash__ = None  # type: ignore[assignment]


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def measured(readings: Iterable[Reading]) -> Facts:
    """Of gradients at a boundary."""
    return {(lib.MARK_GRADIENT, r.name): (not r.bad, Measure(r)) for r in readings}


def measure(session: Session, values: Values, gradients: Sequence[tuple[str, _Tensor]]) -> Facts:
    """Of gradients as they are now."""
    facts = measured(read_now(session, [(path, g) for path, g in gradients if is_away(g)]))
    recorder = session.recorder
    here = [(path, g.detach()) for path, g in gradients if not is_away(g)]
    if recorder is not None and here:
        words = [word for _, g in here for word in (g.data_ptr(), values.layout(g))]
        readings, _ = recorder.read(words, lib.READ_NORM)
        facts.update(measured(Reading(path, r.norm, r.amax, r.bad != 0)
                              for (path, _), r in zip(here, readings)))
    return facts
