# SPDX-License-Identifier: Apache-2.0
"""Lines of the program's source, as they are while it runs."""
from __future__ import annotations

import linecache
import os
from collections import OrderedDict

AROUND = 4           # lines before and after
_LONGEST = 240       # characters of one line
_MOST = 8 << 20      # bytes of a file
_files: OrderedDict[str, list[str]] = OrderedDict()  # the last ones that were read
_KEPT = 64


def lines_around(file: str, line: int) -> tuple[int, str]:
    """The number of the first of them, and the lines; 0 and "": not to be had. No loader of the program's is asked."""
    if os.environ.get("NANHUNT_SOURCE", "1") == "0" or line < 1:
        return 0, ""
    lines = _lines(file)
    if not 0 < line <= len(lines):
        return 0, ""
    first = max(1, line - AROUND)
    return first, "\n".join(_cut(text.rstrip("\r\n")) for text in lines[first - 1:line + AROUND])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"  # reports know a line that was cut by it


def _lines(file: str) -> list[str]:
    lines = _files.get(file)
    if lines is None:
        lines = _files[file] = _read(file)
        if len(_files) > _KEPT:
            _files.popitem(last=False)
    return lines


def _read(file: str) -> list[str]:
    cached = linecache.cache.get(file)  # cells of notebooks stand there alone
    if cached is not None and len(cached) == 4:
        return list(cached[2])
    try:
        if os.path.isfile(file) and os.path.getsize(file) <= _MOST:  # noqa: PTH113, PTH202
            with open(file, encoding="utf-8", errors="replace") as source:  # noqa: PTH123
                return source.readlines()
    except OSError:
        pass
    return []
