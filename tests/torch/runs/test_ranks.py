# SPDX-License-Identifier: Apache-2.0
"""Four ranks under torchrun: which one made the bad number, and how it came to the others."""
from __future__ import annotations

import json

import pytest
from listening import hears_python
from rank_runs import BAD_RANK, BAD_STEP, train_ranks

WORLD = 4
LEVELS = {"live": [], "ops": ["--level", "ops"]}


@pytest.fixture(scope="module")
def hunted(tmp_path_factory):
    """Runs the program and gives its report."""
    reports = {}

    def run(how, bad, wrapper="DDP"):
        if (how, bad, wrapper) not in reports:
            folder = tmp_path_factory.mktemp(bad)
            train_ranks(folder, WORLD, bad, wrapper, LEVELS[how])
            reports[how, bad, wrapper] = json.loads((folder / "run" / "report.json").read_text())
        return reports[how, bad, wrapper]

    return run


def faults(report):
    return [finding for finding in report["findings"] if finding["severity"] == "fault"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_rank_on_which_it_was_born_is_named_and_the_others_got_it(hunted, level):
    report = hunted(level, "born")
    first = faults(report)[0]
    assert (first["rank"], first["step"], first["phase"]) == (BAD_RANK, BAD_STEP, "forward")
    assert first["op"] == "aten::div" and first["class"] == "divide_by_zero"
    assert first["ranks"] == [BAD_RANK]
    assert {rank for passage in first["rank_propagation"] for rank in passage["ranks"]} == {0, 1, 3}
    assert all(finding["rank"] == BAD_RANK for finding in faults(report))


@pytest.mark.parametrize("level", LEVELS)
def test_buffers_that_the_rank_sends_afterwards_are_no_fault_of_the_others(hunted, level):
    report = hunted(level, "spoilt", "buffers")
    first, = faults(report)
    assert (first["class"], first["rank"], first["step"]) == ("invalid", 0, BAD_STEP)
    reached = any(line.startswith("The bad numbers it left reached rank") for line in first["evidence"])
    assert reached == (level == "live"), first["evidence"]  # at ops the call itself is known


@pytest.mark.parametrize("level", ["live", "ops"])
def test_of_a_model_that_is_sharded_too(hunted, level):
    report = hunted(level, "born", "FSDP2")
    first = faults(report)[0]
    assert (first["rank"], first["step"], first["op"], first["module"]) == (BAD_RANK, BAD_STEP, "aten::div", "2")
    assert {passage["through"] for passage in first["rank_propagation"]} == {"reduce_scatter"}
    assert {rank for passage in first["rank_propagation"] for rank in passage["ranks"]} == {0, 1, 3}
    if hears_python():
        assert all(finding["class"] == "divide_by_zero" for finding in faults(report))
    else:  # the optimizer's step on sharded parameters is not heard: what it made bad is said to be unwatched, no more
        others = [finding for finding in faults(report) if finding["class"] != "divide_by_zero"]
        assert {finding["class"] for finding in others} <= {"unexplained", "bad_state"}
        assert all(finding["step"] > BAD_STEP for finding in others)


@pytest.mark.parametrize("level", ["live", "ops"])
def test_a_sum_that_the_program_takes_over_the_ranks_itself_overflows_between_them(hunted, level):
    first = faults(hunted(level, "sum", "own"))[0]
    assert (first["class"], first["op"], first["phase"]) == ("comm", "c10d::allreduce_", "comm")
    assert first["step"] == BAD_STEP and first["ranks"] == [0, 1, 2, 3]
    assert "overflowed between the ranks" in first["title"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_cast_before_gradients_are_sent_is_named_though_another_thread_casts_them_back(hunted, level):
    report = hunted(level, "wire", "fp16")
    first = faults(report)[0]
    assert (first["class"], first["op"], first["step"]) == ("overflow", "aten::_to_copy", BAD_STEP)
    assert len(faults(report)) == 1 and first["ranks"] == [0, 1, 2, 3]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("wrapper", ["DDP", "FSDP2", "own", "fp16", "buffers"])
def test_healthy_ranks_are_silent(hunted, level, wrapper):
    report = hunted(level, "no", wrapper)
    assert report["verdict"]["status"] == "clean"
    assert len(report["run"]["ranks"]) == WORLD
