# SPDX-License-Identifier: Apache-2.0
"""The rows of ops: what each read and wrote, as words for nanhunt_record_rows."""
from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _device
from nanhunt import _library as lib
from nanhunt._collectives import Collectives
from nanhunt._lists import ListOps, as_float
from nanhunt._modes import counted, writes_lists
from nanhunt._places import IMPORTING, LOSS, Places, Sites, sequence_nr
from nanhunt._plans import (
    AS_NUMBER,
    AS_READ,
    AS_RESULT,
    AS_TENSOR,
    AS_WRITTEN,
    NUMBER,
    OTHER,
    TENSOR,
    TENSORS,
    WIDE,
    Arg,
    Plan,
)
from nanhunt._values import PLAIN, Identity, flat

if TYPE_CHECKING:
    from nanhunt._session import Session
    from nanhunt._values import Values

_Tensor = torch.Tensor
_HEADER = 7               # words of an op row before its values
_MAX_DEAD = 64            # storages that may wait to be told of
_MAX_SCALARS = 16         # numbers read out of tensors that are remembered
_packers: dict[tuple[int, int], Any] = {}


def _packer(words: int, numbers: int) -> Any:
    pack = _packers[(words, numbers)] = Struct(f"={words}q{numbers}d").pack
    return pack


class OpWriter(Collectives, ListOps):
    """Rows of ops. Used by level ops for a whole run, and by a replay for one step."""

    def __init__(self, session: Session, values: Values, places: Places) -> None:
        self.session, self.values, self.places = session, values, places
        self.plans: dict[int, Plan] = {}  # by id of the op, which the plan keeps
        self.owners: dict[int, str] = {}  # storage -> path of the parameter that it belongs to, while an optimizer runs
        self.step: int | None = None      # of a replay; None: the session's
        self.micro_batch: int | None = None
        self.phase: int | None = None
        self.site: str | None = None      # of a replay: of the op that is done again
        self.sites = Sites()
        # Numbers that were read out of tensors, by value; non-finite ones also under their names. The identity keeps
        # the recorder from forgetting what they were read from.
        self.scalars: dict[Any, tuple[tuple[int, int, int, int], Identity]] = {}
        self.begin_collectives()
        self.drawn: dict[int, tuple[torch.Generator, torch.Tensor]] | None = None
        self.where: tuple[str, int] | None = None  # of the row that is written, where it is not what runs now
        self.off = False

    def plan_of(self, func: Any) -> Plan:
        try:
            plan = Plan(func)
        except Exception as error:  # an op of a kind that nobody foresaw: it runs, unwatched
            self.session.failed(error, f"the schema of {func}")
            plan = Plan(None)
            plan.func = plan.call = func
            plan.simple = plan.skip = True
        if plan.op.startswith("higher_order::") and not plan.skip:
            self.session.note(f"{plan.op}: what runs inside")
        if "generator" in plan.by_name:
            plan.call = functools.partial(self._draw, plan.call)
        if writes_lists(plan.op):
            plan.call = functools.partial(counted, plan.call)
        if plan.op.startswith("c10d::"):
            plan.call = functools.partial(self._give, plan, plan.call)
        self.plans[id(func)] = plan
        return plan

    def _draw(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """In a replay: what a generator of the program's own is drawn from must be put back."""
        if self.drawn is not None:
            for value in (*args, *kwargs.values()):
                if isinstance(value, torch.Generator) and id(value) not in self.drawn:
                    self.drawn[id(value)] = value, value.get_state()
        return original(*args, **kwargs)

    @contextmanager
    def generators_kept(self) -> Iterator[None]:
        drawn: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self.drawn = drawn
        try:
            yield
        finally:
            self.drawn = None
            for generator, state in drawn.values():
                generator.set_state(state)

    # Rows of one op on tensors of its own: nearly all are, so this is written for speed.
    def record(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
        """Never raises: the op has run, and the run goes on."""
        if self.off:
            return
        try:
            try:
                self._record(plan, args, kwargs, result)
            except _Unusual:
                self._carefully(plan, args, kwargs, result)
            except (RuntimeError, NotImplementedError, KeyError, TypeError, OverflowError):
                self._carefully(plan, args, kwargs, result)
        except Exception as error:
            self.session.failed(error, f"op {plan.op}")

    def _record(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
        values = self.values
        dense, strided, name = values.dense, values._layouts, values.key
        words: list[int] = []
        key: list[int] = []
        numbers: list[float] = []
        written: list[tuple[int, Identity, Arg]] = []
        happens = not plan.written_if or self._is_written(plan, args, kwargs)
        if plan.may_be_late and self._is_late(plan, args, kwargs):
            raise _Unusual
        for arg, value in zip(plan.args, args):
            kind = arg.kind
            if kind == TENSOR:
                if type(value) in PLAIN:
                    shape = value.shape
                    if value.is_contiguous():
                        layout = dense[value.dtype].get(shape)
                    else:
                        layout = strided.get((value.dtype, shape, value.stride()))
                    if layout is None:
                        layout = values._new_layout(value)
                    storage = value.untyped_storage()
                    identity = getattr(storage, name, None)
                    if identity is None:
                        identity = values.born(storage)
                    if identity.away:
                        layout |= values.stream_word(value)
                    if arg.written:
                        if happens:
                            written.append((len(words), identity, arg))
                            key.append(arg.as_tensor)
                        else:
                            key.append(8 * arg.index + AS_READ)
                    else:
                        key.append(arg.as_tensor)
                    words += (value.data_ptr(), identity.word, value.storage_offset(), layout)
                elif value is None:
                    continue
                elif isinstance(value, (float, int)):
                    self._number(arg, float(value), words, key, numbers)
                else:
                    raise _Unusual
            elif kind == NUMBER:
                if isinstance(value, (float, int)):
                    self._number(arg, float(value), words, key, numbers)
            elif kind == TENSORS and value is not None:
                for t in value:
                    if type(t) in PLAIN:
                        if arg.written:
                            raise _Unusual
                        key.append(arg.as_tensor)
                        words += values.quad(t)
                    elif t is not None:
                        raise _Unusual
        if kwargs:
            for keyword, value in kwargs.items():
                arg = plan.by_name.get(keyword)  # type: ignore[assignment]
                if arg is None or arg.kind == OTHER:
                    continue
                if type(value) in PLAIN:
                    storage = value.untyped_storage()
                    identity = values.identity_of(storage)
                    if arg.written:
                        if not arg.only_written:
                            raise _Unusual
                        written.append((-1, identity, arg))
                        continue
                    key.append(arg.as_tensor)
                    words += values.quad(value)
                elif isinstance(value, (float, int)):
                    if arg.kind == NUMBER or arg.kind == TENSOR:
                        self._number(arg, float(value), words, key, numbers)
                elif value is not None:
                    raise _Unusual
        inputs = len(words)
        # Outputs: what is returned beside what was written; then what was written.
        if plan.fresh:
            if type(result) in PLAIN:
                if plan.outputs[0]:
                    words += values.quad(result)
                    key.append(AS_RESULT)
            else:
                for index, t in enumerate(result if type(result) is tuple or type(result) is list else (result,)):
                    if plan.outputs[index if index < len(plan.outputs) else -1]:
                        if type(t) in PLAIN:
                            key.append(8 * index + AS_RESULT)
                            words += values.quad(t)
                        elif type(t) is list or type(t) is tuple or isinstance(t, _Tensor):
                            raise _Unusual
        if written:
            self._write(kwargs, words, key, inputs, written)
        self._emit(plan, words, key, numbers, inputs)

    def _write(self, kwargs: dict[str, Any] | None, words: list[int], key: list[int], inputs: int,
               written: list[tuple[int, Identity, Arg]]) -> None:
        """Outputs for what was written in place."""
        values = self.values
        old: list[int] = []
        for at, identity, arg in written:
            word = identity.word
            if at < 0:
                value = kwargs[arg.name]  # type: ignore[index]
                data, _, offset, layout = values.quad(value)
                old.append(word)
            else:
                data, word, offset, layout = words[at:at + 4]
                words[at] = 0  # what was there is gone
                old.append(word)
            if identity.word == word and not any(word == other for other in old[:-1]):
                values.bump(identity)
            words += (data, identity.word, offset, layout)
            key.append(arg.as_written)
        if inputs > 4 or len(written) > 1 or written[0][0] < 0:
            for at in range(0, inputs, 4):  # another view of what was written has other contents by now
                if words[at] and words[at + 1] in old:
                    words[at] = 0

    def _is_written(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
        arg = plan.by_name[plan.written_if]
        value = args[arg.index] if arg.index < len(args) else (kwargs or {}).get(arg.name)
        return value is not None and value is not False

    def _is_late(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
        """Whether what it left in host memory is not there yet: nobody may read it, and nothing says when."""
        given = self._given(plan, args, kwargs)
        return any(value is True and arg is plan.by_name["non_blocking"] for arg, value in given) and any(
            _device.is_away(t) for _, value in given for t in flat(value))

    def _number(self, arg: Arg, number: float, words: list[int], key: list[int], numbers: list[float]) -> None:
        """A Python number; one that was read out of a tensor stands for that tensor as well."""
        if self.scalars and (number != number or number % 1.0 != 0.0):
            known = self.scalars.get(number if math.isfinite(number) else str(number))
            if known is not None:
                key.append(arg.as_scalar_read)
                words += known[0]
        key.append(arg.as_number)
        numbers.append(number)

    def _emit(self, plan: Plan, words: list[int], key: list[int], numbers: list[float], inputs: int) -> None:
        """Writes one row. `words` are values: inputs of them inputs, then outputs."""
        session, values, places = self.session, self.values, self.places
        recorder = session.recorder
        if recorder is None or inputs == len(words):
            return
        if values.wide and values.is_wide(words[inputs + 3]):
            key.append(WIDE)
        known = tuple(key)
        call = plan.calls.get(known)
        if call is None:
            call = self._new_call(plan, known)
        phase = session.phase if self.phase is None else self.phase
        if self.where is not None:
            path, site = self.where
        elif phase == lib.BACKWARD:
            if places.recomputing:
                path, site = places.path, self.sites.of(sys._getframe(3), recorder)
            else:
                path, site = places.backward()
                if not path and not site:
                    path = LOSS
        else:
            site = self.sites.of(sys._getframe(3), recorder) if self.site is None else recorder.text(self.site)
            if site == IMPORTING:
                return
            path = places.path
            if phase >= lib.UNSCALE or (phase == lib.DATA):
                path = self._owner(words, inputs) if self.owners else ""
        end = sequence_nr()
        if end > places.claims.last:
            places.claim(path, site)
        texts = recorder._texts
        try:
            path_number = texts[path]
        except KeyError:
            path_number = recorder.text(path)
        n = len(words) + _HEADER
        try:
            pack = _packers[n, len(numbers)]
        except KeyError:
            pack = _packer(n, len(numbers))
        row = pack(lib.ROW_OP, call, session.step if self.step is None else self.step,
                   session.micro_batch if self.micro_batch is None else self.micro_batch,
                   lib.COMM if plan.collective else phase, path_number, site, *words, *numbers)
        if recorder._record_rows(recorder.handle, row, n + len(numbers)):
            recorder.refused += 1
        if len(values.dead) > _MAX_DEAD:
            recorder.rows(values.dead_rows())

    def _owner(self, words: list[int], inputs: int) -> str:
        """The parameter to which what an optimizer computes belongs; "": to none, or to several."""
        owners = self.owners
        owner = ""
        for at in range(1, inputs, 4):
            other = owners.get(words[at] >> 24)
            if other and other != owner:
                if owner:
                    return ""
                owner = other
        if owner:
            for at in range(inputs + 1, len(words), 4):
                owners.setdefault(words[at] >> 24, owner)
        return owner

    def _new_call(self, plan: Plan, key: tuple[int, ...]) -> int:
        recorder = self.session.recorder
        assert recorder is not None
        inputs: list[tuple[str, int]] = []
        outputs: list[str] = []
        scalars: list[str] = []
        for item in key:
            if item == WIDE:
                continue
            index, how = divmod(item, 8)
            if how == AS_RESULT:
                outputs.append(plan.outputs[index if index < len(plan.outputs) else -1] if plan.outputs else "out")
                continue
            arg = plan.args[index] if index < len(plan.args) else None
            slot = arg.name if arg is not None else f"arg{index}"
            if how == AS_NUMBER:
                scalars.append("step" if slot == "state_step" else slot)
            elif how == AS_WRITTEN:
                outputs.append(slot)
            else:
                inputs.append((slot, arg.role if arg is not None and how == AS_TENSOR else lib.READ))
        call = recorder.call(plan.op, lib.F64 if WIDE in key else lib.F32, inputs, outputs, scalars)
        plan.calls[key] = call
        return call

    def claim_views(self) -> None:
        """A view has no row, but its node in the graph has a place."""
        places = self.places
        if sequence_nr() > places.claims.last and not self.off:
            try:
                recorder, phase = self.session.recorder, self.session.phase if self.phase is None else self.phase
                if recorder is None:
                    return
                if phase == lib.BACKWARD and not places.recomputing:
                    path, site = places.backward()
                else:
                    path = places.path
                    site = (max(0, self.sites.of(sys._getframe(2), recorder)) if self.site is None
                            else recorder.text(self.site))
                places.claim(path, site)
            except Exception as error:
                self.session.failed(error, "views")

    # Whatever is not usual.
    def record_special(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> Any:
        """The same for allocations, lists of parameters, collectives and numbers read out of tensors."""
        if self.off or plan.skip:
            return result
        try:
            if plan.scalar_read:
                self._scalar_read(args, result)
            elif plan.garbage:
                self._garbage(plan, result)
            elif plan.per_element:
                self._per_element(plan, args, kwargs or {}, result)
            elif plan.collective:
                self._collective(plan, args, kwargs, result)
            else:
                self._carefully(plan, args, kwargs, result)
        except Exception as error:
            self.session.failed(error, f"op {plan.op}")
        return result

    def _scalar_read(self, args: tuple[Any, ...], number: Any) -> None:
        t = args[0] if args else None
        if not isinstance(t, _Tensor) or not isinstance(number, float) or (
                math.isfinite(number) and number % 1.0 == 0.0):
            return  # 0, 1, 2: too common to say where they come from
        quad = self.values.describe(t, with_data=False)
        if quad is None:
            return
        scalars = self.scalars
        name = number if math.isfinite(number) else str(number)
        scalars.pop(name, None)
        if len(scalars) >= _MAX_SCALARS:
            del scalars[next(iter(scalars))]
        scalars[name] = quad, self.values.identity_of(t.untyped_storage())

    def _garbage(self, plan: Plan, result: Any) -> None:
        """Memory that nothing has written: a row without contents, so that whoever reads it can be told."""
        for t in result if isinstance(result, (tuple, list)) else (result,):
            if not isinstance(t, _Tensor):
                continue
            if plan.writes:
                self.values.written(t)
            quad = self.values.describe(t, with_data=False)
            if quad is not None:
                self._emit(plan, list(quad), [AS_RESULT], [], 0)

    def _given(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[tuple[Arg, Any]]:
        given = list(zip(plan.args, args))
        if kwargs:
            given += [(plan.by_name[name], value) for name, value in kwargs.items() if name in plan.by_name]
        return given

    def _carefully(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
        """The same as _record, for tensors of every kind: what cannot be described is noted and left out."""
        values = self.values
        words: list[int] = []
        key: list[int] = []
        numbers: list[float] = []
        written: list[tuple[int, _Tensor, Arg]] = []  # where its old contents stand among the inputs, or -1
        happens = not plan.written_if or self._is_written(plan, args, kwargs)
        late = plan.may_be_late and self._is_late(plan, args, kwargs)
        if not plan.args:
            for index, t in enumerate(flat((args, kwargs))):
                quad = values.describe(t)
                if quad is not None:
                    words += quad
                    key.append(8 * index)
        for arg, value in self._given(plan, args, kwargs):
            if isinstance(value, (float, int)):
                if arg.kind in (NUMBER, TENSOR):
                    self._number(arg, as_float(value), words, key, numbers)
                continue
            if arg.kind not in (TENSOR, TENSORS):
                continue
            for t in flat(value):
                writes = arg.written and happens
                if writes and arg.only_written:
                    written.append((-1, t, arg))
                    continue
                quad = values.describe(t, with_data=not arg.blind and not writes)
                if quad is None:
                    continue
                if writes:
                    written.append((len(words), t, arg))
                key.append(8 * arg.index + AS_READ if arg.written and not writes else arg.as_tensor)
                words += quad
        inputs = len(words)
        olds: set[int] = set()
        outputs: list[int] = []
        for _, t, arg in written:
            before = values.describe(t, with_data=False)
            if before is None:
                continue
            if before[1] >> 24 not in {word >> 24 for word in olds}:
                olds.add(before[1])
                values.written(t)
            quad = values.describe(t, with_data=not (late and t.is_cpu))
            if quad is not None:
                outputs += quad
                key.append(arg.as_written)
        for at in range(0, inputs, 4):
            if words[at + 1] in olds:
                words[at] = 0
        fresh: list[int] = []
        fresh_key: list[int] = []
        results = result if isinstance(result, (tuple, list)) else (result,)
        for index, value in enumerate(results):
            if plan.outputs and not plan.outputs[index if index < len(plan.outputs) else -1]:
                continue
            if plan.collective and plan.writes:
                continue  # they return what they wrote
            for t in flat(value):
                quad = values.describe(t, with_data=not (late and t.is_cpu))
                if quad is not None:
                    fresh += quad
                    fresh_key.append(8 * index + AS_RESULT)
        # The key has results before what was written, as the words do.
        written_key = [k for k in key if k % 8 == AS_WRITTEN]
        key = [k for k in key if k % 8 != AS_WRITTEN] + fresh_key + written_key
        self._emit(plan, words + fresh + outputs, key, numbers, inputs)
        values.release_hosts()


class _Unusual(Exception):
    """Not for the fast way."""
