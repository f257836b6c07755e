# SPDX-License-Identifier: Apache-2.0
"""The library's way of reading tensors on a device, on the device of device/: for tests in a process of their own, with
the library of the tests that plays a device (tests/support/emulated_streams.h).
"""
from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

STREAM = (0, 1)  # as torch.cuda would name it


def library() -> Path:
    return Path(os.environ["NANHUNT_LIBRARY"]).with_name("libnanhunt_emulated.so")


class Emulated:
    """What the tests ask of the device that the library takes it for."""

    def __init__(self, functions):
        self._functions = functions
        functions.nanhunt_emulated_count.restype = ctypes.c_int64
        functions.nanhunt_emulated_set.restype = ctypes.c_bool

    def set(self, **values):
        for name, value in values.items():
            assert self._functions.nanhunt_emulated_set(name.encode(), ctypes.c_int64(value)), name

    def count(self, name):
        return self._functions.nanhunt_emulated_count(name.encode())


@contextlib.contextmanager
def read_there(copies_later=1, **values):
    """Tensors of the device are read where they are; what was read comes with the next copy but `copies_later`."""
    import pytest
    import walled
    from nanhunt import _device
    from nanhunt import _library as lib

    if not library().is_file():
        pytest.skip("libnanhunt_emulated.so is not built")
    before = lib._loaded, _device.stream_of
    loaded = lib.Library(library())
    functions = ctypes.CDLL(str(library()))
    functions.nanhunt_emulated_reset()
    functions.nanhunt_emulated_memory(ctypes.cast(walled.shows(), ctypes.c_void_p))
    emulated = Emulated(functions)
    emulated.set(copies_later=copies_later, **values)
    lib._loaded = loaded
    _device.stream_of = lambda device: STREAM if device.type == walled.NAME else before[1](device)
    try:
        yield emulated
    finally:
        lib._loaded, _device.stream_of = before
        functions.nanhunt_emulated_reset()


@contextlib.contextmanager
def capturing(is_on):
    """As if a CUDA graph were captured whenever `is_on()`."""
    from nanhunt import _device

    asks = _device.is_capturing
    _device.is_capturing = is_on
    try:
        yield
    finally:
        _device.is_capturing = asks


def counts_of(watch):
    """What the library has read on the device for a watch."""
    return watch._session.recorder.device_counts()


def compare_contents(watch, tensors):
    """As before an optimizer runs: with what they showed when they were read last."""
    from nanhunt import _library as lib

    session = watch._session
    session.recorder.rows([word for t in tensors for word in (lib.ROW_CHECK, 0, *session.values.quad(t))])


def norms_there(watch, tensors):
    """Norms of tensors on a device, by their names."""
    from nanhunt._device_reader import read_now

    return {reading.name: reading for reading in read_now(watch._session, list(tensors.items()))}
