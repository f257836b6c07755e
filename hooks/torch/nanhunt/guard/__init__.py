# SPDX-License-Identifier: Apache-2.0
"""A guard of checkpoints: each one that the program saves is judged by `nanhunt check` in a process of its own, a bad
one is said, and the newest good one is copied into the run folder, so that no rotation and no later save can lose it.
Where anything was bad, the end of the run says where that copy is.
Nothing in the program's own folders is made, changed or taken away.
"""
from __future__ import annotations

import json
import os
import queue
import re
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from nanhunt.__main__ import program
from nanhunt._faults import printable

KEPT = "last-good"
SECONDS_AT_END = 60.0  # that the end of the program waits for checks that are under way
_MOST_SERIES = 16      # checkpoints that differ in more than a number, of each of which one is kept
_STILL = 1.0           # seconds without a change, after which a folder counts as whole
_MOST_WAIT = 600.0     # for that


def command_line_program() -> str | None:
    """The `nanhunt` that judges: of this package, or the one that `nanhunt run` names."""
    found = program()
    return str(found) if found is not None else os.environ.get("NANHUNT_PROGRAM") or None


@dataclass(frozen=True)
class _State:
    """Of a file, or of all files of a folder: what a save changes."""

    files: tuple[tuple[str, int, int, int], ...]  # path, inode, size, time

    @staticmethod
    def of(place: Path) -> _State:
        names = [place] if place.is_file() else sorted(one for one in place.rglob("*") if one.is_file())
        facts = [(str(name), name.stat()) for name in names]
        return _State(tuple((name, at.st_ino, at.st_size, at.st_mtime_ns) for name, at in facts))


def series_of(place: Path) -> str:
    """Checkpoints whose paths differ in numbers alone are one series: "out/checkpoint-#"."""
    return re.sub(r"\d+", "#", str(place))


class CheckpointGuard:
    """Checks what is saved, in the order in which it is saved, in a thread of its own: the program never waits."""

    def __init__(self, folder: Callable[[], Path], say: Callable[[str], object], note: Callable[[str], object]) -> None:
        """`folder`: where good ones are kept. `say`: of a bad checkpoint. `note`: of what was not judged or kept."""
        self._folder, self._say, self._note = folder, say, note
        self._program = command_line_program()
        self._work: queue.Queue[Path | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closing = False
        self._kept: dict[str, tuple[Path, Path]] = {}  # by series: the program's path, our copy
        self._said = ""  # at an end: a run that begins again has several
        self._lost = 0   # removed or saved over before they were judged and kept, since one was kept
        self.patches: Any = None       # of what saves: saves.py
        self.bad: list[str] = []       # that were found so far
        self.last_good: Path | None = None  # our copy of the newest that was good
        if self._program is None:
            note("checkpoints: the command line program is not in this package, so none is checked")

    def saved(self, path: object) -> None:
        """A file is whole, or one of a folder is. What is no path (a buffer, a stream) is not judged. Never raises."""
        try:
            if self._program is None or os.getpid() != self._pid or not isinstance(path, (str, os.PathLike)):
                return
            place = Path(os.fspath(path)).absolute()
            if self._thread is None:
                self._closing = False
                thread = threading.Thread(target=self._run, name="nanhunt-checkpoints", daemon=True)
                thread.start()
                self._thread = thread
            self._work.put(place)
        except Exception as error:
            self._note(f"checkpoints: one was not checked: {type(error).__name__}: {error}"[:300])

    def close(self) -> None:
        """Waits for the checks that are under way, for a while."""
        thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._pid:
            self._closing = True
            self._work.put(None)
            thread.join(SECONDS_AT_END)
            if thread.is_alive():
                self._note("checkpoints: the last ones were not checked in time")

    def end(self, was_bad: bool) -> None:
        """Of a run in which something was bad: says where the good checkpoints are."""
        self.close()
        if os.getpid() != self._pid or not (was_bad or self.bad) or not (self._kept or self._lost):
            return
        all_kept = list(self._kept.values())  # a check that was not waited for may go on
        names = ", ".join(place.name for place, _ in all_kept)
        copies = ", ".join(_near(kept) for _, kept in all_kept)
        line = f"last good checkpoint: {names}, kept in {copies}" if names else "no good checkpoint was kept"
        if self._lost:
            line += f"; {self._lost} later ones were removed or saved over before they could be judged and kept"
        line = printable(f"nanhunt: {line}")
        if line != self._said:
            self._say(line)
        self._said = line

    def _lose(self) -> None:
        self._lost += 1
        self._note("checkpoints: some were removed or saved over before they could be judged and kept")

    def _run(self) -> None:
        while (place := self._work.get()) is not None:
            try:
                with self._work.mutex:
                    if place in self._work.queue:  # it is saved on
                        continue
                if place.is_dir():
                    self._wait_until_still(place)
                self._check(place)
            except FileNotFoundError:
                self._lose()
            except Exception as error:  # nothing of ours ends a run
                self._note(f"checkpoints: {place.name} was not checked: {type(error).__name__}: {error}"[:300])

    def _wait_until_still(self, folder: Path) -> None:
        """A folder is saved file by file, by calls that are not all heard."""
        end, before = time.monotonic() + _MOST_WAIT, None
        while not self._closing and time.monotonic() < end:
            state = _State.of(folder)
            if state == before:
                return
            before = state
            time.sleep(_STILL)

    def _check(self, place: Path) -> None:
        assert self._program is not None
        before = _State.of(place)
        done = subprocess.run([self._program, "check", "--json", "--", str(place)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
        if done.returncode == 0:
            self._keep(place, before)
        elif done.returncode == 1:
            if place.is_dir() and str(place) in self.bad:
                return  # more of it was saved since it was said
            self.bad.append(str(place))
            answer = _object(done.stdout)
            headline = printable(str(answer.get("headline", "it is bad")))[:300]
            good = self._kept.get(series_of(place))
            kept = f"; the last good one is {good[0].name}, kept in {good[1]}" if good is not None else ""
            self._say(f"nanhunt: checkpoint {place}: {headline}{kept}")
        elif place.exists():
            why = str(_object(done.stdout).get("headline") or done.stderr.strip())[:200]
            self._note(f"checkpoints: {place.name} could not be judged: {why}")
        else:
            self._lose()

    def _keep(self, place: Path, state: _State) -> None:
        """A copy in the run folder, whole or not at all; then that of the series' last one goes."""
        series = series_of(place)
        if series not in self._kept and len(self._kept) >= _MOST_SERIES:
            self._note(f"checkpoints: of more than {_MOST_SERIES} kinds the newest good one is not kept")
            return
        number = list(self._kept).index(series) if series in self._kept else len(self._kept)
        folder = self._folder() / (KEPT if number == 0 else f"{KEPT}-{number}")
        making, kept = folder / f".{place.name}.new", folder / place.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove(making)
            if place.is_dir():
                shutil.copytree(place, making)
            else:
                shutil.copy2(place, making)
            if _State.of(place) != state:  # it was saved again, or is being rotated away: that one was not judged
                _remove(making)
                self._lose()
                return
        except OSError as error:
            _remove(making)
            if place.exists():
                self._note(f"checkpoints: {place.name} is good, and could not be kept: {error}"[:300])
            else:
                self._lose()
            return
        _remove(kept)
        making.rename(kept)
        self._kept[series] = place, kept
        self.last_good = kept
        self._lost = 0
        for other in folder.iterdir():
            if other.name != place.name:
                _remove(other)


def _near(place: Path) -> str:
    """As it is named from where the program runs, if it is below."""
    try:
        near = os.path.relpath(place)
    except OSError:  # the working folder is gone
        return str(place)
    return str(place) if near.startswith("..") else near


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)
