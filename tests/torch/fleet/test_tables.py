# SPDX-License-Identifier: Apache-2.0
"""The records of many ranks as Parquet, read by DuckDB as users do."""
from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nanhunt.fleet import TABLES, LocalEngine, make_tables, merge_group, rank_part, ranks_of
from nanhunt.fleet.work import make_parts
from saved import records_of
from stores import store_environment

pytestmark = [pytest.mark.usefixtures("library"), pytest.mark.usefixtures("needs_packages")]
BAD = b"no trace" * 4096


def query(text: str, out: Path) -> list[tuple]:
    import duckdb

    for table in TABLES:
        text = text.replace(f"{{{table}}}", f"'{out}/{table}/*/*.parquet'")
    with duckdb.connect() as base:
        return base.sql(text.replace("{ranks}", f"'{out}/ranks.parquet'")).fetchall()


def make(run: Path, out: Path, jobs: int = 2, group: int = 64, **more):
    engine = LocalEngine(jobs)
    try:
        return make_tables(str(run), str(out), engine, group, **more)
    finally:
        engine.close()


def fleet(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "nanhunt.fleet", *words], capture_output=True, text=True, timeout=300,
                          check=False, env={**store_environment(), **environment})


def segment(run: Path, rank: int) -> Path:
    return run / f"rank-{rank:05}" / "attempt-0" / "000000.nht"


@pytest.mark.parametrize("table", TABLES)
def test_a_table_holds_every_record_of_every_rank(table, tables_of_ten, one_rank):
    found = query(f"SELECT rank, count(*) FROM {{{table}}} GROUP BY rank", tables_of_ten)
    if table == "bad_ops":
        ops = records_of(one_rank, "ops")
        bad = [op for op in ops if any(v["nan"] or v["pos_inf"] or v["neg_inf"] for v in op["outputs"])]
        expected = len(bad)
        assert expected > 50
    else:
        expected = len(records_of(one_rank, TABLES[table]))
    assert sorted(found) == ([(rank, expected) for rank in (*range(7), 70, 71, 72)] if expected else [])


def test_a_file_is_sorted_by_step_and_rank_and_by_the_order_of_what_happened(ten_ranks, tmp_path):
    make(ten_ranks, tmp_path / "tables", group=8)
    files = sorted((tmp_path / "tables").glob("bad_ops/*/*"))
    assert [file.parent.name for file in files] == ["ranks=00000-00007", "ranks=00064-00071", "ranks=00072-00079"]
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(files[0], partitioning=None).to_pylist()
    order = [(row["step"], row["rank"], row["seq"]) for row in rows]
    assert len(order) > 400
    assert order == sorted(order)


def test_where_it_began_is_one_query(four_processes, tmp_path):
    make(four_processes, tmp_path / "tables")
    first = query("SELECT rank, step, op, call_site FROM {bad_ops} WHERE NOT read_bad AND NOT is_collective "
                  "ORDER BY step, micro_batch, rank LIMIT 1", tmp_path / "tables")
    ranks = query("SELECT rank, first_step, first_op FROM {ranks} WHERE first_step IS NOT NULL", tmp_path / "tables")
    assert [(rank, step, op) for rank, step, op, _ in first] == ranks
    assert first[0][0] == 2


def test_each_rank_is_a_row_with_its_place_and_what_its_digest_says(four_processes, tmp_path):
    make(four_processes, tmp_path / "tables")
    rows = query("SELECT rank, host IS NOT NULL, coordinates['data'], unread, ended, rows > 0 FROM {ranks}",
                 tmp_path / "tables")
    assert rows == [(rank, True, rank, None, True, True) for rank in range(4)]


def test_the_same_traces_give_the_same_tables(ten_ranks, tmp_path):
    make(ten_ranks, tmp_path / "a", jobs=1)
    make(ten_ranks, tmp_path / "b", jobs=3)
    for table in TABLES:
        for file in (tmp_path / "a" / table).rglob("*.parquet"):
            other = tmp_path / "b" / file.relative_to(tmp_path / "a")
            assert file.read_bytes() == other.read_bytes(), table


# Ranks that cannot be read.
def test_a_rank_that_cannot_be_read_costs_itself_and_is_named(ten_ranks, tmp_path):
    segment(ten_ranks, 2).write_bytes(BAD)
    parts = make(ten_ranks, tmp_path / "tables")
    assert [part.rank for part in parts if part.unread] == [2]
    assert query("SELECT rank FROM {ranks} WHERE unread IS NOT NULL", tmp_path / "tables") == [(2,)]
    assert query("SELECT count(DISTINCT rank) FROM {steps}", tmp_path / "tables") == [(9,)]


def test_of_a_damaged_rank_what_is_good_is_there(ten_ranks, tmp_path):
    whole = segment(ten_ranks, 2).read_bytes()
    segment(ten_ranks, 2).write_bytes(whole[:len(whole) * 2 // 3])
    make(ten_ranks, tmp_path / "tables")
    counts = dict(query("SELECT rank, count(*) FROM {bad_ops} GROUP BY rank", tmp_path / "tables"))
    assert 0 < counts[2] < counts[1]


def test_a_group_of_which_no_rank_can_be_read_has_no_file(ten_ranks, tmp_path):
    for rank in (70, 71, 72):
        segment(ten_ranks, rank).write_bytes(BAD)
    make(ten_ranks, tmp_path / "tables")
    assert {path.name for path in (tmp_path / "tables" / "steps").iterdir()} == {"ranks=00000-00063"}


def test_the_newest_attempt_of_each_rank_counts(ten_ranks, tmp_path):
    shutil.copytree(ten_ranks / "rank-00001" / "attempt-0", ten_ranks / "rank-00001" / "attempt-1")
    segment(ten_ranks, 1).write_bytes(BAD)
    make(ten_ranks, tmp_path / "tables")
    assert query("SELECT DISTINCT attempt FROM {steps} WHERE rank = 1", tmp_path / "tables") == [(1,)]


def test_a_folder_without_a_run_is_a_clear_word(tmp_path):
    done = fleet(str(tmp_path), str(tmp_path / "out"))
    assert done.returncode == 3
    assert "no trace in" in json.loads(done.stdout)["error"]


def test_a_folder_that_cannot_be_written_is_a_clear_word(ten_ranks, tmp_path):
    (tmp_path / "file").write_text("")
    done = fleet(str(ten_ranks), str(tmp_path / "file" / "out"))
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


def test_without_duckdb_it_is_said_what_to_install(ten_ranks, tmp_path):
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "duckdb.py").write_text("raise ImportError('No module named duckdb')")
    path = f"{tmp_path / 'missing'}{os.pathsep}{store_environment()['PYTHONPATH']}"
    done = fleet(str(ten_ranks), str(tmp_path / "out"), PYTHONPATH=path)
    assert done.returncode == 3
    assert "pip install 'nanhunt[fleet]'" in json.loads(done.stdout)["error"]


def test_a_folder_with_a_quote_in_its_name_is_written(ten_ranks, tmp_path):
    make(ten_ranks, tmp_path / "it's")
    assert (tmp_path / "it's" / "steps" / "ranks=00000-00063" / "data.parquet").exists()


# Interrupted, and made anew.
def test_what_was_interrupted_goes_on_where_it_stopped(ten_ranks, tmp_path):
    ranks = ranks_of(str(ten_ranks))
    for rank in ranks[:4]:
        rank_part(str(ten_ranks), rank, str(tmp_path / "tables"))
        size = segment(ten_ranks, rank.rank).stat().st_size
        segment(ten_ranks, rank.rank).write_bytes(b"x" * size)  # read again it would be missed
    parts = make(ten_ranks, tmp_path / "tables")
    assert not [part for part in parts if part.unread]


def test_a_part_that_was_not_finished_is_made_again(ten_ranks, tmp_path):
    rank = ranks_of(str(ten_ranks))[0]
    left = tmp_path / "tables" / ".parts" / "rank-00000"
    left.mkdir(parents=True)
    (left / "steps.arrow").write_bytes(b"half")
    assert rank_part(str(ten_ranks), rank, str(tmp_path / "tables")).rows > 0


def test_only_the_group_of_a_rank_that_grew_is_made_again(ten_ranks, tmp_path):
    make(ten_ranks, tmp_path / "tables")
    files = {path.parent.name: path for path in (tmp_path / "tables" / "steps").glob("*/*.parquet")}
    before = {name: file.stat().st_mtime_ns for name, file in files.items()}
    with segment(ten_ranks, 70).open("ab") as file:
        file.write(b"more")
    make(ten_ranks, tmp_path / "tables")
    assert [name for name, file in files.items() if file.stat().st_mtime_ns != before[name]] == ["ranks=00064-00127"]
    assert not list((tmp_path / "tables" / ".parts").iterdir())


def test_tables_of_another_group_size_take_the_place_of_the_old(ten_ranks, tmp_path):
    make(ten_ranks, tmp_path / "tables")
    make(ten_ranks, tmp_path / "tables", group=100)
    assert [path.name for path in (tmp_path / "tables" / "steps").iterdir()] == ["ranks=00000-00099"]


def test_progress_counts_every_rank(ten_ranks, tmp_path):
    seen: list[tuple[int, int]] = []
    make(ten_ranks, tmp_path / "tables", progress=lambda done, of: seen.append((done, of)))
    assert seen == [(done, 10) for done in range(1, 11)]


def test_a_rank_that_could_not_be_read_is_tried_again(ten_ranks, tmp_path):
    whole = segment(ten_ranks, 2).read_bytes()
    segment(ten_ranks, 2).write_bytes(bytes(len(whole)))
    assert [part.rank for part in make(ten_ranks, tmp_path / "tables") if part.unread] == [2]
    segment(ten_ranks, 2).write_bytes(whole)
    assert not [part for part in make(ten_ranks, tmp_path / "tables") if part.unread]
    assert query("SELECT count(DISTINCT rank) FROM {steps}", tmp_path / "tables") == [(10,)]


def test_a_group_that_is_merged_twice_is_there(ten_ranks, tmp_path):
    out = str(tmp_path / "tables")
    ranks = ranks_of(str(ten_ranks))[:7]
    for rank in ranks:
        rank_part(str(ten_ranks), rank, out)
    assert merge_group(out, "00000-00063", ranks) == merge_group(out, "00000-00063", ranks)
    assert query("SELECT count(DISTINCT rank) FROM {steps}", tmp_path / "tables") == [(7,)]


def test_a_second_call_into_the_same_folder_waits_for_nobody_and_says_so(ten_ranks, tmp_path):
    (tmp_path / "tables").mkdir()
    with (tmp_path / "tables" / ".run").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = fleet(str(ten_ranks), str(tmp_path / "tables"))
    assert done.returncode == 3
    assert "another call is writing" in json.loads(done.stdout)["error"]


def test_tables_of_another_run_are_not_mixed_in(ten_ranks, one_rank, tmp_path):
    make(ten_ranks, tmp_path / "tables")
    done = fleet(str(one_rank), str(tmp_path / "tables"))
    assert done.returncode == 3
    assert "tables of another run" in json.loads(done.stdout)["error"]


def test_folders_of_others_are_left_alone(ten_ranks, tmp_path):
    for name in ("loss/ranks=0", "steps/ranks=mine", "steps/ranks=00000-00063"):
        (tmp_path / "tables" / name).mkdir(parents=True)
        (tmp_path / "tables" / name / "notes.csv").write_text("mine")
    make(ten_ranks, tmp_path / "tables")
    make(ten_ranks, tmp_path / "tables", group=100)
    assert len(list((tmp_path / "tables").rglob("notes.csv"))) == 3


@pytest.mark.parametrize("digest", ["[]", "no JSON",
                                    '{"accelerator":"A100","coordinates":[1],"origins":{"a":1},"host":7}',
                                    '{"clean_through":1e400,"coordinates":{"data":99999999999999999999}}'])
def test_a_digest_of_other_types_costs_its_own_columns(digest, ten_ranks, tmp_path):
    (ten_ranks / "rank-00002" / "attempt-0" / "digest.json").write_text(digest)
    make(ten_ranks, tmp_path / "tables")
    assert query("SELECT count(*) FROM {ranks}", tmp_path / "tables") == [(10,)]


def test_a_warning_is_not_where_it_began(ten_ranks, tmp_path):
    origins = [{"step": 1, "severity": "warning", "op": "a"}, {"step": 3, "severity": "fault", "op": "b"}]
    (ten_ranks / "rank-00002" / "attempt-0" / "digest.json").write_text(json.dumps({"origins": origins}))
    make(ten_ranks, tmp_path / "tables")
    assert query("SELECT first_step, first_op FROM {ranks} WHERE rank = 2", tmp_path / "tables") == [(3, "b")]


def test_a_folder_whose_name_looks_like_a_scheme_is_written(ten_ranks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(ten_ranks, Path("a:b"))
    assert (tmp_path / "a:b" / "ranks.parquet").exists()


# Schedulers that begin processes by themselves.
def test_shares_of_a_job_array_are_merged_by_a_last_call(ten_ranks, tmp_path):
    out = str(tmp_path / "tables")
    counted = [json.loads(fleet(str(ten_ranks), out, "--share", f"{share}/3").stdout)["ranks"] for share in range(3)]
    assert sum(counted) == 10
    assert not (tmp_path / "tables" / "steps").exists()
    for rank in ranks_of(str(ten_ranks)):  # nothing is read again
        segment(ten_ranks, rank.rank).write_bytes(BAD[:1] * rank.trace_bytes)
    done = fleet(str(ten_ranks), out)
    assert json.loads(done.stdout)["unread"] == 0, done.stdout


def test_a_share_that_is_none_is_wrong_usage(tmp_path):
    assert fleet("run", str(tmp_path), "--share", "3/3").returncode == 2


def test_the_work_of_one_rank_is_a_function_that_anything_maps(ten_ranks, tmp_path):
    """As Spark's mapPartitions does."""
    ranks, out = ranks_of(str(ten_ranks)), str(tmp_path / "tables")
    assert all(part.rows for part in map(lambda rank: rank_part(str(ten_ranks), rank, out), ranks))
    engine = LocalEngine(1)
    try:
        assert make_parts(str(ten_ranks), out, engine, (0, 1)) == 10
    finally:
        engine.close()
