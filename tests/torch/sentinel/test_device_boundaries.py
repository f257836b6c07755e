# SPDX-License-Identifier: Apache-2.0
"""Boundaries on a device: the verdicts of the CPU, a step later where nobody waits, and the run left as it was."""
from __future__ import annotations

import math
import random
from collections import Counter
from contextlib import suppress

import nanhunt
import pytest
import torch
from nanhunt import _device
from nanhunt._device_reader import read_now
from nanhunt._options import Options
from nanhunt._sentinel.shadow import Slot
from nanhunt._session import Session
from planted import blow_up, nan_batch, overflow
from pretended import NEVER, PretendedLane, counted, pretended
from scaler_rows import bare_optimizer, give_gradients, watched_scalers
from sentinel_runs import batch, net, run_once
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

SCALED = {
    "fp16 overflow": (overflow(), overflow(bad=())),
    "fp16 overflow, unscaled and clipped": (overflow(unscale=True, clip=True), overflow((), True, clip=True)),
    "fp16 overflow, clipped alone": (overflow(clip=True), None),  # itself a fault
}
PLAIN = {
    "fp16 overflow, fused": (overflow(fused=True), overflow(bad=(), fused=True)),
    "learning rate": (blow_up(), blow_up(lr=1e-2)),
    "learning rate, momentum": (blow_up(momentum=0.9), blow_up(lr=1e-3, momentum=0.9)),
    "batch with a NaN": (nan_batch(), nan_batch(bad=())),
    "batch with a NaN, normalised": (
        nan_batch(extra=(lambda: nn.BatchNorm1d(8), lambda: nn.Dropout(0.2))),
        nan_batch(bad=(), extra=(lambda: nn.BatchNorm1d(8),)),
    ),
}
SYNC = {"sync": ({"boundary": "sync"}, {"lag": NEVER})}
SCALER = {"scaler": ({}, {"until_read": True, "lag": NEVER}), "at once": ({}, {}), **SYNC}
LATE = {
    "late": ({}, {"lag": 1}),
    "late, but soon": ({"boundary": "deferred"}, {}),
    "late, two steps": ({}, {"lag": 2}),
    **SYNC,
}
CASES = {**SCALED, **PLAIN}
BOUNDARIES = {**SCALER, **LATE}
BOTH = [(case, one) for cases, boundaries in ((SCALED, SCALER), (PLAIN, LATE)) for case in cases for one in boundaries]


def flags(run):
    return [row[:4] for row in run.health]


def told(run):
    keys = ("class", "severity", "step", "op", "module", "phase")
    headline = run.headline
    return run.report["verdict"]["status"], headline and {key: headline[key] for key in keys}


def both(build, tmp_path, options, lane, steps=6):
    """On the CPU, and as on a device. The run comes out with the bits of one that is not watched."""
    plain = run_once(build, steps)
    here = run_once(build, steps, tmp_path / "here")
    with pretended(PretendedLane(**lane)) as used:
        away = run_once(counted(build, used), steps, tmp_path / "away", **options)
    assert here.digest == plain.digest
    assert away.digest == plain.digest, "the run was changed"
    return here, away, used


@pytest.mark.parametrize(("case", "boundary"), BOTH)
def test_a_fault_gets_the_verdict_that_it_gets_on_the_cpu(tmp_path, library, case, boundary):
    here, away, _ = both(CASES[case][0], tmp_path, *BOUNDARIES[boundary])
    assert flags(away) == flags(here)
    for a, b in zip(away.health, here.health, strict=True):
        assert a[4] == pytest.approx(b[4], rel=1e-5, nan_ok=True)
    assert str(away.steps) == str(here.steps)
    assert away.results == here.results, (away.texts, away.notes)
    assert told(away) == told(here), (away.report, here.report)


@pytest.mark.parametrize(("case", "boundary"), [one for one in BOTH if CASES[one[0]][1]])
def test_its_twin_is_silent(tmp_path, library, case, boundary):
    here, away, _ = both(CASES[case][1], tmp_path, *BOUNDARIES[boundary])
    assert away.replays == here.replays == []
    assert flags(away) == flags(here)
    assert str(away.steps) == str(here.steps)
    assert away.report["verdict"]["status"] == here.report["verdict"]["status"] == "clean"


# Readings that are late, or never come.
def test_a_step_whose_readings_come_after_those_of_the_next_is_told_but_not_replayed(tmp_path, library):
    here, away, _ = both(nan_batch(bad=(3,)), tmp_path, {"boundary": "deferred"}, {"lag": NEVER})
    assert away.results == [(3, "refused")]
    assert "the shadow copies were theirs" in away.texts[0]
    assert [row[0] for row in away.health if row[1]] == [row[0] for row in here.health if row[1]] == [3, 4, 5]
    assert away.health[3][1] & (1 << 0 | 1 << 1) and away.report["verdict"]["status"] == "fault"
    assert str(away.steps) == str(here.steps)


def test_readings_that_a_lost_device_keeps_are_counted_and_the_run_goes_on(tmp_path, library):
    class Lost(PretendedLane):
        def send(self, tensors):
            fetch = super().send(tensors)
            fetch.is_here = fetch.wait = self.fail
            return fetch

        def fail(self):
            raise RuntimeError("device lost")

    plain = run_once(nan_batch(bad=()), 4)
    with pretended(Lost()):
        away = run_once(nan_batch(bad=()), 4, tmp_path / "away")
    assert away.digest == plain.digest
    assert away.notes["unread values: readings of a device that were lost: RuntimeError"] >= 4
    assert "for 1 shadow copy of" in str(away.notes) and "for 2 shadow" not in str(away.notes), "none stays taken"
    assert away.health == [], "not known to be healthy"


def test_a_device_without_memory_for_readings_is_noted_and_the_run_goes_on(tmp_path, library):
    class Full(PretendedLane):
        def send(self, tensors):
            raise torch.OutOfMemoryError("CUDA out of memory.")

    plain = run_once(nan_batch(bad=()), 4)
    with pretended(Full()):
        away = run_once(nan_batch(bad=()), 4, tmp_path / "away")
    assert away.digest == plain.digest
    assert away.notes["unread values: readings on a device, for want of memory there"] >= 4
    assert away.health == [], "not known to be healthy"


def test_a_step_that_could_not_be_read_is_told_where_something_of_it_is_bad(tmp_path, library):
    class Full(PretendedLane):
        def send(self, tensors):
            raise torch.OutOfMemoryError("CUDA out of memory.")

    # Given a loss that the host knows to be bad, and gradients on a device that has no memory for readings
    with pretended(Full(), lambda t: t.numel() > 1):
        away = run_once(nan_batch(bad=(2,)), 3, tmp_path / "away")
    # then the bad step is told, and nothing of the others
    assert [(row[0], row[1] & 1) for row in away.health] == [(2, 1)]


def test_a_copy_that_failed_for_want_of_memory_leaves_its_place_to_the_next_step(tmp_path, library, monkeypatch):
    keep, boundaries = Slot.keep_numbers, []

    def full_at_first(self, tape):
        boundaries.append(self)
        if len(boundaries) <= 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        keep(self, tape)

    monkeypatch.setattr(Slot, "keep_numbers", full_at_first)
    here, away, _ = both(nan_batch(), tmp_path, {"boundary": "deferred"}, {"lag": 1})
    assert len(boundaries) > 2 and flags(away) == flags(here)
    assert away.results == here.results == [(2, "reproduced")], away.texts


# Waiting.
class Ops(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops[str(func)] += 1
        return func(*args, **(kwargs or {}))


def ops_of(build, lane, monkeypatch, out=None, steps=12, **options):
    """What a healthy run dispatches after its first steps, with what a watch adds; and how often that waited."""
    monkeypatch.setattr(_device, "guards", _device.guards[1:])  # else the mode would not see ours
    seen = Ops()

    def looked_at():
        step, *things = build()

        def step_of(i):
            lane.step = i
            if i < 2:  # the optimizer's state comes
                step(i)
                return
            with seen:
                step(i)
            lane.waits_in_steps = lane.waits_made

        return step_of, *things

    with pretended(lane):
        run_once(looked_at, steps, out, **options)
    return seen.ops


@pytest.mark.parametrize(("build", "options", "lane"), [
    (overflow(bad=()), {}, {"until_read": True, "lag": NEVER}),
    (overflow(bad=(), unscale=True, clip=True), {}, {"until_read": True, "lag": NEVER}),
    (overflow(bad=(), fused=True), {}, {"lag": 1}),
    (nan_batch(bad=()), {}, {"lag": 1}),
    (nan_batch(bad=(), extra=(lambda: nn.BatchNorm1d(8),)), {}, {"lag": 2}),
    (nan_batch(bad=()), {"boundary": "sync"}, {"lag": NEVER}),
])  # fmt: skip
def test_a_healthy_step_adds_launches_but_no_wait_and_no_copy_of_contents(
        tmp_path, library, monkeypatch, build, options, lane):
    # Given a loop on a device, when it runs alone and watched
    alone = ops_of(build, PretendedLane(), monkeypatch)
    used = PretendedLane(**lane)
    watched = ops_of(build, used, monkeypatch, tmp_path / "run", **options)
    # then what is added reads many tensors at once, where they are, and copies from device to device
    added = Counter({op: n for op, n in (watched - alone).items() if not op.startswith("nanhunt_tap.")})
    copies = {"aten._foreach_copy_.default", "aten.clone.default", "aten.copy_.default", "aten.cat.default"}
    norms = {"aten._foreach_norm.Scalar", "aten.stack.default"}
    assert set(added) <= {"aten.detach.default", "aten.view.default", "aten.empty_like.default"} | norms | copies, added
    # two norms of gradients and two of weights in a step at most, and one number at a time for clipping or a flag,
    assert added["aten._foreach_norm.Scalar"] <= 4 * 10
    assert added["aten.copy_.default"] == 0
    # and the run waits only where that was asked for.
    assert used.waits_in_steps == (12 if options else 0)


# What boundary=deferred costs.
def test_a_shadow_copy_comes_after_what_was_queued_for_it_last_on_whatever_stream(monkeypatch):
    # Given a lane that notes what it is asked for.
    class Noted(_device.Lane):
        asked: list = []

        def mark(self):
            self.asked.append("mark")
            return len(self.asked)

        def after(self, mark):
            self.asked.append(("after", mark))

    monkeypatch.setattr(_device, "lane_of", lambda device: Noted())
    slot = Slot([nn.Parameter(torch.ones(2))], [])

    slot.fill([])
    slot.fill([])

    assert Noted.asked == ["mark", ("after", 1), "mark"]


def test_where_the_shadow_copy_does_not_fit_each_step_is_waited_for_and_that_is_said(tmp_path, library):
    _, away, lane = both(nan_batch(bad=()), tmp_path, {}, {"lag": NEVER, "room": 1000})
    why = "a shadow copy for boundary=deferred does not fit, so each step is waited for"
    waits = "waits for the device that the watch has added: boundary=sync, one a step"
    assert f"the boundary on cpu: sync ({why})" in away.notes
    assert lane.waits_made == 6 == away.notes[waits]


def test_boundary_deferred_without_room_tells_what_is_bad_and_why_there_is_no_replay(tmp_path, library):
    here, away, _ = both(nan_batch(), tmp_path, {"boundary": "deferred", "shadow_mb": 0}, {"lag": 1})
    assert away.results == [(2, "refused")] and "does not fit into the memory it may use" in away.texts[0]
    assert away.health[2][:4] == here.health[2][:4]


def test_state_that_does_not_fit_is_left_out_of_the_copy_and_that_is_said(tmp_path, library):
    weights = sum(p.numel() * 4 for p in net().parameters())
    _, away, _ = both(nan_batch(), tmp_path, {}, {"lag": 1, "room": 4 * 2 * weights})
    assert any(note.startswith("optimizer state in the shadow copy of boundary=deferred: ") for note in away.notes)
    assert away.results == [(2, "reproduced")]


def test_the_copy_and_its_size_are_told(tmp_path, library):
    _, away, _ = both(nan_batch(), tmp_path, {}, {"lag": 1})
    assert any(note.startswith("what boundary=deferred costs on cpu: ") and note.endswith(
        "for 1 shadow copy of parameters and optimizer state") for note in away.notes), away.notes


# Loops of every kind.
def two_models():
    maker, judge = net(), nn.Linear(3, 1)
    ours, its = torch.optim.SGD(maker.parameters(), lr=0.05), torch.optim.Adam(judge.parameters(), lr=1e-3)

    def step(i):
        x, _ = batch(bad=False)
        if i == 2:
            x[0, 0] = math.nan
        its.zero_grad()
        judge(maker(x).detach()).square().mean().backward()
        its.step()
        ours.zero_grad()
        judge(maker(x)).mean().backward()
        ours.step()

    return step, maker, judge, ours, its


def accumulating():
    model = net(nn.Dropout(0.3))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(i):
        opt.zero_grad()
        for k in range(3):
            x, y = batch()
            if (i, k) == (2, 1):
                x[0, 0] = math.inf
            F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    return step, model, opt


def closures():
    model = net()
    opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def step(i):
        x, y = batch()
        if i == 2:
            x[0, 0] = math.nan

        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        opt.step(closure)

    return step, model


@pytest.mark.parametrize("lane", [{"lag": 0}, {"lag": 1}])
@pytest.mark.parametrize("build", [two_models, accumulating, closures])
def test_loops_of_every_kind_are_told_as_on_the_cpu(tmp_path, library, build, lane):
    here, away, _ = both(build, tmp_path, {"boundary": "deferred"}, lane, steps=4)
    assert [row[:2] for row in away.health][:3] == [row[:2] for row in here.health][:3]
    assert away.results[:1] == here.results[:1], (away.texts, here.texts)
    assert told(away)[0] == told(here)[0] == "fault"


# What a replay of a step that is over must not use.
def reused(name):
    """Something that the step used is written before the readings are there."""

    def build():
        model = net(*([nn.Dropout(0.5)] if name == "dropout" else []))
        ema = net().requires_grad_(False)
        frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        model.register_parameter("frozen", frozen)
        opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        x, y = batch()

        def step(i):
            new, labels = batch()
            if i == 2:
                new[0, 0] = math.nan
            if name == "input":
                x.copy_(new)
                y.copy_(labels)
            opt.zero_grad()
            mine, its = (x, y) if name == "input" else (new, labels)
            loss = F.cross_entropy(model(mine), its)
            if name == "teacher":
                loss = loss + F.mse_loss(model(mine), ema(mine))
            if name == "penalty":
                loss = loss + 1e-3 * sum(p.square().sum() for p in model.parameters() if p.requires_grad)
            loss.backward()
            opt.step()
            with torch.no_grad():
                if name == "teacher":
                    for a, b in zip(ema.parameters(), opt.param_groups[0]["params"], strict=True):
                        a.lerp_(b, 0.1)
                if name == "frozen":
                    frozen.mul_(0.9)

        return step, model, ema, opt, x

    return build


@pytest.mark.parametrize(("name", "why"), [
    ("input", "an input"), ("teacher", "an input of aten"), ("frozen", "a parameter of which there is no shadow copy")])
def test_what_was_written_since_and_has_no_copy_makes_the_replay_refused(tmp_path, library, name, why):
    here, away, _ = both(reused(name), tmp_path, {}, {"lag": 1})
    assert here.results == [(2, "reproduced")]
    assert away.results == [(2, "refused")] and why in away.texts[0], away.texts
    assert away.health[2][0] == 2 and away.health[2][1] & 3 == here.health[2][1] & 3 == 3


@pytest.mark.parametrize("name", ["penalty", "dropout"])
def test_parameters_in_the_loss_and_random_numbers_are_as_they_were(tmp_path, library, name):
    here, away, _ = both(reused(name), tmp_path, {}, {"lag": 1})
    assert away.results == here.results == [(2, "reproduced")], away.texts
    assert told(away) == told(here)


@pytest.mark.parametrize("options, lane", [({}, {"lag": 1}), ({"boundary": "sync"}, {"lag": NEVER})])
def test_a_healthy_step_can_be_replayed_too(tmp_path, library, options, lane):
    here, away, _ = both(nan_batch(bad=()), tmp_path, {"wanted": (0, 2, 4), **options}, lane)
    assert away.results == [(0, "reproduced"), (2, "reproduced"), (4, "reproduced")], away.texts
    assert away.report["verdict"]["status"] == "clean"


def test_nothing_is_read_while_a_graph_is_captured(tmp_path, library, monkeypatch):
    monkeypatch.setattr(_device, "is_capturing", lambda: True)
    plain = run_once(nan_batch(), 4)
    with pretended(PretendedLane()) as lane:
        away = run_once(nan_batch(), 4, tmp_path / "away")
    assert away.digest == plain.digest
    assert lane.copies == 0 and away.notes["steps that are captured into a CUDA graph"] == 4
    assert away.health == [], "not known to be healthy"


# Optimizers that nothing is read of before they run.
def tiny_eps(dtype=torch.float16, eps=1e-8):
    """eps is 0 in fp16: elements whose gradient is 0 become 0/0."""

    def build():
        model = net().to(dtype)
        opt = torch.optim.Adam(model.parameters(), lr=1e-3, eps=eps)

        def step(i):
            x, y = batch()
            opt.zero_grad()
            if i < 2:  # state comes
                for p in model.parameters():
                    p.grad = torch.ones_like(p)
            F.cross_entropy(model(x.to(dtype)).float(), y).backward()
            if i == 2:
                for p in model.parameters():
                    opt.state[p]["exp_avg_sq"].zero_()
                    p.grad.zero_()
            opt.step()

        return step, model, opt

    return build


@pytest.mark.parametrize("options, lane", [({}, {"lag": 1}), ({}, {}), ({"boundary": "sync"}, {"lag": 0})])
def test_what_an_optimizer_made_bad_is_shown_in_hindsight(tmp_path, library, options, lane):
    here, away, _ = both(tiny_eps(), tmp_path, options, lane)
    first = [row for row in away.health if row[1]][0]
    assert first[:2] == [row for row in here.health if row[1]][0][:2] and first[1] & 1 << 16, (away.health, here.health)
    assert away.report["verdict"]["status"] == here.report["verdict"]["status"] == "fault"
    keys = ("class", "step", "op", "phase")
    assert {k: away.headline[k] for k in keys} == {k: here.headline[k] for k in keys}, (away.headline, here.headline)


def test_an_optimizer_whose_options_prove_nothing_is_read_but_stays_silent(tmp_path, library):
    _, away, _ = both(tiny_eps(eps=1e-3), tmp_path, {}, {"lag": 1})
    assert not any(row[1] for row in away.health), away.health


# Loss scalers whose flags only the device knows.
def rows_of(seed):
    """Calls in random order, as `test_scaler.py` makes them: what is told of them."""
    draw = random.Random(seed)
    with watched_scalers() as session:
        first, interval = 2.0 ** draw.randrange(0, 20), draw.randrange(1, 4)
        scaler = torch.amp.GradScaler("cpu", init_scale=first, growth_interval=interval)
        fused = draw.random() < 0.5
        pairs = [bare_optimizer(fused=fused) for _ in range(draw.randrange(1, 4))]
        for _ in range(60):
            call = draw.choice(["scale", "unscale", "clip", "step", "step", "update", "set", "load"])
            optimizer, parameters = draw.choice(pairs)
            give_gradients(parameters, draw.random() < 0.3)
            calls = {
                "scale": lambda: scaler.scale(torch.ones(())),
                "unscale": lambda: scaler.unscale_(optimizer),  # noqa: B023 - called in this turn
                "clip": lambda: nn.utils.clip_grad_norm_(parameters, 1.0),  # noqa: B023
                "step": lambda: scaler.step(optimizer),  # noqa: B023
                "update": scaler.update,
                "set": lambda: scaler.update(2.0 ** draw.randrange(0, 20)),
                "load": lambda: scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0 ** draw.randrange(0, 20)}),
            }
            with suppress(RuntimeError, AssertionError):
                calls[call]()
    # What unscaling found is the device's secret until the step, and losses are read with gradients.
    rows = [{k: v for k, v in row.items() if k != "found_inf" or row["action"] != "unscale"}
            for row in session.recorder.scaler_rows]  # fmt: skip
    return rows, [(row["step"], row["skipped"], row["scale"]) for row in session.recorder.steps]


@pytest.mark.parametrize("lane", [{}, {"lag": NEVER}])
@pytest.mark.parametrize("seed", range(20))
def test_rows_of_a_scaler_are_those_of_the_cpu(seed, lane):
    here = rows_of(seed)
    with pretended(PretendedLane(**lane)):
        away = rows_of(seed)
    assert away == here


@pytest.mark.parametrize("fused", [False, True])
def test_a_scale_whose_flags_could_not_be_read_is_read_itself(fused):
    class Full(PretendedLane):
        def send(self, tensors):
            raise torch.OutOfMemoryError("CUDA out of memory.")

    # Given bad gradients whose flag only the device knows (a fused step, or none), and no memory to read it
    with pretended(Full()), watched_scalers() as session:
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
        optimizer, parameters = bare_optimizer(fused=fused)
        for bad in (True, False):
            scaler.scale(torch.ones(()))
            give_gradients(parameters, bad)
            if fused:
                scaler.step(optimizer)
            else:
                scaler.unscale_(optimizer)
            # when the scale is updated
            scaler.update()
    # then what is told is the scale that torch came to: it backs off, then grows
    updates = [row for row in session.recorder.scaler_rows if row["action"] == "update"]
    assert [row["scale"] for row in updates] == [32.0, 64.0]
    assert session.notes["waits for the device that the watch has added: a scale whose flags could not be read"] == 4


def test_what_the_copy_may_use_is_an_option(monkeypatch):
    assert Options().shadow_mb is None
    monkeypatch.setenv("NANHUNT_SHADOW_MB", "64")
    assert Options.from_environment().shadow_mb == 64
    with pytest.raises(ValueError, match="shadow_mb: expected a whole number of at least 0, got -1"):
        nanhunt.watch(shadow_mb=-1)


NUMBERS = {
    "large": [60000.0] * 5000,  # its 2-norm leaves fp16
    "nan": [1.0, math.nan, 2.0],
    "inf": [1.0, -math.inf],
    "both": [math.inf, math.nan],
    "small": [6e-8] * 7,
    "empty": [],
    "last": [0.0] * 70001 + [math.nan],
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_norms_and_finiteness_are_right_in_every_format(tmp_path, dtype):
    tensors = {name: torch.tensor(values, dtype=dtype) for name, values in NUMBERS.items()}
    tensors["slice"] = torch.arange(40, dtype=dtype).view(5, 8)[:, 1:7]
    session = Session(Options(out=str(tmp_path / "run")))
    with pretended(PretendedLane()):
        found = {r.name: r for r in read_now(session, list(tensors.items()))}
    assert [name for name, r in found.items() if r.bad] == ["nan", "inf", "both", "last"]
    assert math.isnan(found["nan"].norm) and found["inf"].norm == math.inf and math.isnan(found["both"].norm)
    for name in ("large", "small", "slice"):
        wide = tensors[name].double()
        assert found[name].amax == float(wide.abs().max())
        assert found[name].norm == pytest.approx(float(wide.norm()), rel=1e-5)
    assert found["empty"].amax == found["empty"].norm == 0


def test_squares_beyond_fp32_do_not_make_a_tensor_bad_and_that_is_noted(tmp_path):
    session = Session(Options(out=str(tmp_path / "run")))
    with pretended(PretendedLane()):
        huge, wide = read_now(session, [("a", torch.full((4,), 1e30)), ("b", torch.full((4,), 1e30).double())])
    assert (huge.bad, huge.norm, wide.bad) == (False, huge.amax, False)
    assert wide.norm == pytest.approx(2e30)
    assert any(note.startswith("norms on a device whose squares leave fp32") for note in session.notes)


def test_what_cannot_be_read_there_is_noted(tmp_path):
    session = Session(Options(out=str(tmp_path / "run")))
    items = [
        ("sparse", torch.sparse_coo_tensor(torch.tensor([[1, 3]]), torch.tensor([1.0, math.nan]), (5,),
                                           check_invariants=True)),
        ("integer", torch.ones(3, dtype=torch.int64)),
        ("complex", torch.tensor([complex(1, math.inf)])),
        ("fp8", torch.ones(3).to(torch.float8_e5m2)),
        ("meta", torch.ones(3, device="meta")),
    ]  # fmt: skip
    with pretended(PretendedLane()):
        found = {r.name: r.bad for r in read_now(session, items)}
    assert found == {"sparse": True, "complex": True}
    assert session.notes == {"unread values: float8_e5m2 on a device": 1}
