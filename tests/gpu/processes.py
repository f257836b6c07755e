# SPDX-License-Identifier: Apache-2.0
"""Programs with a limit of time, of which nothing is left when it is over."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path


def ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"died of {signal.Signals(-status).name}"
    return f"died of signal {-status}"


def run_limited(command: list[str], env: dict[str, str], talk, seconds: float) -> str:
    """Why it did not end well, in words; empty where it did. Nothing that it started is left."""
    try:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=talk,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"could not be started: {error.strerror or error}"
    try:
        status = process.wait(timeout=seconds)
        why = "" if status == 0 else ended(status)
    except subprocess.TimeoutExpired:
        why = f"did not end within {seconds:.0f} s"
        end_all_of(process.pid)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return why


def end_all_of(ancestor: int) -> None:
    """Every process that came of this one, whatever group or session it made for itself."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = stat.read_text(errors="replace").rsplit(")", 1)[1].split()[1]
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    waiting = [ancestor]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            waiting.append(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def take_orphans() -> None:
    """Processes whose parent is gone become this one's, so that they can be found (PR_SET_CHILD_SUBREAPER)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def command_of(path: Path) -> list[str]:
    """A part by its interpreter: whoever carried it may have lost the permission to execute it."""
    first = path.read_text(encoding="utf-8", errors="replace").split("\n", 1)[0]
    if first.startswith("#!") and "python" in first:
        return [sys.executable, str(path)]
    if first.startswith("#!") and first.rstrip().endswith("sh"):
        return [first.rstrip().replace("/", " ").split()[-1], str(path)]
    return [str(path)]


def last_words(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return " ".join(" ".join(lines[-2:]).split())[:300]
