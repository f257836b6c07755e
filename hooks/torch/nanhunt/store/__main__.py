# SPDX-License-Identifier: Apache-2.0
"""The command line of nanhunt.store, for the program `nanhunt` and for people.

    python -m nanhunt.store fetch URL [--digests] [--ranks 3,17]   prints its folder here
    python -m nanhunt.store upload URL --from FOLDER               copies FOLDER there; prints what came of it
    python -m nanhunt.store upload URL                             prints a new folder, and copies it until stdin ends

Answers are one JSON object a line. Exit status: 0 done, 1 not all of it, 2 wrong usage, 3 not at all.
"""
from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from nanhunt._tap.tap_build import cache_folder
from nanhunt.store.fetch import Wanted, fetch
from nanhunt.store.remote import NoRunError, Remote, RemoteError, folder_name_of, words_of
from nanhunt.store.upload import Sent, Uploader, seconds_at_the_end

_EVERY_S = 1.0
_MOST_NAMED = 5


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nanhunt.store", description="Runs that lie behind a URL.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    fetching = verbs.add_parser("fetch", help="copy a run, or a part of it, into this machine's cache")
    fetching.add_argument("url")
    fetching.add_argument("--digests", action="store_true", help="of ranks that have a digest, that alone")
    fetching.add_argument("--ranks", help="of these ranks, all: 3,17")
    fetching.add_argument("--quiet", action="store_true", help="no progress on stderr")
    uploading = verbs.add_parser("upload", help="copy a run's folder to a URL")
    uploading.add_argument("url")
    uploading.add_argument("--from", dest="folder", help="a folder that is there (without: a new one, while it grows)")
    uploading.add_argument("--detach", action="store_true", help="in the background, as nobody's child")
    uploading.add_argument("--pid", type=int, help="the run ends with this process")
    given = parser.parse_args(words)
    try:
        if given.verb == "fetch":
            ranks = None if given.ranks is None else frozenset(int(rank) for rank in given.ranks.split(",") if rank)
            return _fetch(given.url, Wanted(given.digests, ranks), given.quiet)
        if given.folder:
            return _upload(given.url, given.folder)
        return _upload_while_it_grows(given.url, given.detach, given.pid)
    except RemoteError as error:
        _answer(error=str(error), nothing=isinstance(error, NoRunError))
        return 3


def _answer(**fields: object) -> None:
    try:
        print(json.dumps(fields, sort_keys=True), flush=True)
    except OSError:  # whoever asked has gone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123


def _fetch(url: str, wanted: Wanted, quiet: bool) -> int:
    showing = sys.stderr.isatty() and not quiet

    def progress(done: int, of: int) -> None:
        if showing:
            sys.stderr.write(f"\rfetched {done} of {of}" + ("\n" if done == of else ""))

    fetched = fetch(url, wanted, progress)
    some = sorted(fetched.failed.items())[:_MOST_NAMED]
    _answer(folder=str(fetched.folder), copied=fetched.copied, failed=len(fetched.failed),
            failures=[f"{name}: {why}" for name, why in some])
    return 1 if fetched.failed else 0


def _upload(url: str, folder: str) -> int:
    if not Path(folder).is_dir():
        raise RemoteError(f"{folder} is no folder. Name the run's.")
    return _answer_of(_Copying(Uploader(Path(folder), Remote(url))).end(), folder)


def _upload_while_it_grows(url: str, detach: bool, pid: int | None) -> int:
    if detach and os.fork():
        os._exit(0)  # what goes on is nobody's child: the program that asked may wait for its own
    remote = Remote(url)
    stages = cache_folder().absolute() / "uploads"
    try:
        stages.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{folder_name_of(url)}-", dir=stages))
    except OSError as error:
        raise RemoteError(f"{stages} cannot be written: {error.strerror}. Name a folder in NANHUNT_CACHE.") from error
    _answer(folder=str(folder))
    copying = _Copying(Uploader(folder, remote))
    copying.begin()
    while not select.select([sys.stdin], [], [], _EVERY_S)[0] and _lives(pid):  # readable: the run has ended
        pass
    sent = copying.end()
    status = _answer_of(sent, str(folder), _is_open(folder))
    while _lives(pid) and (not select.select([sys.stdin], [], [], _EVERY_S)[0] or os.read(0, 64)):
        pass  # a closed watch is still asked for its report, until its process ends
    if _is_open(folder):  # by processes that outlive the run
        copying = _Copying(Uploader(folder, Remote(url)))
        copying.begin()
        while _is_open(folder):
            time.sleep(_EVERY_S)
        sent = copying.end()
    if not sent.left:
        shutil.rmtree(folder, ignore_errors=True)
    return status


class _Copying:
    """The copies, by a thread: a server that does not answer keeps nobody from saying so."""

    def __init__(self, uploader: Uploader) -> None:
        self._uploader = uploader
        self._ends = threading.Event()
        self._seconds = seconds_at_the_end()
        self._sent: Sent | None = None
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._begun = False

    def begin(self) -> None:
        self._begun = True
        self._thread.start()

    def end(self) -> Sent:
        """All of it, or what is left at the deadline."""
        self._ends.set()
        if not self._begun:
            self.begin()
        self._thread.join(self._seconds + 5)
        if self._sent is not None:
            return self._sent
        why = "no answer came in time" if self._failed is None else words_of(self._failed)
        return Sent(self._uploader.copied, self._uploader.names_left(), why)

    def _run(self) -> None:
        try:
            while not self._ends.wait(_EVERY_S):
                self._uploader.copy_what_is_due()
            self._sent = self._uploader.finish(self._seconds)
        except BaseException as error:
            self._failed = error


def _answer_of(sent: Sent, folder: str, goes_on: bool = False) -> int:
    _answer(copied=sent.copied, folder=folder, goes_on=goes_on, left=len(sent.left), why=sent.why)
    return 1 if sent.left else 0


def _lives(pid: int | None) -> bool:
    return pid is None or Path(f"/proc/{pid}").exists()


def _is_open(folder: Path) -> bool:
    """Whether a process has a file below it."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()).startswith(f"{folder}/"):
                return True
        except OSError:  # another's, or gone
            continue
    return False


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a thread may still wait for an answer
