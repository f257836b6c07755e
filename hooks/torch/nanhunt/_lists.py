# SPDX-License-Identifier: Apache-2.0
"""Rows of ops on lists of tensors (foreach and fused optimizers): one row for each element."""
from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _library as lib
from nanhunt._places import IMPORTING
from nanhunt._plans import AS_READ, AS_RESULT, NUMBER, NUMBERS, OTHER, TENSORS, WIDE
from nanhunt._recorder import double_bits
from nanhunt._scaler import peek
from nanhunt._values import PLAIN, Identity, flat

if TYPE_CHECKING:
    from nanhunt._places import Places, Sites
    from nanhunt._plans import Arg, Plan
    from nanhunt._session import Session
    from nanhunt._values import Quad, Values

_Tensor = torch.Tensor


class ListOps:
    """The part of an OpWriter that writes a row for each element of lists: with one row for all, every parameter would
    seem to be made from every other. Single tensors are among the inputs of each."""

    session: Session
    values: Values
    places: Places
    sites: Sites
    owners: dict[int, str]
    step: int | None
    micro_batch: int | None
    phase: int | None

    def _given(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[tuple[Arg, Any]]:
        raise NotImplementedError

    def _is_written(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
        raise NotImplementedError

    def _is_late(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
        raise NotImplementedError

    def _new_call(self, plan: Plan, key: tuple[int, ...]) -> int:
        raise NotImplementedError

    def _owner(self, words: list[int], inputs: int) -> str:
        raise NotImplementedError

    def _per_element(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if kwargs or plan.written_if or not self._in_columns(plan, args, result):
            self._each(plan, args, kwargs, result)

    def _in_columns(self, plan: Plan, args: tuple[Any, ...], result: Any) -> bool:
        """Lists of plain tensors, all of one length, with numbers that are the same for all: nearly every call of an
        optimizer, so this is written for speed. False, and nothing is done: it is another."""
        session, values = self.session, self.values
        recorder = session.recorder
        if recorder is None:
            return True
        key: list[int] = []
        output_key: list[int] = []
        numbers: list[list[int]] = []  # columns
        columns: list[list[Quad]] = []
        written: list[tuple[list[Quad], list[Identity]]] = []
        n = -1
        try:
            for arg, value in zip(plan.args, args):
                kind = arg.kind
                if value is None or kind == OTHER:
                    continue
                if kind == TENSORS:
                    if n < 0:
                        n = len(value)
                    elif n != len(value):
                        return False
                    key.append(arg.as_tensor)
                    if arg.written:
                        identities: list[Identity] = []
                        column = self._quads(value, identities)
                        written.append((column, identities))
                        columns.append([(0, word, offset, layout) for _, word, offset, layout in column])
                        output_key.append(arg.as_written)
                    else:
                        columns.append(self._quads(value, None))
                elif kind == NUMBERS:
                    key.append(arg.as_number)
                    numbers.append([double_bits(float(number)) for number in value])
                elif type(value) is float or type(value) is int:
                    key.append(arg.as_number)
                    numbers.append([double_bits(float(value))] * n)
                else:
                    return False
            if n <= 0 or any(len(column) != n for column in numbers):
                return False
            if plan.may_be_late and self._is_late(plan, args, None):
                return False
            outputs: list[list[Quad]] = []
            if not plan.writes:
                if len(result) != n:
                    return False
                outputs.append(self._quads(result, None))
                output_key.append(AS_RESULT)
        except (RuntimeError, NotImplementedError, KeyError, TypeError, AttributeError, OverflowError):
            return False
        site = self.sites.of(sys._getframe(3), recorder)
        if site == IMPORTING:
            return True
        if len(columns) > len(written) > 0:
            gone = {quad[1] for column, _ in written for quad in column}
            for column in columns:
                for i, quad in enumerate(column):
                    if quad[0] and quad[1] in gone:  # what was read is no longer there
                        column[i] = (0, *quad[1:])
        for column, identities in written:
            now: list[Quad] = []
            for (data, word, offset, layout), identity in zip(column, identities):
                if identity.word == word:
                    values.bump(identity)
                now.append((data, identity.word, offset, layout))
            outputs.append(now)
        known = (*key, *output_key)
        wide, calls, texts = values.wide, plan.calls, recorder._texts
        call = calls.get(known)
        if call is None:
            call = self._new_call(plan, known)
        phase = session.phase if self.phase is None else self.phase
        step = session.step if self.step is None else self.step
        micro_batch = session.micro_batch if self.micro_batch is None else self.micro_batch
        owners, elsewhere = self.owners, self.places.path if phase < lib.UNSCALE else ""
        rows: list[int] = []
        inputs = 4 * len(columns)
        numbers_of: Iterable[Sequence[int]] = zip(*numbers) if numbers else repeat(())
        for given, made, further in zip(zip(*columns), zip(*outputs), numbers_of):
            words: list[int] = []
            for quad in given:
                words += quad
            for quad in made:
                words += quad
            path = self._owner(words, inputs) if owners else elsewhere
            number = texts.get(path)
            if number is None:
                number = recorder.text(path)
            at = call
            if wide and values.is_wide(made[0][3]):
                at = calls.get((*known, WIDE)) or self._new_call(plan, (*known, WIDE))
            rows += (lib.ROW_OP, at, step, micro_batch, phase, number, site)
            rows += words
            rows += further
        if recorder._record_rows(recorder.handle, array("q", rows).tobytes(), len(rows)):
            recorder.refused += 1
        return True

    def _quads(self, tensors: Any, identities: list[Identity] | None) -> list[Quad]:
        """What Values.quad gives for each; raises where that would. The identities are added where a list is given."""
        values = self.values
        dense, strided, name = values.dense, values._layouts, values.key
        quads: list[Quad] = []
        for t in tensors:
            if type(t) not in PLAIN:
                raise TypeError("not plain")
            shape, dtype = t.shape, t.dtype
            layout = dense[dtype].get(shape) if t.is_contiguous() else strided.get((dtype, shape, t.stride()))
            if layout is None:
                layout = values._new_layout(t)
            storage = t.untyped_storage()
            identity = getattr(storage, name, None)
            if identity is None:
                identity = values.born(storage)
            if identity.away:
                layout |= values.stream_word(t)
            if identities is not None:
                identities.append(identity)
            quads.append((t.data_ptr(), identity.word, t.storage_offset(), layout))
        return quads

    def _each(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """The same for lists of every kind."""
        session, values = self.session, self.values
        recorder = session.recorder
        if recorder is None:
            return
        happens = not plan.written_if or self._is_written(plan, args, kwargs)
        late = plan.may_be_late and self._is_late(plan, args, kwargs)
        given: list[tuple[Arg, Any, bool]] = []
        n = 0
        for arg, value in self._given(plan, args, kwargs):
            if value is None or arg.kind == OTHER:
                continue
            writes = arg.written and (happens or arg.name != "grad")
            if arg.kind == TENSORS:
                if not value:
                    continue
                n = max(n, len(value))
                read = not (late and arg.written)
                given.append((arg, [values.describe(t, read or not t.is_cpu) for t in value], writes))
            elif arg.kind == NUMBERS or not isinstance(value, (float, int, _Tensor)):
                given.append((arg, value, False))
            elif isinstance(value, _Tensor):
                given.append((arg, values.describe(value), writes))
            else:
                given.append((arg, as_float(value), False))
        gone = {quad[1] for _, value, writes in given if writes
                for quad in (value if isinstance(value, list) else (value,)) if isinstance(quad, tuple)}
        for _, value, writes in given:
            if not writes and isinstance(value, list):
                value[:] = [(0, *q[1:]) if isinstance(q, tuple) and q[1] in gone else q for q in value]
        steps = [number for number in map(peek, kwargs.get("state_steps", args[5] if len(args) > 5 else ()))
                 if number is not None] if plan.op.startswith("aten::_fused_adam") else []
        if len(steps) != n:
            steps = []
        results: list[Any] = []
        if not plan.writes and isinstance(result, (tuple, list)):
            results = [values.describe(t) if isinstance(t, _Tensor) else None for t in result]
        identities: dict[int, Identity] = {}
        for arg, value in self._given(plan, args, kwargs):
            if arg.written:
                for t in flat(value):
                    try:
                        identity = values.identity_of(t.untyped_storage())
                        identities[identity.word >> 24] = identity
                    except Exception:
                        continue
        phase = session.phase if self.phase is None else self.phase
        site = self.sites.of(sys._getframe(3), recorder)
        if site == IMPORTING:
            return
        step = session.step if self.step is None else self.step
        micro_batch = session.micro_batch if self.micro_batch is None else self.micro_batch
        rows = array("q")
        for i in range(n):
            words: list[int] = []
            key: list[int] = []
            numbers: list[int] = []
            outputs: list[int] = []
            output_key: list[int] = []
            last = i == n - 1
            for arg, value, writes in given:
                if arg.kind == NUMBER or type(value) is float:
                    numbers.append(double_bits(value))
                    key.append(arg.as_number)
                    continue
                if arg.kind == NUMBERS:
                    if i < len(value) and isinstance(value[i], (float, int)):
                        numbers.append(double_bits(as_float(value[i])))
                        key.append(arg.as_number)
                    continue
                of_list = arg.kind == TENSORS
                quad = (value[i] if i < len(value) else None) if of_list else value
                if quad is None:
                    continue
                if not writes:
                    key.append(8 * arg.index + AS_READ if arg.written else arg.as_tensor)
                    words += quad
                    if arg.name == "state_step" and steps:
                        numbers.append(double_bits(steps[i]))
                        key.append(arg.as_number)
                    continue
                key.append(arg.as_tensor)
                words += (0, *quad[1:])
                if of_list or last:
                    identity = identities[quad[1] >> 24]
                    if identity.word == quad[1]:
                        values.bump(identity)
                    outputs += (quad[0], identity.word, quad[2], quad[3])
                    output_key.append(arg.as_written)
            if not plan.writes and i < len(results) and results[i] is not None:
                outputs += results[i]
                output_key.append(AS_RESULT)
            if not outputs:
                continue
            key += output_key
            if values.wide and values.is_wide(outputs[3]):
                key.append(WIDE)
            known = tuple(key)
            call = plan.calls.get(known)
            if call is None:
                call = self._new_call(plan, known)
            inputs = len(words)
            words += outputs
            path = self._owner(words, inputs) if self.owners else (self.places.path if phase < lib.UNSCALE else "")
            rows.extend((lib.ROW_OP, call, step, micro_batch, phase, recorder.text(path), site))
            rows.extend(words)
            rows.extend(numbers)
        if rows and recorder._record_rows(recorder.handle, rows.tobytes(), len(rows)):
            recorder.refused += 1
        values.release_hosts()


def as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
