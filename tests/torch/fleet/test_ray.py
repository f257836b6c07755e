# SPDX-License-Identifier: Apache-2.0
"""The same tables by a Ray cluster of two nodes on loopback."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nanhunt.fleet import TABLES
from stores import made_tables, store_environment

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = [pytest.mark.usefixtures("library"), pytest.mark.usefixtures("needs_packages")]


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        nodes.add_node(num_cpus=1)
        nodes.wait_for_nodes(timeout=120)
        yield nodes.address
    finally:
        nodes.shutdown()


def fleet(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "nanhunt.fleet", *words], capture_output=True, text=True, timeout=300,
                          check=False, env=store_environment())


def contents(table: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in table.rglob("*.parquet")}


def test_two_nodes_make_the_tables_that_one_machine_makes(cluster, ten_ranks, tmp_path):
    done = fleet(str(ten_ranks), str(tmp_path / "ray"), "--engine", "ray", "--address", cluster)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["ranks"] == 10
    here = made_tables(ten_ranks, tmp_path / "here")
    for table in TABLES:
        assert contents(tmp_path / "ray" / table) == contents(here / table)


def test_a_rank_that_cannot_be_read_costs_itself_there_too(cluster, ten_ranks, tmp_path):
    (ten_ranks / "rank-00002" / "attempt-0" / "000000.nht").write_bytes(b"no trace" * 1000)
    done = fleet(str(ten_ranks), str(tmp_path / "ray"), "--engine", "ray", "--address", cluster)
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert (answer["ranks"], answer["unread"]) == (10, 1)
    assert answer["failures"][0].startswith("rank 2: ")


def test_a_cluster_that_is_not_there_is_a_clear_word(ten_ranks, tmp_path):
    done = fleet(str(ten_ranks), str(tmp_path / "ray"), "--engine", "ray", "--address", "127.0.0.1:9")
    assert done.returncode == 3
    assert "no Ray cluster at 127.0.0.1:9" in json.loads(done.stdout.splitlines()[-1])["error"]
    assert not list(Path(tmp_path / "ray").glob("steps"))
