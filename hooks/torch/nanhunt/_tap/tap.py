# SPDX-License-Identifier: Apache-2.0
"""The tap of one session: hears every op of the threads in which it is on, and tells the recorder. C++ does the work
(hooks/torch/tap); this is its handle, and what it has to ask Python."""
from __future__ import annotations

import ctypes as c
import functools
import threading
import weakref
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nanhunt import _library as lib
from nanhunt._pytorch import HigherOrderOperator, dispatch_key, graph_task_id, higher_order_operators
from nanhunt._tap import traced
from nanhunt._tap.sites import THEIRS, file_name
from nanhunt._tap.source import lines_around
from nanhunt._tap.tap_build import TapMissing
from nanhunt._tap.tap_library import FileOf, LinesOf, RanksOf, StreamOf, TakeNote, load_tap, unheard

if TYPE_CHECKING:
    from nanhunt._session import Session

LOSS = "<loss>"
NO_TAP = "operations: the tap is missing, because "
Quad = tuple[int, int, int, int]  # the four words of a value: data, word, offset, layout


class KeptCall(NamedTuple):
    op: str        # "aten::log"
    overload: str  # "": the default
    args: list[Any]
    results: list[Any]
    first_seq: int
    rows: int
    phase: int
    flags: int     # 1: badness began at it, else it used what such a call made; 2: autograd was to take its derivative


class TensorSet:
    """Tensors, held weakly, and the numbers of their names, which the tap keeps. Asking whether all are still there is
    one call, not one for each."""

    def __init__(self, tensors: Sequence[torch.Tensor], texts: Sequence[int] = ()) -> None:
        addresses, names = array("q", [t._cdata for t in tensors]), array("q", texts)
        library = load_tap()
        self.handle = library.set(addresses.buffer_info()[0], names.buffer_info()[0] if texts else None, len(addresses))
        self.is_alive: Callable[[], int] = functools.partial(library.set_is_alive, self.handle)
        weakref.finalize(self, library.set_free, self.handle).atexit = False


class Named:
    """Tensors, and the numbers of their paths, as the tap takes them. They live as long as this, if `keep`; else
    whoever hands it to the tap knows that they are there."""

    __slots__ = ("count", "tensors", "texts", "_kept", "_arrays")

    def __init__(self, tensors: Sequence[torch.Tensor], texts: Sequence[int] = (), keep: bool = True) -> None:
        self._kept = tensors if keep else None
        self._arrays = array("q", [t._cdata for t in tensors]), array("q", texts)
        self.count = len(tensors)
        self.tensors, self.texts = (numbers.buffer_info()[0] for numbers in self._arrays)


class Tap:
    """Needs a session with an open recorder. Raises TapMissing where there is none for this PyTorch."""

    def __init__(self, session: Session) -> None:
        recorder = session.recorder
        assert recorder is not None
        self.library = load_tap()
        self._session = session
        self._recorder = recorder
        self._keep = (StreamOf(self._stream_of), RanksOf(_ranks_of), FileOf(_file_of), LinesOf(_lines_of))
        recording = recorder.recording()
        recording.stream, recording.group, recording.file, recording.source = (
            c.cast(f, c.c_void_p).value for f in self._keep)
        self.handle = self.library.new(c.byref(recording), recorder.text(LOSS), "\n".join(THEIRS).encode())
        if not self.handle:
            raise TapMissing("there is no memory for it")
        self._words = (c.c_int64 * 4)()
        self._state: lib.State | None = None
        self.use(session.state)
        self.misses_subclasses = not self.library.hears_python()  # ops on a subclass of Tensor pass it by
        self.is_on = False
        self._thread = 0
        self.named_at = -1  # changes of the names of parameters that it knows
        self._bind()

    # Functions of the library, of this tap: no frame of Python's is in between. Once it is closed they do nothing.
    enter_root: Callable[[int], None]    # the path of the root
    exit_root: Callable[[], None]
    begin_backward: Callable[[], None]   # once it knows the names of parameters
    begin_step: Callable[[], None]       # what the step before the last claimed is forgotten
    look_at_copies: Callable[[], None]   # of parameters, that last: whether nobody wrote to them
    release_hosts: Callable[[], None]
    forget: Callable[[], None]           # ops ran unheard: what any tensor shows is not known any more
    # lib.HOLD: rows stay in memory, unread, until a number is not finite; calls at which badness begins are kept, as
    # keep() says: bytes of all, and of what is written over. lib.KEEP: they are wanted; lib.DROP: they are not.
    hold: Callable[[int, int, int], int]  # 1: the recorder was told; 2 more: a device tells of the step later
    is_late_here: Callable[[], int]      # of the oldest step that a device tells of later: all has come
    deliver_late: Callable[[bool], int]  # its rows to the recorder if they are wanted, or all: 1 they went, 2 more: bad
    drop_late: Callable[[bool], None]    # it is forgotten; True: it was healthy
    launch_looks: Callable[[], None]     # what was made on a device is looked at now: who writes next is not heard
    hand_over: Callable[[], None]        # rows may be wanted: those so far go to the recorder now, others at once
    settle: Callable[[bool], int]        # tells what has ended; how many collectives have not; True: they are forgotten
    owners: Callable[[Any], None]        # the handle of a set: whose a storage is, until the next call; None: nobody's

    # Kinds, names and tensors by address, how many, and whether their gradients are meant: the part that each plays.
    mark_at: Callable[[int, int, int, int, bool], None]
    # The handle of a set, kinds, how many: the same, told with the rows where these stay in the tap.
    mark_set: Callable[[Any, int, int], None]

    def _bind(self) -> None:
        self.mark_at = functools.partial(self.library.mark, self.handle)
        for name in ("mark_set", "enter_root", "exit_root", "begin_backward", "begin_step", "look_at_copies",
                     "release_hosts", "forget", "hold", "hand_over", "settle", "owners", "is_late_here", "deliver_late",
                     "drop_late", "launch_looks"):
            setattr(self, name, functools.partial(getattr(self.library, name), self.handle))

    def close(self) -> None:
        if self.handle:
            self.off()
            handle, self.handle = self.handle, None
            self._bind()
            self.write_notes(handle)
            self._recorder.refused += int(self.library.refused(handle))
            self.library.free(handle)

    def text(self, text: str) -> int:
        return self._recorder.text(text)

    # Listening.
    def on(self) -> None:
        if not self.is_on and self.handle:
            self.is_on, self._thread = True, threading.get_ident()
            pass_by(True)
            self.library.on(self.handle)

    def stay_on(self) -> None:
        """An inference mode in which it was switched on is left: with it a thread's switch goes back to what it was."""
        if self.is_on and self._thread == threading.get_ident():
            self.library.on(self.handle)

    def off(self) -> None:
        if self.is_on:
            self.is_on = False
            self.library.off(self.handle)
            # Elsewhere, and in a backward, the switch of the thread that trains stays on: its ops go on to pass by.
            if self._thread == threading.get_ident() and graph_task_id() < 0:
                pass_by(False)

    def move_here(self) -> None:
        """The calling thread is watched from now on: in the one before ops are not heard any more."""
        if self.is_on:
            self.off()
            self.on()

    def use(self, state: lib.State) -> None:
        """Where the run is, from now on: read at each op, so it may be written at any time."""
        self._state = state
        self.library.use(self.handle, c.addressof(state))

    # Places.
    def name_parameters(self) -> None:
        """By the names that the session has for them now."""
        names = self._session.parameter_names
        self.named_at = names.changes
        items = list(names.items_alive())
        named, copies = self.named(items), array("q", [self.text(f"copy of {path}") for _, path in items])
        self.library.parameters(self.handle, named.tensors, named.texts, copies.buffer_info()[0], named.count)

    def named(self, items: Sequence[tuple[torch.Tensor, str]]) -> Named:
        text = self._recorder.text
        return Named([t for t, _ in items], [text(path) for _, path in items])

    def mark(self, named: Named, kinds: array[int], gradients: bool = False) -> None:
        """The part that each tensor plays; with `gradients`, of each its gradient, where it has one."""
        self.mark_at(kinds.buffer_info()[0], named.texts, named.tensors, len(kinds), gradients)

    def lasting(self, tensors: Named, look: int) -> None:
        """Tensors that last: 0: what is watched has written them; 1: looked at; 2: but for those on devices."""
        self.library.lasting(self.handle, tensors.tensors, tensors.count, look)

    def were_written(self, tensors: TensorSet) -> None:
        """By what was not heard; their gradients as well."""
        self.library.were_written(self.handle, tensors.handle)

    # Compiled graphs, each as one op.
    def begin_graph(self, given: array[int], kept: array[int]) -> None:
        """`given`: tensors by address. `kept`: 1 for each that stays as it is until the graph has run."""
        self.library.begin_graph(self.handle, given.buffer_info()[0], len(given), kept.buffer_info()[0])

    def begin_kernel(self, name: str, given: Sequence[torch.Tensor]) -> None:
        """A kernel that is launched past the dispatcher, by its name."""
        of_given = array("q", [t._cdata for t in given])
        self.library.begin_kernel(self.handle, name.encode(), of_given.buffer_info()[0], len(of_given))

    def end_kernel(self, raised: bool) -> None:
        self.library.end_kernel(self.handle, raised)

    def judge_graph(self, made: Sequence[torch.Tensor], written: int, given: array[int]) -> int:
        """Of one that has run: 1: it made NaN; 2: something bad, and was given NaN; 3: infinities. `written`: as many
        of `made`, the last."""
        of_made = array("q", [t._cdata for t in made])
        return int(self.library.judge_graph(self.handle, of_made.buffer_info()[0], len(of_made), written,
                                            given.buffer_info()[0], len(given)))

    def end_graph(self, made: Sequence[torch.Tensor], written: int, inside: Sequence[torch.Tensor] = ()) -> int:
        """`inside`: what was bad there. The number of its row, if badness began in it; else -1."""
        of_made, of_inside = (array("q", [t._cdata for t in tensors]) for tensors in (made, inside))
        return int(self.library.end_graph(self.handle, of_made.buffer_info()[0], len(of_made), written,
                                          of_inside.buffer_info()[0], len(of_inside)))

    def drop_graph(self) -> None:
        """It has raised."""
        self.library.end_graph(self.handle, None, 0, -1, None, 0)

    def place(self, path: str | None, site: str = "") -> None:
        """Where ops run that stand for nodes of a graph, from here on; "": in the module that runs; None: where they
        seem to."""
        self.library.place(self.handle, -1 if path is None else self.text(path) if path else 0,
                           self.text(site) if site else 0)

    # Contents.
    def describe(self, t: torch.Tensor, with_data: bool = True) -> Quad | None:
        """The four words of any tensor; None where it cannot be watched, which is noted."""
        words = self._words
        if not self.library.describe(self.handle, t._cdata, with_data, words):
            return None
        return words[0], words[1], words[2], words[3]

    def word(self, storage: int) -> int:
        """Of the contents of a storage (its `_cdata`), which gets a number if it has none."""
        return int(self.library.word(self.handle, storage, 1))

    def known_word(self, storage: int) -> int:
        """The same; 0: it has none."""
        return int(self.library.word(self.handle, storage, 0))

    def written(self, storage: int) -> int:
        return int(self.library.written(self.handle, storage))

    def as_of(self, storage: int, version: int = -2) -> int:
        return int(self.library.as_of(self.handle, storage, version))

    def bad_number(self) -> str:
        """"aten::mean at train.py:12": of a validation, since this was asked last; "": none."""
        return str((self.library.bad_number(self.handle) or b"").decode("utf-8", "replace"))

    def mark_bad_number(self, kind: int, text: int) -> bool:
        """The single number of this step's forwards that was not finite first plays this part. False: there is none."""
        return bool(self.library.mark_bad_number(self.handle, kind, text))

    # Calls at which badness began.
    def keep(self, max_bytes: int, max_written: int = 0) -> None:
        """From here on they are kept, with what they read; 0: not. What was kept is forgotten. What an op reads and
        writes over is copied before, up to `max_written` bytes."""
        self.library.keep(self.handle, max_bytes, max_written)

    def kept(self) -> list[KeptCall]:
        with unheard():
            found = [torch.ops.nanhunt_tap.kept(self.handle, i) for i in range(self.library.kept(self.handle))]
        return [KeptCall(*call) for call in found]

    def left_bad(self) -> bool:
        """Whether something that was made before training began is not finite, and still there."""
        return bool(self.library.left_bad(self.handle))

    def write_notes(self, handle: Any = None) -> None:
        note = self._session.note
        take = TakeNote(lambda text, count: note(text.decode("utf-8", "replace"), count))
        self.library.notes(handle or self.handle, take)

    # What the tap asks.
    def _stream_of(self, kind: bytes, index: int) -> int:
        try:
            values = self._session.values
            return values.streams.word_of(torch.device(kind.decode(), index)) if values is not None else 0
        except Exception as error:
            self._session.failed(error, "the stream of a device")
            return 0


def _lines_of(file: bytes, line: int, room_at: int, room: int) -> int:
    try:
        first, text = lines_around(file.decode("utf-8", "surrogateescape"), line)
        raw = text.encode("utf-8", "replace").replace(b"\0", b"?")
        if not raw or len(raw) >= room:
            return 0
        c.memmove(room_at, raw + b"\0", len(raw) + 1)
        return first
    except Exception:
        return 0


def _ranks_of(name: bytes, ranks: Any, room: int) -> int:
    try:
        import torch.distributed as dist

        group = dist.distributed_c10d._resolve_process_group(name.decode())  # type: ignore
        members = list(dist.get_process_group_ranks(group))[:room]
        for i, rank in enumerate(members):
            ranks[i] = rank
        return len(members)
    except Exception:
        return 0


def _file_of(name: bytes, shown: Any, room: int) -> int:
    try:
        given = name.decode("utf-8", "replace")
        told = traced.traced_site(given) if given.startswith(traced.WRITTEN) else file_name(given)
        text = told.encode("utf-8", "replace")[:room]
        c.memmove(shown, text, len(text))
        return len(text)
    except Exception:
        return 0


# Higher-order ops are dispatched in Python, which wants a kernel for each key that is on: they pass the tap's by, and
# what they run inside is heard.
_made_as_torch_does = HigherOrderOperator.__init__


def pass_by(on: bool) -> None:
    if on == (HigherOrderOperator.__init__ is _made):
        return
    if on or HigherOrderOperator.__init__ is _made:
        HigherOrderOperator.__init__ = _made if on else _made_as_torch_does
    key = dispatch_key(load_tap().key().decode())
    for op in list(higher_order_operators.values()):
        keys = op.non_fallthrough_keys
        op.non_fallthrough_keys = keys.remove(key) if on else keys.add(key)


@functools.wraps(_made_as_torch_does)
def _made(self: Any, *args: Any, **kwargs: Any) -> None:
    _made_as_torch_does(self, *args, **kwargs)
    self.non_fallthrough_keys = self.non_fallthrough_keys.remove(dispatch_key(load_tap().key().decode()))


class SchemaArg(NamedTuple):
    slot: str      # name in rows
    name: str      # name in the schema
    written: bool


class Schema(NamedTuple):
    """What the tap makes of an op."""

    op: str
    skip: bool         # it has no row
    garbage: bool      # memory that nothing has written
    per_element: bool  # a row for each element of its lists
    writes: bool
    args: list[SchemaArg]


def schema_of(func: Any) -> Schema:
    """Of an OpOverload. Raises TapMissing."""
    text = c.create_string_buffer(1 << 16)
    schema = func._schema
    if load_tap().schema(schema.name.encode(), schema.overload_name.encode(), text, len(text)) <= 0:
        return Schema(schema.name, True, False, False, False, [])
    flags, *lines = text.value.decode().split("\n")
    args = [SchemaArg(line[:-2], a.name, line.endswith("1")) for line, a in zip(lines, schema.arguments)]
    return Schema(schema.name, "s" in flags, "g" in flags, "e" in flags, "w" in flags, args)
