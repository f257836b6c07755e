# SPDX-License-Identifier: Apache-2.0
"""What a step did outside of backward, kept so that it can be done again: root calls, the ops between them, backward.

The tape holds no tensor that was made in the step: those are named by a number on their storage, by geometry and by
whether they require a gradient. Tensors from outside are held, with their version.
"""
from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._hooks.scaler import peek
from nanhunt._modes import InfraMode, counted, writes_lists
from nanhunt._random import other_devices, random_state
from nanhunt._tap.places import call_site

if TYPE_CHECKING:
    from nanhunt._listener import RootCall
    from nanhunt._sentinel.buffers import Copy
    from nanhunt._sentinel.roots import RootInfo
    from nanhunt._session import Session

_Tensor = torch.Tensor
_OpOverload = torch._ops.OpOverload
_CustomNode = torch.autograd.function.BackwardCFunction
_numbers = itertools.count(1)
_dispatch_depth = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_dispatch_at = getattr(torch._C, "_get_dispatch_stack_at", None)
# Straight on the stack: what entering a mode does besides is about modes that torch.compile must not ignore.
_push, _pop = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack
_functorch_level: Callable[[], int | None] = getattr(torch._C._functorch, "maybe_current_level", lambda: None)

MAX_OPS = 4000            # of a step
MAX_HELD = 1 << 30        # bytes of inputs held for the calls before the last two
MAX_COPY = 1 << 22        # bytes of a tensor from outside that an op writes in place

Key = tuple[int, int, torch.Size, tuple[int, ...], torch.dtype, bool]


def is_transformed() -> bool:
    """Whether a transform of torch.func runs: its tensors stand for others, and have no contents of their own."""
    return (_functorch_level() or 0) > 0


class Ref:
    """A tensor that was made in the step."""

    __slots__ = ("key",)

    def __init__(self, key: Key) -> None:
        self.key = key


class Held:
    """A tensor from outside the step."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: _Tensor, version: int) -> None:
        self.tensor, self.version = tensor, version

    def is_unchanged(self) -> bool:
        return version_of(self.tensor) == self.version


def version_of(t: _Tensor) -> int:
    try:
        return t._version
    except Exception:  # an inference tensor has none, and cannot take part in backward
        return -1


def number_of(t: _Tensor) -> int:
    """The number on a tensor's storage; 0: none."""
    try:
        return t.untyped_storage()._nanhunt_tape  # type: ignore[attr-defined,no-any-return]
    except Exception:
        return 0


def geometry(n: int, t: _Tensor, requires_grad: bool) -> Key:
    return n, t.storage_offset(), t.shape, t.stride(), t.dtype, requires_grad  # type: ignore[return-value]


class RootEntry:
    """A call of a root module."""

    __slots__ = ("module", "name", "index", "micro_batch", "segment", "args", "kwargs", "outputs", "rng", "generators",
                 "autocast", "training", "inputs", "site", "python_rng", "seen", "attributes", "things", "buffers",
                 "info", "left")

    def __init__(self, call: RootCall, micro_batch: int, segment: int) -> None:
        self.module, self.name, self.index = call.module, call.name, call.index
        self.micro_batch, self.segment = micro_batch, segment
        self.args: Any = ()
        self.kwargs: Any = {}
        self.outputs: list[Key] = []
        self.rng: Any = None
        self.python_rng: Any = None
        self.generators: list[tuple[torch.Generator, _Tensor]] = []
        self.autocast: Any = None
        self.training = call.module.training
        self.inputs: list[Held] = []
        self.site = ""
        # Before the call. Tensors among the attributes are Held.
        self.attributes: list[tuple[dict[str, Any], str, Any]] = []  # of modules, that forward replaces
        self.things: list[tuple[Any, Any]] = []  # that hang on modules and forward changes, and their states
        self.buffers: Copy | None = None         # those that forward writes
        self.info: RootInfo | None = None
        self.seen: list[Any] = []  # weak references to outputs, with their versions
        self.left: tuple[list[_Tensor], list[str], list[int]] = ([], [], [])  # buffers, their paths, versions after it


class OpEntry:
    """An op outside of roots."""

    __slots__ = ("func", "args", "kwargs", "outputs", "grad", "micro_batch", "phase", "rng", "generators", "site",
                 "segment", "trains", "writes")

    def __init__(self, func: Any, micro_batch: int, phase: int, segment: int) -> None:
        self.func, self.micro_batch, self.phase, self.segment = func, micro_batch, phase, segment
        self.args: Any = ()
        self.kwargs: Any = {}
        self.outputs: list[Key] = []
        self.grad = True
        self.trains = False  # it is given what requires a gradient
        self.rng: Any = None
        self.generators: list[tuple[torch.Generator, _Tensor]] = []
        self.writes: list[int] = []  # numbers of storages that were there before
        self.site = ""


class BackwardEntry:
    """torch.autograd.backward, or grad where `outputs` are its results."""

    __slots__ = ("tensors", "gradients", "options", "inputs", "outputs", "is_grad", "micro_batch", "segment", "site",
                 "autocast_on", "loss")

    def __init__(self, micro_batch: int, segment: int) -> None:
        self.micro_batch, self.segment = micro_batch, segment
        self.tensors: Any = ()
        self.gradients: Any = None
        self.options: dict[str, Any] = {}
        self.inputs: Any = None
        self.outputs: list[Key | None] = []
        self.is_grad = False
        self.autocast_on = False
        self.loss: Any = None  # what its scaled loss was made from
        self.site = ""


class _Info:
    """What the tape has to know of an op."""

    __slots__ = ("skip", "random", "writes", "view", "counts")

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.skip = schema.name.startswith(("profiler::", "prim::")) or schema.name in (
            "aten::_local_scalar_dense", "aten::record_stream", "aten::is_same_size")
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.writes = [(i, a.name) for i, a in enumerate(schema.arguments)
                       if a.alias_info is not None and a.alias_info.is_write]
        self.counts = writes_lists(schema.name)
        returns = schema.returns
        self.view = bool(returns) and not self.writes and all(
            r.alias_info is not None and not r.alias_info.is_write for r in returns)


class TapeMode(InfraMode):
    """On only outside of roots and of backward."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tape = self._tape
        if kwargs is None:
            kwargs = {}
        if not tape.listens:
            return func(*args, **kwargs)
        entry = tape.begin_op(func, args, kwargs)
        info = tape._infos.get(func)
        result = counted(func, *args, **kwargs) if info is not None and info.counts else func(*args, **kwargs)
        if entry is not None:
            tape.end_op(entry, result)
        return result


class TapeOfStep:
    """What a replay needs of a tape, when the tape has gone on."""

    def __init__(self, tape: Tape) -> None:
        self.entries, self.segment, self.start = list(tape.entries), tape.segment, dict(tape.start)
        self.roots, self.refusal = tape.roots, tape.refusal


class Tape:
    """One step's tape."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.mode = TapeMode(self)
        self.listens = False       # the mode records
        self._pushed = False
        self._infos: dict[Any, _Info] = {}
        self.custom: set[str] = set()   # custom autograd Functions seen outside of roots, ever
        self.stays_on = False           # a step was seen that computes a loss after a backward
        self.clear()

    def clear(self) -> None:
        self.entries: list[Any] = []
        self.made: set[int] = set()      # numbers of storages made in this step
        self.returned: set[int] = set()  # of those, what roots returned
        self.roots = 0                   # calls of roots
        self.start: dict[Key, _Tensor] = {}  # from outside, and named by number: as they were
        self.segment = 0                 # grows at each boundary
        self.bad_number = False          # a single number that is not finite was made outside of roots
        self.refusal = ""                # why this tape cannot be replayed
        self.ops = 0
        self._held: list[int] = [0]      # bytes that are held, since each call of a root
        self._weighed: set[int] = set()  # ids of what is held

    def refuse(self, why: str) -> None:
        if not self.refusal:
            self.refusal = why

    # The mode. Pushed by hand: only on an empty stack, and taken off only where it is on top.
    def on(self) -> None:
        if self.refusal:
            return
        if self._pushed:
            self.listens = True
            return
        if _dispatch_depth() > 0:
            self.refuse("the program had a dispatch mode of its own on while the loss was computed")
            return
        _push(self.mode)
        self._pushed = self.listens = True

    def off(self) -> None:
        if not self._pushed:
            return
        self.listens = False
        depth = _dispatch_depth()
        if _dispatch_at is not None and (depth == 0 or _dispatch_at(depth - 1) is not self.mode):
            return  # the program's own mode is on top: ours stays, and records nothing
        _pop(None)
        self._pushed = False

    # Names.
    def pack(self, value: Any) -> Any:
        """An argument of an op: tensors by name or held, containers copied."""
        if isinstance(value, _Tensor):
            return self._name(value)
        kind = type(value)
        if kind is list or kind is tuple:
            return kind([self.pack(v) for v in value])
        return value

    def _name(self, t: _Tensor) -> Ref | Held:
        n = number_of(t)
        requires_grad = t.requires_grad
        if requires_grad:
            node = t.grad_fn
            if node is not None:
                if isinstance(node, _CustomNode) and n not in self.returned:
                    self._meet(type(node).__name__, n)
                if n not in self.made:
                    self.refuse("a tensor that takes part in backward was made where nothing is watched")
        if n in self.made:
            return Ref(geometry(n, t, requires_grad))
        if not requires_grad and id(t) not in self._weighed:  # parameters are there anyway
            self._weighed.add(id(t))
            with suppress(Exception):  # of a kind that has no size
                self._held[-1] += t.numel() * t.element_size()
        if not requires_grad and peek(t) is not None:  # a scale, most often halved before the step is looked at again
            with torch.no_grad():
                t = t.detach().clone()
        return Held(t, version_of(t))

    def _meet(self, name: str, n: int) -> None:
        """A custom autograd function made storage n outside of roots: what it ran is known, its backward is not."""
        name = name[:-8] if name.endswith("Backward") else name
        if name == "_DDPSink":  # of data parallel: a copy, whose backward hands on what it gets
            for entry in reversed(self.entries):
                if isinstance(entry, OpEntry) and any(key[0] == n for key in entry.outputs):
                    entry.grad = True
                    return
        self.custom.add(name)
        self.refuse(f"the custom autograd function {name} outside of modules cannot be called again")

    def _new(self, t: _Tensor) -> int:
        """A number for the storage of t, which now belongs to the step."""
        storage = t.untyped_storage()
        n: int = getattr(storage, "_nanhunt_tape", 0)
        if not n:
            n = storage._nanhunt_tape = next(_numbers)  # type: ignore[attr-defined]
        self.made.add(n)
        return n

    def _adopt(self, t: _Tensor, copied: bool) -> None:
        """A tensor from outside of which a view is taken, or that is written: it gets a name."""
        if number_of(t) in self.made:
            return
        size = t.numel() * t.element_size()
        if copied and size > MAX_COPY:
            self.refuse(f"a tensor of {size} bytes from outside of the step was written in place")
        n = self._new(t)
        key = geometry(n, t, t.requires_grad)
        self.start[key] = t.detach().clone() if copied and size <= MAX_COPY else t

    # Ops.
    def begin_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpEntry | None:
        """Before the op runs: what it is given, by name. Never raises."""
        try:
            info = self._infos.get(func)
            if info is None:
                if not isinstance(func, _OpOverload):
                    self.refuse(f"{func} outside of modules is not an operation that can be called again")
                    return None
                info = self._infos[func] = _Info(func)
            if info.skip or self.refusal:
                return None
            if info.view and not self._is_ours(args):
                return None  # a view of something from outside is from outside itself
            self.ops += 1
            if self.ops > MAX_OPS:
                self.overflow(f"more than {MAX_OPS} operations ran outside of modules")
                return None
            session = self.session
            entry = OpEntry(func, session.micro_batch, session.phase, self.segment)
            for at, name in info.writes:
                self._written(args[at] if at < len(args) else kwargs.get(name), entry)
            entry.args = self.pack(args)
            if kwargs:
                entry.kwargs = {name: self.pack(value) for name, value in kwargs.items()}
            entry.grad = torch.is_grad_enabled()
            entry.trains = any(t.requires_grad for t in tensors_of(args))
            entry.site = call_site(3)
            if info.random:
                entry.rng = random_state(_devices_of(args, kwargs))
                entry.generators = [(v, v.get_state()) for v in kwargs.values() if isinstance(v, torch.Generator)]
            return entry
        except Exception as error:
            self.session.failed(error, "the tape")
            self.refuse("an operation could not be kept")
            return None

    def _is_ours(self, args: tuple[Any, ...]) -> bool:
        for value in args:
            if isinstance(value, _Tensor):
                if value.requires_grad and number_of(value) not in self.made:
                    self._adopt(value, copied=False)
                return number_of(value) in self.made
        return True

    def _written(self, value: Any, entry: OpEntry) -> None:
        if isinstance(value, _Tensor):
            if number_of(value) not in self.made:
                self._adopt(value, copied=True)
            entry.writes.append(number_of(value))
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._written(item, entry)

    def end_op(self, entry: OpEntry, result: Any) -> None:
        try:
            entry.outputs = [geometry(self._new(t), t, False) for t in op_results(result)]
            self.entries.append(entry)
            if isinstance(result, _Tensor) and result.numel() == 1 and not self.bad_number and entry.trains:
                number = peek(result)
                self.bad_number = number is not None and not math.isfinite(number)
        except Exception as error:
            self.session.failed(error, "the tape")
            self.refuse("an operation's result could not be named")

    # Root calls.
    def begin_root(self, entry: RootEntry, call: RootCall) -> None:
        self.roots += 1
        self._held.append(0)
        entry.args = self.pack_any(call.args, entry.inputs)
        entry.kwargs = self.pack_any(call.kwargs, entry.inputs)
        if self.roots > MAX_OPS:
            self.overflow(f"more than {MAX_OPS} calls of modules came before an optimizer ran")
            return
        if len(self._held) > 3 and sum(self._held[:-2]) > MAX_HELD:
            self.overflow(f"the inputs of more calls than fit into {MAX_HELD >> 20} MiB came before the optimizer ran")

    def end_root(self, entry: RootEntry, output: Any) -> None:
        if self.refusal:
            return
        entry.outputs = [geometry(self._new(t), t, False) for t in tensors_of(output)]
        self.returned.update(key[0] for key in entry.outputs)
        self.entries.append(entry)

    def pack_any(self, value: Any, held: list[Held], depth: int = 0) -> Any:
        """Arguments of a call: containers that hold tensors of the step are copied, anything else is kept."""
        if isinstance(value, _Tensor):
            named = self._name(value)
            if isinstance(named, Held):
                held.append(named)
                if named.tensor.requires_grad and not named.tensor.is_leaf:
                    self.refuse("an input that takes part in backward was made where nothing is watched")
            return named
        if depth > 8:
            return value
        kind = type(value)
        if kind is list or kind is tuple:
            return kind([self.pack_any(v, held, depth + 1) for v in value])
        if kind is dict:
            return {k: self.pack_any(v, held, depth + 1) for k, v in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*[self.pack_any(v, held, depth + 1) for v in value])
        if isinstance(value, dict) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            return Copied(value, {name: self.pack_any(item, held, depth + 1) for name, item in parts_of(value)})
        return value

    def overflow(self, why: str) -> None:
        """Nothing of this step is kept: it is too much."""
        self.refuse(why)
        self.entries, self.start = [], {}
        self.made = set()
        self._held, self._weighed = [0], set()


def cloned(value: Any, into: list[Held]) -> Any:
    """Held inputs copied: what is held stays as it was before the call."""
    kind = type(value)
    if kind is Held:
        with torch.no_grad():
            copied = value.tensor.detach().clone().requires_grad_(value.tensor.requires_grad)
        into.append(Held(copied, version_of(copied)))
        return into[-1]
    if kind is list or kind is tuple:
        return kind([cloned(v, into) for v in value])
    if kind is dict:
        return {name: cloned(item, into) for name, item in value.items()}
    if kind is Copied:
        return Copied(value.value, cloned(value.parts, into))
    return value


class Copied:
    """A dict of another class, or a dataclass: made again as a shallow copy with these parts."""

    __slots__ = ("value", "parts")

    def __init__(self, value: Any, parts: dict[Any, Any]) -> None:
        self.value, self.parts = value, parts

    def make(self, parts: dict[Any, Any]) -> Any:
        if all(parts[name] is item for name, item in parts_of(self.value)):
            return self.value
        made = copy.copy(self.value)
        for name, item in parts.items():
            if isinstance(made, dict):
                made[name] = item
            else:
                object.__setattr__(made, name, item)
        return made


def parts_of(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]


def _devices_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[torch.device]:
    """Of the generators from which an op may draw: those of its tensors, or that on which it makes one."""
    given = [*args, *kwargs.values()]
    devices = other_devices([t for value in given for t in (value if type(value) is list else (value,))])
    return devices | {value for value in given if isinstance(value, torch.device)}


def op_results(result: Any) -> list[_Tensor]:
    """Tensors among the results of an op. Other results (script objects) are not looked into."""
    if isinstance(result, _Tensor):
        return [result]
    if type(result) in (tuple, list):
        return [t for item in result for t in op_results(item)]
    return []


def tensors_of(value: Any, depth: int = 0) -> Iterator[_Tensor]:
    """Tensors in what a module returned, always in the same order."""
    if isinstance(value, _Tensor):
        yield value
    elif depth > 8 or isinstance(value, (str, bytes, int, float, type(None), torch.nn.Module)):
        return
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item, depth + 1)
    elif not isinstance(value, type) and hasattr(value, "__dict__"):
        for item in vars(value).values():
            yield from tensors_of(item, depth + 1)


def leaves(*values: Any) -> Iterator[Any]:
    """Ref and Held in packed arguments and entries."""
    for value in values:
        kind = type(value)
        if kind is Ref or kind is Held:
            yield value
        elif kind is RootEntry or kind is OpEntry:
            yield from leaves(value.args, value.kwargs)
        elif kind is BackwardEntry:
            yield from leaves(value.tensors, value.gradients, value.inputs)
        elif kind is Copied:
            yield from leaves(*value.parts.values())
        elif isinstance(value, dict):
            yield from leaves(*value.values())
        elif isinstance(value, (list, tuple)):
            yield from leaves(*value)
