# SPDX-License-Identifier: Apache-2.0
"""What a step did outside of backward, kept so that it can be done again: root calls, the ops between them, backward.

The tap keeps the ops (tap/tape.h), and says which tensors were made in the step: those are named by a key, and not
held. Tensors from outside are held, with their version.
"""
from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nanhunt._hooks.scaler import peek
from nanhunt._pytorch import functorch_level
from nanhunt._tap.plain import call_of

if TYPE_CHECKING:
    from nanhunt._listener import RootCall
    from nanhunt._random import RandomState
    from nanhunt._sentinel.buffers import Copy
    from nanhunt._sentinel.roots import RootInfo
    from nanhunt._session import Session
    from nanhunt._tap.tap import Tap, Taped

_Tensor = torch.Tensor

MAX_ROOTS = 4000          # calls of a step
MAX_HELD = 1 << 30        # bytes of inputs held for the calls before the last two

# Of a tensor that was made in the step: the number of its storage, what part of it is shown, and in the last two bits
# what becomes of gradients: none, they go on to what it was made from, or they end at it.
Key = int
PASSES, ENDS = 1, 2


def storage_of(key: Key) -> int:
    return key >> 24


def gradient_of(t: _Tensor) -> int:
    return (ENDS if t.is_leaf else PASSES) if t.requires_grad else 0


def is_transformed() -> bool:
    """Whether a transform of torch.func runs: its tensors stand for others, and have no contents of their own."""
    return (functorch_level() or 0) > 0


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


class RootEntry:
    """A call of a root module. `at`: how many ops were on the tape before it."""

    __slots__ = ("module", "name", "index", "micro_batch", "segment", "at", "args", "kwargs", "outputs", "rng",
                 "generators", "autocast", "training", "inputs", "site", "python_rng", "seen", "attributes", "things",
                 "buffers", "info", "left", "raised")

    def __init__(self, call: RootCall, micro_batch: int, segment: int) -> None:
        self.module, self.name, self.index = call.module, call.name, call.index
        self.micro_batch, self.segment, self.at = micro_batch, segment, 0
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
        self.raised: type[BaseException] | None = None  # the call ended by this


class OpEntry:
    """An op outside of roots, as the tap has kept it. `after`: between backward and the optimizer."""

    __slots__ = ("op", "func", "args", "kwargs", "outputs", "writes", "rng", "generators", "site", "micro_batch",
                 "phase", "segment", "grad", "after")

    def __init__(self, taped: Taped, index: int) -> None:
        (self.op, overload, args, self.outputs, self.writes, random, self.generators, self.site, self.micro_batch,
         self.phase, self.segment, self.grad, self.after) = taped.op(index)
        try:
            self.func, given, by_name = call_of(self.op, overload, args)
        except AttributeError:  # its library is gone
            self.func, given, by_name = None, args, {}
        self.args: Any = _named(given)
        self.kwargs: Any = {name: _named(value) for name, value in by_name.items()}
        self.rng: RandomState | None = random or None  # that it draws from


def _named(value: Any) -> Any:
    """On the tape tensors are tuples: of a key, or with their version."""
    kind = type(value)
    if kind is tuple:
        return Ref(value[0]) if len(value) == 1 else Held(*value)
    return [_named(v) for v in value] if kind is list else value


class BackwardEntry:
    """torch.autograd.backward, or grad where `outputs` are its results. `at`: as of a root."""

    __slots__ = ("tensors", "gradients", "options", "inputs", "outputs", "is_grad", "micro_batch", "segment", "at",
                 "site", "autocast_on", "loss", "gradients_made")

    def __init__(self, micro_batch: int, segment: int) -> None:
        self.micro_batch, self.segment, self.at = micro_batch, segment, 0
        self.tensors: Any = ()
        self.gradients: Any = None
        self.options: dict[str, Any] = {}
        self.inputs: Any = None
        self.outputs: list[Key | None] = []
        self.is_grad = False
        self.autocast_on = False
        self.loss: Any = None  # what its scaled loss was made from
        self.gradients_made: list[tuple[_Tensor, Key]] = []  # by leaf, where what the program does with them is kept
        self.site = ""


class TapeOfStep:
    """What a replay needs of a tape, when the tape has gone on."""

    def __init__(self, tape: Tape, parameters: Sequence[tuple[_Tensor, str]]) -> None:
        self.calls, self.segment, self.roots, self.refusal = list(tape.calls), tape.segment, tape.roots, tape.refusal
        self._taped = tape.taped()
        # Where what the program does with gradients is kept: of each parameter's that is there now.
        self.gradients: dict[int, Key] = {}
        if any(isinstance(call, BackwardEntry) and call.segment == self.segment and call.gradients_made
               for call in self.calls):
            self.gradients = {id(p): tape.find(p.grad) for p, _ in parameters if p.grad is not None}

    def entries(self) -> list[RootEntry | OpEntry | BackwardEntry]:
        """All of it, in order."""
        taped = self._taped
        size, at = taped.ops if taped is not None else 0, 0
        found: list[RootEntry | OpEntry | BackwardEntry] = []
        for call in [*self.calls, None]:
            while taped is not None and at < (size if call is None else min(call.at, size)):
                found.append(OpEntry(taped, at))
                at += 1
            if call is not None:
                found.append(call)
        return found

    @property
    def start(self) -> dict[Key, _Tensor]:
        """From outside, and named by key: as they were."""
        return self._taped.start() if self._taped is not None else {}

    def numbers(self) -> list[Held]:
        """Single numbers from outside that ops were given and that are not trained."""
        return [Held(*one) for one in self._taped.numbers()] if self._taped is not None else []


class Tape:
    """One step's tape. Without a tap no op is on it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.stays_on = False            # a step was seen that computes a loss after a backward
        self._tap: Tap | None = None
        self.clear()

    def clear(self) -> None:
        self.calls: list[RootEntry | BackwardEntry] = []
        self.roots = 0                   # calls of roots
        self.segment = 0                 # grows at each boundary
        self.after: int | None = None    # calls before what the program does with gradients, while that comes
        self.refusal = ""                # why this tape cannot be replayed
        self._held: list[int] = [0]      # bytes that are held, since each call of a root
        self._tap = tap = self.session.tap
        if tap is not None:
            tap.library.tape_clear(tap.handle)

    def refuse(self, why: str) -> None:
        if self.after is not None:  # the step can be done again without what the program does with its gradients
            self.session.note(f"what the program does with gradients between backward and optimizer: {why}")
            del self.calls[self.after:]
            self.after = None
            if self._tap is not None:
                self._tap.library.tape_give_up(self._tap.handle)
        elif not self.refusal:
            self.refusal = why

    def next_segment(self) -> None:
        self.segment += 1
        if self._tap is not None:
            self._tap.library.tape_segment(self._tap.handle, self.segment)

    # What the tap has kept.
    @property
    def ops(self) -> int:
        return int(self._tap.library.tape_size(self._tap.handle)) if self._tap is not None else 0

    @property
    def bad_number(self) -> bool:
        """A single number that is not finite was made outside of roots."""
        return self._tap is not None and bool(self._tap.library.tape_bad(self._tap.handle))

    def taped(self) -> Taped | None:
        return self._tap.taped() if self._tap is not None else None

    def add(self, entry: RootEntry | BackwardEntry) -> None:
        entry.at = self.ops
        self.calls.append(entry)

    def drop(self, calls: int, ops: int) -> None:
        """What came first is not of this step, whose micro-batches are counted anew."""
        self.end_after()
        del self.calls[:calls]
        base = min((entry.micro_batch for entry in self.calls), default=0)
        for entry in self.calls:
            entry.micro_batch -= base
            entry.at -= ops
        if self._tap is not None:
            self._tap.library.tape_drop(self._tap.handle, ops, base)

    # Listening: outside of roots and of backward.
    @property
    def listens(self) -> bool:
        return self._tap is not None and self._tap.tapes

    def on(self) -> None:
        tap = self._tap
        if tap is not None and not tap.tapes and not self.refusal:
            tap.tape(True)

    def off(self) -> bool:
        """Whether it was on."""
        tap = self._tap
        if tap is None or not tap.tapes:
            return False
        tap.tape(False)
        self._ask()
        return True

    def _ask(self) -> None:
        """Whether the tap refuses it."""
        if self._tap is not None and not self.refusal:
            why = (self._tap.library.tape_refusal(self._tap.handle) or b"").decode("utf-8", "replace")
            if why:
                self.refuse(why)

    def end_region(self) -> None:
        """Of code outside of modules: a forward or a backward begins."""
        self.off()
        self.end_after()

    # What the program does with gradients before the optimizer takes them.
    def begin_after(self, leaves: Sequence[_Tensor]) -> None:
        """A backward has ended."""
        entry = self.calls[-1] if self.calls else None
        tap = self._tap
        if tap is None or self.refusal or not isinstance(entry, BackwardEntry) or entry.is_grad:
            return
        self.after = len(self.calls)
        tap.library.tape_after(tap.handle, True)
        entry.gradients_made = [(leaf, self.key(g)) for leaf in leaves
                                for g in [leaf.grad] if g is not None and g.layout is torch.strided]
        self.on()

    def end_after(self) -> None:
        if self.after is not None and self._tap is not None:
            self._tap.library.tape_after(self._tap.handle, False)
        self.after = None

    # Names.
    def pack(self, value: Any) -> Any:
        """Tensors by name or held, containers copied."""
        if isinstance(value, _Tensor):
            return self._name(value)
        kind = type(value)
        if kind is list or kind is tuple:
            return kind([self.pack(v) for v in value])
        return value

    def _name(self, t: _Tensor) -> Ref | Held:
        tap = self._tap
        key = tap.library.tape_name(tap.handle, t._cdata) if tap is not None else 0
        if key > 0:
            return Ref(key)
        if key < 0:
            self._ask()
        if not t.requires_grad and peek(t) is not None:  # a scale, most often halved before the step is looked at again
            with torch.no_grad():
                t = t.detach().clone()
        return Held(t, version_of(t))

    def find(self, t: _Tensor) -> Key:
        """Of one that was made in the step; 0: it was not."""
        tap = self._tap
        return int(tap.library.tape_find(tap.handle, t._cdata)) if tap is not None else 0

    def key(self, t: _Tensor, returned: bool = False) -> Key:
        """Of a tensor that from now on belongs to the step. `returned`: by a root."""
        tap = self._tap
        key: int = tap.library.tape_belongs(tap.handle, t._cdata, returned) if tap is not None else 0
        if key < 0:
            self.refuse("a tensor of the step has no storage to name it by")
        return key

    # Root calls.
    def begin_root(self, entry: RootEntry, call: RootCall) -> None:
        self.roots += 1
        if self._tap is None:  # the recorder was opened in this step
            self._tap = self.session.tap
        self._weigh()
        self._held.append(0)
        entry.args = self.pack_any(call.args, entry.inputs)
        entry.kwargs = self.pack_any(call.kwargs, entry.inputs)
        self._weigh()
        if self.roots > MAX_ROOTS:
            self.overflow(f"more than {MAX_ROOTS} calls of modules came before an optimizer ran")
        elif len(self._held) > 3 and sum(self._held[:-2]) > MAX_HELD:
            self.overflow(f"the inputs of more calls than fit into {MAX_HELD >> 20} MiB came before the optimizer ran")

    def _weigh(self) -> None:
        if self._tap is not None:
            self._held[-1] += self._tap.library.tape_held(self._tap.handle)

    def end_root(self, entry: RootEntry, call: RootCall, output: Any) -> None:
        if self.refusal:
            return
        entry.raised = call.raised
        entry.outputs = [self.key(t, returned=True) for t in tensors_of(output)]
        self.add(entry)

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
        is_after = self.after is not None
        self.refuse(why)
        if is_after:
            return
        self.calls, self._held = [], [0]
        if self._tap is not None:
            self._tap.library.tape_overflow(self._tap.handle, why.encode())


def listed(value: Any) -> list[Any] | None:
    if value is None:
        return None
    return [value] if isinstance(value, _Tensor) or not hasattr(value, "__iter__") else list(value)


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
