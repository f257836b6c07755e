# SPDX-License-Identifier: Apache-2.0
"""What is known of a step and of its replay, and whether they are the same: hunt::compare_replay in Python."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from nanhunt import _library as lib

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._values import Values

_Tensor = torch.Tensor
REPRODUCED, CLEAN, DIFFERS, REFUSED = 1, 2, 3, 4

# (kind, path) -> (finite, checksum)
Facts = dict[tuple[int, str], tuple[bool, int]]

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
            parts.append(f"{_counted(n, 'gradient')} at the door")
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
