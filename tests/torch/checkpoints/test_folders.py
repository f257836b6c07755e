# SPDX-License-Identifier: Apache-2.0
"""Folders of which several files or folders are one checkpoint: pipelines, and what frameworks save in parts."""

from __future__ import annotations

import json
import math

import pytest
import torch
from checkpoint_runs import check, ids, nanhunt, tensors

save_file = pytest.importorskip("safetensors.torch").save_file
BOTH = pytest.mark.parametrize("planted", [False, True])


def part(folder, planted=False, name="diffusion_pytorch_model.safetensors"):
    folder.mkdir(parents=True, exist_ok=True)
    weight = torch.ones(4, 5)
    if planted:
        weight[2, 3] = math.nan
    save_file({"conv.weight": weight}, folder / name)
    (folder / "config.json").write_text("{}")


def expect(path, planted, name):
    status, answer = check(path)
    assert (status, ids(answer)) == ((1, ["nonfinite-tensor"]) if planted else (0, []))
    assert [one["tensor"] for one in answer["findings"]] == ([name] if planted else [])
    return answer


@BOTH
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("bad", ["unet", "vae", "text_encoder_2"])
def test_a_pipeline_is_one_checkpoint_of_its_folders(tmp_path, bad, index, planted):
    names = ["unet", "vae", "text_encoder"] + (["text_encoder_2"] if index or bad == "text_encoder_2" else [])
    for name in names:
        part(tmp_path / name, planted and name == bad)
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text("{}")
    if index or "text_encoder_2" in names:
        (tmp_path / "model_index.json").write_text("{}")
    answer = expect(tmp_path, planted, f"{bad}:conv.weight")
    assert answer["format"] == "folder"
    assert set(tensors(answer)) == {f"{name}:conv.weight" for name in names}


@BOTH
def test_files_and_shards_in_a_part_are_told_apart(tmp_path, planted):
    (tmp_path / "model_index.json").write_text("{}")
    part(tmp_path / "unet", name="a.safetensors")
    part(tmp_path / "unet", planted, name="b.safetensors")
    part(tmp_path / "controlnets" / "depth")
    answer = expect(tmp_path, planted, "unet/b.safetensors:conv.weight")
    found = {"unet/a.safetensors:conv.weight", "unet/b.safetensors:conv.weight", "controlnets/depth:conv.weight"}
    assert set(tensors(answer)) == found


@BOTH
def test_a_checkpoint_of_a_training_is_judged_with_the_folders_in_it(tmp_path, planted):
    for step in (100, 200):
        folder = tmp_path / f"checkpoint-{step}"
        part(folder / "unet", planted and step == 200)
        part(folder / "text_encoder_2")
        torch.save({"state": {0: {"exp_avg": torch.ones(3)}}}, folder / "optimizer.bin")
    done = nanhunt("check", tmp_path)
    assert done.returncode == int(planted)
    assert ("unet:conv.weight (1 NaN of 20, first at [2, 3])" in done.stdout) == planted
    answer = expect(tmp_path / "checkpoint-200", planted, "unet:conv.weight")
    names = {"optimizer.bin:state.0.exp_avg", "unet:conv.weight", "text_encoder_2:conv.weight"}
    assert set(tensors(answer)) == names


@BOTH
def test_parts_that_ranks_saved_beside_a_trainers_state_are_judged(tmp_path, planted):
    import torch.distributed.checkpoint as dcp

    folder = tmp_path / "out" / "checkpoint-7"
    weight = torch.ones(4)
    weight[1] = math.nan if planted else 1
    dcp.save({"fc.weight": weight}, checkpoint_id=folder / "pytorch_model_fsdp_0")
    dcp.save({"state.0.exp_avg": torch.ones(4)}, checkpoint_id=folder / "optimizer_0")
    (folder / "trainer_state.json").write_text("{}")
    for place in (folder, tmp_path / "out"):
        expect(place, planted, "pytorch_model_fsdp_0:fc.weight")


def judged(place):
    """Exit status, and the status of each checkpoint in the order of the answer."""
    done = nanhunt("check", place, "--json")
    rows = json.loads(done.stdout)["checkpoints"]
    return done.returncode, {one["path"].removeprefix(f"{place}".rstrip("/") + "/"): one["status"] for one in rows}


WORDS = {False: "clean", True: "fault"}
SERIES = [("checkpoint-100", "checkpoint-200"), ("epoch=1", "epoch=2"), ("0100", "0250")]


@BOTH
@pytest.mark.parametrize("newer, older", [(1, 0), (0, 1)])
@pytest.mark.parametrize("names", SERIES)
@pytest.mark.parametrize("parent", ["20240501", "gpt2_checkpoints", "ckpt-7", "step_2_of_training", "out"])
def test_a_series_is_one_whatever_the_folder_around_it_is_called(tmp_path, parent, names, newer, older, planted):
    part(tmp_path / parent / names[0], planted and older)
    part(tmp_path / parent / names[1], planted and newer)
    expected = {names[1]: WORDS[bool(planted and newer)], names[0]: WORDS[bool(planted and older)]}
    for place in (tmp_path / parent, f"{tmp_path / parent}/"):
        status, found = judged(place)
        assert (status, list(found.items())) == (int(planted and newer), list(expected.items()))
    if parent != "out":  # the folder above finds it by its number
        status, found = judged(tmp_path)
        assert status == int(planted and newer)
        assert found == {f"{parent}/{name}": word for name, word in expected.items()}


@BOTH
@pytest.mark.parametrize("inner", [("global_step200",), ("rank_0", "rank_1"), ("0", "1"), ("model_1", "optim_1")])
@pytest.mark.parametrize("parent", ["checkpoint-200", "20240501"])
def test_what_was_saved_in_parts_is_no_series(tmp_path, parent, inner, planted):
    for number, name in enumerate(inner):
        part(tmp_path / parent / name, planted and number == 0)
    for place in (tmp_path / parent, f"{tmp_path / parent}/", tmp_path):
        expect(place, planted, f"{inner[0]}:conv.weight")


@BOTH
@pytest.mark.parametrize("name", ["best_model", "model", "best/weights"])
def test_a_folder_without_a_number_beside_a_series_is_judged(tmp_path, name, planted):
    part(tmp_path / "checkpoint-100")
    part(tmp_path / "checkpoint-200")
    part(tmp_path / name, planted)
    (tmp_path / "runs").mkdir()
    expected = {"checkpoint-200": "clean", "checkpoint-100": "clean", name.split("/")[0]: WORDS[planted]}
    status, found = judged(tmp_path)
    assert (status, list(found.items())) == (int(planted), list(expected.items()))
    said = nanhunt("check", tmp_path).stdout
    beside = f"; {name.split('/')[0]} beside it is bad" if planted else ""
    assert said.startswith(f"{WORDS[planted]}: the newest of 3 checkpoints is good: checkpoint-200{beside}\n")


@BOTH
def test_a_folder_that_says_it_is_the_last_is_the_newest(tmp_path, planted):
    part(tmp_path / "checkpoint-100")
    part(tmp_path / "final_model", planted)
    assert judged(tmp_path) == (int(planted), {"final_model": WORDS[planted], "checkpoint-100": "clean"})


def test_folders_within_are_bounded_in_depth_and_number(tmp_path):
    (tmp_path / "model_index.json").write_text("{}")
    part(tmp_path / "a")
    part(tmp_path / "b" / "c" / "d", planted=True)
    answer = expect(tmp_path, False, "")
    assert set(tensors(answer)) == {"a:conv.weight"}
    for number in range(80):
        part(tmp_path / f"part{number:03}")
    answer = check(tmp_path)[1]
    assert len(tensors(answer)) == 64
    assert "only the first 64 were read" in answer["notes"][0]["text"]
    assert answer["headline"] == "64 tensors judged, all of them sound; not all of it was read"


@BOTH
def test_what_other_programs_keep_in_a_repository_of_a_model_is_passed_over(tmp_path, planted):
    part(tmp_path, planted, name="model.safetensors")
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "openvino_model.bin").write_bytes(bytes(range(200)))
    (tmp_path / "openvino" / "openvino_model.xml").write_text("<net/>")
    part(tmp_path / ".cache", planted=True)
    answer = expect(tmp_path, planted, "conv.weight")
    assert (answer["damaged"], set(tensors(answer))) == (False, {"conv.weight"})
    (tmp_path / "openvino" / "openvino_model.xml").unlink()
    assert check(tmp_path)[1]["damaged"]


def test_a_folder_of_something_else_is_no_checkpoint(tmp_path):
    (tmp_path / "data").mkdir()
    torch.save({"w": torch.ones(2)}, tmp_path / "data" / "x.pt")
    assert nanhunt("check", tmp_path).returncode in {3, 5}
