# SPDX-License-Identifier: Apache-2.0
"""The device of device.cpp in Python: `load()` compiles it once, makes "walled" a device of torch and `torch.walled`
its module, with the names that torch.cuda has. There is no way back: it is for processes of its own (on_device.py).
"""
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
NAME = "walled"
SOURCES = ("device.cpp", "kernel.h", "memory.h")
FLAGS = ("-std=c++20", "-O0", "-Wall", "-Werror", "-fPIC", "-shared")
_library = None


class CannotCompile(Exception):
    """Why, as a sentence."""


@functools.cache
def compiled() -> Path:
    """The library, compiled if it was not yet: in the build folder, or else for this user in the temporary one."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler or sys.platform != "linux":
        raise CannotCompile("there is no C++ compiler for the device of tests/torch/device")
    torch_folder = Path(torch.__file__).resolve().parent
    content = b"".join((HERE / name).read_bytes() for name in SOURCES)
    flags = (*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
    key = hashlib.sha256(content + repr((compiler, flags, torch.__version__)).encode()).hexdigest()[:16]
    build = os.environ.get("NANHUNT_BUILD_DIR")
    folder = Path(build) if build else Path(tempfile.gettempdir()) / f"nanhunt-tests-{os.getuid()}"
    folder = folder / "torch_device"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"walled-{key}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the one that comes first compiles
        if not library.exists():
            made = library.with_suffix(".part")
            command = [*compiler.split(), *flags, f"-I{HERE.parents[2]}", "-isystem", str(torch_folder / "include"),
                       str(HERE / "device.cpp"), "-o", str(made), f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"it does not compile with PyTorch {torch.__version__}:\n{done.stderr[-4000:]}")
            made.rename(library)
    return library


def load() -> types.ModuleType:
    """Makes it a device of this process: torch.device("walled")."""
    global _library
    if _library is None:
        _library = ctypes.CDLL(str(compiled()))
        for name in ("walled_count_of", "walled_in_use"):
            getattr(_library, name).restype = ctypes.c_int64
        torch.utils.rename_privateuse1_backend(NAME)
        _library.walled_hand_out_default()
        torch._register_device_module(NAME, _module(torch.Generator(NAME)))
        torch.utils.generate_methods_for_privateuse1_backend()
    return getattr(torch, NAME)


# What tests ask of it.
def waits() -> int:
    """How often the host has waited for the device: copies to the host, numbers that were read, synchronizing."""
    return _library.walled_count_of(0)


def copies_to_host() -> int:
    return _library.walled_count_of(1)


def kernels() -> int:
    return _library.walled_count_of(2)


def bytes_in_use() -> int:
    return _library.walled_in_use()


def set_lag(queries: int) -> None:
    """So often an event says that it has not come, if it was not waited for."""
    _library.walled_set_lag(ctypes.c_int64(queries))


def shows():
    """For nanhunt_emulated_memory: how kernels that are not PyTorch's read the device's memory."""
    return _library.walled_show


def _module(generator: torch.Generator) -> types.ModuleType:
    device = torch.device(NAME, 0)
    module = types.ModuleType(f"torch.{NAME}")

    @contextlib.contextmanager
    def stream(wanted):
        with wanted:
            yield

    def synchronize(device=None):
        torch.accelerator.synchronize()

    names = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": lambda device: contextlib.nullcontext(),
        "synchronize": synchronize,
        "current_stream": lambda given=None: torch.accelerator.current_stream(device),
        "stream": stream,
        "Stream": lambda given=None, priority=0: torch.Stream(device),
        "Event": lambda enable_timing=False, blocking=False: torch.Event(device),
        "is_current_stream_capturing": lambda: False,
        "mem_get_info": lambda given=None: ((1 << 30) - bytes_in_use(), 1 << 30),
        "memory_allocated": lambda given=None: bytes_in_use(),
        "memory_reserved": lambda given=None: bytes_in_use(),
        "_is_in_bad_fork": lambda: False,
        "manual_seed": lambda seed: generator.manual_seed(seed) and None,
        "manual_seed_all": lambda seed: generator.manual_seed(seed) and None,
        "initial_seed": generator.initial_seed,
        "default_generators": (generator,),
        "get_rng_state": lambda given=NAME: generator.get_state(),
        "set_rng_state": lambda state, given=NAME: generator.set_state(state),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state_all": lambda states: generator.set_state(states[0]),
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
    }
    for name, value in names.items():
        setattr(module, name, value)
    return module
