# SPDX-License-Identifier: Apache-2.0
"""The page of many ranks in a browser: quiet, offline, whole without scripts; its map is read by mouse and keys."""

import re

import pytest

KINDS = ["fleet", "fleet-clean", "fleet-parted", "fleet-gapped", "fleet-hostile", "fleet-large"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_asks_for_nothing_but_itself_and_complains_of_nothing(see, make_page, kind):
    seen = see("quiet", kind)
    assert seen["requests"] == [make_page(kind).as_uri()]
    assert seen["errors"] == []
    assert seen["ready"] is not None


def test_10000_ranks_and_100000_steps_take_less_than_1_mb(make_page):
    assert make_page("fleet-large").stat().st_size < 1_000_000


def test_hostile_names_are_text(see):
    seen = see("hostile", "fleet-hostile")
    assert seen["errors"] == [] and seen["dialogs"] == 0 and not seen["pwned"]
    assert seen["foreign"] == 0 and seen["scripts"] == 2
    assert len(seen["requests"]) == 1


@pytest.mark.parametrize("kind", ["fleet", "fleet-gapped", "fleet-parted"])
def test_axe_finds_nothing_in_light_and_dark(see, kind):
    assert see("accessible", kind) == {"light": [], "dark": []}


def test_the_canvas_has_a_name(see):
    (canvas,) = see("names_of_canvases", "fleet")
    assert canvas["role"] == "img"
    assert canvas["name"].startswith("64 ranks in 64 rows by rank, over steps 0 to 99.")


def test_the_map_is_drawn_and_has_a_legend_for_what_is_on_it(see):
    seen = see("rank_map", "fleet")
    assert seen["start"][3] == seen["end"][3] == 255 and seen["start"] != seen["end"]
    legend = ["began here", "came from another rank", "after the first harm", "clean", "no digest"]
    assert [words for words in seen["legend"].split("\n") if words in legend] == legend
    assert "ranks that the verdict names" in seen["legend"]
    assert "damaged" not in seen["legend"]


def test_the_map_is_walked_by_keyboard_and_enter_opens_a_rank(see):
    seen = see("rank_map", "fleet")
    assert seen["first"].startswith("rank 0 · data 0 · expert 0 · pipeline 0 · host n0 · step 0 · clean")
    assert (
        seen["walked"]
        == "rank 40 · data 0 · expert 0 · pipeline 2 · host n5 · step 99 · began here · it began on this rank"
    )
    assert seen["panel"].startswith("Close\nRank 40: it began here") and seen["focused"] == "H3"
    for words in ["GPU-1000040", "step 69", "Began here: step 70 to 99: mul in block overflows fp16", "(train.py:10)"]:
        assert words in seen["panel"]
    assert "nanhunt report 'shared/my run/rank-00040/attempt-0'" in seen["panel"]
    assert seen["closed"] and seen["back"] == "rank-frame"


def test_a_click_opens_the_rank_under_the_mouse(see):
    seen = see("rank_map", "fleet")
    rank = re.match(r"rank (\d+) · ", seen["tip"]).group(1)
    assert 32 <= int(rank) < 40
    assert seen["clicked"] == f"Rank {rank}: it began here"


def test_ranks_are_grouped_by_each_coordinate_and_by_host(see):
    seen = see("rank_map", "fleet")
    assert seen["groupings"] == ["rank", "data", "expert", "pipeline", "host"]
    assert seen["initially"] == "rank"
    assert " · pipeline 2 · " in seen["grouped"]


def test_a_rank_is_opened_by_its_number(see):
    seen = see("rank_map", "fleet")
    assert "Rank 5\n" in seen["asked"]
    assert "Came from another rank: step 71: by allreduce 71 of group data" in seen["asked"]
    assert seen["unknown"] == "No rank 123456 here"


def test_a_row_of_many_ranks_lists_them(see):
    seen = see("rank_map", "fleet-large")
    assert seen["initially"] == "pipeline", "rows of twenty ranks would hide the shape"
    assert re.match(
        r"ranks 800 to 819 · .* · pipeline 0 · .*steps 99,960 to 99,999 · after the first harm", seen["walked"]
    )
    assert "Ranks 800 to 819" in seen["panel"] and "\n813\n" in seen["panel"]


def test_the_verdict_is_there_without_scripts(see):
    seen = see("fleet_without_scripts", "fleet")
    assert seen["headline"] == "All 15 ranks of pipeline stage 2: overflow at mul in block (train.py:10), step 70"
    assert "it began on 15, it came to 45" in seen["facts"].replace("\n", " ")
    assert seen["groups"][2] == ["pipeline 2", "15", "15", "0", "69", "99", "0", "0", "began here"]
    assert seen["groups"][4][0] == "pipeline not known"
    assert seen["found"] == 15 and seen["states"] == 10
    assert "rank-00032/attempt-0/report.html" in seen["next"] and "rank-00033/attempt-0'" in seen["next"]
    assert len(seen["requests"]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_narrow_window_needs_no_sideways_scrolling(see, kind):
    assert see("narrow", kind)["wider"] <= 0


def test_paper_gets_the_tables_and_no_map(see):
    seen = see("print", "fleet")
    assert seen["headline"] and not (seen["map"] or seen["theme"] or seen["tools"])
    assert seen["bytes"] > 10_000
