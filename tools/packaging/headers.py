# SPDX-License-Identifier: Apache-2.0
"""The C++ headers of a release of PyTorch, out of its wheel, without keeping the wheel: half a gigabyte or more, of
which the headers are 2 %. Of an index that serves parts of files only these are read; else the wheel is fetched, and
removed.
"""
from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

INSIDE = "torch/include/"
PYTHON = "3.11"  # whose wheels are asked for: headers are the same in each
_BLOCK = 1 << 20
_SECONDS = 60


class NotToBeHad(Exception):
    """Why there are no headers, as a clause."""


class RemoteFile(io.RawIOBase):
    """A file behind HTTP, read in parts. OSError: the server does not serve parts, or did not answer."""

    def __init__(self, url: str) -> None:
        self._url, self._at = url, 0
        self._blocks: dict[int, bytes] = {}
        self._size = 0
        self._size = self._fetch(0, 1)[1]

    def _fetch(self, begin: int, end: int) -> tuple[bytes, int]:
        """Bytes from `begin` to before `end`, and how many the file has."""
        request = urllib.request.Request(self._url, headers={"Range": f"bytes={begin}-{end - 1}"})
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            total = (answer.headers.get("Content-Range") or "").rpartition("/")[2]
            if answer.status != 206 or not total.isdigit():
                raise OSError("the index does not serve parts of files")
            return answer.read(), int(total)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        number = self._at // _BLOCK
        if number not in self._blocks:
            while len(self._blocks) >= 32:
                self._blocks.pop(next(iter(self._blocks)))
            begin = number * _BLOCK
            self._blocks[number] = self._fetch(begin, min(begin + _BLOCK, self._size))[0] if begin < self._size else b""
        block = self._blocks[number]
        part = block[self._at - number * _BLOCK:][:len(buffer)]
        buffer[:len(part)] = part
        self._at += len(part)
        return len(part)


def unpack(wheel: Any, into: Path) -> None:
    """`wheel`: a path or a file."""
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if name.startswith(INSIDE) and not name.endswith("/"):
                packed.extract(name, into)


def _pip(python: Path, *words: str) -> None:
    """With the configuration that pip has; without its constraints where one holds the release down, for nothing is
    installed."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *words, "--quiet", "--no-deps",
               "--only-binary", ":all:", "--python-version", PYTHON]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0 and "constraint" in done.stderr + done.stdout:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env={**os.environ, "PIP_CONSTRAINT": os.devnull})
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["it said nothing"]
        raise NotToBeHad(f"pip: {lines[-1][:300]}")


def _address(python: Path, release: str, scratch: Path) -> str:
    _pip(python, "install", "--use-feature=fast-deps", "--dry-run", "--ignore-installed",
         "--target", str(scratch / "to"), "--report", str(scratch / "report.json"), f"torch=={release}")
    (found,) = json.loads((scratch / "report.json").read_text())["install"]
    return str(found["download_info"]["url"])


def fetch(release: str, into: Path, python: Path, say: Callable[[str], None]) -> Path:
    """The folder torch/include of the release, below `into` and kept there. `python`: one that has pip."""
    folder = into / release
    if (folder / INSIDE / "torch" / "library.h").is_file():
        return folder / INSIDE
    into.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{release}-", dir=into))
    try:
        try:
            address = _address(python, release, scratch)
            say(f"PyTorch {release}: reading the headers")
            unpack(io.BufferedReader(RemoteFile(address), _BLOCK), scratch / "inside")
        except (OSError, NotToBeHad, ValueError, KeyError, zipfile.BadZipFile) as error:
            say(f"PyTorch {release}: fetching the wheel for its headers ({str(error)[:100]})")
            shutil.rmtree(scratch / "inside", ignore_errors=True)
            _pip(python, "download", "--no-cache-dir", "--dest", str(scratch), f"torch=={release}")
            (wheel,) = scratch.glob("*.whl")
            unpack(wheel, scratch / "inside")
        if not (scratch / "inside" / INSIDE / "torch" / "library.h").is_file():
            raise NotToBeHad("its wheel has no torch/library.h")
        shutil.rmtree(folder, ignore_errors=True)
        (scratch / "inside").rename(folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise NotToBeHad(str(error)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder / INSIDE
