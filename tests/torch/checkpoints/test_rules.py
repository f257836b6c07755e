# SPDX-License-Identifier: Apache-2.0
"""Each rule: a planted fault is named, its healthy twin is not."""

from __future__ import annotations

import collections
import json
import math
import types
from typing import NamedTuple

import pytest
import torch
from checkpoint_runs import check, ids, nanhunt, trained

STATUS = {"fault": 1, "warning": 0, "info": 0}


def adam_state(dtype=torch.float32, eps=1e-8, zeros=0, step=None, smallest=1e-3):
    """What Adam keeps of two parameters, in `dtype`; the second moment of the first has `zeros` zeros."""
    step = torch.tensor(3.0) if step is None else step
    second = torch.full((6, 5), smallest).to(dtype)
    second.view(-1)[:zeros] = 0
    one = {"step": step, "exp_avg": torch.full((6, 5), 0.01).to(dtype), "exp_avg_sq": second}
    other = {"step": step.clone(), "exp_avg": torch.zeros(3).to(dtype), "exp_avg_sq": torch.zeros(3).to(dtype)}
    groups = [{"lr": 1e-3, "eps": eps, "params": [0]}, {"lr": 1e-3, "eps": 1e-3, "params": [1]}]
    return {"optimizer": {"state": {0: one, 1: other}, "param_groups": groups}}


def scaler(scale):
    return {
        "scaler": {
            "scale": scale,
            "growth_factor": 2.0,
            "backoff_factor": 0.5,
            "growth_interval": 2000,
            "_growth_tracker": 7,
        }
    }


def weights(value, dtype=torch.float16, share=1.0):
    w = torch.full((10, 10), 0.5, dtype=dtype)
    w.view(-1)[: int(100 * share)] = value
    return {"w": w}


LOWEST = torch.finfo(torch.float16).min
CASES = {
    "second-moment-zero in fp16, eps gone": (
        adam_state(torch.float16, zeros=4),
        {"second-moment-zero": "fault", "eps-vanishes": "warning"},
    ),
    "second-moment-zero in bf16": (adam_state(torch.bfloat16, zeros=4), {"second-moment-zero": "warning"}),
    "second-moment-zero in fp32": (adam_state(zeros=4), {"second-moment-zero": "info"}),
    "no zero in fp32": (adam_state(), {}),
    "no zero in fp16, eps 1e-4": (adam_state(torch.float16, eps=1e-4), {}),
    "eps-vanishes": (adam_state(torch.float16), {"eps-vanishes": "warning"}),
    "negative-second-moment": (adam_state(smallest=-1e-6), {"negative-second-moment": "fault"}),
    "step-stuck in bf16": (adam_state(step=torch.tensor(256.0, dtype=torch.bfloat16)), {"step-stuck": "fault"}),
    "step 255 in bf16": (adam_state(step=torch.tensor(255.0, dtype=torch.bfloat16)), {}),
    "step-stuck in fp16": (adam_state(step=torch.tensor(2048.0, dtype=torch.float16)), {"step-stuck": "fault"}),
    "step 2047 in fp16": (adam_state(step=torch.tensor(2047.0, dtype=torch.float16)), {}),
    "step-stuck in fp32": (adam_state(step=torch.tensor(2.0**24)), {"step-stuck": "fault"}),
    "step 2^24 - 1 in fp32": (adam_state(step=torch.tensor(2.0**24 - 1)), {}),
    "step 2^24 in int64": (adam_state(step=torch.tensor(2**24)), {}),
    "scale 0": (scaler(0.0), {"scale-collapsed": "fault"}),
    "scale Inf": (scaler(math.inf), {"scale-collapsed": "fault"}),
    "scale NaN": (scaler(math.nan), {"scale-collapsed": "fault"}),
    "scale 2^-20": (scaler(2.0**-20), {"scale-collapsed": "warning"}),
    "scale 65536": (scaler(65536.0), {}),
    "scale 1": (scaler(1.0), {}),
    "a scale of something else": ({"norm": {"scale": 0.0}}, {}),
    "low-headroom in fp16": (weights(40000.0), {"low-headroom": "warning"}),
    "headroom of more than 2": (weights(32700.0), {}),
    "low-headroom in e5m2": (weights(40000.0, torch.float8_e5m2), {"low-headroom": "warning"}),
    "40000 in bf16": (weights(40000.0, torch.bfloat16), {}),
    "a mask of the lowest number": ({"mask": torch.full((4, 4), LOWEST, dtype=torch.float16).triu(1)}, {}),
    "e4m3fn with a scale": (weights(448.0, torch.float8_e4m3fn) | {"w_scale": torch.tensor(0.01)}, {}),
    "mostly-zero": ({"w": torch.zeros(4, 4)}, {"mostly-zero": "info"}),
    "a bias of zeros": ({"b": torch.zeros(4)}, {}),
    "mostly-subnormal": (weights(1e-6, share=0.2), {"mostly-subnormal": "info"}),
    "few subnormal": (weights(1e-6, share=0.1), {}),
    "infinite-mask": (
        {"m": torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1) > 0, -math.inf)},
        {"infinite-mask": "info"},
    ),
    "a mask above the diagonal, with slopes below": (
        {"m": torch.arange(16.0).view(4, 4).masked_fill(torch.ones(4, 4).triu(1) > 0, -math.inf)},
        {"infinite-mask": "info"},
    ),
    "a bias of a mask": ({"suppress_bias": torch.tensor([0.0, -math.inf])}, {"infinite-mask": "info"}),
    "-inf in a bias": ({"fc.bias": torch.tensor([0.0, -math.inf, 1.0])}, {"nonfinite-tensor": "fault"}),
    "-inf in the bias of attention": (
        {"attn.in_proj_bias": torch.tensor([0.0, -math.inf])},
        {"nonfinite-tensor": "fault"},
    ),
    "-inf in a gamma": ({"norm.gamma": torch.tensor([1.0, -math.inf])}, {"nonfinite-tensor": "fault"}),
    "-inf in a lora": ({"lora_A": torch.tensor([[0.0, -math.inf], [0.0, 0.0]])}, {"nonfinite-tensor": "fault"}),
    "an observer that has seen inf": ({"observer.max_val": torch.tensor(math.inf)}, {"nonfinite-tensor": "fault"}),
    "inf in a combination": ({"moe.combine": torch.tensor([0.5, math.inf])}, {"nonfinite-tensor": "fault"}),
    "a bound of nan": ({"param_groups": [{"max_lr": math.nan, "params": [0]}]}, {"nonfinite-setting": "fault"}),
    "a bound of inf": ({"param_groups": [{"max_norm": math.inf, "params": [0]}]}, {}),
    "-inf in a weight of zeros": ({"fc.weight": torch.tensor([[0.0, -math.inf]])}, {"nonfinite-tensor": "fault"}),
    "-inf in a running mean": ({"bn.running_mean": torch.tensor([0.0, -math.inf])}, {"nonfinite-tensor": "fault"}),
    "-inf in a momentum": (
        {"state": {0: {"momentum_buffer": torch.tensor([[0.0, -math.inf]])}}},
        {"nonfinite-tensor": "fault"},
    ),
    "a range that begins as inf": ({"observer.min_val": torch.tensor(math.inf)}, {"nonfinite-value": "warning"}),
    "a best score": ({"best_metric": torch.tensor(math.inf)}, {"nonfinite-value": "warning"}),
    "losses": ({"losses": torch.tensor([1.0, math.nan])}, {"nonfinite-value": "warning"}),
    "edges": ({"edges": torch.tensor([-math.inf, 0.5, math.inf])}, {"nonfinite-value": "warning"}),
    "a variance below 0": ({"bn.running_var": torch.tensor([0.5, -1e-9])}, {"negative-variance": "fault"}),
    "a variance of 0": ({"bn.running_var": torch.tensor([0.5, 0.0])}, {}),
    "a learning rate of nan": ({"param_groups": [{"lr": math.nan, "params": [0]}]}, {"nonfinite-setting": "fault"}),
    "a learning rate": ({"param_groups": [{"lr": 1e-3, "params": [0]}]}, {}),
    "a nan that a step is made with": (
        {"optimizer": {"state": {0: {"step": math.nan, "d": math.nan}}}},
        {"nonfinite-setting": "fault"},
    ),
    "numbers of a step": ({"optimizer": {"state": {0: {"step": 7.0, "d": math.inf}}}}, {}),
    "a nan that a trainer keeps": ({"trainer": {"state": {"best_metric": math.nan}}}, {"nonfinite-value": "warning"}),
    "nans beside the weights": ({"ema": [math.nan] * 4}, {"nonfinite-value": "warning"}),
    "an inf beside the weights": ({"ema": [math.inf, 1.0]}, {}),
    "an average that a callback keeps": (
        {"callbacks": {"EMA": {"ema_weights": {"fc.weight": torch.full((3, 3), math.nan)}}}},
        {"nonfinite-tensor": "fault"},
    ),
    "a bias in it": ({"callbacks": {"EMA": {"fc.bias": torch.tensor([math.nan])}}}, {"nonfinite-tensor": "fault"}),
    "a long list in it": ({"callbacks": {"EMA": {"x": torch.full((40,), math.nan)}}}, {"nonfinite-tensor": "fault"}),
    "a score that a callback keeps": (
        {"callbacks": {"Stop": {"best": torch.tensor(math.inf)}}},
        {"nonfinite-callback-value": "info"},
    ),
    "a mask of -inf alone": ({"attn_mask": torch.full((2, 3), -math.inf)}, {"infinite-mask": "info"}),
    "zeros and -inf under the name of a mask of weights": (
        {"weight_mask": torch.tensor([[0.0, -math.inf]])},
        {"infinite-mask": "info"},
    ),
    "losses of a window": ({"loss_ema": torch.tensor([1.0, math.nan])}, {"nonfinite-value": "warning"}),
    "bins": ({"bin_edges": torch.tensor([-math.inf, 0.5, math.inf])}, {"nonfinite-value": "warning"}),
    "the best of each class": ({"best_scores": torch.tensor([math.nan])}, {"nonfinite-value": "warning"}),
    "an infinity among weights": ({"w": torch.tensor([0.3, -math.inf, 1.0])}, {"nonfinite-tensor": "fault"}),
    "+inf among zeros": ({"w": torch.tensor([0.0, math.inf])}, {"nonfinite-tensor": "fault"}),
}


TRAINED = {
    "lstm.weight_ih_l0": torch.full((4, 4), -math.inf),
    "lstm.bias_ih_l0": torch.full((4,), -math.inf),
    "cls_token": torch.full((1, 1, 4), -math.inf),
    "mask_token": torch.tensor([[[0.0, -math.inf]]]),
    "fc.kernel": torch.full((4, 4), -math.inf),
    "attn.in_proj_weight": torch.full((4, 4), -math.inf),
    "something": torch.full((4, 4), -math.inf),
    "pos_embed": torch.tensor([[0.0, -math.inf]]),
    "exploration_bonus": torch.tensor([0.5, math.inf]),
    "logit_scale": torch.tensor(-math.inf),
    "v_bias": torch.tensor([0.0, -math.inf, 0.0]),
    "edge_bias": torch.tensor([0.3, math.inf, 0.2]),
    "loss_weights": torch.tensor([math.nan, 1.0]),
    "best_proto": torch.full((4, 4), math.nan),
    "admin_value": torch.tensor(math.inf),
    "loss_scale": torch.tensor(math.inf),
}


@pytest.mark.parametrize("planted", [True, False])
@pytest.mark.parametrize("name", TRAINED)
def test_a_name_that_is_like_a_kept_value_hides_no_fault(tmp_path, name, planted):
    value = TRAINED[name] if planted else TRAINED[name].nan_to_num(0.5, 0.5, 0.5)
    torch.save({name: value, "rest": torch.ones(3)}, tmp_path / "x.pt")
    status, answer = check(tmp_path / "x.pt")
    assert (status, ids(answer)) == ((1, ["nonfinite-tensor"]) if planted else (0, []))


@pytest.mark.parametrize("case", CASES)
def test_the_rule_says_what_is_planted_and_nothing_else(tmp_path, case):
    state, expected = CASES[case]
    torch.save(state | {"rest": torch.ones(3)}, tmp_path / "x.pt")
    status, answer = check(tmp_path / "x.pt")
    assert {one["id"]: one["severity"] for one in answer["findings"]} == expected
    worst = min(expected.values(), key=["fault", "warning", "info"].index, default="info")
    assert status == STATUS[worst]
    assert nanhunt("check", tmp_path / "x.pt", "--fail-on", "warning").returncode == (0 if worst == "info" else 1)


def causal(size=6, dtype=torch.float32):
    return (
        torch.arange(float(size * size))
        .view(size, size)
        .to(dtype)
        .masked_fill(torch.ones(size, size).triu(1) > 0, -math.inf)
    )


def elsewhere(size=6, dtype=torch.float32):
    """As many -Inf, the first in the same place, but one of them below the diagonal."""
    mask = causal(size, dtype)
    mask[1, 3], mask[4, 2] = 7, -math.inf
    return mask


TRIANGLES = {
    "plain": lambda m: m,
    "of a batch": lambda m: m.repeat(2, 3, 1, 1),
    "expanded": lambda m: m.expand(5, -1, -1),
    "transposed in memory": lambda m: m.t().contiguous().t(),
    "a part": lambda m: torch.nn.functional.pad(m, (1, 2, 0, 3))[: len(m), 1 : len(m) + 1],
    "large": lambda m: causal(700) if m[1, 3].isinf() else elsewhere(700),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", TRIANGLES)
@pytest.mark.parametrize("make, found", [(causal, "infinite-mask"), (elsewhere, "nonfinite-tensor")])
def test_a_causal_mask_has_its_inf_above_the_diagonal_alone(tmp_path, make, found, layout, dtype):
    torch.save({"m": TRIANGLES[layout](make(dtype=dtype))}, tmp_path / "x.pt")
    assert ids(check(tmp_path / "x.pt")[1]) == [found]


def test_a_mask_below_the_diagonal_is_a_fault_where_numbers_stand_above(tmp_path):
    torch.save({"m": causal().t()}, tmp_path / "x.pt")
    assert ids(check(tmp_path / "x.pt")[1]) == ["nonfinite-tensor"]


class OfDict(dict):
    pass


class OfList(list):
    pass


class OfOrdered(collections.OrderedDict):
    pass


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


def deeply(value, depth=80):
    for _ in range(depth):
        value = [value]
    return value


HIDING = {
    "a dict of its own class": lambda t: OfDict(w=t),
    "a list of its own class": lambda t: OfList([t]),
    "an ordered dict of its own class": lambda t: OfOrdered(w=t),
    "a named tuple": lambda t: Pair(t, 1),
    "a deque": lambda t: collections.deque([t]),
    "a set": lambda t: {t},
    "a namespace": lambda t: types.SimpleNamespace(w=t),
    "a module": lambda t: torch.nn.ParameterList([t]),
    "lists in lists": deeply,
}


@pytest.mark.parametrize("place", HIDING)
@pytest.mark.parametrize("number, status", [(math.nan, 1), (2.0, 0)])
def test_a_tensor_is_judged_wherever_it_is_kept(tmp_path, place, number, status):
    torch.save({"rest": torch.ones(3), "m": HIDING[place](torch.tensor([number, 1.0]))}, tmp_path / "x.pt")
    found, answer = check(tmp_path / "x.pt")
    assert found == status, answer
    assert ids(answer) == (["nonfinite-tensor"] if status else [])


def test_steps_apart_are_named(tmp_path):
    state = adam_state()
    state["optimizer"]["state"][1]["step"] = torch.tensor(1.0)
    torch.save(state, tmp_path / "x.pt")
    assert ids(check(tmp_path / "x.pt")[1]) == ["steps-apart"]


def test_zeros_are_counted_where_the_first_moment_is_not_zero(tmp_path):
    state = adam_state(zeros=9)
    state["optimizer"]["state"][0]["exp_avg"].view(-1)[:5] = 0
    torch.save(state, tmp_path / "x.pt")
    assert [one["count"] for one in check(tmp_path / "x.pt")[1]["findings"]] == [4]


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_a_real_optimizer_is_silent(tmp_path, optimizer):
    _, opt = trained(optimizer, steps=5)
    torch.save(opt.state_dict(), tmp_path / "x.pt")
    assert check(tmp_path / "x.pt")[1]["findings"] == []


def test_a_series_is_judged_newest_first_by_number(tmp_path):
    good, bad = {"w": torch.ones(4)}, {"w": torch.tensor([1.0, math.nan])}
    for step, state in {90: good, 100: good, 1000: bad}.items():
        torch.save(state, tmp_path / f"step_{step}.pt")
    done = nanhunt("check", tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("fault: of 3 checkpoints, newest good one step_100.pt, first bad one step_1000.pt\n")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("  fault ", "  clean "))]
    assert [row[1] for row in rows] == ["step_1000.pt:", "step_100.pt:", "step_90.pt:"]
    assert f"Newest good one: {tmp_path}/step_100.pt" in done.stdout
    assert f"Next: nanhunt diff {tmp_path}/step_100.pt {tmp_path}/step_1000.pt" in done.stdout
    (tmp_path / "step_1000.pt").unlink()
    done = nanhunt("check", tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("clean: the newest of 2 checkpoints is good: step_100.pt\n")


@pytest.mark.parametrize("first_bad", [1, 20, 59, 60, 61])
def test_a_long_series_is_answered_first_and_in_few_lines(tmp_path, first_bad):
    good, bad = {"w": torch.ones(4), "v": torch.ones(2)}, {f"w{i}": torch.tensor([1.0, math.nan]) for i in range(30)}
    for step in range(1, 61):
        torch.save(good if step < first_bad else bad, tmp_path / f"step_{step}.pt")
    done = nanhunt("check", tmp_path)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines) <= 20) == (int(first_bad < 61), True)
    if first_bad == 1:
        assert lines[0] == "fault: of 60 checkpoints, none is good, first bad one step_1.pt"
    elif first_bad == 61:
        assert lines[0] == "clean: the newest of 60 checkpoints is good: step_60.pt"
    else:
        good, bad = f"step_{first_bad - 1}.pt", f"step_{first_bad}.pt"
        assert lines[0] == f"fault: of 60 checkpoints, newest good one {good}, first bad one {bad}"
        assert lines[-1] == f"Next: nanhunt diff {tmp_path}/{good} {tmp_path}/{bad}"
        assert [line for line in lines if f" {good}: " in line]
    assert (
        sum(int(line.split()[1]) for line in lines if line.startswith("  ... "))
        + len([line for line in lines if line.startswith(("  fault  ", "  clean  "))])
        == 60
    )
    answer = json.loads(nanhunt("check", tmp_path, "--json").stdout)
    assert len(answer["checkpoints"]) == 60
    assert answer["first_bad"] == (None if first_bad == 61 else f"{tmp_path}/step_{first_bad}.pt")


def test_the_text_is_short_and_full_lists_all_tensors(tmp_path):
    torch.save({f"w{i}": torch.tensor([math.nan, 1.0]) for i in range(40)}, tmp_path / "x.pt")
    short, full = nanhunt("check", tmp_path / "x.pt"), nanhunt("check", tmp_path / "x.pt", "--full")
    assert short.stdout.startswith("fault: 40 of 40 tensors hold NaN or Inf, first w0 (1 NaN of 2, first at [0])\n")
    assert short.stdout.count("nonfinite-tensor") == 12
    assert "and 28 more findings" in short.stdout
    assert "w39" not in short.stdout
    assert "w39" in full.stdout


def test_names_cannot_steer_the_terminal(tmp_path):
    torch.save({"\x1b[31mred": torch.tensor([math.nan])}, tmp_path / "x.pt")
    done = nanhunt("check", tmp_path / "x.pt")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout


def test_full_is_refused_for_a_run(tmp_path):
    assert nanhunt("check", tmp_path, "--full").returncode == 2
