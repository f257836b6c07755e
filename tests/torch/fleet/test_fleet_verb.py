# SPDX-License-Identifier: Apache-2.0
"""`nanhunt fleet` over a folder and a URL, with tables."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from stores import nanhunt

pytestmark = [pytest.mark.usefixtures("library"), pytest.mark.usefixtures("needs_packages")]


@pytest.fixture(autouse=True)
def this_python(monkeypatch) -> None:
    monkeypatch.setenv("NANHUNT_PYTHON", sys.executable)


def without_run(text: str) -> dict:
    return {key: value for key, value in json.loads(text).items() if key != "run"}


def test_the_verdict_is_said_and_the_tables_are_written(four_processes, tmp_path):
    done = nanhunt("fleet", str(four_processes), "--text", "--tables", str(tmp_path / "tables"))
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("FAULT  Rank 2 alone")
    assert "of 4 ranks in" in done.stderr
    assert (tmp_path / "tables" / "ranks.parquet").exists()


def test_a_rank_that_cannot_be_read_is_named_and_the_rest_is_there(ten_ranks, tmp_path):
    (ten_ranks / "rank-00002" / "attempt-0" / "000000.nht").write_bytes(b"no trace" * 1000)
    done = nanhunt("fleet", str(ten_ranks), "--text", "--tables", str(tmp_path / "tables"))
    assert done.returncode == 1
    assert "1 rank could not be read" in done.stderr and "rank 2:" in done.stderr


def test_tables_that_cannot_be_written_are_said_and_are_the_status(ten_ranks, tmp_path):
    (tmp_path / "file").write_text("")
    done = nanhunt("fleet", str(ten_ranks), "--text", "--tables", str(tmp_path / "file"))
    assert done.returncode == 6
    assert done.stdout.startswith("FAULT")


def test_of_a_url_the_digests_are_copied_and_then_only_the_traces_that_are_opened(four_processes, bucket, tmp_path):
    from nanhunt.store.remote import Remote
    from nanhunt.store.upload import Uploader

    assert Uploader(four_processes, Remote(f"{bucket.url}/run")).finish(30).left == []
    digests = nanhunt("fleet", f"{bucket.url}/run", "--json")
    assert digests.returncode == 1, digests.stderr
    assert without_run(digests.stdout) == without_run(nanhunt("fleet", str(four_processes), "--json").stdout)
    assert not list((tmp_path / "cache").rglob("*.nht"))
    text = nanhunt("fleet", f"{bucket.url}/run", "--text")
    opened = {path.parts[-3] for path in (tmp_path / "cache").rglob("*.nht")}
    assert "rank-00002" in opened
    assert opened == {f"rank-{rank:05}" for rank in json.loads(digests.stdout)["to_open"]}
    assert text.stdout.splitlines()[0] == nanhunt("fleet", str(four_processes), "--text").stdout.splitlines()[0]


def test_a_digest_behind_a_url_is_believed_over_an_older_copy_of_its_trace(four_processes, bucket, tmp_path):
    """The copy here was made while the run was clean."""
    from nanhunt.store.remote import Remote
    from nanhunt.store.upload import Uploader

    assert Uploader(four_processes, Remote(f"{bucket.url}/run")).finish(30).left == []
    nanhunt("report", f"{bucket.url}/run", "--text")
    for trace in (tmp_path / "cache").rglob("*.nht"):
        trace.write_bytes(trace.read_bytes()[:2000])
    for _ in range(2):
        assert nanhunt("fleet", f"{bucket.url}/run", "--json").returncode == 1


def test_tables_are_made_of_a_run_behind_a_url(ten_ranks, bucket, tmp_path):
    from nanhunt.store.remote import Remote
    from nanhunt.store.upload import Uploader

    assert Uploader(ten_ranks, Remote(f"{bucket.url}/ten")).finish(30).left == []
    done = nanhunt("fleet", f"{bucket.url}/ten", "--text", "--tables", str(tmp_path / "there"))
    assert "of 10 ranks in" in done.stderr, done.stderr
    nanhunt("fleet", str(ten_ranks), "--text", "--tables", str(tmp_path / "here"))
    import duckdb

    hosts = [duckdb.sql(f"SELECT host FROM '{tmp_path}/{name}/ranks.parquet'").fetchall() for name in ("here", "there")]
    assert hosts[0] == hosts[1]
    for file in Path(tmp_path / "here").rglob("data.parquet"):
        assert file.read_bytes() == (tmp_path / "there" / file.relative_to(tmp_path / "here")).read_bytes()


def test_a_run_behind_a_url_is_watched(four_processes, bucket):
    from nanhunt.store.remote import Remote
    from nanhunt.store.upload import Uploader

    assert Uploader(four_processes, Remote(f"{bucket.url}/run")).finish(30).left == []
    done = nanhunt("watch", f"{bucket.url}/run", "--json")
    last = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, last["state"], last["faults"][0]["rank"]) == (1, "ended", 2), done.stderr


def test_a_watch_of_a_url_waits_for_its_run(four_processes, bucket):
    import subprocess

    from hunting import cli
    from nanhunt.store.remote import Remote
    from nanhunt.store.upload import Uploader

    process = subprocess.Popen([cli(), "watch", f"{bucket.url}/later", "--json", "--every", "0.2"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert json.loads(process.stdout.readline())["state"] == "not_begun"
        assert Uploader(four_processes, Remote(f"{bucket.url}/later")).finish(30).left == []
        told, _ = process.communicate(timeout=120)
        assert json.loads(told.splitlines()[-1])["state"] == "ended"
        assert process.returncode == 1
    finally:
        process.kill()
        process.wait()


def test_options_of_tables_without_tables_are_wrong_usage(ten_ranks):
    assert nanhunt("fleet", str(ten_ranks), "--engine", "ray").returncode == 2
