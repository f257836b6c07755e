# SPDX-License-Identifier: Apache-2.0
"""Real ranks under torchrun: each leaves a digest by itself, and from the digests alone the fault is named."""
from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from hunting import cli
from rank_runs import BAD_RANK, BAD_STEP, train_ranks


def fleet_of(folder):
    """What `nanhunt fleet` says of copies of the digests, without a trace."""
    alone = folder / "digests"
    for digest in (folder / "run").glob("rank-*/attempt-*/digest.json"):
        to = alone / digest.relative_to(folder / "run")
        to.parent.mkdir(parents=True)
        shutil.copy(digest, to)
        assert digest.stat().st_size <= 8192
    done = subprocess.run([cli(), "fleet", "--json", str(alone)], capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout), done.returncode


@pytest.mark.parametrize("wrapper", ["DDP", "FSDP2"])
def test_a_fault_on_one_of_16_ranks_is_named_from_digests_alone(tmp_path, wrapper):
    train_ranks(tmp_path, 16, "born", wrapper)
    verdict, status = fleet_of(tmp_path)
    assert status == 1 and verdict["read"] == verdict["world_size"] == 16
    first = verdict["first"]
    assert (first["rank"], first["step"], first["phase"]) == (BAD_RANK, BAD_STEP, "forward")
    assert (first["op"], first["class"]) == ("aten::div", "divide_by_zero")
    assert first["call_site"].startswith("main.py:")
    assert verdict["ranks"]["ranks"] == [BAD_RANK] and verdict["shape"]["kind"] == "one"
    assert verdict["reached"]["count"] == 15 and verdict["came_by"]["step"] == BAD_STEP
    assert verdict["clean_through"] == BAD_STEP - 1


@pytest.mark.parametrize("wrapper", ["DDP", "HSDP"])
def test_a_flipped_bit_in_the_parameters_of_one_replica_is_found_by_checksums(tmp_path, wrapper):
    train_ranks(tmp_path, 8, "flip", wrapper)
    verdict, status = fleet_of(tmp_path)
    assert status == 1 and verdict["first"] is None
    parting = verdict["parting"]
    assert parting["minority"]["ranks"] == [BAD_RANK]
    assert (parting["equal_until"], parting["step"]) == (BAD_STEP, BAD_STEP + 1)
    assert parting["count"] == (8 if wrapper == "DDP" else 4)
    report = json.loads((tmp_path / "run" / "report.json").read_text())  # of the traces
    assert report["verdict"]["status"] == "fault"
    assert report["verdict"]["headline"] == verdict["headline"]
    assert report["findings"][0]["class"] == "corruption" and report["findings"][0]["ranks"] == [BAD_RANK]


@pytest.mark.parametrize("wrapper", ["DDP", "HSDP"])
def test_healthy_replicas_hold_the_same_parameters_and_nobody_is_blamed(tmp_path, wrapper):
    train_ranks(tmp_path, 8, "no", wrapper)
    verdict, status = fleet_of(tmp_path)
    assert (verdict["status"], status) == ("clean", 0)
    assert verdict["parting"] is None and verdict["notes"] == []
    digest = json.loads((tmp_path / "run" / "rank-00005" / "attempt-0" / "digest.json").read_text())
    assert digest["ended"] and digest["replicas"]["count"] == (8 if wrapper == "DDP" else 4)
    assert len(digest["checksums"]) == 6
    assert digest["coordinates"] == ({"data": 5} if wrapper == "DDP" else {"dp_replicate": 2, "dp_shard": 1})
    assert digest["job"].startswith("torchelastic ")


@pytest.mark.parametrize("how", ["alone", "probe"])
def test_replicas_that_take_steps_of_their_own_are_not_compared(tmp_path, how):
    train_ranks(tmp_path, 4, how, "DDP")
    verdict, status = fleet_of(tmp_path)
    assert (verdict["status"], status, verdict["parting"]) == ("clean", 0, None)


def test_what_the_first_stage_of_a_pipeline_sends_is_followed_back_to_it(tmp_path):
    train_ranks(tmp_path, 2, "born", "pipeline")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    for first in (report["findings"][0], fleet_of(tmp_path)[0]["first"]):
        assert (first["rank"], first["step"], first["op"], first["class"]) == (0, BAD_STEP, "aten::log", "invalid")


def test_a_pipeline_that_sends_finite_numbers_is_clean(tmp_path):
    train_ranks(tmp_path, 2, "no", "pipeline")
    assert json.loads((tmp_path / "run" / "report.json").read_text())["verdict"]["status"] == "clean"
    assert fleet_of(tmp_path)[1] == 0
