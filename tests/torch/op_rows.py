# SPDX-License-Identifier: Apache-2.0
"""Sessions at level ops for tests: one whose recorder keeps the rows in lists, one that writes a trace and reports."""
from __future__ import annotations

import ctypes as c
import struct
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from nanhunt import _library as lib
from nanhunt._hooks import hooks
from nanhunt._hooks.dynamo import hide_from_dynamo
from nanhunt._hooks.scaler import ScalerWatch
from nanhunt._options import Options
from nanhunt._recorder import Recorder
from nanhunt._session import Session
from nanhunt._tap.ops import OpsLevel
from nanhunt._tap.tap import TensorSet
from nanhunt._tap.values import Values

PHASES = ["data", "forward", "loss", "scale", "backward", "comm", "unscale", "clip", "optimizer", "update",
          "validation"]
ROLES = ["read", "saved", "overwritten", "mask", "index"]


@dataclass(frozen=True)
class Use:
    """One input or output of an op. `contents` names what it shows: (storage, version)."""

    slot: str
    role: str
    data: int
    contents: tuple[int, int]
    offset: int
    layout: tuple[int, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Op:
    op: str
    phase: str
    module: str
    site: str
    step: int
    micro_batch: int
    dtype: int
    inputs: list[Use]
    outputs: list[Use]
    scalars: dict[str, float]

    @property
    def name(self):
        return self.op.split("::")[-1]

    def input(self, slot):
        return next(use for use in self.inputs if use.slot == slot)

    def reads(self, contents):
        return any(use.contents == contents for use in self.inputs)


@dataclass
class KeptRows:
    """Stands for a recorder: decodes rows as nanhunt_record_rows documents them."""

    ops: list[Op] = field(default_factory=list)
    marks: list[tuple[int, str, Use]] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    steps: list[dict] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    collectives: list[tuple] = field(default_factory=list)
    refused: int = 0
    handle: int = 0
    mistakes: list[BaseException] = field(default_factory=list)  # of ours, in what C calls

    def folder(self):
        """It keeps nothing on disk."""
        return ""

    def __post_init__(self):
        self._texts, self._names, self._layouts, self._calls = {"": 0}, [""], [], []

    def recording(self):
        """As the tap calls it: the same, from C."""
        i64, status = c.c_int64, c.c_int32

        def rows(_, words, count):
            try:
                self._record_rows(None, c.string_at(words, 8 * count), count)
            except Exception as mistake:
                self.mistakes.append(mistake)
            return 0

        def call(_, given):
            told = c.cast(given, c.POINTER(lib.Call)).contents
            inputs = [(told.input_slots[i].decode(), told.input_roles[i]) for i in range(told.input_count)]
            outputs = [told.output_slots[i].decode() for i in range(told.output_count)]
            scalars = [told.scalar_names[i].decode() for i in range(told.scalar_count)]
            return self.call(told.op.decode(), told.compute_dtype, inputs, outputs, scalars)

        def collective(_, given):
            told = c.cast(given, c.POINTER(lib.Collective)).contents
            self.collective(told.step, told.seq, told.group.decode(), told.call, told.kind, told.reduction, told.peer,
                            [told.ranks[i] for i in range(told.rank_count)],
                            [told.shares[i] for i in range(4 * told.share_count)])
            return 0

        self._functions = {
            "rows": c.CFUNCTYPE(status, c.c_void_p, c.c_void_p, c.c_size_t)(rows),
            "text": c.CFUNCTYPE(i64, c.c_void_p, c.c_char_p)(lambda _, text: self.text(text.decode())),
            "layout": c.CFUNCTYPE(i64, c.c_void_p, c.c_int32, c.c_int32, c.POINTER(i64), c.POINTER(i64))(
                lambda _, dtype, n, sizes, strides: self.layout(dtype, sizes[:n], strides[:n])),
            "call": c.CFUNCTYPE(i64, c.c_void_p, c.c_void_p)(call),
            "collective": c.CFUNCTYPE(status, c.c_void_p, c.c_void_p)(collective),
            "next_seq": c.CFUNCTYPE(c.c_uint64, c.c_void_p)(lambda _: self.next_seq()),
            "origins": c.CFUNCTYPE(c.c_uint64, c.c_void_p)(lambda _: 0)}
        recording = lib.Recording()
        for name, function in self._functions.items():
            setattr(recording, name, c.cast(function, c.c_void_p).value)
        return recording

    def collective(self, step, seq, group, call, kind, reduction, peer, ranks, shares=()):
        self.collectives.append((seq, group, call, kind, reduction, ranks, tuple(shares)))

    def bad_since(self, seq):
        return 0

    def next_seq(self):
        return len(self.ops)

    def text(self, text):
        if text not in self._texts:
            self._texts[text] = len(self._names)
            self._names.append(text)
        return self._texts[text]

    def layout(self, dtype, sizes, strides):
        self._layouts.append((dtype, tuple(sizes), tuple(strides)))
        return len(self._layouts) - 1

    def call(self, op, compute_dtype, inputs, outputs, scalars):
        self._calls.append((op, compute_dtype, list(inputs), list(outputs), list(scalars)))
        return len(self._calls) - 1

    def rows(self, words):
        self._record_rows(self.handle, struct.pack(f"={len(words)}q", *words), len(words))

    def _record_rows(self, handle, packed, count):
        assert len(packed) == 8 * count
        words = list(struct.unpack(f"={count}q", packed))
        while words:
            kind = words.pop(0)
            if kind == lib.ROW_RELEASE:
                self.released.append(words.pop(0))
            elif kind == lib.ROW_MARK:
                mark, _, _, path = words[:4]
                self.marks.append((mark, self._names[path], self._use("", 0, words[4:8])))
                del words[:8]
            else:
                assert kind == lib.ROW_OP
                number, step, micro_batch, phase, path, site = words[:6]
                op, dtype, inputs, outputs, scalars = self._calls[number]
                del words[:6]
                uses = []
                for slot, role in [*inputs, *((slot, 0) for slot in outputs)]:
                    uses.append(self._use(slot, role, words[:4]))
                    del words[:4]
                numbers = {}
                for name in scalars:
                    numbers[name] = struct.unpack("=d", struct.pack("=q", words.pop(0)))[0]
                self.ops.append(Op(op, PHASES[phase], self._names[path], self._names[site], step, micro_batch, dtype,
                                   uses[:len(inputs)], uses[len(inputs):], numbers))
        return 0

    def _use(self, slot, role, words):
        data, word, offset, layout = words
        return Use(slot, ROLES[role], data, (word >> 24, word & 0xffffff), offset, self._layouts[layout])

    def step(self, step, skipped, loss, lr, scale, ending=lib.BY_OPTIMIZER, message="", watch_ns=0):
        self.steps.append({"step": step, "skipped": skipped, "loss": loss})

    def scaler(self, **fields):
        pass

    def note(self, step, text, count):
        self.notes[text] = count

    def close(self, unused_in=""):
        pass


def handed_over(monkeypatch):
    """Steps of which the tap gives ops to the recorder, and how many words that are, filled while they run."""
    steps: dict[int, int] = {}
    as_it_is = Recorder.recording

    def recording(self):
        found = as_it_is(self)
        kind = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(c.c_int64), c.c_size_t)
        passed_on = kind(found.rows)

        def rows(to, words, count):
            if words[0] == lib.ROW_OP:
                steps[words[2]] = steps.get(words[2], 0) + count
            return passed_on(to, words, count)

        self.told = kind(rows)  # as long as the recorder
        found.rows = c.cast(self.told, c.c_void_p).value
        return found

    monkeypatch.setattr(Recorder, "recording", recording)
    return steps


hide_from_dynamo([sys.modules[__name__]])  # as a recorder is that is no Python


class Watched:
    """A session with kept rows."""

    def __init__(self, recorder):
        self.session = Session(Options(level="ops", quiet=True))
        self.session.recorder, self.session.threads.watched = recorder, threading.get_ident()
        self.recorder = recorder
        self.values = Values(self.session)
        self.level = OpsLevel(self.session, self.values)
        self.session.listeners += [ScalerWatch(self.session), *self.level.listeners]

    @property
    def ops(self):
        return self.recorder.ops

    def named(self, name, phase=None):
        return [op for op in self.ops if op.name == name and phase in (None, op.phase)]

    def contents(self, tensor):
        word = self.values.identity(tensor)
        return word >> 24, word & 0xffffff

    def producer(self, tensor):
        """The last op that made what the tensor shows now."""
        wanted = self.contents(tensor)
        return next(op for op in reversed(self.ops) if any(use.contents == wanted for use in op.outputs))

    def known_parameters(self):
        return len(self.session.parameter_names)

    def write_unheard(self, tensors):
        self.values.tap.were_written(TensorSet(tensors))

    @contextmanager
    def mode(self):
        """The mode without a root: for single ops."""
        self.level._on()
        yield


@contextmanager
def watched_ops(recorder=None, errors=0):
    """Everything in the block is watched. Mistakes of ours fail the test."""
    watched = Watched(recorder or KeptRows())
    hooks.install(watched.session)
    try:
        yield watched
    finally:
        watched.session.close()
        hooks._session = None
        left = 0
        while torch._C._len_torch_dispatch_stack() > 0:
            torch._C._pop_torch_dispatch_stack(None)
            left += 1
        assert watched.session.errors == errors, watched.session.last_error
        assert left == 0, "a mode was left on"
        assert getattr(watched.recorder, "mistakes", []) == []


@contextmanager
def recorded_ops(run):
    """Everything in the block is recorded below `run`; afterwards report(run) tells what came of it."""
    session = Session(Options(out=str(run), level="ops"))
    values = Values(session)
    session.listeners += [ScalerWatch(session), *OpsLevel(session, values).listeners]
    hooks.install(session)
    try:
        yield session
    finally:
        session.close()
        hooks._session = None
        assert session.errors == 0, session.last_error
        assert session.recorder is None or session.recorder.refused == 0, session.recorder.library.last_error()
