# SPDX-License-Identifier: Apache-2.0
"""Runs behind a URL are read as those in a folder."""
from __future__ import annotations

import json
import shutil
from pathlib import Path

import nanhunt as package
import pytest
from nanhunt.store.remote import Remote, belongs_to_run
from nanhunt.store.upload import Uploader
from stores import nanhunt, store, upload

pytestmark = pytest.mark.usefixtures("library")
ATTEMPT = "rank-00000/attempt-0"


@pytest.fixture
def eps_url(bucket, eps_run) -> str:
    assert Uploader(eps_run, Remote(f"{bucket.url}/eps")).finish(20).left == []
    return f"{bucket.url}/eps"


@pytest.mark.parametrize("verb", [("report", "--json"), ("report", "--text"), ("check",), ("info", "--json"), ("dump",),
                                  ("export", "--kind", "steps"), ("advise", "--json"), ("doctor",)], ids=" ".join)
def test_every_verb_says_of_a_url_what_it_says_of_the_folder(verb, eps_url, eps_run):
    there, here = nanhunt(*verb, eps_url), nanhunt(*verb, str(eps_run))
    assert there.returncode == here.returncode
    assert without_paths(there.stdout) == without_paths(here.stdout)


@pytest.mark.parametrize("verb", [("report",), ("report", "--json", "--brief"), ("fleet", "--text")], ids=" ".join)
def test_what_is_said_of_a_url_names_the_url_and_no_copy(verb, eps_url):
    said = nanhunt(*verb, eps_url).stdout
    assert f"nanhunt report {eps_url}" in said or verb[0] == "fleet" and eps_url in said
    assert "/cache/" not in said


def without_paths(text: str) -> list[str]:
    return [line for line in text.splitlines() if "/cache/" not in line and "/run" not in line]


def test_two_runs_behind_urls_are_compared(eps_url):
    assert nanhunt("diff", "--json", eps_url, eps_url).returncode == 0


def test_a_program_is_written_from_a_run_behind_a_url(eps_url, tmp_path):
    done = nanhunt("repro", eps_url, "--out", str(tmp_path / "repro"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "repro" / "repro.py").exists()


def test_a_saved_run_is_loaded_from_its_url(eps_url, eps_run):
    assert package.load(eps_url).data == package.load(eps_run).data


def test_the_url_of_an_attempt_and_of_a_segment_are_read(eps_url):
    assert nanhunt("check", f"{eps_url}/{ATTEMPT}").returncode == 1
    assert nanhunt("check", f"{eps_url}/{ATTEMPT}/000000.nht").returncode == 1


def test_what_is_here_already_is_not_copied_again_and_what_changed_is(eps_url, bucket):
    assert json.loads(store("fetch", eps_url).stdout)["copied"] > 1
    assert json.loads(store("fetch", eps_url).stdout)["copied"] == 0
    bucket.write(f"eps/{ATTEMPT}/run.json", bucket.read(f"eps/{ATTEMPT}/run.json") + b" ")
    assert json.loads(store("fetch", eps_url).stdout)["copied"] == 1


def test_segments_that_the_run_gave_up_are_given_up_here_too(eps_url, bucket):
    bucket.write(f"eps/{ATTEMPT}/000007.nht", b"x")
    folder = Path(json.loads(store("fetch", eps_url).stdout)["folder"])
    assert (folder / ATTEMPT / "000007.nht").exists()
    bucket.fs.rm_file(f"{bucket.name}/eps/{ATTEMPT}/000007.nht")
    store("fetch", eps_url)
    assert not (folder / ATTEMPT / "000007.nht").exists()


def test_a_name_with_an_end_of_line_is_of_no_run():
    assert belongs_to_run("rank-00000/attempt-0/run.json")
    assert not belongs_to_run("rank-00000/attempt-0/run.json\n")


@pytest.mark.parametrize("name", ["../up.nht", f"{ATTEMPT}/../../../up.nht", f"{ATTEMPT}/captures/../../up",
                                  f"{ATTEMPT}/captures/.hidden", f"{ATTEMPT}//000009.nht", "notes.txt",
                                  f"{ATTEMPT}/captures/a/b"])
def test_a_name_that_leads_elsewhere_is_not_copied(name, eps_url, bucket, tmp_path):
    before = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    bucket.write(f"eps/{name}", b"hostile")
    done = store("fetch", eps_url)
    assert done.returncode == 0, done.stdout + done.stderr
    copied = {path for path in tmp_path.rglob("*") if path.relative_to(tmp_path) not in before and path.is_file()}
    assert copied
    assert all(path.is_relative_to(tmp_path / "cache") for path in copied)
    assert not [path for path in copied if path.read_bytes() == b"hostile"]


def test_digests_alone_are_copied_and_of_a_rank_without_one_its_trace(bucket, eps_run, tmp_path):
    from_four = tmp_path / "four"
    for rank in range(4):
        shutil.copytree(eps_run / ATTEMPT, from_four / f"rank-{rank:05}" / "attempt-0")
        if rank != 2:
            (from_four / f"rank-{rank:05}" / "attempt-0" / "digest.json").write_text("{}")
    assert upload(f"{bucket.url}/four", from_four).returncode == 0
    folder = Path(json.loads(store("fetch", f"{bucket.url}/four", "--digests").stdout)["folder"])
    traces = sorted(path.parts[-3] for path in folder.rglob("*.nht"))
    assert traces == ["rank-00002"]
    assert len(list(folder.rglob("digest.json"))) == 3
    store("fetch", f"{bucket.url}/four", "--ranks", "1,3")
    assert sorted(path.parts[-3] for path in folder.rglob("*.nht")) == ["rank-00001", "rank-00002", "rank-00003"]


def test_a_digest_that_is_no_digest_costs_itself(bucket, eps_url):
    bucket.write(f"eps/{ATTEMPT}/digest.json", b"x" * 100_000)
    done = store("fetch", eps_url, "--digests")
    assert done.returncode == 1
    assert "larger than any digest" in json.loads(done.stdout)["failures"][0]


@pytest.mark.parametrize(("place", "says"), [("s3://{bucket}/nothing", "holds no run"),
                                             ("s3://no-such-bucket-here/run", "holds no run"),
                                             ("zz://host/run", "Protocol not known"),
                                             ("s3://{bucket}/eps/rank-00000/attempt-0/digest.bin", "no segment")])
def test_a_url_without_a_run_is_a_clear_word(place, says, bucket, eps_url):
    bucket.write("eps/rank-00000/attempt-0/digest.bin", b"x")
    done = nanhunt("check", place.format(bucket=bucket.name))
    assert done.returncode == 3
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_is_not_there_is_a_clear_word(settings, monkeypatch):
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    done = nanhunt("check", "s3://bucket/run")
    assert done.returncode == 3
    assert "cannot be listed" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_package_that_opens_it_a_url_says_which(tmp_path, settings, monkeypatch):
    (tmp_path / "fsspec.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = nanhunt("check", "s3://bucket/run")
    assert done.returncode == 3
    assert "pip install 'nanhunt[s3]'" in done.stderr


def test_modules_of_the_working_directory_are_not_run(tmp_path, settings, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('hostile')")
    monkeypatch.chdir(tmp_path)
    assert "hostile" not in nanhunt("check", "zz://bucket/run").stderr


def test_of_some_ranks_nothing_else_is_listed_and_what_others_had_is_kept(bucket, eps_run, tmp_path):
    for rank in range(3):
        for name in ("run.json", "000000.nht"):
            bucket.write(f"three/rank-{rank:05}/attempt-0/{name}", (eps_run / ATTEMPT / name).read_bytes())
    url = f"{bucket.url}/three"
    folder = Path(json.loads(store("fetch", url).stdout)["folder"])
    assert json.loads(store("fetch", url, "--ranks", "1").stdout)["copied"] == 0
    assert len(list(folder.rglob("*.nht"))) == 3
    assert json.loads(store("fetch", url).stdout)["copied"] == 0


def test_a_rank_that_is_not_there_any_more_is_given_up_here_too(bucket, eps_run):
    for rank in range(2):
        bucket.write(f"two/rank-{rank:05}/attempt-0/000000.nht", (eps_run / ATTEMPT / "000000.nht").read_bytes())
    folder = Path(json.loads(store("fetch", f"{bucket.url}/two").stdout)["folder"])
    bucket.fs.rm_file(f"{bucket.name}/two/rank-00001/attempt-0/000000.nht")
    store("fetch", f"{bucket.url}/two")
    assert [path.parts[-3] for path in folder.rglob("*.nht")] == ["rank-00000"]


def test_a_new_digest_does_not_stand_beside_an_older_trace(bucket, eps_url):
    bucket.write(f"eps/{ATTEMPT}/digest.json", b"{}")
    folder = Path(json.loads(store("fetch", eps_url).stdout)["folder"])
    bucket.write(f"eps/{ATTEMPT}/000000.nht", bucket.read(f"eps/{ATTEMPT}/000000.nht") + b"more")
    bucket.write(f"eps/{ATTEMPT}/digest.json", b'{"new": 1}')
    store("fetch", eps_url, "--digests")
    assert (folder / ATTEMPT / "digest.json").read_bytes() == b'{"new": 1}'
    assert not (folder / ATTEMPT / "000000.nht").exists()
