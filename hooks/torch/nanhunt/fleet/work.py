# SPDX-License-Identifier: Apache-2.0
"""All tables of a run: the parts of its ranks, and each group merged once those are there. Interrupted, it goes on."""
from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby, islice
from pathlib import Path
from typing import Callable

from nanhunt.fleet.engines import Engine
from nanhunt.fleet.tables import (
    TABLES,
    Part,
    Rank,
    TableError,
    group_name,
    is_merged,
    merge_group,
    packages,
    parts_of,
    rank_part,
    write_ranks,
)
from nanhunt.store.remote import is_url

GROUP = 64
_AHEAD = 4096  # pieces of work that are handed out at a time


def groups_of(ranks: list[Rank], size: int) -> dict[str, list[Rank]]:
    """By name, in the order of the ranks."""
    return {name: list(members) for name, members in groupby(ranks, key=lambda rank: group_name(rank.rank, size))}


def make_parts(run: str, out: str, engine: Engine, share: tuple[int, int],
               progress: Callable[[int, int], None] | None = None) -> int:
    """The parts of one of several shares of the ranks, (index, of how many); for schedulers that begin processes by
    themselves. `make_tables` then merges them. Returns how many ranks it had."""
    packages()
    with _only_one(out, run, shares=True):
        return _make_parts(run, out, engine, share, progress)


def _make_parts(run: str, out: str, engine: Engine, share: tuple[int, int],
                progress: Callable[[int, int], None] | None) -> int:
    mine = [rank for rank in engine.ranks(run) if rank.rank % share[1] == share[0]]
    for rank in mine:
        engine.submit(rank_part, run, rank, out, rank=rank.rank)
    for done, _ in enumerate(engine.results(), 1):
        if progress:
            progress(done, len(mine))
    return len(mine)


def make_tables(run: str, out: str, engine: Engine, group_size: int = GROUP,
                progress: Callable[[int, int], None] | None = None) -> list[Part]:
    """Writes what tables.py describes below `out`, and returns what came of each rank. Groups that are there of the
    same traces are kept. Raises TableError, and OSError where it cannot be written."""
    packages()
    with _only_one(out, run, shares=False):
        return _make_tables(run, out, engine, group_size, progress)


def _make_tables(run: str, out: str, engine: Engine, group_size: int,
                 progress: Callable[[int, int], None] | None) -> list[Part]:
    ranks = engine.ranks(run)
    groups = groups_of(ranks, group_size)
    due = {name: members for name, members in groups.items() if not is_merged(out, name, members)}
    _forget_other_groups(out, set(groups))
    left = {name: len(members) for name, members in due.items()}
    waiting = (rank for members in due.values() for rank in members)
    done = len(ranks) - sum(left.values())
    _hand_out(engine, run, out, waiting, _AHEAD)
    for result in engine.results():
        if not isinstance(result, Part):  # a group is merged
            continue
        name = group_name(result.rank, group_size)
        done += 1
        if progress:
            progress(done, len(ranks))
        left[name] -= 1
        if not left[name]:
            engine.submit(merge_group, out, name, due[name])
        _hand_out(engine, run, out, waiting, 1)
    parts = [part for name in groups for part in parts_of(out, name)]
    write_ranks(out, parts)
    return parts


def _hand_out(engine: Engine, run: str, out: str, waiting: Iterator[Rank], most: int) -> None:
    for rank in islice(waiting, most):
        engine.submit(rank_part, run, rank, out, rank=rank.rank)


def _forget_other_groups(out: str, groups: set[str]) -> None:
    """Of another size, or of ranks that are not there any more. Only files that merge_group writes."""
    for mark in (Path(out) / ".groups").glob("*.json"):
        if mark.stem in groups:
            continue
        for table in TABLES:
            place = Path(out) / table / f"ranks={mark.stem}"
            (place / "data.parquet").unlink(missing_ok=True)
            with suppress(OSError):  # nothing else of it is ours
                place.rmdir()
        mark.unlink()


@contextmanager
def _only_one(out: str, run: str, shares: bool) -> Iterator[None]:
    """One call at a time that merges into `out`, or any number that make parts; and of one run alone."""
    where = Path(out)
    where.mkdir(parents=True, exist_ok=True)
    place = run if is_url(run) else str(Path(run).resolve())
    with (where / ".run").open("a+") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shares else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            raise TableError(f"another call is writing into {out}: wait for it, or name another folder") from error
        file.seek(0)
        known = file.read()
        if known and known != place:
            raise TableError(f"{out} holds the tables of another run, {known}: name another folder")
        if not known:
            file.write(place)
            file.flush()
        yield
