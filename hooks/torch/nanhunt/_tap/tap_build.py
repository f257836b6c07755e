# SPDX-License-Identifier: Apache-2.0
"""Where the tap library of a PyTorch lies, and how it is compiled.

PyTorch's C++ interface holds within one release only, so a tap is named after the release, the sources and the flags
it was compiled from and with. It is in the package where a wheel was built for this PyTorch, else in a cache.

It needs that PyTorch and nothing of the package, so any Python can run this file:

    python tap_build.py facts           what there is and what would be done, as JSON (`nanhunt doctor --env`)
    python tap_build.py build FOLDER    puts the tap for its PyTorch into FOLDER (building a wheel)
"""
from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
_TIMEOUT = 600  # seconds that a compiler may take


class TapMissing(RuntimeError):
    """There is no tap for this PyTorch: why, as a clause."""


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


def _release() -> str:
    import torch

    return str(torch.__version__)


def _flags() -> list[str]:
    import torch

    return ["-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]


def tap_name(root: Path) -> str:
    """Of the file: another release of PyTorch, compiler flags or sources have another."""
    digest = hashlib.sha256()
    for path in _sources(root):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(repr(_flags()).encode())
    return f"tap-torch-{_release()}-{digest.hexdigest()[:16]}.so"


def prebuilt(name: str) -> Path:
    """Where the wheel has it, if it was built for this PyTorch."""
    return _PACKAGE / "lib" / name


def prebuilt_for() -> list[str]:
    """The releases of PyTorch that the wheel has a tap for."""
    names = [path.name for path in sorted((_PACKAGE / "lib").glob("tap-torch-*-*.so"))]
    return [name[len("tap-torch-"):].rpartition("-")[0] for name in names]


def _others() -> str:
    there = prebuilt_for()
    return f"; the package has one for {', '.join(there)}" if there else ""


def compiler() -> str | None:
    """CXX of the environment, or what the machine has."""
    given = os.environ.get("CXX", "").split()
    for name in (*given[:1], "c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return found
    return None


def _tools() -> tuple[str, Path]:
    """What compiles it, and where PyTorch is."""
    import torch

    cxx = compiler()
    if cxx is None:
        raise TapMissing("there is no C++ compiler to build it with: install g++ (Debian: apt install g++), or set CXX"
                         + _others())
    torch_root = Path(torch.__file__).parent
    if not (torch_root / "include" / "torch" / "library.h").is_file():
        raise TapMissing(f"this PyTorch has no C++ headers in {torch_root / 'include'}")
    return cxx, torch_root


def _compile(root: Path, into: Path, note: str) -> None:
    cxx, torch_root = _tools()
    include = torch_root / "include"
    print(f"nanhunt: compiling the tap for PyTorch {_release()}, once (about 20 s){note or _others()}", file=sys.stderr,
          flush=True)
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
            raise TapMissing(f"{cxx} could not compile it for PyTorch {_release()}{_others()}: "
                             f"{(errors or ['no message'])[0][:300]}")
        Path(name).chmod(0o755)
        Path(name).replace(into)
    except (OSError, subprocess.SubprocessError) as error:
        raise TapMissing(f"{cxx} could not compile it: {error}") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _can_hold(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def compiled(root: Path) -> tuple[Path, bool]:
    """The library's file in the cache, compiled if it is not there. Ranks that start together compile it once. True: no
    cache can be written, so the file is of this process alone, which removes it."""
    folder, name = cache_folder(), tap_name(root)
    if (folder / name).is_file():
        return folder / name, False
    _tools()  # nothing is made where it cannot be compiled
    if not _can_hold(folder):
        own = Path(tempfile.mkdtemp(prefix="nanhunt-"))
        try:
            _compile(root, own / name, f"; for this process alone, because {folder} cannot be written (NANHUNT_CACHE "
                     "names another folder)")
        except BaseException:
            own.rmdir()
            raise
        return own / name, True
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).is_file():
            _compile(root, folder / name, "")
    return folder / name, False


# For `nanhunt doctor --env`.
def facts() -> dict[str, Any]:
    """Of this Python: its PyTorch, and what its tap is: "prebuilt", "cached", "to_compile" or "not_possible"."""
    told: dict[str, Any] = {"python": sys.executable, "python_version": sys.version.split()[0], "torch": None,
                            "why_no_torch": None, "torch_cuda": None, "tap": "not_possible", "tap_path": None,
                            "why_no_tap": None, "prebuilt_for": prebuilt_for(), "compiler": compiler(),
                            "cache": str(cache_folder())}
    try:
        import torch

        told["torch"], told["torch_cuda"] = str(torch.__version__), torch.version.cuda
    except Exception as error:  # an installation may be broken in any way
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        told["why_no_torch"] = "it is not installed" if missing else f"{type(error).__name__}: {error}"
        told["why_no_tap"] = "there is no PyTorch"
        return told
    try:
        root = source_root()
        name = tap_name(root)
        for state, path in (("prebuilt", prebuilt(name)), ("cached", cache_folder() / name)):
            if path.is_file():
                try:
                    ctypes.CDLL(str(path))
                    return {**told, "tap": state, "tap_path": str(path)}
                except OSError as error:
                    told["why_no_tap"] = f"{path} cannot be loaded: {error}"
                    if state == "cached":
                        return told
        _tools()
        told["tap"] = "to_compile"
    except TapMissing as error:
        told["why_no_tap"] = str(error)
    except Exception as error:
        told["why_no_tap"] = f"{type(error).__name__}: {error}"
    return told


def _build(folder: Path) -> int:
    """For a wheel. A Python without PyTorch is none that a tap can be built for."""
    try:
        root = source_root()
        name = tap_name(root)
        path, is_own = compiled(root)
    except ModuleNotFoundError as error:
        print(f"nanhunt: no tap is built for {sys.executable}: {error}", file=sys.stderr)
        return 3
    except TapMissing as error:
        print(f"nanhunt: no tap is built for PyTorch {_release()}: {error}", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, folder / name)
    (folder / name).chmod(0o755)
    if is_own:
        shutil.rmtree(path.parent)
    print(f"nanhunt: {folder / name}")
    return 0


def main(words: list[str]) -> int:
    sys.path[:] = [folder for folder in sys.path if Path(folder or ".").resolve() != _PACKAGE / "_tap"]
    if words == ["facts"]:
        print(json.dumps(facts()))
        return 0
    if len(words) == 2 and words[0] == "build":
        return _build(Path(words[1]))
    print("usage: tap_build.py facts | build FOLDER", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
