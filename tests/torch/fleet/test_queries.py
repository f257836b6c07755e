# SPDX-License-Identifier: Apache-2.0
"""The questions of tools/nanhunt/TABLES.md, asked with DuckDB of ranks that really trained."""
from __future__ import annotations

import re
from pathlib import Path

import pytest
from rank_runs import train_ranks
from stores import made_tables

pytestmark = [pytest.mark.usefixtures("library"), pytest.mark.usefixtures("needs_packages")]
GUIDE = Path(__file__).parents[3] / "tools" / "nanhunt" / "TABLES.md"
QUESTIONS = dict(re.findall(r"\n([A-Z][^\n]+\?)\n\n```sql\n(.*?)```", GUIDE.read_text(), re.S))


@pytest.fixture(scope="module")
def tables(four_processes, tmp_path_factory) -> Path:
    return made_tables(four_processes, tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def tables_of_a_flip(tmp_path_factory, needs_packages) -> Path:
    """A bit of rank 2's parameters flips in step 3."""
    folder = tmp_path_factory.mktemp("flip")
    train_ranks(folder, 4, "flip", "DDP")
    return made_tables(folder / "run", tmp_path_factory.mktemp("tables"))


def ask(question: str, tables: Path, monkeypatch) -> list[dict]:
    import duckdb

    monkeypatch.chdir(tables)
    with duckdb.connect() as base:
        return base.sql(QUESTIONS[question]).arrow().read_all().to_pylist()


def test_there_are_ten_questions():
    assert len(QUESTIONS) == 10


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered(question, tables, monkeypatch):
    ask(question, tables, monkeypatch)


def test_where_it_began(tables, monkeypatch):
    first = ask("Where did it begin?", tables, monkeypatch)[0]
    assert (first["step"], first["rank"], first["op"]) == (3, 2, "aten::div")
    assert first["call_site"].startswith("main.py:")


def test_on_which_ranks(tables, monkeypatch):
    rows = ask("On which ranks, and what do they share?", tables, monkeypatch)
    assert [(row["ranks"], row["first_step"]) for row in rows] == [(1, 3)]


def test_no_rank_stopped_early(tables, monkeypatch):
    assert ask("How far did each rank come, and which stopped early?", tables, monkeypatch) == []


def test_the_loss_of_each_step_over_all_ranks(tables, monkeypatch):
    rows = ask("What became of the loss, over all ranks?", tables, monkeypatch)
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert all(row["least"] <= row["mean"] <= row["most"] for row in rows[:3])
    assert rows[0]["bad"] == 0


def test_operations_that_are_bad_most_often(tables, monkeypatch):
    rows = ask("Which operations are bad most often, and in which format?", tables, monkeypatch)
    assert ("aten::div", 1) in [(row["op"], row["ranks"]) for row in rows]


def test_replicas_that_do_not_agree(tables, tables_of_a_flip, monkeypatch):
    question = "Which replicas no longer agree?"
    assert [(row["ranks"], row["lowest"]) for row in ask(question, tables_of_a_flip, monkeypatch)] == [(1, 2), (3, 0)]


def test_every_rank_has_a_time(tables, monkeypatch):
    rows = ask("Which ranks are slow?", tables, monkeypatch)
    assert sorted(row["rank"] for row in rows) == [0, 1, 2, 3]
    assert all(0 < row["seconds"] < 60 for row in rows)
