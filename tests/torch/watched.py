# SPDX-License-Identifier: Apache-2.0
"""A session with chosen listeners that records into a folder, and the report of what it recorded."""
from __future__ import annotations

import ctypes as c
import json
from contextlib import contextmanager

import torch  # noqa: F401
from nanhunt import _library as lib
from nanhunt._hooks import hooks
from nanhunt._options import Options
from nanhunt._session import Session
from nanhunt._tap.values import Values


@contextmanager
def watching(folder, level, make_listeners):
    session = Session(Options(out=str(folder), level=level))
    session.listeners = make_listeners(session, Values(session))
    hooks.install(session)
    try:
        yield session
    finally:
        session.close()
        assert not [n for n in session.notes if n.startswith("errors inside")], session.last_error


def report_of(folder):
    library = lib.load_library().slow
    text, size = c.c_void_p(), c.c_size_t()
    status = library.nanhunt_report(str(folder).encode(), 1, c.byref(text), c.byref(size))
    assert status == lib.OK, lib.load_library().last_error()
    try:
        return json.loads(c.string_at(text, size.value))
    finally:
        library.nanhunt_free(text)
