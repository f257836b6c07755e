# SPDX-License-Identifier: Apache-2.0
"""What a wheel must be before anybody gets it: whole, small, and in need of nothing but what its tag says."""
from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

MOST_BYTES_OF_TAPS = 12_000_000
NEWEST_GLIBC = (2, 34)  # of 2021: RHEL 9, Ubuntu 22.04, Debian 12
# Those of every Linux with glibc, and of the standard C++ library.
_SYSTEM = re.compile(r"lib(?:c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so\.\d+|ld-linux[\w.-]*\.so\.\d+")
_OF_PYTORCH = {"libtorch_cpu.so", "libc10.so"}  # the process has them before it loads a tap
_VERSION = re.compile(r"Name: (GLIBC|GLIBCXX|CXXABI)_([\d.]+)")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def needs(path: Path) -> tuple[set[str], dict[str, str]]:
    """The libraries that a program or library names, and the newest symbol version of each kind."""
    said = subprocess.run(["readelf", "-dVW", str(path)], capture_output=True, text=True, check=True).stdout
    newest: dict[str, str] = {}
    for kind, version in _VERSION.findall(said):
        if _numbers(version) > _numbers(newest.get(kind, "0")):
            newest[kind] = version
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", said)), newest


def _record_faults(packed: zipfile.ZipFile) -> list[str]:
    name = next(name for name in packed.namelist() if name.endswith(".dist-info/RECORD"))
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(packed.read(name).decode()))}
    faults = [f"{file} is not in RECORD" for file in packed.namelist() if not file.endswith("/") and file not in rows]
    for file, (digest, size) in rows.items():
        if file != name:
            data = packed.read(file) if file in packed.namelist() else b""
            found = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            if (found, str(len(data))) != (digest, size):
                faults.append(f"{file} is not as RECORD says")
    return faults


def _tap_faults(packed: zipfile.ZipFile) -> list[str]:
    taps = {Path(name).name for name in packed.namelist() if re.fullmatch(r"nanhunt/lib/tap-.*\.so", name)}
    index = json.loads(packed.read("nanhunt/lib/taps.json")) if "nanhunt/lib/taps.json" in packed.namelist() else {}
    faults = [f"taps.json and the taps differ: {name}" for name in sorted(taps ^ set(index))]
    for name in sorted(taps & set(index)):
        if hashlib.sha256(packed.read(f"nanhunt/lib/{name}")).hexdigest() != index[name]["sha256"]:
            faults.append(f"{name} is not the tap that was built")
    size = sum(packed.getinfo(f"nanhunt/lib/{name}").file_size for name in taps)
    if size > MOST_BYTES_OF_TAPS:
        faults.append(f"the taps take {size / 1e6:.1f} MB, more than {MOST_BYTES_OF_TAPS / 1e6:.0f}")
    return faults


def _link_faults(packed: zipfile.ZipFile, rows: list[str]) -> list[str]:
    faults = []
    with tempfile.TemporaryDirectory(prefix="nanhunt-") as scratch:
        for name in packed.namelist():
            if packed.read(name)[:4] != b"\x7fELF":
                continue
            libraries, versions = needs(Path(packed.extract(name, scratch)))
            is_tap = Path(name).name.startswith("tap-")
            alien = {one for one in libraries if not _SYSTEM.fullmatch(one)}
            if is_tap and alien != _OF_PYTORCH:
                faults.append(f"{name} asks for {', '.join(sorted(alien)) or 'nothing'}, not for PyTorch's libraries")
            elif not is_tap and alien:
                faults.append(f"{name} needs {', '.join(sorted(alien))}, which a machine need not have")
            newest = ", ".join(f"{kind}_{version}" for kind, version in sorted(versions.items()))
            rows.append(f"{packed.getinfo(name).file_size:>10,}  {name}  ({newest})")
    return faults


def check(wheel: Path, is_for_others: bool) -> tuple[list[str], list[str]]:
    """Faults, and rows of what is inside. `is_for_others`: it must run on machines other than this one."""
    rows: list[str] = []
    with zipfile.ZipFile(wheel) as packed:
        damaged = packed.testzip()
        if damaged is not None:
            return [f"{damaged} is damaged"], rows
        faults = [*_record_faults(packed), *_tap_faults(packed)]
        linked = _link_faults(packed, rows)
        if is_for_others:
            faults += linked
            tags = re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name)
            if not tags:
                faults.append(f"{wheel.name} has no manylinux tag")
            elif min((int(major), int(minor)) for major, minor in tags) > NEWEST_GLIBC:
                faults.append(f"{wheel.name} needs systems newer than manylinux_{'_'.join(map(str, NEWEST_GLIBC))}")
            for wanted in (r"\.dist-info/sboms/nanhunt\.cdx\.json", r"\.dist-info/licenses/LICENSE",
                           r"\.dist-info/licenses/.*THIRD-PARTY\.txt"):
                if not any(re.search(wanted + "$", name) for name in packed.namelist()):
                    faults.append(f"nothing in it is called {wanted}")
        unpacked = sum(info.file_size for info in packed.infolist())
        rows.append(f"{wheel.stat().st_size:>10,}  {wheel.name}, {len(packed.namelist())} files, {unpacked:,} unpacked")
    return faults, rows
