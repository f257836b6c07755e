# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the CUDA libraries that a PyTorch built for CUDA is linked to: with them it can be imported, and used
on the CPU, on a machine that has none of them. Each function answers as CUDA does where there is no device.

    stand_ins.py FOLDER     makes in FOLDER, a `torch/lib`, what its libraries need and this machine lacks
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from elf import Library, read_library  # noqa: E402

NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE; to the other libraries it is an error as any
_OF_CUDA = re.compile(r"lib(cu|nv|nccl)")
MARK = "nanhunt_stand_in"  # a symbol that each stand-in has


class CannotMake(Exception):
    """Why there are no stand-ins."""


def missing_libraries(folder: Path, libraries: dict[str, Library]) -> set[str]:
    """The CUDA libraries that these need and that are neither among them, in NVIDIA's packages nor in the system."""
    needed = {name for library in libraries.values() for name in library.needed if _OF_CUDA.match(name)}
    beside = folder.parents[1].glob("nvidia/**/lib*.so*") if len(folder.parents) > 1 else ()
    packages = {path.name for path in beside}
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:
        listed = ""
    return needed - libraries.keys() - packages - set(re.findall(r"^\s*(\S+) \(", listed, re.MULTILINE))


def wanted_symbols(libraries: dict[str, Library], missing: set[str]) -> dict[str, set[tuple[str, str]]]:
    """For each missing library its (symbol, version). A symbol that names no library counts to the first missing one of
    who needs it: wherever it is, it is found, for all of them are loaded together."""
    wanted: dict[str, set[tuple[str, str]]] = {name: set() for name in missing}
    defined = {symbol for library in libraries.values() for symbol in library.defined}
    for library in libraries.values():
        lacks = [name for name in library.needed if name in missing]
        for symbol, of, version in library.undefined:
            if of in missing:
                wanted[of].add((symbol, version))
            elif lacks and not of and symbol not in defined and not symbol.startswith(("_Z", "Py", "_Py")):
                wanted[lacks[0]].add((symbol, ""))
    return wanted


def source_of(symbols: Iterable[str]) -> str:
    """C of a library with these functions."""
    lines = [f"const int {MARK} = 1;"]
    for symbol in sorted(set(symbols)):
        if symbol == "__cudaRegisterFatBinary":
            lines.append(f"static void* handle; void** {symbol}() {{ return &handle; }}")
        elif "String" in symbol or "GetErrorName" in symbol:
            lines.append(f'const char* {symbol}() {{ return "stand-in"; }}')
        else:  # what a library says of its kernels when it is loaded must go well
            well = symbol.startswith(("__cudaReg", "__cudaUnreg", "__cudaPush"))
            lines.append(f"int {symbol}() {{ return {0 if well else NO_DEVICE}; }}")
    return "\n".join(lines) + "\n"


def script_of(symbols: set[tuple[str, str]], versions: Iterable[str]) -> str:
    """The linker's script that gives each symbol its version."""
    lines = []
    for version in sorted(versions):
        names = "".join(f" {symbol};" for symbol, of in sorted(symbols) if of == version)
        lines.append(f"{version} {{{' global:' + names if names else ''} }};")
    return "\n".join(lines) + "\n"


def make_stand_ins(folder: Path) -> list[str]:
    """Makes what is missing and returns the names; [] where nothing is."""
    libraries = {}
    for path in sorted(folder.iterdir()):
        library = read_library(path) if ".so" in path.name and path.is_file() else None
        if library is not None:
            libraries[path.name] = library
    if not libraries:
        raise CannotMake(f"{folder} has no shared library: name the folder torch/lib of a Python environment")
    missing = missing_libraries(folder, libraries)
    if not missing:
        return []
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise CannotMake("there is no C compiler: run tools/setup")
    wanted = wanted_symbols(libraries, missing)
    with tempfile.TemporaryDirectory(prefix="stand-ins") as name:
        work = Path(name)
        for needed in sorted(missing):
            symbols = wanted[needed]
            versions = {v for library in libraries.values() for of, v in library.versions if of == needed}
            (work / "made.c").write_text(source_of(symbol for symbol, _ in symbols), encoding="utf-8")
            command = [compiler, "-w", "-shared", "-fPIC", "-fno-builtin", "-nostdlib", f"-Wl,-soname,{needed}"]
            if versions:
                (work / "made.map").write_text(script_of(symbols, versions), encoding="utf-8")
                command.append(f"-Wl,--version-script={work / 'made.map'}")
            command += [str(work / "made.c"), "-o", str(work / needed)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CannotMake(f"{needed} could not be made: {done.stderr.strip()[-400:]}")
        for needed in sorted(missing):
            shutil.copy(work / needed, folder / needed)
    return sorted(missing)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] in ("-h", "--help") or not Path(arguments[0]).is_dir():
        print(__doc__, file=sys.stdout if arguments[:1] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    try:
        made = make_stand_ins(Path(arguments[0]).resolve())
    except CannotMake as error:
        print(f"stand-ins: {error}", file=sys.stderr)
        return 1
    print(f"stand-ins: made {', '.join(made)}" if made else "stand-ins: nothing is missing", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
