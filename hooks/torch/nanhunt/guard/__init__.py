# SPDX-License-Identifier: Apache-2.0
"""A guard of checkpoints: each one that the program saves is judged by `nanhunt check` in a process of its own, a bad
one is said, and the newest good one is kept under hard links in `nanhunt-last-good` beside it, whatever rotates the
others away. Links cost no space as long as the files are there.
"""
from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable

from nanhunt.__main__ import program

KEPT = "nanhunt-last-good"
SECONDS_AT_END = 60.0  # that the end of the program waits for checks that are under way
_MOST_FILES = 10_000
_REST = 0.2  # seconds after a save in which more of the same checkpoint may come


def command_line_program() -> str | None:
    """The `nanhunt` that judges: of this package, or the one that `nanhunt run` names."""
    found = program()
    return str(found) if found is not None else os.environ.get("NANHUNT_PROGRAM") or None


class CheckpointGuard:
    """Checks what is saved, in the order in which it is saved, in a thread of its own: the program never waits."""

    def __init__(self, say: Callable[[str], object], note: Callable[[str], object]) -> None:
        """`say`: of a bad checkpoint. `note`: of what could not be judged or kept."""
        self._say, self._note = say, note
        self._program = command_line_program()
        self._work: queue.Queue[Path | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self.patches: Any = None       # of what saves: saves.py
        self.bad: list[str] = []       # that were found so far
        self.last_good: Path | None = None  # of links, not the program's own
        if self._program is None:
            note("checkpoints: the command line program is not in this package, so none is checked")

    def before_save(self, path: object) -> None:
        """A file that is written over is written into: its link would become the new one. So the name is taken off the
        file that is kept first."""
        try:
            place = Path(os.fspath(path))  # type: ignore[call-overload]
            kept = place.parent / KEPT / place.name
            if kept.is_file() and place.is_file() and kept.samefile(place):
                place.unlink()
        except (OSError, TypeError, ValueError):
            pass

    def saved(self, path: object) -> None:
        """A file or a folder is whole. What is no path (a buffer, a stream) is not judged."""
        if self._program is None or os.getpid() != self._pid:
            return
        try:
            place = Path(os.fspath(path)).absolute()  # type: ignore[call-overload]
        except TypeError:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nanhunt-checkpoints", daemon=True)
            self._thread.start()
        self._work.put(place)

    def close(self) -> None:
        """Waits for the checks that are under way, for a while."""
        thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._pid:
            self._work.put(None)
            thread.join(SECONDS_AT_END)
            if thread.is_alive():
                self._note("checkpoints: the last ones were not checked in time")

    def _run(self) -> None:
        while (place := self._work.get()) is not None:
            time.sleep(_REST)  # a folder is saved file by file
            with self._work.mutex:
                if place in self._work.queue:  # it is saved on
                    continue
            try:
                self._check(place)
            except Exception as error:  # nothing of ours ends a run
                self._note(f"checkpoints: {place.name} was not checked: {type(error).__name__}: {error}"[:300])

    def _check(self, place: Path) -> None:
        assert self._program is not None
        done = subprocess.run([self._program, "check", "--json", "--", str(place)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
        answer = _object(done.stdout)
        if done.returncode == 0:
            self._keep(place)
        elif done.returncode == 1:
            self.bad.append(str(place))
            headline = "".join(ch if ch.isprintable() else "?" for ch in str(answer.get("headline", "it is bad")))[:300]
            kept = f"; the last good one is kept in {self.last_good}" if self.last_good is not None else ""
            self._say(f"nanhunt: checkpoint {place}: {headline}{kept}")
        elif place.exists():  # else it was rotated away meanwhile
            self._note(f"checkpoints: {place.name} could not be judged: {done.stderr.strip()[:200]}")

    def _keep(self, place: Path) -> None:
        """Links beside it, whole or not at all; then those of the one before go."""
        folder = place.parent / KEPT
        folder.mkdir(exist_ok=True)
        making = folder / f".{place.name}.new"
        _remove(making)
        try:
            if place.is_dir():
                _link_folder(place, making)
            else:
                os.link(place, making)
        except OSError as error:
            _remove(making)
            if place.exists():
                self._note(f"checkpoints: {place.name} is good, and could not be kept: {error}"[:300])
            return
        kept = folder / place.name
        _remove(kept)
        making.rename(kept)
        self.last_good = kept
        for other in folder.iterdir():
            if other.name != place.name:
                _remove(other)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _link_folder(folder: Path, to: Path) -> None:
    count = 0
    for at, names, files in os.walk(folder):
        names[:] = [name for name in names if name != KEPT]
        here = to / os.path.relpath(at, folder)
        here.mkdir(parents=True, exist_ok=True)
        for name in files:
            count += 1
            if count > _MOST_FILES:
                raise OSError(f"it has more than {_MOST_FILES} files")
            os.link(Path(at) / name, here / name)


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
