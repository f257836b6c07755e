# SPDX-License-Identifier: Apache-2.0
"""The tap library: compiled once for each release of PyTorch, kept in a cache, and loaded with ctypes.

PyTorch's C++ interface holds within one release only, so the sources travel with the package and are compiled where
they are first needed. There is no symbol of Python's in it: one serves every Python.
"""
from __future__ import annotations

import ctypes as c
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nanhunt import _library as lib

_PACKAGE = Path(__file__).resolve().parents[1]
_TIMEOUT = 600  # seconds that a compiler may take

_void, _i32, _i64, _u64, _size, _text = c.c_void_p, c.c_int32, c.c_int64, c.c_uint64, c.c_size_t, c.c_char_p
StreamOf = c.CFUNCTYPE(_i64, _text, _i32)
RanksOf = c.CFUNCTYPE(_i64, _text, c.POINTER(c.c_uint32), _i64)
TakeNote = c.CFUNCTYPE(None, _text, _i64)
LinesOf = c.CFUNCTYPE(c.c_uint32, _text, c.c_uint32, c.c_void_p, c.c_uint32)


_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "load": (_text, []),
    "new": (_void, [c.POINTER(lib.Recording), _i64, _text]),
    "on": (_void, [_void]),
    "off": (None, [_void]),
    "free": (None, [_void]),
    "abandon": (None, []),
    "hush": (_i32, [_i32]),
    "use": (None, [_void, _void]),
    "enter_root": (None, [_void, _i64]),
    "exit_root": (None, [_void]),
    "enter": (None, [_void, _i64]),
    "exit": (None, [_void]),
    "set_path": (None, [_void, _i64]),
    "begin_step": (None, [_void]),
    "begin_backward": (None, [_void]),
    "parameters": (None, [_void, _void, _void, _void, _size]),
    "owners": (None, [_void, _void, _void, _size]),
    "mark": (None, [_void, _void, _void, _void, _size, _i32]),
    "lasting": (None, [_void, _void, _size, _i32]),
    "describe": (_i32, [_void, _i64, _i32, _void]),
    "release_hosts": (None, [_void]),
    "word": (_i64, [_void, _i64, _i32]),
    "written": (_i64, [_void, _i64]),
    "join": (None, [_void, _i64, _i64]),
    "as_of": (_i64, [_void, _i64, _i64]),
    "settle": (_i64, [_void, _i32]),
    "forget": (None, [_void]),
    "keep": (None, [_void, _i64, _i64]),
    "kept": (_i64, [_void]),
    "refused": (_u64, [_void]),
    "notes": (None, [_void, TakeNote]),
    "schema": (_i64, [_text, _text, _void, _i64]),
    "generators": (None, [_void, _i32]),
}


class TapMissing(RuntimeError):
    """There is no tap for this PyTorch: why, as a clause."""


class TapLibrary:
    """Attributes are its functions, without `nanhunt_tap_`. They let go of the GIL: what they lock may wait for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            library = c.CDLL(str(path))
            for name, (result, arguments) in _PROTOTYPES.items():
                function = getattr(library, f"nanhunt_tap_{name}")
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        except (OSError, AttributeError) as error:
            raise TapMissing(f"{path} cannot be loaded: {error}") from error
        why = self.load().decode("utf-8", "replace")
        if why:
            raise TapMissing(why)

    def __getattr__(self, name: str) -> Any:  # for the type checker: all are set above
        raise AttributeError(name)


def source_root() -> Path:
    """The folder below which hooks/torch/tap and include/nanhunt lie: the sources, or what the wheel holds of them."""
    for root in (_PACKAGE / "tap", _PACKAGE.parents[2]):
        if (root / "hooks" / "torch" / "tap" / "tap.cpp").is_file():
            return root
    raise TapMissing("its sources are not installed with the package")


def _sources(root: Path) -> list[Path]:
    return [*sorted((root / "hooks" / "torch" / "tap").glob("*.[hc]*")), root / "include" / "nanhunt" / "c_adapter.h",
            root / "include" / "nanhunt" / "c_api.h"]


def cache_folder() -> Path:
    """Where taps are kept: NANHUNT_CACHE, else the user's cache."""
    given = os.environ.get("NANHUNT_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanhunt"


def tap_name(root: Path) -> str:
    """Of the file: another release of PyTorch, compiler flags or sources have another."""
    digest = hashlib.sha256()
    for path in _sources(root):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(repr(_flags()).encode())
    return f"tap-torch-{torch.__version__}-{digest.hexdigest()[:16]}.so"


def _flags() -> list[str]:
    return ["-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]


def compiler() -> str | None:
    """CXX of the environment, or what the machine has."""
    given = os.environ.get("CXX", "").split()
    for name in (*given[:1], "c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return found
    return None


def _compile(root: Path, into: Path) -> None:
    cxx = compiler()
    if cxx is None:
        raise TapMissing("there is no C++ compiler to build it with: install g++ (Debian: apt install g++), or set CXX")
    torch_root = Path(torch.__file__).parent
    include = torch_root / "include"
    if not (include / "torch" / "library.h").is_file():
        raise TapMissing(f"this PyTorch has no C++ headers in {include}")
    print(f"nanhunt: compiling the tap for PyTorch {torch.__version__}, once (about 20 s)", file=sys.stderr, flush=True)
    handle, name = tempfile.mkstemp(suffix=".so", dir=into.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            [cxx, *_flags(), f"-I{root}", f"-I{root / 'include'}", f"-isystem{include}",
             f"-isystem{include / 'torch' / 'csrc' / 'api' / 'include'}",
             str(root / "hooks" / "torch" / "tap" / "tap.cpp"), "-o", name, f"-L{torch_root / 'lib'}", "-ltorch_cpu",
             "-lc10"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=_TIMEOUT, check=False)
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if "error" in line]
            raise TapMissing(f"{cxx} could not compile it for PyTorch {torch.__version__}: "
                             f"{(errors or ['no message'])[0][:300]}")
        Path(name).chmod(0o755)
        Path(name).replace(into)
    except (OSError, subprocess.SubprocessError) as error:
        raise TapMissing(f"{cxx} could not compile it: {error}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _built(root: Path) -> Path:
    """The library's file, compiled if it is not there. Ranks that start together compile it once."""
    name = tap_name(root)
    shipped = _PACKAGE / "lib" / name
    if shipped.is_file():
        return shipped
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"{name}.lock").open("w")
    except OSError:  # a cache that cannot be written: one of this process's own
        folder = Path(tempfile.mkdtemp(prefix="nanhunt-"))
        lock = (folder / f"{name}.lock").open("w")
    path = folder / name
    with lock:
        if not path.is_file():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                _compile(root, path)
    return path


_loaded: TapLibrary | None = None
_missing: TapMissing | None = None


def load_tap() -> TapLibrary:
    """The library, loaded once. Raises TapMissing with the reason, the same one each time."""
    global _loaded, _missing
    if _missing is not None:
        raise _missing
    if _loaded is None:
        try:
            root = source_root()
            _loaded = TapLibrary(_built(root))
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
