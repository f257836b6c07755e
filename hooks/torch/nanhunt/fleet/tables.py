# SPDX-License-Identifier: Apache-2.0
"""From the trace of a rank to its part of the tables, and from the parts of a group of ranks to Parquet.

    OUT/steps/ranks=00000-00063/data.parquet   of each table and group one file, sorted by (step, rank)
    OUT/ranks.parquet                          one row a rank: where it ran, what its digest says, what could be read
    OUT/.parts/rank-00000/                     what is not merged yet
    OUT/.groups/00000-00063.json               of which traces a group was made
"""
from __future__ import annotations

import ctypes as c
import json
import os
import shutil
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nanhunt import _library as lib
from nanhunt.store.remote import ATTEMPT, SEGMENT, is_url

# By what they are called here: the kind of records. Each has `rank`, `attempt` and `step`.
TABLES = {"steps": "steps", "health": "health", "scaler": "scaler", "layers": "norms", "bad_ops": "bad_ops"}
_ROW = "row"  # where a record stood among those of its rank: the order of equal steps
_MAX_RANK = 2**32 - 1
_MERGE_MEMORY = "2GB"  # past it a merge goes on on disk
_FOUND = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int32, c.c_void_p, c.c_void_p)


class TableError(RuntimeError):
    """No tables can be made: what, where, what to do next."""


@dataclass(frozen=True, order=True)
class Rank:
    """The newest attempt of a rank, and how much of it is recorded: what it was when a part was made."""

    rank: int
    attempt: int
    trace_bytes: int

    @property
    def name(self) -> str:
        return f"rank-{self.rank:05}"


@dataclass
class Part:
    """What came of one rank."""

    rank: int
    attempt: int
    trace_bytes: int
    rows: int = 0
    unread: str = ""  # why nothing of it could be read
    digest: dict[str, Any] = field(default_factory=dict)  # what ranks.parquet has of it

    def is_of(self, rank: Rank) -> bool:
        return (self.rank, self.attempt, self.trace_bytes) == (rank.rank, rank.attempt, rank.trace_bytes)


def packages() -> tuple[Any, Any]:
    """pyarrow and duckdb."""
    try:
        import duckdb
        import pyarrow
        import pyarrow.dataset  # noqa: F401
    except ImportError as error:
        raise TableError(f"tables need pyarrow and DuckDB ({error}): pip install 'nanhunt[fleet]'") from error
    return pyarrow, duckdb


def ranks_of(run: str) -> list[Rank]:
    """The ranks of a run folder, or of one behind a URL, that have a trace, ascending."""
    newest: dict[int, tuple[int, int]] = {}
    sizes: dict[tuple[int, int], int] = {}
    for name, size in _sizes(run):
        found = ATTEMPT.fullmatch(name)
        if not found or not SEGMENT.fullmatch(found[3]):
            continue
        rank, attempt = int(found[1].split("-")[1]), int(found[2].split("-")[1])
        sizes[rank, attempt] = sizes.get((rank, attempt), 0) + size
        if rank > _MAX_RANK:
            continue
        newest[rank] = max(newest.get(rank, (attempt, rank)), (attempt, rank))
    if not newest:
        raise TableError(f"no trace in '{run}': expected rank-00000/attempt-0/000000.nht below it. Was it recorded?")
    return [Rank(rank, attempt, sizes[rank, attempt]) for rank, (attempt, _) in sorted(newest.items())]


def _sizes(run: str) -> list[tuple[str, int]]:
    if is_url(run):
        from nanhunt.store.fetch import list_run
        from nanhunt.store.remote import Remote

        return [(name, int(facts.get("size") or 0)) for name, facts in list_run(Remote(run)).items()]
    found = []
    for rank in Path(run).glob("rank-*"):
        for segment in rank.glob("attempt-*/*.nht"):
            with suppress(OSError):
                found.append((segment.relative_to(run).as_posix(), segment.stat().st_size))
    return found


def part_folder(out: str, rank: Rank) -> Path:
    return Path(out) / ".parts" / rank.name


def rank_part(run: str, rank: Rank, out: str) -> Part:
    """The work of one rank: its records as OUT/.parts/rank-N/TABLE.arrow. One that is there of the same trace is kept.

    A trace that cannot be read is told in the part; what cannot be written is raised.
    """
    folder = part_folder(out, rank)
    with suppress(OSError, ValueError, TypeError):
        known = Part(**json.loads((folder / "part.json").read_text()))
        if known.is_of(rank) and not known.unread:  # what was in the way may be gone
            return known
    shutil.rmtree(folder, ignore_errors=True)
    part = Part(rank.rank, rank.attempt, rank.trace_bytes)
    making = folder.with_name(f"{folder.name}.{os.getpid()}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    try:
        trace = _trace_of(run, rank)
        part.digest = _digest_in(trace)
        part.rows = _write_records(trace, making)
    except (TableError, OSError):  # no package; what is written
        raise
    except Exception as error:
        for left in making.glob("*.arrow"):
            left.unlink()
        part.rows, part.unread = 0, " ".join(str(error).split())[:500]
    (making / "part.json").write_text(json.dumps(asdict(part), sort_keys=True))
    with suppress(OSError):  # another process was faster
        making.rename(folder)
    shutil.rmtree(making, ignore_errors=True)
    return part


def _trace_of(run: str, rank: Rank) -> str:
    if is_url(run):
        from nanhunt.store.fetch import Wanted, fetch

        fetched = fetch(run, Wanted(ranks=frozenset((rank.rank,))))
        mine = [f"{name}: {why}" for name, why in fetched.failed.items() if name.startswith(f"{rank.name}/")]
        if mine:
            raise _Unread(f"not all of it could be copied: {mine[0]}")
        run = str(fetched.folder)
    return str(Path(run) / rank.name / f"attempt-{rank.attempt}")


class _Unread(RuntimeError):
    pass


def _write_records(trace: str, folder: Path) -> int:
    """Every record of TABLES in one reading of the trace. Returns how many there are."""
    pa, _ = packages()
    library = lib.load_library()
    names = list(TABLES)
    writers: dict[str, Any] = {}
    rows = dict.fromkeys(names, 0)
    failed: list[BaseException] = []

    def found(_: object, kind: int, schema: int, array: int) -> int:
        try:
            batch = pa.RecordBatch._import_from_c(array, schema)
            name = names[kind]
            first = rows[name]
            rows[name] += batch.num_rows
            batch = batch.append_column(_ROW, pa.array(range(first, rows[name]), pa.uint64()))
            if name not in writers:
                writers[name] = stack.enter_context(pa.ipc.new_file(str(folder / f"{name}.arrow"), batch.schema))
            writers[name].write_batch(batch)
        except BaseException as error:
            failed.append(error)
            return 1
        return 0

    with ExitStack() as stack:
        status = library.slow.nanhunt_read_records(
            os.fsencode(trace), " ".join(TABLES.values()).encode(), _FOUND(found), None)
    if failed:
        raise failed[0]
    if status != lib.OK:
        raise _Unread(library.last_error())
    return sum(rows.values())


def group_name(rank: int, size: int) -> str:
    first = rank // size * size
    return f"{first:05}-{first + size - 1:05}"


def is_merged(out: str, group: str, ranks: list[Rank]) -> bool:
    """Of these traces, and all of them could be read."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        parts = parts_of(out, group)
        return len(parts) == len(ranks) and all(part.is_of(rank) and not part.unread
                                                for part, rank in zip(parts, ranks))
    return False


def _mark(out: str, group: str) -> Path:
    return Path(out) / ".groups" / f"{group}.json"


def merge_group(out: str, group: str, ranks: list[Rank]) -> str:
    """The parts of a group of ranks, sorted by (step, rank), as OUT/TABLE/ranks=GROUP/data.parquet. Returns GROUP."""
    _, duckdb = packages()
    from pyarrow import dataset

    if is_merged(out, group, ranks):  # a scheduler may ask again for what it has not heard of
        return group
    parts = [_part_of(out, rank) for rank in ranks]
    out = os.path.abspath(out)  # noqa: PTH100 (not resolved; and no name in it is a scheme)
    for table in TABLES:
        there = [part for rank in ranks if (part := part_folder(out, rank) / f"{table}.arrow").is_file()]
        place = Path(out) / table / f"ranks={group}"
        if not there:  # none of them could be read
            shutil.rmtree(place, ignore_errors=True)
            continue
        place.mkdir(parents=True, exist_ok=True)
        made = place / f".data.{os.getpid()}.parquet"
        with duckdb.connect(config={"threads": 1, "memory_limit": _MERGE_MEMORY,
                                    "temp_directory": str(Path(out) / ".parts")}) as base:
            base.register("parts", dataset.dataset([str(part) for part in there], format="ipc"))
            base.execute(f"COPY (SELECT * EXCLUDE ({_ROW}) FROM parts ORDER BY step, rank, {_ROW}) "
                         f"TO '{str(made).replace(chr(39), chr(39) * 2)}' (FORMAT parquet, COMPRESSION zstd)")
        made.replace(place / "data.parquet")
    mark = _mark(out, group)
    mark.parent.mkdir(parents=True, exist_ok=True)
    making = mark.with_suffix(f".{os.getpid()}")
    making.write_text(json.dumps({"parts": [asdict(part) for part in parts]}))
    making.replace(mark)
    for rank in ranks:
        shutil.rmtree(part_folder(out, rank), ignore_errors=True)
    return group


def _part_of(out: str, rank: Rank) -> Part:
    try:
        return Part(**json.loads((part_folder(out, rank) / "part.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise TableError(f"{part_folder(out, rank)} is missing or damaged: run the same command again") from error


def parts_of(out: str, group: str) -> list[Part]:
    """Those that a group was merged from."""
    return [Part(**row) for row in json.loads(_mark(out, group).read_text())["parts"]]


def write_ranks(out: str, parts: list[Part]) -> None:
    """OUT/ranks.parquet."""
    pa, _ = packages()
    from pyarrow import parquet

    rows = [{"rank": part.rank, "attempt": part.attempt, "rows": part.rows, "trace_bytes": part.trace_bytes,
             "unread": part.unread or None, **part.digest,
             "coordinates": list(part.digest.get("coordinates", {}).items())}
            for part in sorted(parts, key=lambda part: part.rank)]
    schema = pa.schema([
        ("rank", pa.uint32()), ("attempt", pa.uint32()), ("rows", pa.uint64()), ("trace_bytes", pa.uint64()),
        ("unread", pa.string()), ("status", pa.string()), ("host", pa.string()), ("accelerator", pa.string()),
        ("coordinates", pa.map_(pa.string(), pa.int64())), ("ended", pa.bool_()), ("clean_through", pa.int64()),
        ("first_step", pa.int64()), ("first_class", pa.string()), ("first_op", pa.string()),
        ("first_module", pa.string()), ("first_call_site", pa.string())])
    making = Path(out) / f".ranks.{os.getpid()}.parquet"
    with making.open("wb") as file:
        parquet.write_table(pa.Table.from_pylist(rows, schema=schema), file)
    making.replace(Path(out) / "ranks.parquet")


def _digest_in(trace: str) -> dict[str, Any]:
    """What ranks.parquet shows of a rank's digest, of the right types; {}: there is none that can be read."""
    try:
        digest = json.loads((Path(trace) / "digest.json").read_bytes()[:65536])
    except (OSError, ValueError):
        return {}

    def get(row: Any, name: str, kind: type) -> Any:
        value = row.get(name) if isinstance(row, dict) else None
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        return value if fits and (not isinstance(value, int) or abs(value) < 2**63) else None

    origins = get(digest, "origins", list) or []
    first = next((row for row in origins if get(row, "severity", str) == "fault"), None)  # not what is a warning alone
    places = get(digest, "coordinates", dict) or {}
    return {"status": get(digest, "status", str), "host": get(digest, "host", str),
            "accelerator": get(get(digest, "accelerator", dict), "name", str),
            "coordinates": {name: at for name in sorted(places) if (at := get(places, name, int)) is not None},
            "ended": get(digest, "ended", bool), "clean_through": get(digest, "clean_through", int),
            "first_step": get(first, "step", int), "first_class": get(first, "class", str),
            "first_op": get(first, "op", str), "first_module": get(first, "module", str),
            "first_call_site": get(first, "call_site", str)}
