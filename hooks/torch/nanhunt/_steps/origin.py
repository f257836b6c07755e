# SPDX-License-Identifier: Apache-2.0
"""The operation at which badness began, again: the tap has kept what it read, and it is computed from that in its own
format, in fp32 and in fp64, and with what advice would change; its inputs are written as safetensors. Nothing of the
program's runs.
"""
from __future__ import annotations

import ctypes as c
import json
import math
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._pytorch import no_transforms, no_warnings
from nanhunt._steps.remedies import try_remedies
from nanhunt._steps.trial import SAME, WIDER, first_bad, is_given_infinity, is_random, readable, tensors
from nanhunt._tap.plain import DTYPES, call_of
from nanhunt._tap.tap import Schema, schema_of
from nanhunt._tap.tap_library import unheard

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._tap.tap import Tap

_Tensor = torch.Tensor
MAX_BYTES = 256 << 20     # of a capture
_PROVED = 3               # operations of a step
_NAMES = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
          torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}
_WIDER = {torch.float16: (torch.float32, torch.float64), torch.bfloat16: (torch.float32, torch.float64),
          torch.float32: (torch.float64,), torch.float64: ()}


class Call:
    """One dispatched call, with what it read. `began`: badness did, at it; else it used what such a call has made.
    `graphed`: autograd was to take its derivative."""

    __slots__ = ("func", "plan", "args", "kwargs", "results", "first_seq", "rows", "phase", "began", "graphed")

    def __init__(self, func: Any, plan: Schema, args: Any, kwargs: Any, results: Any, first_seq: int,
                 rows: int, phase: int, flags: int) -> None:
        self.func, self.plan, self.args, self.kwargs, self.results = func, plan, args, kwargs, results
        self.first_seq, self.rows, self.phase = first_seq, rows, phase
        self.began, self.graphed = bool(flags & 1), bool(flags & 2)


def kept_by(tap: Tap) -> list[Call]:
    """What the tap has kept of the step that runs, without calls that Python cannot make: of an unknown format."""
    kept: list[Call] = []
    for one in tap.kept():
        try:
            func, args, kwargs = call_of(one.op, one.overload, one.args)
        except (AttributeError, KeyError):
            continue
        results = one.results[0] if len(one.results) == 1 else one.results
        kept.append(Call(func, schema_of(func), args, kwargs, results, one.first_seq, one.rows, one.phase, one.flags))
    return kept


@contextmanager
def _no_dispatch() -> Iterator[None]:
    from torch.utils._python_dispatch import _disable_current_modes

    with unheard(), no_warnings(), no_transforms(), _disable_current_modes():
        yield


def prove(session: Session, tap: Tap) -> None:
    """After a bad step whose operations were heard: probes and captures of those at which badness began first."""
    recorder, kept = session.recorder, kept_by(tap)
    tap.keep(0)
    if recorder is None or not kept:
        return
    step, proved = session.state.step, 0
    try:
        with _no_dispatch(), torch.no_grad():
            for call in (one for one in kept if one.began):
                at = None if is_given_infinity(call) else _began_at(call)
                if at is None:
                    continue
                alone = _alone(call, at)
                if session.options.captures:
                    _capture(session, alone, step)
                if not call.plan.op.startswith("aten::"):  # it may keep a state
                    session.note("origins that were not computed again, for they run code of the program's")
                elif is_random(call):  # it would draw numbers of the program's
                    session.note("origins that were not computed again, for they draw random numbers")
                else:
                    _probe(session, alone, step)
                    _try(session, alone, kept, step)
                proved += 1
                if proved == _PROVED:
                    break
    except Exception as error:
        session.failed(error, "computing an origin again")


def _try(session: Session, call: Call, kept: Sequence[Call], step: int) -> None:
    """Advice is a help: without it the origin is told all the same."""
    try:
        try_remedies(session, call, kept, step)
    except Exception as error:
        session.failed(error, "trying advice")


def _began_at(call: Call) -> int | None:
    """Which of its rows is bad first; None: none that was kept."""
    if not call.plan.per_element or call.rows < 2:
        return 0
    results = _results(call)
    if not results:
        return 0
    return next((i for i, t in enumerate(results) if first_bad(t) >= 0), None)


def _alone(call: Call, index: int) -> Call:
    """The call for one element of its lists, where rows are told for each."""
    if not call.plan.per_element or call.rows < 2:
        return call

    def one(value: Any) -> Any:
        if isinstance(value, list) and len(value) == call.rows:
            return [value[index]]
        return value

    return Call(call.func, call.plan, [one(a) for a in call.args], {k: one(v) for k, v in call.kwargs.items()},
                one(call.results), call.first_seq + index, 1, call.phase, call.began | call.graphed << 1)


def _run(call: Call, dtype: torch.dtype | None) -> list[_Tensor]:
    """What the call writes and returns, from copies; with `dtype`, floating tensors in that one."""
    def convert(value: Any) -> Any:
        if isinstance(value, _Tensor):
            return value.clone() if dtype is None or not value.is_floating_point() else value.to(dtype, copy=True)
        if isinstance(value, (list, tuple)):
            return [convert(v) for v in value]
        if dtype is not None and value in _WIDER and isinstance(value, torch.dtype):
            return dtype
        return value

    args = [convert(a) for a in call.args]
    kwargs = {k: convert(v) for k, v in call.kwargs.items()}
    result = call.func(*args, **kwargs)
    returned = tensors(result)
    if call.plan.writes and not returned:
        for arg, value in zip(call.plan.args, args):
            if arg.written:
                returned += tensors(value)
    return returned


def _results(call: Call) -> list[_Tensor]:
    return tensors(call.results)


def _bits_agree(a: _Tensor, b: _Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return bool(torch.equal(a, b))
    return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


def _probe(session: Session, call: Call, step: int) -> None:
    recorder = session.recorder
    assert recorder is not None
    stored = _NAMES.get(_floating(tensors((call.args, call.kwargs, call.results))), "")
    if not stored:
        return
    own = next(k for k, v in _NAMES.items() if v == stored)
    at = -1

    def record(mode: int, dtype: torch.dtype, out: _Tensor | None, text: str = "") -> None:
        kinds = (torch.isnan, torch.isposinf, torch.isneginf)
        counts = [0, 0, 0] if out is None else [int(is_kind(readable(out)).sum()) for is_kind in kinds]
        number = float(out.reshape(-1)[at]) if out is not None and 0 <= at < out.numel() else 0.0
        recorder.probe(seq=call.first_seq, step=step, mode=mode, dtype=DTYPES[dtype], ops=1, ran=int(out is not None),
                       nan=counts[0], pos_inf=counts[1], neg_inf=counts[2], flat_index=at, number=number, text=text)

    which = 0
    recorded = _results(call)
    try:
        again = _run(call, None)
    except Exception as error:
        record(SAME, own, None, f"It could not be computed again: {type(error).__name__}.")
        return
    wrote = [t for arg, value in zip(call.plan.args, call.args) if arg.written for t in tensors(value)]
    if not recorded and wrote:  # returns nothing: what it wrote was not kept, only that it was bad
        recorded = again
    bad = [i for i, t in enumerate(recorded) if first_bad(t) >= 0]
    if not bad or len(again) != len(recorded):
        return
    which = bad[0]
    at = first_bad(recorded[which])
    if first_bad(again[which]) < 0:
        record(SAME, own, again[which])
        return
    if not _bits_agree(again[which], recorded[which]):
        record(SAME, own, None, "Computed again from the same inputs it gave other numbers.")
        return
    record(SAME, again[which].dtype, again[which])
    for dtype in _WIDER.get(again[which].dtype, ()):
        try:
            out = _run(call, dtype)
        except Exception:
            continue  # there is no such kernel
        if which < len(out) and out[which].dtype == dtype:
            record(WIDER, dtype, out[which])


def _floating(tensors: list[_Tensor]) -> Any:
    return next((t.dtype for t in tensors if t.is_floating_point()), None)


# Captures.
def _slots(call: Call) -> list[tuple[str, _Tensor]]:
    """Inputs by the names that their row has; a name that occurs again gets a mark."""
    named: list[tuple[str, _Tensor]] = []
    taken: set[str] = set()
    by_name = {arg.name: arg for arg in call.plan.args}
    given = [(a, v) for a, v in zip(call.plan.args, call.args)]
    given += [(by_name[k], v) for k, v in call.kwargs.items() if k in by_name]
    for arg, value in given:
        for t in tensors(value):
            slot = arg.slot
            while slot in taken:
                slot += "'"
            taken.add(slot)
            named.append((slot, t))
    return named


def _encoded(value: Any, slots: dict[int, str]) -> Any:
    """An argument as data: never as code."""
    if isinstance(value, _Tensor):
        return ["tensor", slots[id(value)]]
    if value is None:
        return ["none"]
    if isinstance(value, (bool, int, str)):
        return [type(value).__name__, value]
    if isinstance(value, float):
        return ["float", value if math.isfinite(value) else str(value)]
    if isinstance(value, (list, tuple)):
        return ["list", [_encoded(v, slots) for v in value]]
    if isinstance(value, torch.dtype) and value in _NAMES:
        return ["dtype", str(value).replace("torch.", "")]
    raise TypeError(type(value).__name__)


def call_as_data(call: Call, named: list[tuple[str, _Tensor]]) -> str:
    """The call as JSON, "" where an argument has no such form."""
    slots = {id(t): slot for slot, t in named}
    leave_out = {"device", "layout", "pin_memory", "memory_format", "generator"}
    try:
        func = call.func
        return json.dumps({
            "op": call.plan.op.split("::")[-1], "namespace": call.plan.op.split("::")[0],
            "overload": getattr(func, "_overloadname", "default") or "default",
            "args": [_encoded(v, slots) for v in call.args],
            "kwargs": {k: _encoded(v, slots) for k, v in call.kwargs.items() if k not in leave_out}})
    except (TypeError, KeyError):
        return ""


def write_safetensors(path: Path, named: list[tuple[str, _Tensor]], metadata: dict[str, str]) -> int:
    """A new file of mode 0600: 8 bytes of length, a JSON header, then numbers, row-major. Its size."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    blobs: list[bytes] = []
    at = 0
    for name, t in named:
        plain = t.detach().cpu().contiguous()
        blob = c.string_at(plain.data_ptr(), plain.numel() * plain.element_size()) if plain.numel() else b""
        header[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for blob in blobs:
            file.write(blob)
    return 8 + len(text) + at


def _capture(session: Session, call: Call, step: int) -> None:
    recorder, seq = session.recorder, call.first_seq
    assert recorder is not None
    named = _slots(call)
    if not named or any(t.dtype not in _NAMES or t.layout is not torch.strided for _, t in named):
        session.note("inputs of an origin that cannot be written")
        return
    if sum(t.numel() * t.element_size() for _, t in named) > MAX_BYTES:
        session.note("inputs of an origin that are too large to be kept")
        return
    folder = Path(recorder.folder()) / "captures"
    folder.mkdir(mode=0o700, exist_ok=True)
    data = call_as_data(call, named)
    metadata = {"op": call.plan.op, **({"nanhunt.call": data} if data else {})}
    try:
        size = write_safetensors(folder / f"op-{seq}.safetensors", named, metadata)
    except (OSError, RuntimeError, TypeError) as error:
        session.note(f"captures: {type(error).__name__}")
        return
    recorder.capture(seq, step, f"op-{seq}.safetensors", size)
