# SPDX-License-Identifier: Apache-2.0
"""The tap library of this PyTorch (`tap_build`), loaded with ctypes. There is no symbol of Python's in it: one serves
every Python."""
from __future__ import annotations

import ctypes as c
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nanhunt import _library as lib
from nanhunt._tap.tap_build import TapMissing, compiled, prebuilt, source_root, tap_name, why_damaged

_void, _i32, _i64, _u64, _size, _text = c.c_void_p, c.c_int32, c.c_int64, c.c_uint64, c.c_size_t, c.c_char_p
StreamOf = c.CFUNCTYPE(_i64, _text, _i32)
RanksOf = c.CFUNCTYPE(_i64, _text, c.POINTER(c.c_uint32), _i64)
FileOf = c.CFUNCTYPE(_i64, _text, c.POINTER(c.c_char), _i64)
TakeNote = c.CFUNCTYPE(None, _text, _i64)
FirstOp = c.CFUNCTYPE(None)
LinesOf = c.CFUNCTYPE(c.c_uint32, _text, c.c_uint32, c.c_void_p, c.c_uint32)


_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "load": (_text, [_text]),
    "listens": (_text, []),
    "key": (_text, []),
    "hears_python": (_i32, []),
    "new": (_void, [c.POINTER(lib.Recording), _i64, _text]),
    "on": (_void, [_void]),
    "off": (None, [_void]),
    "free": (None, [_void]),
    "await_first_op": (None, [FirstOp]),
    "forget_first_op": (_i32, []),
    "await_next_forward": (None, [FirstOp]),
    "abandon": (None, []),
    "hush": (_i32, [_i32]),
    "use": (None, [_void, _void]),
    "enter_root": (None, [_void, _i64]),
    "exit_root": (None, [_void]),
    "enter": (None, [_void, _i64]),
    "exit": (None, [_void]),
    "begin_step": (None, [_void]),
    "begin_backward": (None, [_void]),
    "parameters": (None, [_void, _void, _void, _void, _size]),
    "owners": (None, [_void, _void]),
    "mark_set": (None, [_void, _void, _void, _size]),
    "mark": (None, [_void, _void, _void, _void, _size, _i32]),
    "lasting": (None, [_void, _void, _size, _i32]),
    "begin_graph": (None, [_void, _void, _size, _void]),
    "begin_kernel": (None, [_void, c.c_char_p, _void, _size]),
    "end_kernel": (None, [_void, _i32]),
    "judge_graph": (_i32, [_void, _void, _size, _size, _void, _size]),
    "end_graph": (_i64, [_void, _void, _size, _i64, _void, _size]),
    "silence": (None, [_i32]),
    "place": (None, [_void, _i64, _i64]),
    "look_at_copies": (None, [_void]),
    "were_written": (None, [_void, _void]),
    "set": (_void, [_void, _void, _size]),
    "set_is_alive": (_i32, [_void]),
    "set_free": (None, [_void]),
    "describe": (_i32, [_void, _i64, _i32, _void]),
    "release_hosts": (None, [_void]),
    "word": (_i64, [_void, _i64, _i32]),
    "written": (_i64, [_void, _i64]),
    "as_of": (_i64, [_void, _i64, _i64]),
    "settle": (_i64, [_void, _i32]),
    "forget": (None, [_void]),
    "keep": (None, [_void, _i64, _i64]),
    "hold": (_i32, [_void, _i32, _i64, _i64]),
    "hand_over": (None, [_void]),
    "is_late_here": (_i32, [_void]),
    "deliver_late": (_i32, [_void, _i32]),
    "drop_late": (None, [_void, _i32]),
    "launch_looks": (None, [_void]),
    "kept": (_i64, [_void]),
    "left_bad": (_i32, [_void]),
    "bad_number": (_text, [_void]),
    "mark_bad_number": (_i32, [_void, _i64, _i64]),
    "refused": (_u64, [_void]),
    "notes": (None, [_void, TakeNote]),
    "schema": (_i64, [_text, _text, _void, _i64]),
}


_HOLDING: dict[str, tuple[Any, list[Any]]] = {
    "calls": (_i32, [_void, _void, _void]),
    "gradients_of": (_void, [_void, _void, _size]),
    "gradients": (_i64, [_void, _i32, _void, _void, _void]),
    "gradients_free": (None, [_void]),
}


class NotLoadable(TapMissing):
    """The file is there."""


class TapLibrary:
    """Attributes are its functions, without `nanhunt_tap_`. They let go of the GIL, for what they lock may wait for it;
    but for those of _HOLDING."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            for library, prototypes in ((c.CDLL(str(path)), _PROTOTYPES), (c.PyDLL(str(path)), _HOLDING)):
                for name, (result, arguments) in prototypes.items():
                    function = getattr(library, f"nanhunt_tap_{name}")
                    function.restype, function.argtypes = result, arguments
                    setattr(self, name, function)
        except (OSError, AttributeError) as error:
            raise NotLoadable(f"{path} cannot be loaded: {error}") from error
        why = self.load(os.environ.get("NANHUNT_LISTEN", "").encode()).decode("utf-8", "replace")
        if why:
            raise TapMissing(why)

    def __getattr__(self, name: str) -> Any:  # for the type checker: all are set above
        raise AttributeError(name)


def _found() -> TapLibrary:
    root = source_root()
    name = tap_name(root)
    shipped = prebuilt(name)
    trouble = ""
    if shipped.is_file():
        trouble = why_damaged(shipped)
        if not trouble:
            try:
                return TapLibrary(shipped)
            except NotLoadable as error:  # of a system with other libraries: it is compiled for this one
                trouble = str(error)
    try:
        try:
            with compiled(root, name, because=trouble) as path:  # what is loaded stays
                return TapLibrary(path)
        except NotLoadable:  # damaged, or of another machine
            with compiled(root, name, again=True) as path:
                return TapLibrary(path)
    except TapMissing as error:
        if trouble:
            raise TapMissing(f"{trouble}; {error}") from error
        raise


_loaded: TapLibrary | None = None
_missing: TapMissing | None = None


def load_tap() -> TapLibrary:
    """The library, loaded once. Raises TapMissing with the reason, the same one each time."""
    global _loaded, _missing
    if _missing is not None:
        raise _missing
    if _loaded is None:
        try:
            _loaded = _found()
            os.register_at_fork(after_in_child=_loaded.abandon)  # nothing is heard there
        except TapMissing as error:
            _missing = error
            raise
        except Exception as error:
            _missing = TapMissing(f"{type(error).__name__}: {error}")
            raise _missing from error
    return _loaded


@contextmanager
def unheard() -> Iterator[None]:
    """What this thread computes inside is ours: the tap does not hear it."""
    library = _loaded
    if library is None:
        yield
        return
    before = library.hush(1)
    try:
        yield
    finally:
        library.hush(before)
