# SPDX-License-Identifier: Apache-2.0
"""What ran: versions of packages, and the state of the program's repository. No process is started, nothing is written.
Knows nothing of torch."""
from __future__ import annotations

import hashlib
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_MOST_PACKAGES = 64
_MOST_BYTES = 64 << 20     # of an index
_MOST_HASHED = 8 << 20     # of a file whose times say that it may have changed
_SECONDS = 0.3
_SKIPPED = 0x8000, 0x4000  # assume-unchanged; skip-worktree, among the extended flags


def packages() -> dict[str, str]:
    """Versions of what is imported and is not Python's own, torch first. No package is asked: their code would run."""
    own = getattr(sys, "stdlib_module_names", frozenset(sys.builtin_module_names))
    found = {}
    for name, module in list(sys.modules.items()):
        if "." in name or name.startswith("_") or name in own or name == "nanhunt":
            continue
        version = getattr(module, "__dict__", {}).get("__version__")
        if isinstance(version, str) and len(version) <= 64:
            found[name] = str(version)
    names = sorted(found, key=lambda name: (name != "torch", name))[:_MOST_PACKAGES]
    return {name: found[name] for name in names}


def repository() -> tuple[str, str]:
    """Commit, and "clean" or "changed" for the files that it tracks; "": not known."""
    try:
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        return state_of(Path(main).absolute().parent if main else Path.cwd())
    except (OSError, ValueError):
        return "", ""


def state_of(folder: Path) -> tuple[str, str]:
    for root in (folder, *folder.parents):
        git = root / ".git"
        if git.is_file():  # a worktree's
            text = git.read_text(errors="replace").strip()
            git = (root / text[len("gitdir: "):]) if text.startswith("gitdir: ") else git
        if git.is_dir():
            common = git / "commondir"
            shared = git / common.read_text().strip() if common.is_file() else git
            commit = _commit(git, shared)
            try:
                return commit, _tree(root, git, shared) if commit else ""
            except (OSError, ValueError, struct.error, IndexError):
                return commit, ""
    return "", ""


def _commit(git: Path, shared: Path) -> str:
    head = (git / "HEAD").read_text(errors="replace").strip()
    for _ in range(5):
        if not head.startswith("ref: "):
            return head if 40 <= len(head) <= 64 and all(c in "0123456789abcdef" for c in head) else ""
        name = head[len("ref: "):]
        if ".." in name or name.startswith("/"):
            return ""
        loose = [folder / name for folder in (git, shared) if (folder / name).is_file()]
        head = loose[0].read_text(errors="replace").strip() if loose else _packed(shared, name)
    return ""


def _packed(shared: Path, name: str) -> str:
    packed = shared / "packed-refs"
    for line in packed.read_text(errors="replace").splitlines() if packed.is_file() else ():
        if line.endswith(" " + name):
            return line.split(" ", 1)[0]
    return ""


def _tree(root: Path, git: Path, shared: Path) -> str:
    """By what the index says of each file: its size and time, and where these differ its contents. What is staged shows
    in the index's own account of trees, which a change of an entry voids."""
    index = git / "index"
    config = shared / "config"
    if index.stat().st_size > _MOST_BYTES or "objectformat" in config.read_text(errors="replace").lower():
        return ""
    data = index.read_bytes()
    version, count = struct.unpack_from(">II", data, 4)
    if data[:4] != b"DIRC" or version not in (2, 3):
        return ""
    end = time.monotonic() + _SECONDS
    at, changed = 12, False
    for n in range(count):
        if n % 256 == 0 and time.monotonic() > end:
            return ""
        mtime, nanoseconds = struct.unpack_from(">II", data, at + 8)
        mode, = struct.unpack_from(">I", data, at + 24)
        size, = struct.unpack_from(">I", data, at + 36)
        digest, (flags,) = data[at + 40:at + 60], struct.unpack_from(">H", data, at + 60)
        extended = struct.unpack_from(">H", data, at + 62)[0] if flags & 0x4000 else 0
        start = at + (64 if flags & 0x4000 else 62)
        stop = data.index(b"\0", start)
        skipped = flags & _SKIPPED[0] or extended & _SKIPPED[1] or mode & 0o170000 == 0o160000
        if not changed and not skipped:
            changed = bool(flags & 0x3000) or _differs(root / os.fsdecode(data[start:stop]), mode, size,
                                                       mtime * 10**9 + nanoseconds, digest)
        at += (stop - at + 8) & ~7
    if changed:
        return "changed"
    parts = dict(_extensions(data, at))
    if b"link" in parts or b"TREE" not in parts:
        return ""
    return "changed" if parts[b"TREE"][1:].startswith(b"-1") else "clean"


def _extensions(data: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    while at + 8 <= len(data) - 20:
        size, = struct.unpack_from(">I", data, at + 4)
        yield data[at:at + 4], data[at + 8:at + 8 + size]
        at += 8 + size


def _differs(path: Path, mode: int, size: int, mtime: int, digest: bytes) -> bool:
    try:
        now = os.lstat(path)
    except OSError:
        return True
    if now.st_size & 0xFFFFFFFF == size and now.st_mtime_ns == mtime:
        return False
    if mode & 0o170000 == 0o120000:
        contents = os.fsencode(os.readlink(path))  # noqa: PTH115
    elif now.st_size > _MOST_HASHED:
        return True
    else:
        contents = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(contents) + contents, usedforsecurity=False).digest() != digest
