# SPDX-License-Identifier: Apache-2.0
"""A run behind a URL, copied into this machine's cache: the digests alone, some ranks, or all of it.

What is there already and has not changed is not copied again. What cannot be copied costs itself: the rest is there.
"""
from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from nanhunt._tap.tap_build import cache_folder
from nanhunt.store.remote import (
    ATTEMPT,
    NoRunError,
    Remote,
    RemoteError,
    belongs_to_run,
    folder_name_of,
    is_denied,
    shown,
    version_of,
    words_of,
)

_AT_A_TIME = 16
_DIGESTS_AT_A_TIME = 500
_MAX_DIGEST_BYTES = 65536  # more is no digest (src/fleet/FORMAT.md)
_VERSIONS = ".fetched.json"


@dataclass
class Wanted:
    """Which files: all, or digests of all ranks (and all of those that have none), or all of some ranks."""

    digests: bool = False
    ranks: frozenset[int] | None = None

    def names(self, there: dict[str, dict[str, Any]]) -> list[str]:
        if self.ranks is not None:
            return [name for name in there if _rank_of(name) in self.ranks]
        if not self.digests:
            return list(there)
        with_digest = {name.rsplit("/", 1)[0] for name in there if name.endswith("/digest.json")}
        newest: dict[str, int] = {}
        for name in there:
            found = ATTEMPT.fullmatch(name)
            if found:
                newest[found[1]] = max(newest.get(found[1], 0), _number(found[2]))
        wanted = []
        for name in there:
            found = ATTEMPT.fullmatch(name)
            if not found or found[3] == "digest.json":
                wanted.append(name)
            elif f"{found[1]}/{found[2]}" not in with_digest and _number(found[2]) == newest[found[1]]:
                wanted.append(name)  # one is made from its trace
        return wanted


@dataclass
class Fetched:
    folder: Path
    copied: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # name -> why


def _number(name: str) -> int:
    return int(name.rsplit("-", 1)[-1])


def _rank_of(name: str) -> int | None:
    found = ATTEMPT.fullmatch(name)
    return _number(found[1]) if found else None


def list_run(remote: Remote, ranks: frozenset[int] | None = None) -> dict[str, dict[str, Any]]:
    """Every object of a run, or of some of its ranks. Raises RemoteError where it cannot be listed."""
    try:
        if ranks is None:
            return remote.find()
        return {name: facts for rank in sorted(ranks) for name, facts in remote.find(f"rank-{rank:05}").items()}
    except Exception as error:
        then = "Check credentials and permission to list and read." if is_denied(error) else "Try again."
        raise RemoteError(f"{shown(remote.url)} cannot be listed: {words_of(error)}. {then}") from error


def fetch(url: str, wanted: Wanted | None = None, progress: Callable[[int, int], None] | None = None) -> Fetched:
    """Copies what is wanted. Raises RemoteError where the place cannot be listed or holds no run."""
    wanted, remote = wanted or Wanted(), Remote(url)
    listed = list_run(remote, wanted.ranks)
    folder = cache_folder().absolute() / "runs" / folder_name_of(url)
    if list(listed) == [""]:  # one segment
        folder.mkdir(parents=True, exist_ok=True)
        return _fetch_one(remote, folder)
    there = {name: facts for name, facts in listed.items() if belongs_to_run(name)}
    if not there:
        raise NoRunError(f"{shown(url)} holds no run: expected rank-00000/attempt-0/000000.nht below it, found "
                         f"{len(listed)} other objects. Check the URL, or whether the run was recorded.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RemoteError(f"{folder} cannot be made: {words_of(error)}. Name a folder in NANHUNT_CACHE.") from error
    copy = _Copy(remote, folder, there, progress)
    if wanted.ranks is None:  # a rank that is not there any more
        copy.tops |= {path.name for path in folder.glob("rank-*")}
    return copy.run(wanted.names(there))


def _fetch_one(remote: Remote, folder: Path) -> Fetched:
    name = remote.url.rsplit("/", 1)[-1]
    if not belongs_to_run(name):
        raise RemoteError(f"{shown(remote.url)} is an object, but no segment (000000.nht). Name the URL of a run.")
    try:
        remote.get("", folder / name)
    except Exception as error:
        raise RemoteError(f"{shown(remote.url)} cannot be read: {words_of(error)}.") from error
    return Fetched(folder / name, 1)


def _top(name: str) -> str:
    """The folder of a rank; ".": the URL is that of a rank or an attempt."""
    return name.split("/", 1)[0] if name.startswith("rank-") else "."


class _Copy:
    def __init__(self, remote: Remote, folder: Path, there: dict[str, dict[str, Any]],
                 progress: Callable[[int, int], None] | None) -> None:
        self.remote, self.folder, self.there, self.progress = remote, folder, there, progress
        self.fetched = Fetched(folder)
        self.tops = {_top(name) for name in there}
        self.versions: dict[str, str] = {}
        for top in self.tops:
            with suppress(OSError, ValueError):
                known = json.loads((folder / top / _VERSIONS).read_text())
                self.versions.update({str(name): str(version) for name, version in known.items()})
        self.done = 0

    def run(self, names: list[str]) -> Fetched:
        self._forget_deleted()
        self._forget_older(set(names))
        due = [name for name in names if not self._is_here(name)]
        digests = [name for name in due if name.endswith("digest.json")]
        files = [name for name in due if not name.endswith("digest.json")]
        self.all = len(due)
        for at in range(0, len(digests), _DIGESTS_AT_A_TIME):
            self._copy_digests(digests[at:at + _DIGESTS_AT_A_TIME])
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            list(pool.map(self._copy, files))
        self._keep_versions({_top(name) for name in due})
        return self.fetched

    def _is_here(self, name: str) -> bool:
        return self.versions.get(name) == version_of(self.there[name]) and (self.folder / name).is_file()

    def _forget_deleted(self) -> None:
        """Segments that the run has given up since, and what an interrupted copy left."""
        self.versions = {name: version for name, version in self.versions.items() if name in self.there}
        paths = (path for top in self.tops for path in (self.folder / top).glob("**/*"))
        for path in paths:
            name = path.relative_to(self.folder).as_posix()
            if belongs_to_run(name) and name not in self.there and path.name != "digest.json":  # which may be made here
                with suppress(OSError):
                    path.unlink()

    def _forget_older(self, wanted: set[str]) -> None:
        """Copies of what has grown there and is not wanted now: a new digest shall not stand beside an old trace."""
        for name, version in list(self.versions.items()):
            if name not in wanted and version != version_of(self.there[name]):
                (self.folder / name).unlink(missing_ok=True)
                del self.versions[name]
                self._keep_versions({_top(name)})

    def _keep_versions(self, tops: set[str]) -> None:
        """In a file for each rank: several processes may fetch ranks of one run."""
        of_top: dict[str, dict[str, str]] = {top: {} for top in tops}
        for name, version in self.versions.items():
            if _top(name) in of_top:
                of_top[_top(name)][name] = version
        for top, versions in of_top.items():
            self._replace(f"{top}/{_VERSIONS}", json.dumps(versions, sort_keys=True).encode())

    def _copy_digests(self, names: list[str]) -> None:
        small = [name for name in names if int(self.there[name].get("size") or 0) <= _MAX_DIGEST_BYTES]
        for name in set(names) - set(small):
            self._failed(name, "it is larger than any digest")
        for name, content in self.remote.read_many(small).items():
            if isinstance(content, Exception):
                self._failed(name, words_of(content))
            else:
                self._keep(name, lambda name=name, content=content: self._replace(name, content))  # type: ignore[misc]

    def _copy(self, name: str) -> None:
        def get() -> None:
            part = self._part(name)
            try:
                self.remote.get(name, part)
                part.replace(self.folder / name)
            finally:
                part.unlink(missing_ok=True)

        self._keep(name, get)

    def _keep(self, name: str, copy: Callable[[], None]) -> None:
        try:
            copy()
        except Exception as error:
            self._failed(name, words_of(error))
            return
        self.versions[name] = version_of(self.there[name])
        self.fetched.copied += 1
        self._went_on()

    def _failed(self, name: str, why: str) -> None:
        self.fetched.failed[name] = why
        self._went_on()

    def _went_on(self) -> None:
        self.done += 1
        if self.progress:
            self.progress(self.done, self.all)

    def _part(self, name: str) -> Path:
        """A name beside it that no other copy has."""
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place.with_name(f".{place.name}.{os.getpid()}.{threading.get_ident()}.part")

    def _replace(self, name: str, content: bytes) -> None:
        part = self._part(name)
        part.write_bytes(content)
        part.replace(self.folder / name)
