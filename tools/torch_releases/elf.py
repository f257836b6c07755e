# SPDX-License-Identifier: Apache-2.0
"""What a shared library of a 64-bit Linux asks of others, read from its file: names of libraries, symbols, versions."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path

_DYNAMIC, _SYMBOLS, _NEEDED_VERSIONS, _SYMBOL_VERSIONS = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF  # types of sections
_NEEDED = 1  # a tag of the dynamic section


@dataclass
class Library:
    """One shared library. A symbol that it needs is (name, library, version), the last two "" where it names none."""

    needed: list[str] = field(default_factory=list)
    versions: set[tuple[str, str]] = field(default_factory=set)  # (library, version) that must be there
    undefined: set[tuple[str, str, str]] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)


def read_library(path: Path) -> Library | None:
    """The library; None: the file is none that this machine could load."""
    if path.stat().st_size < 64:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":  # 64 bits, lowest byte first
            return None
        return _read(data)


def _read(data: mmap.mmap) -> Library:
    table = struct.unpack_from("<Q", data, 40)[0]
    size, count = struct.unpack_from("<HH", data, 58)
    # A section: type, offset, size, the number of the section that it goes with.
    sections = [struct.unpack_from("<4xI16xQQI", data, table + size * i) for i in range(count)]
    library = Library()

    def strings(of: int) -> int:
        return sections[of][1]

    def text(start: int) -> str:
        return data[start : data.find(b"\0", start)].decode("utf-8", "replace")

    kinds = {section[0]: section for section in sections}
    if _DYNAMIC in kinds:
        _, start, length, link = kinds[_DYNAMIC]
        for tag, value in struct.iter_unpack("<qQ", data[start : start + length]):
            if tag == _NEEDED:
                library.needed.append(text(strings(link) + value))
    asked: dict[int, tuple[str, str]] = {}
    if _NEEDED_VERSIONS in kinds:
        _, at, _, link = kinds[_NEEDED_VERSIONS]
        while True:
            number, name, first, following = struct.unpack_from("<2xHIII", data, at)
            of, entry = text(strings(link) + name), at + first
            for _ in range(number):
                index, version, step = struct.unpack_from("<6xHII", data, entry)
                asked[index & 0x7FFF] = (of, text(strings(link) + version))
                entry += step
            if not following:
                break
            at += following
        library.versions = set(asked.values())
    if _SYMBOLS in kinds:
        _, start, length, link = kinds[_SYMBOLS]
        indices = b""
        if _SYMBOL_VERSIONS in kinds:
            _, begin, amount, _ = kinds[_SYMBOL_VERSIONS]
            indices = data[begin : begin + amount]
        for i, (name, section) in enumerate(struct.iter_unpack("<I2xH16x", data[start : start + length])):
            if not name:
                continue
            if section:
                library.defined.add(text(strings(link) + name))
                continue
            index = struct.unpack_from("<H", indices, 2 * i)[0] & 0x7FFF if indices else 0
            library.undefined.add((text(strings(link) + name), *asked.get(index, ("", ""))))
    return library
