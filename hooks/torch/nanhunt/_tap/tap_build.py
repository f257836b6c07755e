# SPDX-License-Identifier: Apache-2.0
"""Where the tap library of a PyTorch lies, and how it is compiled.

PyTorch's C++ interface holds within one release only, so a tap is named after the headers that it was compiled from,
the sources and the flags. It is in the package where a wheel was built with one for these headers (`tools/wheel`),
else in a cache. Releases, builds and nightlies whose headers are the same share one.

It needs that PyTorch and nothing of the package, so any Python can run this file:

    python tap_build.py facts     what there is and what would be done, as JSON (`nanhunt doctor --env`)
"""
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_PACKAGE = Path(__file__).resolve().parents[1]
_TIMEOUT = 600  # seconds that a compiler may take
INDEX = "taps.json"  # of the taps in a package: for which releases each is, and its checksum
# Headers that say what the tap must fit: of tensors, the dispatcher, autograd and collectives. The rest of what it
# includes is made of functions, whose names say what they take.
_STRUCTURE = ("c10/core/**/*.h", "c10/util/**/*.h", "c10/macros/*.h", "torch/headeronly/**/*.h", "ATen/core/**/*.h",
              "ATen/detail/*.h", "ATen/Context.h", "ATen/ThreadLocalState.h", "ATen/record_function.h",
              "ATen/SavedTensorHooks.h", "ATen/*TLS.h", "ATen/ThreadLocalPythonObjects.h", "torch/library.h",
              "torch/custom_class*.h", "torch/csrc/autograd/*.h", "torch/csrc/autograd/functions/accumulate_grad.h",
              "torch/csrc/distributed/c10d/*.hpp")
# Nothing but the release, and how PyTorch was built.
_NOT_STRUCTURE = ("version.h", "cmake_macros.h")


class TapMissing(RuntimeError):
    """There is no tap for this PyTorch: why, as a clause."""


class CompileFailed(TapMissing):
    """The compiler said so, and would say so again."""


# Of failures that are not the compiler's: another try may succeed.
_PASSING = ("Killed", "No space left", "out of memory", "Cannot allocate memory")
_REMEMBERED = 24 * 3600  # seconds for which a failure is believed


class Pytorch(NamedTuple):
    """What a tap is compiled for."""

    include: Path
    abi: int      # _GLIBCXX_USE_CXX11_ABI
    release: str  # "2.11.0" of each of PyTorch's own builds; of others with what is behind a plus

    def digest_headers(self) -> str:
        """A name for the headers; "": there are none."""
        if not (self.include / "torch" / "library.h").is_file():
            return ""
        digest = hashlib.sha256(f"abi {self.abi}".encode())
        for path in sorted({path for pattern in _STRUCTURE for path in self.include.glob(pattern)}):
            if path.name not in _NOT_STRUCTURE:
                digest.update(str(path.relative_to(self.include)).encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]


# What PyTorch's own builds have behind a plus.
_OWN_BUILD = re.compile(r"(cpu|cpu\.cxx11\.abi|cu\d+|rocm[\d.]+|xpu)?")


def installed() -> Pytorch:
    import torch

    release, _, build = str(torch.__version__).partition("+")
    if not _OWN_BUILD.fullmatch(build):
        release = str(torch.__version__)
    return Pytorch(Path(torch.__file__).parent / "include",
                   int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True)), release)


def source_root() -> Path:
    """The folder below which hooks/torch/tap and include/nanhunt lie: the sources, or what the wheel holds of them."""
    for root in (_PACKAGE / "tap", _PACKAGE.parents[2]):
        if (root / "hooks" / "torch" / "tap" / "tap.cpp").is_file():
            return root
    raise TapMissing("its sources are not installed with the package")


def _sources(root: Path) -> list[Path]:
    return [*sorted((root / "hooks" / "torch" / "tap").rglob("*.[hc]*")), root / "include" / "nanhunt" / "c_adapter.h",
            root / "include" / "nanhunt" / "c_api.h"]


def cache_folder() -> Path:
    """Where taps are kept: NANHUNT_CACHE, else the user's cache."""
    given = os.environ.get("NANHUNT_CACHE")
    if given:
        return Path(given)
    try:
        home = Path.home()
    except RuntimeError:  # a user without one
        home = Path("/nonexistent")
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "nanhunt"


def _flags(abi: int) -> list[str]:
    return ["-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]


def name_for(root: Path, headers: str, abi: int) -> str:
    digest = hashlib.sha256()
    for path in _sources(root):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(repr((_flags(abi), platform.machine())).encode())
    return f"tap-{headers}-{digest.hexdigest()[:16]}.so"


def tap_name(root: Path) -> str:
    """Of the file for the PyTorch of this process: other headers, compiler flags or sources have another. A PyTorch
    without headers is believed its release, if it is one of PyTorch's own."""
    pytorch = installed()
    headers = pytorch.digest_headers()
    if not headers:
        for file, listed in _index().items():
            if f"{pytorch.release} abi {pytorch.abi}" in listed.releases:
                headers = file.split("-")[1]
    if not headers:
        raise TapMissing(f"this PyTorch has no C++ headers in {pytorch.include}")
    return name_for(root, headers, pytorch.abi)


class Listed(NamedTuple):
    """A tap in a package's list."""

    releases: list[str]  # "2.11.0 abi 1"
    sha256: str


def _index() -> dict[str, Listed]:
    try:
        found = json.loads((_PACKAGE / "lib" / INDEX).read_text())
        return {str(file): Listed([str(release) for release in tap["releases"]], str(tap["sha256"]))
                for file, tap in found.items()}
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return {}


def prebuilt(name: str) -> Path:
    """Where the package has it, if it was built with it."""
    return _PACKAGE / "lib" / name


def why_damaged(path: Path) -> str:
    """A tap of the package that is not as it was packed: loading it could end the process. "": it is whole."""
    listed = _index().get(path.name)
    try:
        if listed is None:
            return f"{path} is not in the package's list: install nanhunt again"
        if hashlib.sha256(path.read_bytes()).hexdigest() == listed.sha256:
            return ""
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return f"{path} is damaged: install nanhunt again"


def prebuilt_for() -> list[str]:
    """The releases of PyTorch that the package has a tap for."""
    there = {release.split()[0] for file, listed in _index().items() if prebuilt(file).is_file()
             for release in listed.releases}
    return sorted(there, key=lambda release: [part.zfill(4) for part in release.split(".")])


def _others() -> str:
    there = prebuilt_for()
    return f"; the package has one for {', '.join(there)}" if there else ""


def compiler() -> str | None:
    """CXX of the environment (its first word), or what the machine has."""
    given = os.environ.get("CXX", "").split()
    for name in (*given[:1], "c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return found
    return None


def need_compiler() -> str:
    cxx = compiler()
    if cxx is None:
        raise TapMissing("there is no C++ compiler to build the part with that hears operations: install g++ (Debian: "
                         "apt install g++), or set CXX"
                         + _others())
    return cxx


def compile_tap(root: Path, pytorch: Pytorch, libraries: Path, into: Path) -> None:
    """`libraries`: where libtorch_cpu.so and libc10.so are, or what is called so."""
    cxx = need_compiler()
    handle, name = tempfile.mkstemp(suffix=".so", dir=into.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            [cxx, *_flags(pytorch.abi), f"-I{root}", f"-I{root / 'include'}", f"-isystem{pytorch.include}",
             f"-isystem{pytorch.include / 'torch' / 'csrc' / 'api' / 'include'}",
             str(root / "hooks" / "torch" / "tap" / "tap.cpp"), "-o", name, f"-L{libraries}", "-s",
             "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT,
            check=False)
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if "error" in line]
            passes = done.returncode < 0 or any(word in done.stdout for word in _PASSING)
            raise (TapMissing if passes else CompileFailed)(
                f"{cxx} could not compile it for PyTorch {pytorch.release}{_others()}: "
                f"{(errors or ['no message'])[0][:300]}")
        Path(name).chmod(0o755)
        Path(name).replace(into)
    except subprocess.TimeoutExpired as error:
        raise CompileFailed(f"{cxx} did not end in {_TIMEOUT} s") from error
    except OSError as error:
        raise TapMissing(f"{cxx} could not compile it: {error}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _compile_for_this(root: Path, into: Path, note: str) -> None:
    import torch

    need_compiler()
    print(f"nanhunt: compiling the tap for PyTorch {torch.__version__}, once (about 20 s){note or _others()}",
          file=sys.stderr, flush=True)
    compile_tap(root, installed(), Path(torch.__file__).parent / "lib", into)


def _can_hold(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _cached(name: str) -> Path:
    """In the cache, which machines may share: what is compiled on one need not load on another with an older libc."""
    libc = "-".join(part for part in platform.libc_ver() if part) or "libc"
    return cache_folder() / f"{name[:-len('.so')]}-{libc}.so"


# A compile that failed is not tried again at each start and by each rank, as long as the compiler is the same.
def _failure(path: Path) -> Path:
    return path.with_suffix(".failed")


def _who_compiles() -> str:
    cxx = compiler()
    try:
        return "" if cxx is None else f"{cxx} {Path(cxx).resolve()} {Path(cxx).stat().st_mtime_ns}"
    except OSError:
        return str(cxx)


def _remember_failure(path: Path, why: CompileFailed) -> None:
    with contextlib.suppress(OSError):  # then it is tried again
        _failure(path).write_text(json.dumps({"compiler": _who_compiles(), "why": str(why)}))


def _failed_before(path: Path) -> str:
    """Why, as a clause; "": it did not."""
    try:
        said = json.loads(_failure(path).read_text())
        is_new = time.time() - _failure(path).stat().st_mtime < _REMEMBERED
        if is_new and said["compiler"] == _who_compiles():
            return f"{said['why']} (said before; remove {_failure(path)} to try again)"
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return ""


def _may_be_loaded(path: Path) -> bool:
    """It is there, and nobody else can have put it where everybody may write."""
    try:
        return path.is_file() and (path.stat().st_uid in (0, os.getuid()) or not path.parent.stat().st_mode & 0o002)
    except OSError:
        return False


def _written(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.is_file() else None


def _compile_into_cache(root: Path, path: Path, because: str) -> bool:
    """False: nothing can be written or locked there. Ranks that start together compile once."""
    if not _can_hold(path.parent):
        return False
    before = _written(path)
    try:
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError:
        return False
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            return False
        if _written(path) == before:
            said = _failed_before(path)
            if said:
                raise TapMissing(said)
            try:
                _compile_for_this(root, path, because)
            except CompileFailed as why:
                _remember_failure(path, why)
                raise
            _failure(path).unlink(missing_ok=True)
        return True
    finally:
        os.close(lock)


@contextlib.contextmanager
def compiled(root: Path, name: str, again: bool = False, because: str = "") -> Iterator[Path]:
    """The file of the tap of that name: in the cache, compiled if it is not there or of no use (`again`), else in a
    folder of this process, which is removed in the end. `because`: why the package's own is not used."""
    because = because and f"; {because}"
    path = _cached(name)
    if _may_be_loaded(path) and not again:
        yield path
        return
    need_compiler()  # nothing is made where it cannot be compiled
    if _compile_into_cache(root, path, because) and _may_be_loaded(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="nanhunt-") as own:
        _compile_for_this(root, Path(own) / path.name, f"; for this process alone, because {path.parent} cannot be "
                          f"written (NANHUNT_CACHE names another folder){because}")
        yield Path(own) / path.name


# For `nanhunt doctor --env`.
def _place(path: Path) -> str:
    """Where a tap would listen, by trying it: this process is there for nothing else. OSError: it cannot be loaded."""
    library = ctypes.CDLL(str(path))
    library.nanhunt_tap_load.restype = library.nanhunt_tap_listens.restype = ctypes.c_char_p
    why = library.nanhunt_tap_load(os.environ.get("NANHUNT_LISTEN", "").encode())
    if why:
        raise TapMissing(why.decode("utf-8", "replace"))
    return str(library.nanhunt_tap_listens().decode())


def _why_unsupported() -> str:
    sys.path.append(str(_PACKAGE))
    try:
        importlib.import_module("_pytorch")
    except ImportError as error:
        return str(error)
    except Exception as error:  # a release that nobody knows yet
        return f"{type(error).__name__}: {error}"
    finally:
        sys.path.remove(str(_PACKAGE))
    return ""


def facts() -> dict[str, Any]:
    """Of this Python: its PyTorch, and what its tap is: "prebuilt", "cached", "to_compile", "failed" (a compile did
    before) or "not_possible"; and where it listens in the dispatcher."""
    told: dict[str, Any] = {"python": sys.executable, "python_version": sys.version.split()[0], "torch": None,
                            "why_no_torch": None, "torch_cuda": None, "tap": "not_possible", "tap_path": None,
                            "why_no_tap": None, "listens": None, "prebuilt_for": prebuilt_for(), "compiler": compiler(),
                            "cache": str(cache_folder())}
    try:
        import torch

        told["torch"], told["torch_cuda"] = str(torch.__version__), torch.version.cuda
    except Exception as error:  # an installation may be broken in any way
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        told["why_no_torch"] = "it is not installed" if missing else f"{type(error).__name__}: {error}"
        told["why_no_tap"] = "there is no PyTorch"
        return told
    told["why_no_tap"] = _why_unsupported() or None
    if told["why_no_tap"]:
        return told
    trouble = ""  # with what is there
    try:
        name = tap_name(source_root())
        for state, path in (("prebuilt", prebuilt(name)), ("cached", _cached(name))):
            if path.is_file() if state == "prebuilt" else _may_be_loaded(path):
                try:
                    trouble = why_damaged(path) if state == "prebuilt" else trouble
                    if state == "cached" or not trouble:
                        return {**told, "listens": _place(path), "tap": state, "tap_path": str(path)}
                except OSError as error:
                    trouble = f"{path} cannot be loaded: {error}"
        said = _failed_before(_cached(name))
        if said:
            return {**told, "tap": "failed", "why_no_tap": said, "tap_path": str(_failure(_cached(name)))}
        need_compiler()
        told["tap"], told["why_no_tap"] = "to_compile", trouble or None
    except TapMissing as error:
        told["why_no_tap"] = f"{trouble}; {error}" if trouble else str(error)
    except Exception as error:
        told["why_no_tap"] = f"{type(error).__name__}: {error}"
    return told


def main(words: list[str]) -> int:
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != _PACKAGE / "_tap"]
    if words != ["facts"]:
        print("usage: tap_build.py facts", file=sys.stderr)
        return 2
    print(json.dumps(facts()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
