# SPDX-License-Identifier: Apache-2.0
"""Kernels of ops without a GPU: the libcupti of hooks/cupti/fake, where each op is made to launch a kernel that has its
name. What stands between op and kernel is nanhunt's own, so it is taken hold of here, and nowhere else."""
from __future__ import annotations

import ctypes
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from nanhunt._hooks import hooks
from nanhunt._recorder import Recorder
from nanhunt._tap import kernels
from nanhunt._tap.tap import Tap
from torch.utils._python_dispatch import TorchDispatchMode


def why_no_cuda():
    return kernels.why_no_cuda()


def pretend_cuda(monkeypatch=None):
    """A PyTorch that says it has CUDA."""
    if monkeypatch is None:
        kernels.why_no_cuda = lambda: ""
    else:
        monkeypatch.setattr(kernels, "why_no_cuda", lambda: "")


def kernels_of(watch):
    """None: they are not watched."""
    return watch._session.kernels


def fail_at_end(watch, error):
    """While the end of the watch waits for a device."""
    def fails():
        raise error("planted")

    watch._session.pending.drain = fails


@pytest.fixture
def cupti(monkeypatch):
    """A libcupti of the tests' own, which this process is made to find, and a PyTorch that says it has CUDA."""
    folder = Path(os.environ.get("NANHUNT_BUILD_DIR", ""))
    found = sorted(folder.glob("hooks/cupti/libfake_cupti.so")) if os.environ.get("NANHUNT_BUILD_DIR") else []
    if not found:
        pytest.skip("libfake_cupti.so is not built: NANHUNT_BUILD_DIR names no build with tests and CUPTI's headers")
    fake = ctypes.PyDLL(str(found[0]))
    fake.fake_cupti_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]
    fake.fake_cupti_launch.restype = None
    fake.fake_cupti_refuse.argtypes = [ctypes.c_int, ctypes.c_char_p]
    fake.fake_cupti_refuse.restype = None
    fake.fake_cupti_calls.restype = ctypes.c_char_p
    fake.fake_cupti_start_over()
    monkeypatch.setenv("NANHUNT_CUPTI", str(found[0]))
    pretend_cuda(monkeypatch)
    return fake


def counted(func, *args, **kwargs):
    """PyTorch counts an op on a list as a write of each of its tensors; not so under a mode, where its kernel takes one
    after another: autograd would miss that what it saved was written."""
    tensors = args[0] if args else ()
    first = tensors[0] if tensors and not tensors[0].is_inference() else None
    before = first._version if first is not None else 0
    result = func(*args, **kwargs)
    if first is not None and first._version == before:
        torch.autograd.graph.increment_version(tensors)
    return result


class Naming(TorchDispatchMode):
    """Knows which op comes next: the tap below does not say."""

    coming = b""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.coming = func._schema.name.split("::")[-1].encode()
        kwargs = kwargs or {}
        name = func._schema.name
        writes_list = name.startswith("aten::_foreach_") and name.endswith("_")
        return counted(func, *args, **kwargs) if writes_list else func(*args, **kwargs)


@pytest.fixture
def launching(cupti, monkeypatch):
    """Every op launches a kernel of its name, of 1 us; and reading an op's row launches one of ours."""
    clock = iter(range(1000, 1 << 60, 1000))
    naming, kept, made = Naming(), [], Recorder.recording

    def launch(name):
        start = next(clock)
        cupti.fake_cupti_launch(name, start, start + 1000)

    def recording(self):
        def push(handle):
            ticket = self.fast.nanhunt_kernels_push(handle)
            launch(naming.coming + b"_kernel")
            return ticket

        def push_own(handle):
            self.fast.nanhunt_kernels_push_own(handle)
            launch(b"nanhunt_read")

        functions = {"kernels_push": ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(push),
                     "kernels_push_own": ctypes.CFUNCTYPE(None, ctypes.c_void_p)(push_own)}
        kept.append(functions)
        told = made(self)
        for name, function in functions.items():
            setattr(told, name, ctypes.cast(function, ctypes.c_void_p).value)
        return told

    on, off = Tap.on, Tap.off

    def on_with_names(self):
        if not self.is_on:
            naming.__enter__()
        on(self)

    def off_with_names(self):
        if self.is_on:
            naming.__exit__(None, None, None)
        off(self)

    # No mode can be put on amid an operation.
    monkeypatch.setattr(sys.modules[Tap.__module__].load_tap(), "await_first_op", lambda first: None)
    for module in (hooks, sys.modules[hooks.RootCall.__module__]):  # the mode is put on and off from within ours
        monkeypatch.setattr(module, "modes_aside", nullcontext)
    monkeypatch.setattr(Recorder, "recording", recording)
    monkeypatch.setattr(Tap, "on", on_with_names)
    monkeypatch.setattr(Tap, "off", off_with_names)
    return launch


def calls_of(cupti):
    return cupti.fake_cupti_calls().decode().split("\n")[:-1]
