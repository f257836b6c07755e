# SPDX-License-Identifier: Apache-2.0
"""Runs of many ranks, recorded once."""
from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from nanhunt.fleet import LocalEngine, make_tables
from rank_runs import train_ranks
from s3_server import bucket, no_bucket, server, settings  # noqa: F401
from stores import nanhunt

ATTEMPT = "rank-00000/attempt-0"


@pytest.fixture(scope="session")
def needs_packages() -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("duckdb", reason="DuckDB is not installed")


@pytest.fixture(scope="session")
def one_rank(tmp_path_factory) -> Path:
    """A run with a fault: 8 steps, of each every operation."""
    out = tmp_path_factory.mktemp("one") / "run"
    done = nanhunt("train", "adam-eps", "--steps", "8", "--level", "ops", "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out


def ten_times(one_rank: Path, run: Path) -> Path:
    for rank in (*range(7), 70, 71, 72):
        shutil.copytree(one_rank / ATTEMPT, run / f"rank-{rank:05}" / "attempt-0")
    return run


@pytest.fixture
def ten_ranks(one_rank, tmp_path, needs_packages) -> Path:
    """The same trace as that of each of ten ranks: 0 to 6, and 70 to 72."""
    return ten_times(one_rank, tmp_path / "run")


@pytest.fixture(scope="session")
def tables_of_ten(one_rank, tmp_path_factory, needs_packages) -> Path:
    """Tables of such ranks, made once by two processes. They are only read."""
    folder = tmp_path_factory.mktemp("ten")
    engine = LocalEngine(2)
    try:
        make_tables(str(ten_times(one_rank, folder / "run")), str(folder / "tables"), engine)
    finally:
        engine.close()
    return folder / "tables"


@pytest.fixture(scope="session")
def four_processes(tmp_path_factory, needs_packages) -> Path:
    """Four ranks of DDP that really trained; the first bad number is made on rank 2, and their gradients mix it."""
    folder = tmp_path_factory.mktemp("four")
    train_ranks(folder, 4, "born", "DDP")
    return folder / "run"
