# SPDX-License-Identifier: Apache-2.0
"""Level ops on a device: the library reads tensors where they are, and nobody waits. On the device of device/, whose
memory the host dies of reading, with a library for which the CPU plays a GPU (read_there.py).
"""
from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import nanhunt
import pytest
import torch
from on_device import on_device
from op_rows import watched_ops
from planted import blow_up, nan_batch, overflow
from read_there import capturing, compare_contents, counts_of, read_there
from step_runs import Root, batch, run_once
from torch import nn
from torch.nn import functional as F

DEVICE = "walled"
COPIED = "reading tensors where they are, so they are copied to the host: "
CAPTURED = "tensors of a device, while a CUDA graph was captured on their stream"


BUILDS = {
    "fp16 overflow": (overflow, {}),
    "fp16 overflow, unscaled and clipped": (overflow, {"unscale": True, "clip": True}),
    "fp16 overflow, fused": (overflow, {"fused": True}),
    "learning rate": (blow_up, {}),
    "batch with a NaN": (nan_batch, {}),
}
TWINS = {"learning rate": {"lr": 1e-2}}


def ops_run(make, options, folder, steps=6):
    return run_once(make(**options, device=DEVICE), steps, folder, level="ops")


def copied(notes):
    return [text for text in notes if "copied to the host" in text]


def steps_of(run):
    volatile = ("end_seq", "wall_ns", "watch_ns")
    return repr([{k: v for k, v in row.items() if k not in volatile} for row in run.records("steps")])


def told(run):
    """Verdict and findings word for word. Sums add in another order."""

    def plain(thing):
        if isinstance(thing, dict):
            return {k: plain(v) for k, v in thing.items() if k not in ("level", "what_if", "frames")}
        if isinstance(thing, float):
            return f"{thing:.12g}"
        return [plain(item) for item in thing] if isinstance(thing, list) else thing

    return plain(run.report["verdict"]), plain(run.report["findings"])


@pytest.mark.parametrize("copies_later", [0, 2])
@pytest.mark.parametrize("case", BUILDS)
@on_device
def test_a_fault_is_told_as_when_all_is_copied_to_the_host(case, copies_later):
    make, options = BUILDS[case]
    with tempfile.TemporaryDirectory() as name:
        plain = run_once(make(**options, device=DEVICE), 6)
        by_copies = ops_run(make, options, Path(name) / "copies")
        with read_there(copies_later):
            there = ops_run(make, options, Path(name) / "there")
        assert steps_of(there) == steps_of(by_copies)
    assert copied(by_copies.notes)
    assert not copied(there.notes)
    assert there.digest == plain.digest, "the run was changed"
    assert told(there) == told(by_copies)
    assert there.headline is not None


@pytest.mark.parametrize("case", BUILDS)
@on_device
def test_the_repaired_twin_is_silent(case):
    make, options = BUILDS[case]
    with tempfile.TemporaryDirectory() as name, read_there():
        run = ops_run(make, options | TWINS.get(case, {"bad": ()}), Path(name) / "run")
    assert [f for f in run.report["findings"] if f["severity"] in ("warning", "fault")] == []


@pytest.mark.parametrize("case", BUILDS)
@on_device
def test_a_step_waits_and_copies_no_more_than_alone(case):
    import walled

    make, options = BUILDS[case]
    options = options | TWINS.get(case, {"bad": ()})

    def waits(watched):
        with tempfile.TemporaryDirectory() as folder, read_there() as emulated, contextlib.ExitStack() as on:
            if watched:
                watch = on.enter_context(nanhunt.watch(out=folder + "/run", level="ops", quiet=True))
            step, *_ = make(**options, device=DEVICE)()
            for i in range(3):
                step(i)
            before = walled.waits()
            for i in range(3, 23):
                step(i)
            made = walled.waits() - before
            if watched:
                counts = counts_of(watch)
                assert (counts.waits, emulated.count("waits")) == (0, 0)
                assert counts.told > counts.asked * 3 // 4 > 0, "they come while the run goes on"
                assert counts.lost == 0
                on.close()
                assert not [note for note in watch.notes if note.startswith("errors inside")], watch.notes
            return made

    assert waits(watched=True) == waits(watched=False)


@on_device
def test_what_is_lost_blames_nobody():
    make, options = BUILDS["fp16 overflow"]
    with tempfile.TemporaryDirectory() as name, read_there(never=1):
        run = ops_run(make, options, Path(name) / "run")
    blamed = [f for f in run.report["findings"] if f["severity"] != "info" and (f.get("op") or "").startswith("aten::")]
    assert blamed == [], run.report["findings"]
    assert run.report["verdict"]["status"] != "clean"
    assert "readings of a device that were lost" in str(run.report["coverage"])


@on_device
def test_all_that_is_taken_of_copies_is_taken_there():
    make, options = BUILDS["fp16 overflow"]
    with tempfile.TemporaryDirectory() as name, read_there():
        run = ops_run(make, options, Path(name) / "run")
    assert "not taken on a device" not in str(run.report["coverage"])


@on_device
def test_an_op_is_read_in_three_launches_and_contents_are_compared_in_one():
    with tempfile.TemporaryDirectory() as name, read_there():
        with nanhunt.watch(out=name + "/run", level="ops", quiet=True) as watch:
            nn.Linear(2, 2).to(DEVICE)(torch.ones(2, 2).to(DEVICE)).sum().backward()
            one, two = torch.ones(2).to(DEVICE), torch.ones(2).to(DEVICE)

            def launches(run):
                before = counts_of(watch).launches
                run()
                return counts_of(watch).launches - before

            assert launches(lambda: one.log()) == 3, "contents, elements, births"
            assert launches(lambda: torch._foreach_log([one, two])) == 1 + 2 * 2, "elements and births of each"
            assert launches(lambda: compare_contents(watch, [one, two])) == 1
        assert not [note for note in watch.notes if note.startswith("errors inside")], watch.notes


@on_device
def test_where_the_library_cannot_read_there_all_is_as_before():
    make, options = BUILDS["batch with a NaN"]
    with tempfile.TemporaryDirectory() as name:
        before = ops_run(make, options, Path(name) / "before")
        with read_there(devices=0):
            run = ops_run(make, options, Path(name) / "run")
    why = COPIED + "there is no emulated device 0"
    assert run.notes[why] == 1
    assert {text: n for text, n in run.notes.items() if text != why} == before.notes
    assert told(run) == told(before)


@on_device
def test_in_a_graph_that_is_captured_nothing_is_read_and_nothing_copied():
    def build():
        step, *things = nan_batch(device=DEVICE)()

        def captured(i):
            is_on[0] = i == 2
            emulated.set(capturing=is_on[0])
            step(i)

        return captured, *things

    is_on = [False]
    with tempfile.TemporaryDirectory() as name, read_there() as emulated, capturing(lambda: is_on[0]):
        run = run_once(build, 4, Path(name) / "run", level="ops")
    assert not copied(run.notes)
    assert CAPTURED in str(run.report["coverage"])
    # What the step made bad is seen by those that come after it.
    assert [f["step"] for f in run.report["findings"] if f["severity"] == "fault"] != [2]


@pytest.mark.parametrize("non_blocking", [True, False])
@on_device
def test_what_is_still_on_its_way_to_the_host_is_not_read_there(non_blocking):
    with watched_ops() as watched, watched.mode():
        there = torch.full((4,), 3.0).to(DEVICE)
        lists = [torch.zeros(4), torch.zeros(4)]
        one = there.to("cpu", non_blocking=non_blocking)
        lists[0].copy_(there, non_blocking=non_blocking)
        torch._foreach_copy_(lists[1:], [there], non_blocking)
        made = [watched.producer(t).outputs[0].data for t in (one, *lists)]
    assert made == [0 if non_blocking else t.data_ptr() for t in (one, *lists)]


class Views(nn.Module):
    """Reads through views with gaps, of memory that is freed and given away again at once."""

    def __init__(self):
        super().__init__()
        self.a, self.inner, self.b = nn.Linear(6, 8), Root(), nn.Linear(4, 3)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(x.t().contiguous().t() + torch.ones(1, device=x.device).expand(x.shape)) + x
        return self.b(self.inner(self.a(x))[:, ::2])


@on_device
def test_views_and_memory_that_is_used_again_are_read_in_order():
    def build():
        model = Views().to(DEVICE)
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)

        def step(i):
            x, y = batch()
            x, y = (x * 100 if i == 3 else x).to(DEVICE), y.to(DEVICE)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()

        return step, model, opt

    with tempfile.TemporaryDirectory() as name:
        by_copies = run_once(build, 6, Path(name) / "copies", level="ops")
        with read_there():
            there = run_once(build, 6, Path(name) / "there", level="ops")
    assert there.headline["op"] == "aten::sqrt"
    assert told(there) == told(by_copies)
    assert not copied(there.notes)
