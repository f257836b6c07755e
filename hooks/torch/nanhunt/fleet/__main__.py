# SPDX-License-Identifier: Apache-2.0
"""The command line of nanhunt.fleet: `nanhunt fleet RUN --tables OUT` runs it, and so may a scheduler.

    python -m nanhunt.fleet RUN OUT [--engine local|ray] [--address A] [--jobs N] [--group N]
    python -m nanhunt.fleet RUN OUT --share 3/16     the parts of a share of the ranks; a call without it merges them

The last line on stdout is a JSON object. Exit status: 0 done, 1 some ranks cannot be read, 2 wrong usage, 3 none of it.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from nanhunt.fleet.engines import Engine, LocalEngine, RayEngine
from nanhunt.fleet.tables import TableError
from nanhunt.fleet.work import GROUP, make_parts, make_tables
from nanhunt.store.remote import RemoteError

_MOST_NAMED = 5


def share_of(text: str) -> tuple[int, int]:
    index, _, of = text.partition("/")
    if not index.isdigit() or not of.isdigit() or not int(index) < int(of):
        raise argparse.ArgumentTypeError(f"expected INDEX/COUNT from 0, such as 3/16, got {text!r}")
    return int(index), int(of)


def at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1, got {text!r}")
    return int(text)


class Progress:
    """A line that grows in place on a terminal, else one every half minute."""

    def __init__(self) -> None:
        self._in_place = sys.stderr.isatty()
        self._next = 0.0 if self._in_place else time.monotonic() + 30

    def __call__(self, done: int, of: int) -> None:
        now = time.monotonic()
        if now < self._next and not (self._in_place and done == of):
            return
        self._next = now + (0.2 if self._in_place else 30)
        end = "" if self._in_place and done < of else "\n"
        sys.stderr.write(("\r" if self._in_place else "nanhunt: ") + f"tables: {done} of {of} ranks{end}")
        sys.stderr.flush()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nanhunt.fleet", description="Parquet tables of many ranks.")
    parser.add_argument("run", help="run folder, or its URL")
    parser.add_argument("out", help="folder for the tables")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--address", help="of a Ray cluster")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0: one for each processor")
    parser.add_argument("--group", type=at_least_one, default=GROUP, help="ranks in a file")
    parser.add_argument("--share", type=share_of, help="INDEX/COUNT: the parts of these ranks alone")
    given = parser.parse_args(words)
    engine: Engine | None = None
    try:
        engine = RayEngine(given.address) if given.engine == "ray" else LocalEngine(given.jobs)
        if given.share:
            print(json.dumps({"ranks": make_parts(given.run, given.out, engine, given.share, Progress())}))
            return 0
        parts = make_tables(given.run, given.out, engine, given.group, Progress())
    except (TableError, RemoteError, OSError) as error:
        print(json.dumps({"error": str(error)}))
        return 3
    finally:
        if engine is not None:
            engine.close()
    unread = [part for part in parts if part.unread]
    print(json.dumps({"ranks": len(parts), "rows": sum(part.rows for part in parts), "unread": len(unread),
                      "failures": [f"rank {part.rank}: {part.unread}" for part in unread[:_MOST_NAMED]]},
                     sort_keys=True))
    return 1 if unread else 0


if __name__ == "__main__":
    sys.exit(main())
