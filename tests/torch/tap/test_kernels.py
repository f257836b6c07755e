# SPDX-License-Identifier: Apache-2.0
"""Kernels of ops: `kernels=True` without a GPU, and against the libcupti of hooks/cupti/fake, where each op is made to
launch a kernel that has its name. What only a GPU shows is in test_on_gpu.py."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import fake_cupti
import nanhunt
import pytest
import ready_python
import torch
from fake_cupti import calls_of, fail_at_end, kernels_of, why_no_cuda
from hunting import cli, with_package
from planted import nan_batch, overflow
from step_runs import batch, net, run_once, watched
from torch.nn import functional as F
from torch.profiler import ProfilerActivity

cupti, launching = fake_cupti.cupti, fake_cupti.launching  # fixtures
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="what is here is said of machines without a GPU")

TAKEN = 39  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
LEVELS = ("ops", "live")
NOT_WATCHED = "kernels: not watched, because "


def notes_of(run):
    return [note for note in run.report["coverage"]["unwatched"] if "kernels:" in note]


@pytest.mark.parametrize("level", LEVELS)
def test_without_cuda_coverage_says_so_and_the_run_is_the_same(tmp_path, library, level):
    run = watched(nan_batch(), tmp_path, level=level, kernels=True)
    assert notes_of(run) == [f"{NOT_WATCHED}{why_no_cuda()} (1)"]
    assert run.report["device_time"] is None
    assert run.report["verdict"] == watched(nan_batch(), tmp_path, level=level).report["verdict"]


def test_unasked_nothing_is_said_of_kernels(tmp_path, library):
    assert notes_of(watched(nan_batch(), tmp_path, level="ops")) == []


def test_without_cuda_no_cupti_is_loaded(tmp_path, library):
    code = ("import nanhunt, torch\n"
            f"with nanhunt.watch(out={str(tmp_path / 'run')!r}, level='ops', kernels=True):\n"
            "    torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()\n"
            "print('/libcupti' in open('/proc/self/maps').read())\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_machine_without_a_driver_says_what_is_in_the_way(tmp_path, library):
    """Whichever CUPTI is found here, or none: there is no driver, so it refuses."""
    code = ("import nanhunt, torch\n"
            "from fake_cupti import pretend_cuda\n"
            "pretend_cuda()\n"
            f"with nanhunt.watch(out={str(tmp_path / 'run')!r}, level='ops', kernels=True) as watch:\n"
            "    torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()\n"
            "    print([note for note in watch.notes if 'kernels:' in note])\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("NANHUNT_CUPTI", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800, env=environment)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.startswith(f"['{NOT_WATCHED}") or done.stdout.startswith(f'["{NOT_WATCHED}'), done.stdout
    assert any(reason in done.stdout for reason in ("refused a subscription", "was not found", "has no CUPTI"))


def test_the_report_names_the_kernel_of_the_origin(tmp_path, library, launching):
    run = run_once(overflow(), 5, tmp_path / "run", level="ops", kernels=True)
    origin = run.headline
    name = origin["op"].split("::")[-1]
    assert origin["kernel"] == f"{name}_kernel", (origin["op"], run.notes)
    rows = {(row["op"], row["kernel"]) for row in run.report["device_time"]["rows"] if row["op"] is not None}
    assert rows and all(kernel == f"{op.split('::')[-1]}_kernel" for op, kernel in rows)
    assert run.report["device_time"]["own_kernels"] > 0
    assert notes_of(run) == []


def test_the_kernel_of_a_list_of_tensors_stands_with_the_bad_one(tmp_path, library, launching):
    def build():
        a, b = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
        opt = torch.optim.Adam([a, b], eps=0.0, foreach=True)

        def step(i):
            opt.zero_grad()
            (a.square().sum() + (b * 0.0).sum()).backward()  # 0 / 0 in the second tensor of the list
            opt.step()

        return step, a, b, opt

    run = watched(build, tmp_path, steps=2, level="ops", kernels=True)
    origin = run.headline
    name = origin["op"].split("::")[-1]
    assert name.startswith("_foreach_") and origin["module"].endswith(".1"), origin  # not the first of its list
    assert origin["kernel"] == f"{name}_kernel"


def test_kernels_are_those_of_their_ops_one_by_one(tmp_path, library, launching):
    run_once(overflow(), 3, tmp_path / "run", level="ops", kernels=True)
    saved = nanhunt.load(tmp_path / "run")
    ops = {row["seq"]: row["op"] for row in rows_of(saved, "ops")}
    kernels = rows_of(saved, "kernels")
    tied = [(ops[row["seq"]], row["name"]) for row in kernels if row["seq"] in ops]
    assert len(tied) == len({row["seq"] for row in kernels if row["seq"] in ops}) > 50
    assert {name for _, name in tied} > {"addmm_kernel", "tanh_kernel", "tanh_backward_kernel"}
    assert [pair for pair in tied if f"{pair[0].split('::')[-1]}_kernel" != pair[1]] == []
    assert {row["name"] for row in kernels if row["own"]} == {"nanhunt_read"}


def rows_of(run, kind):
    arrow = pytest.importorskip("pyarrow")
    return arrow.table(run.records(kind)).to_pylist()


def test_the_run_is_the_same_with_kernels_watched(tmp_path, library, launching):
    for level in LEVELS:
        watched(nan_batch(), tmp_path, level=level, kernels=True)


@pytest.mark.parametrize("level", ["live", "steps"])
def test_other_levels_leave_cupti_alone_and_say_so(tmp_path, library, launching, cupti, level):
    run = run_once(overflow(bad=(1,)), 3, tmp_path / "run", level=level, kernels=True)
    assert calls_of(cupti) == [] and run.report["device_time"] is None
    assert notes_of(run) == [f"{NOT_WATCHED}only level ops ties kernels to operations, and this is level {level} (1)"]


def test_an_incumbent_is_named_and_the_run_goes_on_without(tmp_path, library, launching, cupti):
    cupti.fake_cupti_refuse(TAKEN, b"CUPTI for Kineto")
    run = watched(overflow(bad=(1,)), tmp_path, steps=3, level="ops", kernels=True)
    assert notes_of(run) == [f"{NOT_WATCHED}CUPTI has room for one client and CUPTI for Kineto is there (1)"]
    assert run.headline["kernel"] is None and run.report["device_time"] is None


def test_a_profiler_that_is_on_keeps_cupti(tmp_path, library, launching, cupti):
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]):
        run = run_once(overflow(), 2, tmp_path / "run", level="ops", kernels=True)
    assert notes_of(run) == [f"{NOT_WATCHED}torch.profiler (Kineto) is on, and CUPTI has room for one client (1)"]
    assert calls_of(cupti) == []


class Profile:
    """Of torch.profiler on a GPU, which cannot be made here: what is asked of it."""

    def __init__(self, *activities):
        self.kineto_activities = set(activities)


def test_a_profiler_that_comes_later_gets_cupti(tmp_path, library, launching, cupti, no_watch_left):
    model, opt = net(), None
    with nanhunt.watch(model, out=tmp_path / "run", level="ops", kernels=True) as watch:
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        step = one_step(model, opt)
        step()
        kernels = kernels_of(watch)
        kernels.give_way(Profile(ProfilerActivity.CPU))
        assert kernels.on
        with torch.profiler.profile(activities=[ProfilerActivity.CPU]):  # and so does a real one
            step()
        assert kernels.on
        kernels.give_way(Profile(ProfilerActivity.CPU, ProfilerActivity.CUDA))
        assert calls_of(cupti)[-1] == "unsubscribe" and not kernels.on
        step()
        assert [note for note in watch.notes if "kernels:" in note] == [
            "kernels: not watched any more, once torch.profiler (Kineto) needed CUPTI"]
    assert {row["step"] for row in rows_of(nanhunt.load(tmp_path / "run"), "kernels")} == {0, 1}


def test_torch_tells_its_profiler_to_us_before_it_begins(tmp_path, library, launching, no_watch_left):
    asked = []
    model = net()
    own = vars(torch.autograd.profiler.profile)["_prepare_trace"]
    with nanhunt.watch(model, out=tmp_path / "run", level="ops", kernels=True) as watch:
        one_step(model, torch.optim.SGD(model.parameters(), lr=0.1))()
        kernels_of(watch).give_way = lambda profile: asked.append(profile.kineto_activities)
        with torch.profiler.profile(activities=[ProfilerActivity.CPU]):
            pass
    assert asked == [{ProfilerActivity.CPU}]
    assert vars(torch.autograd.profiler.profile)["_prepare_trace"] is own


def test_a_profiler_that_another_thread_begins_gets_cupti_too(tmp_path, library, launching, cupti, no_watch_left):
    model = net()
    with nanhunt.watch(model, out=tmp_path / "run", level="ops", kernels=True) as watch:
        step = one_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
        step()
        kernels = kernels_of(watch)
        asked, give_way = [], kernels.give_way
        kernels.give_way = lambda profile: (asked.append(threading.get_ident()), give_way(profile))

        def profiles():
            with torch.profiler.profile(activities=[ProfilerActivity.CPU]):
                pass
            give_way(Profile(ProfilerActivity.CUDA))

        other = threading.Thread(target=profiles)
        other.start()
        other.join()
        assert asked and threading.get_ident() not in asked
        assert calls_of(cupti)[-1] == "unsubscribe" and not kernels.on
        step()
        assert list(watch.notes) == ["kernels: not watched any more, once torch.profiler (Kineto) needed CUPTI"]
    assert {row["step"] for row in rows_of(nanhunt.load(tmp_path / "run"), "kernels")} == {0}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_watch_whose_end_fails_leaves_nothing_of_cupti(tmp_path, library, launching, cupti, error):
    model = net()
    watch = nanhunt.watch(model, out=tmp_path / "run", level="ops", kernels=True)
    one_step(model, torch.optim.SGD(model.parameters(), lr=0.1))()
    kernels = kernels_of(watch)
    fail_at_end(watch, error)
    if error is RuntimeError:
        watch.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            watch.close()
    # Then what comes after it is done all the same, and no op finds a recorder that is gone.
    assert not kernels.on
    assert kernels.push() == 0 and calls_of(cupti)[-1] == "unsubscribe"


def test_kernels_of_a_collective_are_not_those_of_one_that_ended_meanwhile(tmp_path, library, launching, no_watch_left):
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = net()
        with nanhunt.watch(model, out=tmp_path / "run", level="ops", kernels=True):
            one_step(model, torch.optim.SGD(model.parameters(), lr=0.1))()
            works = [dist.all_reduce(torch.ones(3), async_op=True)]
            works[0].wait()  # no op sees that: the next one is told with it
            works += [dist.all_reduce(torch.ones(2), async_op=True)]
            works[1].wait()
    finally:
        dist.destroy_process_group()
    saved = nanhunt.load(tmp_path / "run")
    assert [row["op"] for row in rows_of(saved, "ops")].count("c10d::allreduce_") == 2
    of_collectives = [row for row in rows_of(saved, "kernels") if row["name"].startswith("allreduce_")]
    assert sum(row["count"] for row in of_collectives) == 2
    assert {row["seq"] for row in of_collectives} == {None}


def one_step(model, opt):
    def step():
        x, y = batch()
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()

    return step


def test_an_op_that_raises_leaves_nothing_behind(tmp_path, library, launching, cupti, no_watch_left):
    model = net()
    with nanhunt.watch(model, out=tmp_path / "run", level="ops", kernels=True):
        step = one_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
        step()
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(2, 99))
        launching(b"of_nobody")
        step()
    rows = rows_of(nanhunt.load(tmp_path / "run"), "kernels")
    assert [row["seq"] for row in rows if row["name"] == "of_nobody"] == [None]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_asks_nothing_of_cupti(tmp_path, library, launching, cupti, no_watch_left):
    model = net()
    with nanhunt.watch(model, out=tmp_path / "run", level="ops", kernels=True):
        step = one_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
        step()
        before = calls_of(cupti)
        child = os.fork()
        if child == 0:
            try:
                torch.ones(2).add(1)
                step()  # in a watch of its own, without CUPTI
                os._exit(0 if calls_of(cupti) == before else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        step()
    assert nanhunt.load(tmp_path / "run")


def test_the_option_is_checked():
    with pytest.raises(TypeError, match="kernels: expected True or False, got 1"):
        nanhunt.watch(kernels=1)


@pytest.mark.parametrize(("options", "environment", "asks"), [
    (["--kernels"], {}, True), ([], {"NANHUNT_KERNELS": "1"}, True), ([], {"NANHUNT_KERNELS": "0"}, False),
    ([], {"NANHUNT_KERNELS": ""}, False), ([], {"NANHUNT_KERNELS": "off"}, False)])
def test_nanhunt_run_asks_for_kernels(tmp_path, library, options, environment, asks):
    program = cli()
    script = tmp_path / "train.py"
    script.write_text("import torch\nm = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), lr=0.1)\n"
                      "m(torch.ones(2)).sum().backward()\no.step()\n")
    done = subprocess.run([program, "run", *options, "--out", tmp_path / "run", "--",
                           *ready_python.command(), script], capture_output=True, text=True, timeout=1800,
                          env={**with_package(), **environment})
    assert done.returncode == 0, done.stderr
    report = subprocess.run([program, "report", "--json", tmp_path / "run"], capture_output=True,
                            text=True, timeout=1800)
    told = json.loads(report.stdout)["coverage"]["unwatched"]
    assert any(NOT_WATCHED + why_no_cuda() in note for note in told) == asks
    assert asks or not any("kernels:" in note for note in told)
