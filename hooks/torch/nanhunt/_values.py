# SPDX-License-Identifier: Apache-2.0
"""Which contents a tensor shows: a number on the storage's Python object, which lives and dies with the storage.

A word is storage << 24 | version, as nanhunt_record_rows has it. Views, `detach`, `.data` and saved tensors share the
storage and so the number; a storage that takes over the memory of a dead one has none yet.
"""
from __future__ import annotations

import itertools
import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from nanhunt import _device
from nanhunt import _library as lib
from nanhunt._streams import CAPTURED, LAYOUT, Streams

if TYPE_CHECKING:
    from nanhunt._session import Session

_VERSION_MASK = (1 << 24) - 1
_numbers, _sessions = itertools.count(1), itertools.count()
# Of these types every property is torch's own: no user's code runs when it is asked for.
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
Quad = tuple  # (data, word, offset, layout): the four words of a value

DTYPES: dict[torch.dtype, int] = {
    torch.float16: lib.F16, torch.bfloat16: lib.BF16, torch.float32: lib.F32, torch.float64: lib.F64,
    torch.int64: lib.I64, torch.int32: lib.I32, torch.uint8: lib.U8, torch.bool: lib.BOOL}
for _name, _number in (("float8_e4m3fn", lib.E4M3FN), ("float8_e5m2", lib.E5M2)):
    if hasattr(torch, _name):
        DTYPES[getattr(torch, _name)] = _number
_COMPLEX = {torch.complex64: lib.F32, torch.complex128: lib.F64}
_NONE: dict[Any, int] = {}
_WIDE = (torch.float64, torch.complex128)
# Under it a subclass of the user's is a plain tensor.
no_torch_function: Any = getattr(torch._C, "DisableTorchFunctionSubclass",
                                 getattr(torch._C, "DisableTorchFunction", None))
# Under it no dispatch mode hears of an op.
no_dispatch: Any = getattr(torch._C, "_DisableTorchDispatch", nullcontext)


class Identity:
    """Of a storage. Dies with it; the recorder is told of the end with later rows."""

    __slots__ = ("word", "dead", "as_of", "away")

    def __init__(self, word: int, dead: list[int], away: bool) -> None:
        self.word, self.dead = word, dead
        self.away = away  # not in host memory: its addresses reach the library with a stream on which it may read there
        self.as_of = -1  # torch's version of the contents that the word is known to stand for, where that was looked at

    def __del__(self) -> None:
        self.dead.append(self.word)


class Values:
    """Identities and descriptions of tensors, for one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.key = f"_nanhunt{next(_sessions)}"  # what an earlier session left on a storage is not ours
        self.dead: list[int] = []  # words of storages that ended since the last rows
        # Layout numbers: of row-major tensors by dtype and shape; of all by strides too; and which of them are fp64.
        self.dense: dict[torch.dtype, dict[Any, int]] = {dtype: {} for dtype in DTYPES}
        self._layouts: dict[Any, int] = {}
        self._others: dict[Any, int] = {}  # of dtypes that stand for others: never to be read as they are
        self._sizes: dict[int, int] = {}  # in bytes, of row-major layouts
        self.wide: set[int] = set()
        self.streams = Streams(session)
        self._hosts: list[torch.Tensor] = []  # copies of what is not in host memory, alive until the rows are written

    def born(self, storage: Any) -> Identity:
        """The identity of a storage that has none yet."""
        identity = Identity(next(_numbers) << 24, self.dead, storage.device.type != "cpu")
        setattr(storage, self.key, identity)
        return identity

    def identity_of(self, storage: Any) -> Identity:
        identity = getattr(storage, self.key, None)
        return self.born(storage) if identity is None else identity

    def knows(self, t: torch.Tensor) -> bool:
        """Whether the storage has a number."""
        return hasattr(t.untyped_storage(), self.key)

    def identity(self, t: torch.Tensor) -> int:
        """The word of the contents that t shows. A storage that was not seen before gets a number."""
        return self.identity_of(t.untyped_storage()).word

    def bump(self, identity: Identity) -> int:
        """Its storage was written: the word of the contents now."""
        word = identity.word + 1
        if word & _VERSION_MASK == 0:  # versions are used up: as if it were another storage
            self.dead.append(identity.word)
            word = next(_numbers) << 24
        identity.word = word
        return word

    def written(self, t: torch.Tensor) -> tuple[int, int]:
        """t was written: the words of its contents before and now."""
        identity = self.identity_of(t.untyped_storage())
        return identity.word, self.bump(identity)

    def quad(self, t: torch.Tensor) -> tuple[int, int, int, int]:
        """The four words of a plain, strided tensor that can be read where it is. Raises for others."""
        shape, dense = t.shape, t.is_contiguous()
        layout = self.dense[t.dtype].get(shape) if dense else self._layouts.get((t.dtype, shape, t.stride()))
        if layout is None:
            layout = self._new_layout(t)
        identity = self.identity_of(t.untyped_storage())
        if identity.away:
            layout |= self.stream_word(t)
        return t.data_ptr(), identity.word, t.storage_offset(), layout  # type: ignore[return-value]

    def stream_word(self, t: torch.Tensor) -> int:
        """For the layout word of a tensor that is not in host memory. Raises where it has to be copied there."""
        word = self.streams.word_of(t)
        if not word:
            raise RuntimeError("not in host memory")
        return word

    def is_wide(self, word: int) -> bool:
        """Whether a layout word is of fp64."""
        return word & LAYOUT in self.wide

    def describe(self, t: torch.Tensor, with_data: bool = True) -> tuple[int, int, int, int] | None:
        """The four words of any tensor; None where t cannot be watched, which is noted."""
        try:
            if type(t) in PLAIN:
                if with_data and t.is_contiguous() and not t.storage_offset():  # nearly all
                    layout = self.dense.get(t.dtype, _NONE).get(t.shape)
                    storage = t.untyped_storage()
                    if layout is not None and self._sizes[layout] <= storage.nbytes():
                        identity = self.identity_of(storage)
                        if not identity.away:
                            return t.data_ptr(), identity.word, 0, layout  # type: ignore[return-value]
                return self._describe(t, with_data)
            with no_torch_function():
                return self._describe(t, with_data)
        except Exception:
            self.session.note(f"{_kind_of(t)} tensors")
            return None

    def _describe(self, t: torch.Tensor, with_data: bool) -> tuple[int, int, int, int]:
        storage = t.untyped_storage()
        dtype = t.dtype
        layout = self.layout(t)
        offset = t.storage_offset()
        if not with_data:
            data = 0
        elif type(t) not in PLAIN and _is_wrapper(t):
            raise TypeError("a wrapper has no memory of its own")
        elif dtype not in DTYPES and dtype not in _COMPLEX:
            data = 0
            if dtype.is_floating_point or t.is_quantized:
                self.session.note(f"{_kind_of(t)} tensors")
        elif t.is_cpu:
            data = t.data_ptr() if _holds(storage, t) else 0
        else:
            word = self.streams.word_of(t) if t.device.type != "meta" else 0
            data = self._host(t) if not word else t.data_ptr() if _holds(storage, t) else 0
            layout |= word if data else 0
        if dtype in _COMPLEX:
            offset *= 2
        return data, self.identity_of(storage).word, offset, layout  # type: ignore[return-value]

    def layout(self, t: torch.Tensor) -> int:
        """The layout number of t. Raises where t has no strides."""
        if t.layout is not torch.strided:
            raise TypeError("no strides")
        if t.dtype not in self.dense:
            number = self._others.get((t.dtype, t.shape, t.stride()))
            return self._other_layout(t) if number is None else number
        if t.is_contiguous():
            number = self.dense[t.dtype].get(t.shape)
        else:
            number = self._layouts.get((t.dtype, t.shape, t.stride()))
        return self._new_layout(t) if number is None else number

    def _new_layout(self, t: torch.Tensor) -> int:
        """Raises where elements are not what the library would read."""
        number = self._number_of(t, DTYPES[t.dtype], t.shape, t.stride())
        if t.is_contiguous():
            self.dense[t.dtype][t.shape] = number
            self._sizes[number] = t.numel() * t.element_size()
        self._layouts[(t.dtype, t.shape, t.stride())] = number
        return number

    def _other_layout(self, t: torch.Tensor) -> int:
        sizes, strides = list(t.shape), list(t.stride())
        dtype = lib.I64  # other integers: never bad; described without data
        if t.dtype in _COMPLEX:  # pairs of real numbers
            dtype, sizes, strides = _COMPLEX[t.dtype], [*sizes, 2], [*(2 * s for s in strides), 1]
        number = self._others[(t.dtype, t.shape, t.stride())] = self._number_of(t, dtype, sizes, strides)
        return number

    def _number_of(self, t: torch.Tensor, dtype: int, sizes: Any, strides: Any) -> int:
        recorder = self.session.open()
        if recorder is None:
            raise RuntimeError("no recorder")
        number = recorder.layout(dtype, [int(n) for n in sizes], [int(n) for n in strides])
        if number < 0:
            raise RuntimeError("the layout was refused")
        if t.dtype in _WIDE:
            self.wide.add(number)
        return number

    def _host(self, t: torch.Tensor) -> int:
        if t.device.type == "meta":
            return 0
        if _device.is_capturing():  # a copy that is waited for would break the graph
            self.session.note(CAPTURED)
            return 0
        if not self.session.replaying:
            self.session.note(f"what waiting costs: tensors on {t.device.type} are copied to the host to be read")
        with no_dispatch(), torch.no_grad():  # no row, no mode of the program's
            copy = _on_host(t)
        self._hosts.append(copy)
        return copy.data_ptr()

    def release_hosts(self) -> None:
        if self._hosts:
            self._hosts.clear()

    def dead_rows(self) -> list[int]:
        """Rows for the storages that ended."""
        dead = self.dead
        words: list[int] = []
        while dead:  # another thread may add while we take
            words += (lib.ROW_RELEASE, dead.pop() >> 24)
        return words


def _on_host(t: torch.Tensor) -> torch.Tensor:
    """Memory with the numbers of t in its strides, from the first one on."""
    strides = t.stride()
    sizes = [1 if stride == 0 else size for size, stride in zip(t.shape, strides)]  # what was expanded is there once
    span = 1 + sum((n - 1) * s for n, s in zip(sizes, strides)) if t.numel() else 0
    if span <= 2 * math.prod(sizes):  # windows may overlap, and nothing can be written into those
        return t.as_strided((span,), (1,)).cpu()
    copy = torch.empty_strided(sizes, strides, dtype=t.dtype, device="cpu")
    copy.copy_(t.as_strided(sizes, strides))
    return copy


def _holds(storage: Any, t: torch.Tensor) -> bool:
    """Whether the memory is there: storages can be shrunk under their tensors (sharded training does)."""
    size = t.element_size()
    if t.is_contiguous():
        return bool(t.storage_offset() * size + t.numel() * size <= storage.nbytes())
    last = t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
    return t.numel() == 0 or bool((last + 1) * size <= storage.nbytes())


def _is_wrapper(t: torch.Tensor) -> bool:
    """A subclass that answers for other tensors: its ops are seen on those."""
    return bool(type(t).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl)


def _kind_of(t: Any) -> str:
    if isinstance(t, torch.Tensor):
        try:
            if type(t) not in PLAIN and type(t).__module__.split(".")[0] != "torch":
                return "subclass"
            if t.is_nested:
                return "nested"
            if t.layout is not torch.strided:
                return str(t.layout).replace("torch.", "").replace("_coo", "")
            if t.is_quantized:
                return "quantised"
            if type(t) in PLAIN:
                return f"{t.device.type} {t.dtype}".replace("torch.", "").replace("cpu ", "")
        except Exception:
            pass
    return type(t).__name__


def flat(value: Any, depth: int = 0) -> list[torch.Tensor]:
    """Tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)) and depth < 4:
        return [t for item in value for t in flat(item, depth + 1)]
    if isinstance(value, dict) and depth < 4:
        return [t for item in value.values() for t in flat(item, depth + 1)]
    return []
