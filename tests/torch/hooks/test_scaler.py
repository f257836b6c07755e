# SPDX-License-Identifier: Apache-2.0
"""What is told of a loss scaler is what it did, call by call."""
from __future__ import annotations

import gc
import json
import math
import random
import struct
from pathlib import Path

import pytest
import torch
from scaler_rows import bare_optimizer, give_gradients, watched_scalers
from torch.amp import GradScaler

VECTORS = Path(__file__).resolve().parents[2] / "engine" / "amp" / "data" / "scaler-vectors.json"


def f32_bits(number):
    return f"0x{struct.unpack('I', struct.pack('f', number))[0]:08x}"


def vectors():
    every = json.loads(VECTORS.read_text())["scaler_vectors"]
    return [vector for vector in every if vector["family"] == "torch_grad_scaler"]


def flags_of(vector):
    """(op, found_inf) of each row."""
    if vector["dense"]:
        columns = vector["columns"]
        return [(row[columns.index("op")], row[columns.index("found_inf")]) for row in vector["rows"]]
    return [("update", flag) for flag, count in vector["input_rle"] for _ in range(count)]


def takewhile_with(before, rows):
    """Rows up to the first one that is not before, which comes too."""
    for row in rows:
        yield row
        if not before(row):
            return


def iterate(scaler, optimizer, parameters, bad):
    scaler.scale(torch.ones(()))
    give_gradients(parameters, bad)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("vector", vectors(), ids=lambda v: v["id"])
def test_scales_and_steps_of_the_reference_vectors_are_told(vector, fused):
    if fused and not vector["dense"]:
        pytest.skip("thousands of updates are enough once")
    with watched_scalers() as seen:
        scaler = GradScaler("cpu", **{k: v for k, v in vector["params"].items()})
        optimizer, parameters = bare_optimizer(fused=fused)
        scaler.scale(torch.ones(()))
        for op, bad in flags_of(vector):
            if op.startswith("set_scale:"):
                scaler.update(float(op.split(":")[1]))
            elif op.startswith("set_interval:"):
                scaler.set_growth_interval(int(op.split(":")[1]))
            elif op == "reload":
                scaler.load_state_dict(scaler.state_dict())
            else:
                iterate(scaler, optimizer, parameters, bad)
    if not scaler.is_enabled():
        assert seen.rows == []
    rows, told = iter(seen.rows), []
    for op, _ in flags_of(vector):
        last = "update" if op == "update" else "set" if op.startswith("set_scale:") else None
        if last is None:
            told.append(None)
        elif not scaler.is_enabled():
            told.append((True, 1.0, 0))
        else:
            of_call = [*takewhile_with(lambda row, last=last: row["action"] != last, rows)]
            stepped = [row["action"] == "step" for row in of_call if row["action"] in ("step", "skip")]
            told.append((stepped[-1] if op == "update" else None, of_call[-1]["scale"], of_call[-1]["growth_tracker"]))
    assert next(rows, None) is None
    columns = vector["columns"]
    for row in vector["rows"]:
        i = row[0]
        if i < 0 or told[i] is None:
            continue
        stepped, scale, tracker = told[i]
        assert stepped == row[columns.index("step_taken")], f"row {i}"
        assert f32_bits(scale) == row[columns.index("scale_f32_bits")], f"row {i}"
        assert tracker == row[columns.index("growth_tracker")], f"row {i}"
    updates = sum(1 for op, _ in flags_of(vector) if op == "update")
    assert [s["step"] for s in seen.steps] == list(range(updates))


def test_a_created_scaler_tells_its_options_once():
    with watched_scalers() as seen:
        scaler = GradScaler("cpu", init_scale=0.1, growth_factor=3.0, backoff_factor=0.25, growth_interval=7)
        optimizer, parameters = bare_optimizer()
        iterate(scaler, optimizer, parameters, False)
        iterate(scaler, optimizer, parameters, False)
    rows = seen.rows
    assert [r["action"] for r in rows] == ["create", "scale", "unscale", "step", "update",
                                           "scale", "unscale", "step", "update"]
    create = rows[0]
    assert create["text"] == "torch.amp" and create["dynamic"] == 1
    assert (create["growth_factor"], create["backoff_factor"], create["growth_interval"]) == (3.0, 0.25, 7)
    assert f32_bits(create["scale"]) == f32_bits(0.1)  # as it is stored, not as it was given
    assert create["scale"] == float(torch.tensor(0.1))


def test_a_skip_of_a_fused_optimizer_is_told_though_its_step_was_called():
    with watched_scalers() as seen:
        scaler = GradScaler("cpu")
        optimizer, parameters = bare_optimizer(cls=torch.optim.Adam, fused=True)
        called = []
        optimizer.register_step_post_hook(lambda *a: called.append(1))
        iterate(scaler, optimizer, parameters, True)
        iterate(scaler, optimizer, parameters, False)
    assert called == [1, 1]
    # It reads the flag itself: there is no unscaling of its own.
    assert seen.actions == ["create", "scale", "skip", "update", "scale", "step", "update"]
    assert [s["skipped"] for s in seen.steps] == [True, False]
    skip = seen.rows[2]
    assert skip["found_inf"] == 1 and skip["scale"] == 65536.0


def test_one_optimizer_is_held_back_and_the_other_steps():
    with watched_scalers() as seen:
        scaler = GradScaler("cpu")
        (a, ps), (b, qs) = bare_optimizer(), bare_optimizer()
        for _ in range(2):
            scaler.scale([torch.ones(()), torch.ones(())])
            give_gradients(ps, bad=True)
            give_gradients(qs)
            scaler.unscale_(b)
            scaler.step(a)
            scaler.step(b)
            scaler.update()
    rows = [(r["action"], r["optimizer"], r["step"]) for r in seen.rows]
    assert rows[2:7] == [("unscale", 0, 0), ("unscale", 1, 0), ("skip", 1, 0), ("step", 0, 0), ("update", 0, 0)]
    assert [s["skipped"] for s in seen.steps] == [True, True]
    assert seen.rows[-1]["scale"] == 16384.0


def test_a_disabled_scaler_tells_nothing_and_steps_are_counted():
    with watched_scalers() as seen:
        scaler = GradScaler("cpu", enabled=False)
        optimizer, parameters = bare_optimizer()
        for _ in range(3):
            iterate(scaler, optimizer, parameters, True)
    assert seen.actions == []
    assert [(s["step"], s["skipped"], s["scale"]) for s in seen.steps] == [
        (0, False, 1.0), (1, False, 1.0), (2, False, 1.0)]


def test_a_scale_that_is_set_by_hand_is_told():
    with watched_scalers() as seen:
        scaler = GradScaler("cpu")
        optimizer, parameters = bare_optimizer()
        iterate(scaler, optimizer, parameters, False)
        scaler.update(8.0)
        scaler.update(torch.tensor(4.0))
        state = scaler.state_dict()
        state["scale"], state["_growth_tracker"] = 32.0, 5
        scaler.load_state_dict(state)
        iterate(scaler, optimizer, parameters, False)
        scaler._scale.fill_(2.0)
        iterate(scaler, optimizer, parameters, False)
    sets = [(r["scale"], r["growth_tracker"]) for r in seen.rows if r["action"] == "set"]
    assert sets == [(8.0, 1), (4.0, 1), (32.0, 5), (2.0, 6)]
    assert [s["step"] for s in seen.steps] == [0, 1, 2]
    assert [s["scale"] for s in seen.steps] == [65536.0, 32.0, 2.0]


def test_refused_calls_are_told_with_their_reason():
    with watched_scalers() as seen:
        scaler = GradScaler("cpu")
        optimizer, parameters = bare_optimizer()
        with pytest.raises(AssertionError):
            scaler.unscale_(optimizer)
        scaler.scale(torch.ones(()))
        give_gradients(parameters)
        with pytest.raises(AssertionError):
            scaler.update()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        with pytest.raises(RuntimeError):
            scaler.step(optimizer)
        with pytest.raises(RuntimeError):
            scaler.unscale_(optimizer)
        scaler.update()
        scaler.scale(torch.ones(()))
        with pytest.raises(RuntimeError):
            scaler.step(optimizer, closure=lambda: None)
    texts = [r["text"] for r in seen.rows if r["action"] == "refused"]
    assert [t.split(".")[0] for t in texts] == [
        "Attempted unscale_ but _scale is None",
        "No inf checks were recorded prior to update",
        "unscale_() has already been called on this optimizer since the last update()",
        "step() has already been called since the last update()",
        "unscale_() is being called after step()",
        "Closure use is not currently supported if GradScaler is enabled"]
    assert [s["step"] for s in seen.steps] == [0]


def test_an_fp16_gradient_is_refused_once_though_step_calls_unscale():
    with watched_scalers() as seen:
        scaler = GradScaler("cpu")
        optimizer, parameters = bare_optimizer(dtype=torch.float16)
        scaler.scale(torch.ones(()))
        give_gradients(parameters)
        with pytest.raises(ValueError, match="FP16"):
            scaler.step(optimizer)
    assert seen.actions == ["create", "scale", "refused"]
    assert seen.steps == []


def test_clipping_tells_norm_and_bound_in_its_place():
    with watched_scalers() as seen:
        scaler = GradScaler("cpu", init_scale=4.0)
        optimizer, parameters = bare_optimizer()
        scaler.scale(torch.ones(()))
        give_gradients(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)  # too early
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_((p for p in parameters), max_norm=0.25)
        torch.nn.utils.clip_grad_value_(parameters, 0.125)
        scaler.step(optimizer)
        scaler.update()
    rows = seen.rows
    assert [r["action"] for r in rows] == ["create", "scale", "clip", "unscale", "clip", "clip", "step", "update"]
    clips = [r for r in rows if r["action"] == "clip"]
    assert clips[0]["total_norm"] == pytest.approx(math.sqrt(2)) and clips[0]["max_norm"] == 0.5
    assert clips[1]["total_norm"] == pytest.approx(0.125) and clips[1]["max_norm"] == 0.25
    assert clips[2]["max_norm"] == 0.125


def test_a_static_scale_never_grows_and_is_told_as_it_is():
    with watched_scalers() as seen:
        scaler = GradScaler("cpu", init_scale=128.0, growth_interval=2**31 - 1)
        optimizer, parameters = bare_optimizer()
        for _ in range(5):
            iterate(scaler, optimizer, parameters, False)
    assert {r["scale"] for r in seen.rows} == {128.0}
    assert seen.rows[-1]["growth_tracker"] == 5


def test_a_scale_of_zero_breaks_nothing():
    with watched_scalers() as seen:
        scaler = GradScaler("cpu", init_scale=1.401298464324817e-45)
        optimizer, parameters = bare_optimizer()
        for _ in range(3):
            iterate(scaler, optimizer, parameters, True)
    assert [s["scale"] for s in seen.steps] == [0.0, 0.0, 0.0]


def test_a_derived_scaler_that_overrides_everything_is_heard():
    class Derived(GradScaler):
        def scale(self, outputs):
            return super().scale(outputs)

        def unscale_(self, optimizer):
            super().unscale_(optimizer)

        def update(self, new_scale=None):
            super().update(new_scale)

    with watched_scalers() as seen:
        scaler = Derived("cpu")
        optimizer, parameters = bare_optimizer()
        iterate(scaler, optimizer, parameters, True)
        iterate(scaler, optimizer, parameters, False)
    assert seen.actions == ["create", "scale", "unscale", "skip", "update", "scale", "unscale", "step", "update"]


def test_the_scaler_of_sharded_training_is_heard():
    import torch.distributed as dist

    if not dist.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with watched_scalers() as seen:
            scaler = ShardedGradScaler("cpu", growth_interval=1, process_group=dist.group.WORLD)
            optimizer, parameters = bare_optimizer()
            iterate(scaler, optimizer, parameters, True)
            iterate(scaler, optimizer, parameters, False)
    finally:
        dist.destroy_process_group()
    assert seen.actions == ["create", "scale", "unscale", "skip", "update", "scale", "unscale", "step", "update"]
    assert [s["skipped"] for s in seen.steps] == [True, False]
    assert seen.rows[-1]["scale"] == 65536.0


def test_two_alternating_optimizers_make_one_step_from_the_first_on():
    with watched_scalers() as seen:
        scaler = GradScaler("cpu")
        (a, ps), (b, qs) = bare_optimizer(), bare_optimizer()
        for _ in range(4):
            iterate(scaler, a, ps, False)
            iterate(scaler, b, qs, False)
    numbers = [(r["optimizer"], r["step"]) for r in seen.rows if r["action"] == "step"]
    # No module is called and b has no gradients when a steps first: whoever trains something of its own is waited for.
    assert numbers == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)]


def test_optimizers_without_a_scaler_end_their_step_themselves():
    with watched_scalers() as seen:
        optimizer, parameters = bare_optimizer()
        for _ in range(3):
            give_gradients(parameters)
            optimizer.step()
    assert [s["step"] for s in seen.steps] == [0, 1, 2]


def test_a_dead_scaler_is_not_mistaken_for_a_new_one():
    with watched_scalers() as seen:
        optimizer, parameters = bare_optimizer()
        for _ in range(3):
            iterate(GradScaler("cpu"), optimizer, parameters, False)
            gc.collect()
    assert seen.actions.count("create") == 3


class Model:
    """What a scaler must do, written down apart from it."""

    def __init__(self, scale, interval):
        self.scale, self.interval, self.tracker = scale, interval, 0
        self.made = False
        self.stage, self.found = {}, {}
        self.rows = []
        self.scales = {}  # after so many rows

    def unscale(self, o, bad):
        if not self.made or self.stage.get(o):
            return False
        self.stage[o], self.found[o] = "unscaled", bad
        self.rows.append("unscale")
        return True

    def step(self, o, bad, fused):
        if not self.made or self.stage.get(o) == "stepped":
            return False
        if not self.stage.get(o):
            if fused:
                self.found[o] = bad
            else:
                self.unscale(o, bad)
        self.stage[o] = "stepped"
        self.rows.append("skip" if self.found[o] else "step")
        return True

    def update(self):
        if not self.made or not self.found:
            return False
        if any(self.found.values()):
            self.scale, self.tracker = self.scale / 2, 0
        elif self.tracker + 1 == self.interval:
            self.scale, self.tracker = self.scale * 2, 0
        else:
            self.tracker += 1
        self.stage, self.found = {}, {}
        self.rows.append("update")
        return True


@pytest.mark.parametrize("seed", range(40))
def test_random_sequences_of_calls_are_told_as_they_happened(seed):
    draw = random.Random(seed)
    with watched_scalers() as seen:
        scaler = GradScaler("cpu", init_scale=2.0**draw.randrange(0, 20), growth_interval=draw.randrange(1, 4))
        model = Model(scaler.get_scale(), scaler.get_growth_interval())
        fused = draw.random() < 0.5
        pairs = [bare_optimizer(fused=fused) for _ in range(draw.randrange(1, 4))]
        for _ in range(60):
            call = draw.choice(["scale", "unscale", "step", "step", "update", "set"])
            o = draw.randrange(len(pairs))
            optimizer, parameters = pairs[o]
            bad = draw.random() < 0.3
            give_gradients(parameters, bad)
            ok = True
            try:
                if call == "scale":
                    model.made = True
                    model.rows.append("scale")
                    scaler.scale(torch.ones(()))
                elif call == "unscale":
                    ok = model.unscale(o, bad)
                    scaler.unscale_(optimizer)
                elif call == "step":
                    ok = model.step(o, bad, fused)
                    scaler.step(optimizer)
                elif call == "update":
                    ok = model.update()
                    scaler.update()
                elif model.made:
                    model.scale = 2.0**draw.randrange(0, 20)
                    model.stage, model.found = {}, {}
                    model.rows.append("set")
                    scaler.update(model.scale)
            except (RuntimeError, AssertionError):
                assert not ok
                model.rows.append("refused")
            else:
                assert ok
            if model.made:
                model.scales[len(model.rows)] = model.scale
            assert scaler.get_scale() == model.scale
    assert [a for a in seen.actions if a != "create"] == model.rows
    # Each step of the run has its number, and its flag says whether an optimizer was held back in it.
    rows, steps = [row for row in seen.rows if row["action"] != "create"], seen.steps
    assert {n: rows[n - 1]["scale"] for n in model.scales} == model.scales
    assert [s["step"] for s in steps] == list(range(len(steps)))
    for s in steps:
        of_step = [r["action"] for r in rows if r["step"] == s["step"]]
        assert s["skipped"] == ("skip" in of_step)
        passed = [r["optimizer"] for r in rows if r["step"] == s["step"] and r["action"] in ("step", "skip")]
        assert (passed or s["ending"] != "optimizer") and len(passed) == len(set(passed))  # no optimizer passes twice


def test_what_nanhunt_adds_changes_no_bit():
    def train():
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        scaler = GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
        for _ in range(30):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = net(torch.randn(5, 4)).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [p.detach().clone() for p in net.parameters()], scaler.state_dict()

    plain = train()
    with watched_scalers() as seen:
        watched = train()
    assert all(torch.equal(a, b) for a, b in zip(plain[0], watched[0], strict=True)) and plain[1] == watched[1]
    assert len(seen.steps) == 30


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("number", [0.0, 1.5, -2.0, 96.0, math.inf])
def test_a_loss_is_read_from_every_format(dtype, number):
    with watched_scalers() as seen:
        weight = torch.nn.Parameter(torch.tensor(number, dtype=dtype))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        weight.sum().backward()
        optimizer.step()
    assert [s["loss"] for s in seen.steps] == [number]


@pytest.mark.parametrize("level", ["steps", "ops"])
def test_a_loss_that_was_not_read_is_not_told_as_nan(level):
    with watched_scalers(level) as seen:
        optimizer, parameters = bare_optimizer()
        give_gradients(parameters)
        optimizer.step()
        (parameters[0] * math.nan).sum().backward()
        optimizer.step()
    assert seen.steps[0]["loss"] == 0.0 and math.isnan(seen.steps[1]["loss"])
    assert any("loss" in note for note in seen.notes)


@pytest.mark.parametrize("level", ["steps", "ops"])
def test_a_step_without_a_loss_of_its_own_has_that_of_the_step_before(level):
    with watched_scalers(level) as seen:
        optimizer, parameters = bare_optimizer()
        other = torch.optim.SGD(parameters, lr=0.0)
        loss = 3 + 0 * parameters[0].sum()
        loss.backward()
        optimizer.step()
        other.step()
    assert [step["loss"] for step in seen.steps] == [3.0, 3.0]
