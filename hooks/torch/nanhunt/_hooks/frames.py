# SPDX-License-Identifier: Apache-2.0
"""What an exception shows of the way that it took."""
from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_OURS = str(Path(__file__).resolve().parents[1])  # the package: also where this one is a link
_OURS_AS_LOADED = str(Path(__file__).parents[1])


def take_frames_off(error: BaseException) -> None:
    """Takes frames of this package off the top of what has been unwound so far. Called where `error` is caught, and
    followed by a bare `raise`, which adds none: the program sees the frames that it would see alone."""
    top = error.__traceback__
    while top is not None and top.tb_frame.f_code.co_filename.startswith((_OURS_AS_LOADED, _OURS)):
        top = top.tb_next
    error.__traceback__ = top
    if sys.version_info < (3, 11):
        # There a bare `raise` goes on with a traceback of the interpreter's own, and not with that of the exception.
        handled = (type(error), error) if top is None else (type(error), error, top)
        for part in handled:  # the interpreter takes one reference to each
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
        set_handled = ctypes.PYFUNCTYPE(None, *[ctypes.c_void_p] * 3)(("PyErr_SetExcInfo", ctypes.pythonapi))
        set_handled(id(type(error)), id(error), None if top is None else id(top))
