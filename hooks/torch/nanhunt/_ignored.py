# SPDX-License-Identifier: Apache-2.0
"""What the user names as harmless: a module, a tensor or a line of code, and why. The trace says so; the analyzer tells
findings that rest on it as information.

    nanhunt.ignore("encoder.pad", reason="padding, never selected")     # or the tensor itself

    # nanhunt.toml, beside the program or named by --config
    [[ignore]]
    path = "encoder.pad"
    reason = "padding, never selected"
"""
from __future__ import annotations

import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanhunt._names import plain_path

if TYPE_CHECKING:
    from nanhunt._session import Session

FILE = "nanhunt.toml"
NOTE = "ignored by the user: "  # src/trace/FORMAT.md
_CLIP = 300

_paths: dict[str, str] = {}  # path -> reason
_tensors: list[tuple[weakref.ref[Any], str]] = []


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_CLIP]


def _reason(reason: object) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"reason: expected why it is harmless, got {reason!r}")
    return _one_line(reason)


def _checked(what: object, reason: object) -> tuple[str, str]:
    path = what.strip() if isinstance(what, str) else ""
    if not path or ": " in path:
        raise ValueError(f"what: expected a path such as 'encoder.pad' or 'model.py:12', got {what!r}")
    return path, _reason(reason)


def ignore(what: Any, reason: str) -> None:
    """Names what is harmless in the runs of this process: the path of a module ("encoder"), buffer or parameter
    ("encoder.pad"), a line of code as reports write it ("model.py:12"), or a buffer or parameter itself."""
    if isinstance(what, str):
        path, why = _checked(what, reason)
        _paths[path] = why
    elif type(what).__module__.partition(".")[0] == "torch" or hasattr(what, "untyped_storage"):
        _tensors.append((weakref.ref(what), _reason(reason)))
    else:
        raise TypeError(f"what: expected a path or a tensor, got {type(what).__name__}")


def _path_of(session: Session, tensor: Any) -> str:
    known = session.parameter_names.get(id(tensor))
    if known is not None:
        return known
    for reference, name in list(session.roots.values()):
        module = reference()
        for path, buffer in module.named_buffers() if module is not None else ():
            if buffer is tensor:
                return plain_path(name, path)
    return ""


def write(session: Session) -> None:
    """Notes what was named, as soon as its path is known."""
    for path, reason in _paths.items():
        _note(session, path, reason)
    for reference, reason in _tensors:
        tensor = reference()
        path = _path_of(session, tensor) if tensor is not None else ""
        if path:
            _note(session, path, reason)


def _note(session: Session, path: str, reason: str) -> None:
    text = f"{NOTE}{path}: {reason}"
    if text not in session.notes:
        session.note(text)


def _entries(path: Path) -> list[tuple[str, str]]:
    """What a configuration file names, and why. An OSError or ValueError says what is wrong with it."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there")
    try:
        import tomllib
    except ImportError:  # before Python 3.11
        raise ValueError(f"{path} is not read: Python {sys.version.split()[0]} has no tomllib. Call nanhunt.ignore in "
                         "the program") from None
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("ignore", [])
        return [_checked(entry["path"], entry["reason"]) for entry in entries]
    except KeyError as error:
        raise ValueError(f"{path}: an [[ignore]] has no {error.args[0]}") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from None


def check_file(given: str) -> None:
    """Raises where a file that the user named cannot be used."""
    try:
        _entries(Path(given))
    except (OSError, ValueError) as error:
        raise type(error)(f"config: {error}") from None


def read_file(given: str | None) -> str:
    """Reads the configuration file. What is wrong with it, as a sentence; "": nothing."""
    path = Path(given) if given else Path(sys.argv[0] if sys.argv and sys.argv[0] else ".").absolute().parent / FILE
    if not given and not path.is_file():
        return ""
    try:
        _paths.update(_entries(path))
    except (OSError, ValueError) as error:
        return str(error)
    return ""
