# SPDX-License-Identifier: Apache-2.0
"""A run's folder on this machine, copied to its URL while it grows, by a process of its own: training never waits.

- A closed segment is copied at once; the open one together with each new digest (a rank writes one at its first fault,
  every few minutes and at its end), and at the end. A segment before the digest that speaks of it.
- Nothing of others is overwritten: an attempt takes the first free number below the URL.
- What cannot be copied is tried again, later each time, and at the end until a deadline. It stays where it is.
"""
from __future__ import annotations

import json
import os
import random
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from nanhunt.store.remote import ATTEMPT, SEGMENT, Remote, belongs_to_run, is_denied, words_of

_MOST_ATTEMPTS = 100_000
_LONGEST_PAUSE_S = 60.0
_TRIES_IF_DENIED = 3

Version = tuple  # (size, mtime_ns, inode)


@dataclass
class Sent:
    """What came of an upload."""

    copied: int = 0
    left: list[str] = field(default_factory=list)  # names, below the folder
    why: str = ""  # the first of them could not be copied


class Uploader:
    def __init__(self, folder: Path, remote: Remote) -> None:
        self.folder, self.remote = folder, remote
        self._sent: dict[str, Version] = {}
        self._places: dict[str, str] = {}   # "rank-00000/attempt-0" -> where it is below the URL
        self._tries: dict[str, int] = {}    # failed ones
        self._not_before: dict[str, float] = {}
        self._why: dict[str, str] = {}
        self._denied: set[str] = set()      # of those that failed last
        self.copied = 0

    def copy_what_is_due(self) -> None:
        """Once over the folder. Never raises for what the other side does."""
        self._copy(last=False)

    def names_left(self) -> list[str]:
        return [name for attempt, names in self._attempts().items() for name in self._due(attempt, names, last=True)]

    def finish(self, seconds: float) -> Sent:
        """All of it, tried until the deadline."""
        deadline = time.monotonic() + seconds
        while True:
            left = self._copy(last=True)
            now = time.monotonic()
            tried = [name for name in left if name in self._tries]
            gives_up = tried and all(name in self._denied and self._tries[name] >= _TRIES_IF_DENIED for name in tried)
            if not left or gives_up or now >= deadline:
                return Sent(self.copied, left, next((self._why[name] for name in left if name in self._why), ""))
            soonest = min((self._not_before.get(name, now) for name in left), default=now)
            time.sleep(min(max(soonest - now, 0.05), max(deadline - now, 0.05)))

    def _copy(self, last: bool) -> list[str]:
        """The names that are due and could not be copied."""
        left: list[str] = []
        for attempt, names in self._attempts().items():
            behind = self._copy_attempt(attempt, self._due(attempt, names, last))
            left += behind
            if not behind:
                self._delete_given_up(attempt, names)
        return left

    def _copy_attempt(self, attempt: str, due: list[str]) -> list[str]:
        left: list[str] = []
        for name in due:
            waits = time.monotonic() < self._not_before.get(name, 0) or (left and name.endswith("/digest.json"))
            if waits or not self._try(attempt, name):
                left.append(name)
                if name.endswith("/run.json"):  # the rest has no place yet
                    return due
        return left

    def _attempts(self) -> dict[str, dict[str, Version]]:
        """By attempt: its files, and which version of each is there."""
        found: dict[str, dict[str, Version]] = {}
        for place in sorted(self.folder.glob("rank-*/attempt-*/**/*")):
            name = place.relative_to(self.folder).as_posix()
            at = ATTEMPT.fullmatch(name)
            if not at or not belongs_to_run(name) or place.is_symlink() or not place.is_file():
                continue
            try:
                facts = place.stat()
            except OSError:  # given up meanwhile
                continue
            found.setdefault(f"{at[1]}/{at[2]}", {})[name] = (facts.st_size, facts.st_mtime_ns, facts.st_ino)
        return found

    def _due(self, attempt: str, names: dict[str, Version], last: bool) -> list[str]:
        """run.json first, the digest last."""
        digest, first = f"{attempt}/digest.json", f"{attempt}/run.json"
        if first not in names:
            return []
        segments = sorted(name for name in names if SEGMENT.fullmatch(name.rsplit("/", 1)[-1]))
        open_one = segments[-1] if segments else ""
        changed = {name for name, version in names.items() if self._sent.get(name) != version}
        if not last and digest not in changed:
            changed.discard(open_one)
        rest = sorted(changed - {first, digest})
        return [name for name in (first, *rest, digest) if name in changed]

    def _try(self, attempt: str, name: str) -> bool:
        try:
            version, content = self._read(name)
            self._send(attempt, name, content)
        except FileNotFoundError as error:
            if not (self.folder / name).exists():  # given up meanwhile
                return True
            return self._failed(name, error)
        except Exception as error:
            return self._failed(name, error)
        self._sent[name] = version
        self._tries.pop(name, None)
        self._why.pop(name, None)
        self._denied.discard(name)
        self.copied += 1
        return True

    def _failed(self, name: str, error: BaseException) -> bool:
        tries = self._tries[name] = self._tries.get(name, 0) + 1
        pause = min(_LONGEST_PAUSE_S, 0.5 * 2 ** min(tries - 1, 10)) * random.uniform(0.75, 1.25)  # noqa: S311
        self._not_before[name] = time.monotonic() + pause
        self._why[name] = words_of(error)
        (self._denied.add if is_denied(error) else self._denied.discard)(name)
        return False

    def _read(self, name: str) -> tuple[Version, bytes]:
        """What is there now; of an open segment, whole writes: it only grows."""
        with (self.folder / name).open("rb") as file:
            facts = os.fstat(file.fileno())
            return (facts.st_size, facts.st_mtime_ns, facts.st_ino), file.read(facts.st_size)

    def _send(self, attempt: str, name: str, content: bytes) -> None:
        if name == f"{attempt}/run.json":
            self._claim(attempt, content)
            return
        place = self._places[attempt]
        if name.endswith("/digest.json"):
            content = _renumbered(content, place)
        self.remote.put(f"{place}/{name[len(attempt) + 1:]}", content)

    def _claim(self, attempt: str, run_json: bytes) -> None:
        """A folder below the URL: that of this attempt, were it begun there before, else the first that nobody has."""
        found = ATTEMPT.fullmatch(f"{attempt}/run.json")
        assert found is not None
        rank, number = found[1], int(found[2].rsplit("-", 1)[-1])
        taken = {name for name in self.remote.find(rank) if name.endswith("/run.json")}
        for name in sorted(taken):
            if self.remote.read(name) == run_json:
                self._places[attempt] = name.rsplit("/", 1)[0]
                return
        while number < _MOST_ATTEMPTS:
            place = f"{rank}/attempt-{number}"
            if f"{place}/run.json" not in taken and self.remote.put_new(f"{place}/run.json", run_json):
                self._places[attempt] = place
                return
            number += 1
        raise OSError(f"no free number for an attempt of {rank}")

    def _delete_given_up(self, attempt: str, names: dict[str, Version]) -> None:
        """Segments that the recorder's limit has taken since: what stands for them was copied before."""
        for name in [name for name in self._sent if name.startswith(f"{attempt}/") and name not in names]:
            try:
                self.remote.delete(f"{self._places[attempt]}/{name[len(attempt) + 1:]}")
            except FileNotFoundError:
                pass
            except Exception:  # tried again the next time
                continue
            del self._sent[name]


def _renumbered(digest: bytes, place: str) -> bytes:
    """A digest says which attempt it is of, and is refused in another's folder."""
    number = int(place.rsplit("-", 1)[-1])
    try:
        fields = json.loads(digest)
        if fields["attempt"] == number:
            return digest
        fields["attempt"] = number
    except (ValueError, TypeError, KeyError):  # as it is: whoever reads it says what is wrong
        return digest
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def seconds_at_the_end() -> float:
    given = os.environ.get("NANHUNT_UPLOAD_SECONDS", "")
    return float(given) if re.fullmatch(r"\d{1,6}", given) else 300.0
