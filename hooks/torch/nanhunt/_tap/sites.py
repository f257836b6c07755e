# SPDX-License-Identifier: Apache-2.0
"""How the files of the user's code are called where a line of it is named.

By the shortest end of their path that tells them from others of the same name that are imported, and never by more than
the path from the working directory; a cell of a notebook by its number.
"""
from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path

import torch

THEIRS = tuple(dict.fromkeys((str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep,
                              str(Path(__file__).resolve().parents[1]) + os.sep, "<frozen", "<eval_with_key")))
_INSTALLED = (*THEIRS, *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")))
_HERE = os.getcwd()  # noqa: PTH109
_CELL = re.compile(r"<ipython-input-(\d+)-")
MET: dict[str, tuple[str, str]] = {}  # by name in the code: path, and what it is called


def cell_name(filename: str) -> str:
    """"In[3]", as IPython calls it; "": it is no cell."""
    old = _CELL.match(filename)
    if old is not None:
        return f"In[{old[1]}]"
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    if name_of is None:
        return ""
    told = name_of(filename)  # ("Cell", "In[3]")
    return str(told[-1]) if told else ""


def _path(filename: str) -> str:
    return filename if filename.startswith("<") else os.path.normpath(os.path.join(_HERE, filename))  # noqa: PTH118


def _others(path: str) -> set[str]:
    """Of the same name: files of modules that no package has installed, and those that were met in code."""
    last = os.sep + os.path.basename(path)  # noqa: PTH119
    files = [vars(module).get("__file__") for module in list(sys.modules.values()) if hasattr(module, "__dict__")]
    paths = {_path(file) for file in files if isinstance(file, str) and file.endswith(last)}
    paths = {known for known in paths if not known.startswith(_INSTALLED)}
    paths |= {known for known, _ in MET.values() if known.endswith(last)}
    return paths - {path}


def _shortest(path: str) -> str:
    others = [other.split(os.sep) for other in _others(path)]  # noqa: PTH206
    inside = path.startswith(_HERE + os.sep)
    parts = (path[len(_HERE) + 1:] if inside else path).split(os.sep)  # noqa: PTH206
    for n in range(1, len(parts)):
        if all(other[-n:] != parts[-n:] for other in others):
            return os.sep.join(parts[-n:])  # noqa: PTH118
    return os.sep.join(parts)  # noqa: PTH118


def file_name(filename: str) -> str:
    """What a file (`co_filename`) is called; "": it is not the user's."""
    known = MET.get(filename)
    if known is not None:
        return known[1]
    if filename.startswith(THEIRS):
        MET[filename] = ("", "")
        return ""
    try:
        cell = cell_name(filename)
        if cell:
            return cell  # the same text may be run again, as another cell
        path = _path(filename)
        name = path if path.startswith("<") else _shortest(path)
    except Exception:
        path, name = filename, filename.rsplit(os.sep, 1)[-1]
    MET[filename] = path, name
    return name


def is_own_file(filename: str) -> bool:
    """Whether it is the program's: neither Python's nor of an installed package."""
    return not filename.startswith(_INSTALLED) and bool(file_name(filename))
