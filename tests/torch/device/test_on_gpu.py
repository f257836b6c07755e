# SPDX-License-Identifier: Apache-2.0
"""Boundaries and kernels on a real GPU: what test_device_boundaries.py and test_kernels.py hold to account without
one. Skipped where there is none."""
from __future__ import annotations

import math

import nanhunt
import pytest
import torch
from planted import blow_up, nan_batch, overflow
from read_there import counts_of, norms_there
from step_runs import net, run_once
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this PyTorch finds no CUDA device")

CUDA = "cuda"
NOT_WATCHED = "kernels: not watched, because "
CASES = {
    "fp16 overflow": (overflow, {}, {"bad": ()}),
    "fp16 overflow, unscaled and clipped": (
        overflow, {"unscale": True, "clip": True}, {"unscale": True, "clip": True, "bad": ()}),
    "fp16 overflow, fused": (overflow, {"fused": True}, {"fused": True, "bad": ()}),
    "learning rate": (blow_up, {}, {"lr": 1e-2}),
    "batch with a NaN": (nan_batch, {}, {"bad": ()}),
    "batch with a NaN, normalised": (
        nan_batch, {"extra": (lambda: nn.BatchNorm1d(8), lambda: nn.Dropout(0.2))},
        {"extra": (lambda: nn.BatchNorm1d(8),), "bad": ()}),
}  # fmt: skip


def watched_ops(build, tmp_path, **options):
    run = watched_and_alone(build, tmp_path, level="ops", **options)
    assert not [note for note in run.notes if "copied to the host" in note], run.notes
    return run


@pytest.mark.parametrize("case", CASES)
def test_ops_on_a_gpu_are_read_there_and_the_fault_is_that_of_the_cpu(tmp_path, library, case):
    make, options, _ = CASES[case]
    here = run_once(make(**options), 6, tmp_path / "cpu", level="ops")
    away = watched_ops(make(**options, device=CUDA), tmp_path)
    keys = ("class", "severity", "step", "phase", "module")
    assert away.report["verdict"]["status"] == here.report["verdict"]["status"]
    assert {k: away.headline[k] for k in keys} == {k: here.headline[k] for k in keys}, away.notes
    assert "readings of a device that were lost" not in str(away.report["coverage"])


def test_ops_on_side_streams_are_read_there(tmp_path, library):
    def build():
        step, *things = nan_batch(device=CUDA)()
        side = torch.cuda.Stream()

        def aside(i):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step(i)
            torch.cuda.current_stream().wait_stream(side)

        return aside, *things

    run = watched_ops(build, tmp_path)
    assert run.headline["severity"] == "fault"


def test_a_graph_is_captured_under_level_ops(tmp_path, library):
    def build():
        model, x = net().to(CUDA), torch.randn(8, 6, device=CUDA)
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        graph = []

        def step(i):
            if i == 2:
                torch.cuda.synchronize()
                made = torch.cuda.CUDAGraph()
                with torch.cuda.graph(made):
                    graph.append(model(x) * 2)
                graph.append(made)
            if i > 2:
                graph[1].replay()
            opt.zero_grad()
            model(x).sum().backward()
            opt.step()

        return step, model, opt, lambda: graph[0]

    run = watched_ops(build, tmp_path)
    assert run.headline is None
    assert "while a CUDA graph was captured" in str(run.report["coverage"])


def test_steps_at_level_ops_wait_for_nothing(tmp_path, library):
    with nanhunt.watch(out=tmp_path / "run", level="ops", quiet=True) as watch:
        model = net().to(CUDA)
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        x, y = torch.randn(8, 6, device=CUDA), torch.randint(0, 3, (8,), device=CUDA)

        def step(i):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()

        step(0)
        torch.cuda.set_sync_debug_mode("error")  # where PyTorch waits
        try:
            for i in range(1, 20):
                step(i)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        counts = counts_of(watch)
        assert (counts.waits, counts.lost) == (0, 0)
        assert counts.asked > 0
    assert not [note for note in watch.notes if note.startswith("errors inside")], watch.notes


def bad_steps(run):
    return [row["step"] for row in run.records("health") if row["bad"]]


def with_generator(build):
    def make():
        step, *things = build()
        return step, *things, torch.cuda.get_rng_state

    return make


def watched_and_alone(build, tmp_path, steps=6, **options):
    plain = run_once(with_generator(build), steps)
    run = run_once(with_generator(build), steps, tmp_path / "gpu", **options)
    assert run.digest == plain.digest, "the run was changed"
    return run


@pytest.mark.parametrize("case", CASES)
def test_a_fault_on_a_gpu_gets_the_verdict_that_it_gets_on_the_cpu(tmp_path, library, case):
    make, options, _ = CASES[case]
    here = run_once(make(**options), 6, tmp_path / "cpu")
    away = watched_and_alone(make(**options, device=CUDA), tmp_path)
    # Later steps of a run that is broken differ between devices; where it broke does not.
    assert bad_steps(away) == bad_steps(here), away.notes
    assert away.unheard == here.unheard, away.notes
    keys = ("class", "severity", "step", "phase", "module")
    assert away.report["verdict"]["status"] == here.report["verdict"]["status"]
    assert {k: away.headline[k] for k in keys} == {k: here.headline[k] for k in keys}


@pytest.mark.parametrize("case", CASES)
def test_its_twin_on_a_gpu_is_silent(tmp_path, library, case):
    make, _, options = CASES[case]
    away = watched_and_alone(make(**options, device=CUDA), tmp_path)
    assert away.unheard == [] and away.report["verdict"]["status"] == "clean", away.report["findings"]


def resident(fused=False, stream=None):
    """A loop that never waits for its device."""

    def build():
        model = net(nn.BatchNorm1d(8)).to(CUDA)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        x, y = torch.randn(8, 6, device=CUDA), torch.randint(0, 3, (8,), device=CUDA)

        def step(i):
            with torch.cuda.stream(stream):
                opt.zero_grad()
                F.cross_entropy(model(x), y).backward()
                opt.step()

        return step, model, opt

    return build


@pytest.mark.parametrize("fused", [False, True])
def test_no_step_waits_at_level_steps(tmp_path, library, fused):
    def strict(build):
        def make():
            step, *things = build()

            def step_of(i):
                if i >= 2:  # state comes, calls are learnt
                    torch.cuda.set_sync_debug_mode("error")
                try:
                    step(i)
                finally:
                    torch.cuda.set_sync_debug_mode("default")

            return step_of, *things

        return make

    # What waits inside nanhunt raises there, and run_once fails for it.
    away = watched_and_alone(strict(resident(fused)), tmp_path, steps=20, level="steps")
    assert [row["step"] for row in away.records("health")] == list(range(20))
    assert not any(note.startswith(("waits", "errors", "readings")) for note in away.notes), away.notes


def test_a_run_on_a_stream_of_its_own(tmp_path, library):
    away = watched_and_alone(resident(stream=torch.cuda.Stream()), tmp_path, steps=8)
    assert away.unheard == [] and len(away.records("health")) == 8, away.notes


def test_a_step_that_is_captured_into_a_graph_is_left_alone(tmp_path, library):
    def build():
        model = net().to(CUDA)
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        x, y = torch.randn(8, 6, device=CUDA), torch.randint(0, 3, (8,), device=CUDA)
        graph = torch.cuda.CUDAGraph()

        def train():
            opt.zero_grad(set_to_none=False)
            F.cross_entropy(model(x), y).backward()
            opt.step()

        def step(i):
            if i < 3:
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    train()
                torch.cuda.current_stream().wait_stream(side)
            elif i == 3:
                torch.cuda.synchronize()
                with torch.cuda.graph(graph):
                    train()
            else:
                graph.replay()

        return step, model

    away = watched_and_alone(build, tmp_path, steps=8)
    assert away.notes.get("steps that are captured into a CUDA graph", 0) >= 1, away.notes


# What is read: a library's norms on this device against numbers that are known.
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_norms_and_finiteness_of_every_format(tmp_path, library, dtype):
    top = min(torch.finfo(dtype).max, 60000.0)
    tensors = {
        "large": torch.full((5000,), top, dtype=dtype),  # its 2-norm leaves fp16
        "nan": torch.tensor([1.0, math.nan, 2.0], dtype=dtype),
        "inf": torch.tensor([1.0, -math.inf], dtype=dtype),
        "nan and inf": torch.tensor([math.inf, math.nan], dtype=dtype),
        "small": torch.full((7,), torch.finfo(dtype).tiny, dtype=dtype),
        "empty": torch.empty(0, dtype=dtype),
        "one": torch.tensor(3.0, dtype=dtype),
        "slice": torch.arange(40, dtype=dtype).view(5, 8)[:, 1:7],
        "last": torch.cat([torch.zeros(70001), torch.tensor([math.nan])]).to(dtype),
    }
    with nanhunt.watch(out=tmp_path / "run", quiet=True) as watch:
        found = norms_there(watch, {name: t.to(CUDA) for name, t in tensors.items()})
    assert [name for name, r in found.items() if r.bad] == ["nan", "inf", "nan and inf", "last"]
    assert math.isnan(found["nan"].norm) and found["inf"].norm == math.inf
    for name in ("large", "one", "slice"):
        wide = tensors[name].double()
        assert found[name].amax == float(wide.abs().max())
        assert found[name].norm == pytest.approx(float(wide.norm()), rel=1e-4)
    assert found["small"].amax == torch.finfo(dtype).tiny and found["empty"].amax == 0


# Kernels, by CUPTI.
def with_kernels(build, tmp_path, **options):
    run = watched_and_alone(build, tmp_path, kernels=True, **options)
    refused = [note for note in run.notes if note.startswith(NOT_WATCHED)]
    if refused:
        pytest.skip(refused[0])
    return run


@pytest.mark.parametrize("level", ["ops", "live"])
def test_the_kernel_of_the_origin_is_named(tmp_path, library, level):
    run = with_kernels(overflow(device=CUDA), tmp_path, level=level)
    assert run.headline["kernel"], (run.headline, run.report["coverage"])
    time = run.report["device_time"]
    tied = [row for row in time["rows"] if row["op"] is not None]
    assert tied and all(row["kernel"] for row in tied)
    assert time["total_ns"] > 0 and time["untimed"] == 0, time
    lost = [note for note in run.report["coverage"]["unwatched"] if "buffers" in note or "could not be tied" in note]
    assert lost == []


def test_backward_in_threads_of_the_device_is_tied_too(tmp_path, library):
    run = with_kernels(overflow(device=CUDA), tmp_path, level="ops")
    phases = {row["phase"] for row in run.report["device_time"]["rows"] if row["op"] is not None}
    assert {"forward", "backward"} <= phases


def test_kernels_can_be_watched_again_in_a_process(tmp_path, library):
    for _ in range(3):
        run = with_kernels(overflow(device=CUDA), tmp_path, level="ops")
        assert run.report["device_time"]["kernels"] > 0, run.report["coverage"]
