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
from collections.abc import Sequence
from pathlib import Path

from nanhunt._tap.tap_build import cache_folder
from nanhunt.store.fetch import Wanted, fetch
from nanhunt.store.remote import Remote, RemoteError, folder_name_of
from nanhunt.store.upload import Uploader, seconds_at_the_end

_EVERY_S = 1.0
_MOST_NAMED = 5


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nanhunt.store", description="Runs that lie behind a URL.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    fetching = verbs.add_parser("fetch", help="copy a run, or a part of it, into this machine's cache")
    fetching.add_argument("url")
    fetching.add_argument("--digests", action="store_true", help="of ranks that have a digest, that alone")
    fetching.add_argument("--ranks", help="of these ranks, all: 3,17")
    uploading = verbs.add_parser("upload", help="copy a run's folder to a URL")
    uploading.add_argument("url")
    uploading.add_argument("--from", dest="folder", help="a folder that is there (without: a new one, while it grows)")
    uploading.add_argument("--detach", action="store_true", help="in the background, as nobody's child")
    uploading.add_argument("--pid", type=int, help="the run ends with this process")
    given = parser.parse_args(words)
    try:
        if given.verb == "fetch":
            ranks = None if given.ranks is None else frozenset(int(rank) for rank in given.ranks.split(",") if rank)
            return _fetch(given.url, Wanted(given.digests, ranks))
        if given.folder:
            return _upload(given.url, given.folder)
        return _upload_while_it_grows(given.url, given.detach, given.pid)
    except RemoteError as error:
        _answer(error=str(error))
        return 3


def _answer(**fields: object) -> None:
    try:
        print(json.dumps(fields, sort_keys=True), flush=True)
    except OSError:  # whoever asked has gone
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123


def _fetch(url: str, wanted: Wanted) -> int:
    showing = sys.stderr.isatty()

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
    return _finish(Uploader(Path(folder), Remote(url)), Path(folder), staged=False)


def _upload_while_it_grows(url: str, detach: bool, pid: int | None) -> int:
    if detach and os.fork():
        os._exit(0)  # what goes on is nobody's child: the program that asked may wait for its own
    remote = Remote(url)
    stages = cache_folder() / "uploads"
    try:
        stages.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{folder_name_of(url)}-", dir=stages))
    except OSError as error:
        raise RemoteError(f"{stages} cannot be written: {error.strerror}. Name a folder in NANHUNT_CACHE.") from error
    _answer(folder=str(folder))
    uploader = Uploader(folder, remote)
    while not select.select([sys.stdin], [], [], _EVERY_S)[0] and _lives(pid):  # readable: the run has ended
        uploader.copy_what_is_due()
    return _finish(uploader, folder, staged=True)


def _lives(pid: int | None) -> bool:
    return pid is None or Path(f"/proc/{pid}").exists()


def _finish(uploader: Uploader, folder: Path, staged: bool) -> int:
    sent = uploader.finish(seconds_at_the_end())
    if staged and not sent.left:
        shutil.rmtree(folder, ignore_errors=True)
    _answer(copied=sent.copied, folder=str(folder), left=len(sent.left), why=sent.why)
    return 1 if sent.left else 0


if __name__ == "__main__":
    sys.exit(main())
