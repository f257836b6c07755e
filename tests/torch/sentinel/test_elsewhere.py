# SPDX-License-Identifier: Apache-2.0
"""A step is computed again in a forked child: it ends, whatever the step does, and the run does not notice."""
from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from on_device import on_device
from sentinel_runs import Root, batch, run_once, watched
from torch import nn
from torch.nn import functional as F

RUN = os.getpid()


def is_child():
    return os.getpid() != RUN


class Model(nn.Module):
    """Its square root gives NaN for inputs out of range. In a replay it does something else first."""

    def __init__(self, does=lambda: None, device="cpu"):
        super().__init__()
        self.does, self.inner, self.layers = [does], Root(), nn.Linear(6, 3)
        self.to(device)

    def forward(self, x):
        self.does[0]()
        return self.layers(self.inner(x))


def training(does=lambda: None, bad=(2,), device="cpu", step_of=lambda step: step):
    def build():
        model = Model(does, device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(i):
            x, y = batch(i in bad)
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
            with torch.no_grad():  # so that each bad step begins anew
                for p in model.parameters():
                    p.nan_to_num_()

        return step_of(step), model, optimizer

    return build


def children():
    return Path(f"/proc/{RUN}/task/{RUN}/children").read_text().split()


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


def folders(run):
    return [path.name for path in run.glob("rank-00000/attempt-0/.*")]


def test_it_is_another_process_that_computes_the_step_again(tmp_path):
    # Given a model that says in which process it runs,
    here = []
    run = watched(training(lambda: here.append(os.getpid())), tmp_path, steps=4)
    # then all calls that the run has made are its own, the replay found the origin, and nothing is left of it.
    assert set(here) == {RUN} and len(here) == 8, "four steps alone, four watched"
    assert run.results == [(2, "reproduced")], run.texts
    assert (run.headline["op"], run.headline["module"], run.headline["confidence"]) == ("aten::sqrt", "inner", "proved")
    assert folders(tmp_path / "run") == []


def never_ends():
    if is_child():
        time.sleep(600)


def crashes():
    if is_child():
        os.kill(os.getpid(), signal.SIGSEGV)


def leaves():
    if is_child():
        os._exit(0)


def exits():
    if is_child():
        sys.exit(3)


def raises():
    if is_child():
        raise KeyError("not twice")


ENDS = {"never ends": (never_ends, "it took too long"), "crashes": (crashes, "its process crashed"),
        "leaves": (leaves, "its process ended"), "exits": (exits, "its process ended"),
        "raises": (raises, "KeyError: 'not twice'")}


@pytest.mark.parametrize("name", ENDS)
def test_a_replay_that_does_not_end_well_is_refused_with_the_reason(tmp_path, monkeypatch, name):
    # Given a forward that does not end when it is called again,
    monkeypatch.setattr("nanhunt._sentinel.elsewhere.LEAST", 2.0)
    does, why = ENDS[name]
    before = descriptors(), children()
    # when a step is bad, and later another,
    run = watched(training(does, bad=(2, 4)), tmp_path, steps=6)
    # then each replay is refused, the bad steps are told all the same, and no process, pipe or file is left.
    assert run.results == [(2, "refused"), (4, "refused")], run.texts
    assert run.texts[0].startswith(f"The replay did not end: {why}")
    assert [row[0] for row in run.health if row[1]] == [2, 4]
    assert run.report["verdict"]["status"] == "fault"
    gc.collect()
    assert (descriptors(), children()) == before
    assert folders(tmp_path / "run") == []


def test_after_a_replay_that_was_lost_the_next_one_is_as_good_as_ever(tmp_path):
    def once():
        if is_child() and not marker.exists():
            marker.touch()
            os._exit(0)

    marker = tmp_path / "once"
    run = watched(training(once, bad=(2, 4)), tmp_path, steps=6)
    assert run.results == [(2, "refused"), (4, "reproduced")], run.texts
    assert [(f["step"], f["op"]) for f in run.report["findings"] if f["op"]] == [(4, "aten::sqrt")]


def test_what_is_printed_is_printed_once(tmp_path, capfd):
    # Given a forward that prints by Python, past it, and by a stream that was taken earlier,
    taken = sys.stdout

    def prints():
        print("by Python")
        print("by a stream of before", file=taken)
        print("as an error", file=sys.stderr)
        os.write(1, b"past Python\n")
        sys.stdout.flush()

    run_once(training(prints), 4)
    alone = capfd.readouterr()
    run = run_once(training(prints), 4, tmp_path / "run")
    assert run.results == [(2, "reproduced")]
    printed = capfd.readouterr()
    assert printed.out == alone.out
    ours = [line for line in printed.err.splitlines(True) if line.startswith("nanhunt: step 2: ")]
    assert "".join(line for line in printed.err.splitlines(True) if line not in ours) == alone.err


def test_no_warning_comes_of_it(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        run = watched(training(), tmp_path, steps=4)
        assert warnings.filters == before
    assert run.results == [(2, "reproduced")]


def test_handlers_of_signals_stay_and_none_is_called(tmp_path):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("SIGTERM"))
    try:
        run = watched(training(lambda: os.kill(os.getpid(), signal.SIGTERM) if is_child() else None), tmp_path, steps=4)
        assert run.results == [(2, "reproduced")], "the signal does not reach a child"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == []


def test_a_program_that_hears_of_its_children_gets_none_of_ours(tmp_path):
    ended = []
    before = signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))
    try:
        run = watched(training(), tmp_path, steps=4)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert run.results == [(2, "refused")]
    assert "a handler of its own for the end of child processes" in run.texts[0]
    assert ended == []


def test_a_program_that_collects_all_its_children_is_no_harm(tmp_path):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        run = watched(training(), tmp_path, steps=4)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert run.results == [(2, "reproduced")], run.texts


def test_ctrl_c_during_a_replay_ends_the_run_and_not_only_the_replay(tmp_path):
    def interrupts():
        if is_child():
            os.kill(RUN, signal.SIGINT)
            time.sleep(600)

    before = children()
    began = time.monotonic()
    was = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            run_once(training(interrupts), 4, tmp_path / "run")
    finally:
        signal.signal(signal.SIGINT, was)
    assert time.monotonic() - began < 100, "it was not waited for"
    assert children() == before


COUNT = 0


def counts():
    global COUNT
    COUNT += 1


class Drifts(Model):
    """Depends on what no replay knows of."""

    def forward(self, x):
        counts()
        return super().forward(x) * (1 + 0.01 * (COUNT % 7))


def drifting(device="cpu"):
    def build():
        global COUNT
        COUNT = 0
        model = Drifts(device=device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(i):
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()

        return step, model, lambda: COUNT

    return build


@pytest.mark.parametrize("threads", [1, 3])
def test_a_replay_that_comes_out_otherwise_says_so_and_changes_nothing(tmp_path, threads):
    # Given a healthy run whose forward depends on a global that it changes,
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        run = watched(drifting(), tmp_path, steps=6, wanted={2, 4})
    finally:
        torch.set_num_threads(before)
    # then its replays differ and are told as that, or as what is known where threads may differ, and go on.
    if threads == 1:
        assert [result for _, result in run.results] == ["differs", "differs"], run.texts
        assert "with other bits" in run.texts[0]
    else:
        assert [result for _, result in run.results] == ["reproduced", "reproduced"], run.texts
        assert "computes with 3 threads and the replay with one, so only finiteness was compared" in run.texts[0]
    assert run.report["verdict"]["status"] == "clean"


@on_device
def test_on_a_device_a_replay_that_comes_out_otherwise_is_the_last_and_says_so(tmp_path):
    import contextlib
    import io

    # Given the same run on a device, whose process cannot be forked,
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        run = run_once(drifting("privateuseone"), 6, tmp_path / "run", wanted={2, 4}, boundary="sync")
    # then the first replay says loudly that it may have changed the run, once, and there is no other.
    assert [result for _, result in run.results] == ["differs", "refused"], run.texts
    assert "may have changed the run" in run.texts[1]
    assert errors.getvalue().count("may have changed the run") == 1
    assert any("may have changed the run" in text for text in run.notes)
    assert any("may have changed the run" in text for text in run.report["coverage"]["unwatched"])


@on_device
def test_on_a_device_a_replay_that_comes_out_the_same_says_nothing(tmp_path):
    import contextlib
    import io

    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        run = run_once(training(device="privateuseone"), 6, tmp_path / "run", wanted={1, 4}, boundary="sync")
    assert [result for _, result in run.results] == ["reproduced"] * 3, run.texts
    assert "may have changed the run" not in errors.getvalue()


def test_without_replays_a_bad_step_is_told_and_why_it_was_not_computed_again(tmp_path):
    run = watched(training(), tmp_path, steps=4, replay=False)
    assert run.results == [(2, "refused")]
    assert "no replay was asked for" in run.texts[0]
    assert [row[0] for row in run.health if row[1]] == [2]
    assert run.report["verdict"]["status"] == "fault"


CALLS = []


@torch.library.custom_op("nanhunt_tests::counted_root", mutates_args=(), schema="(Tensor x) -> Tensor")
def counted_root(x):
    CALLS.append(os.getpid())
    return (10 - x).sqrt()


@counted_root.register_fake
def _(x):
    return torch.empty_like(x)


class OwnOp(Model):
    def forward(self, x):
        return self.layers(torch.ops.nanhunt_tests.counted_root(x.detach()) * 0.1)


@pytest.mark.parametrize("budget", [0.0, 100.0], ids=["replayed", "live"])
def test_an_origin_that_is_an_op_of_the_programs_is_computed_again_elsewhere(tmp_path, budget):
    # Given an op that the program has registered, and that keeps a state,
    def build():
        CALLS.clear()
        model = OwnOp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(i):
            x, y = batch(i == 2)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step, model, lambda: list(CALLS)

    # when badness begins in it,
    run = watched(build, tmp_path, steps=4, budget=budget)
    # then it is computed again where it changes nothing, and what came of that is told.
    assert CALLS == [RUN] * 4
    assert run.headline["op"] == "nanhunt_tests::counted_root", run.headline
    assert any("Computed again from the captured inputs" in text for text in run.headline["evidence"]), run.headline


def test_what_the_program_registered_for_its_own_forks_is_not_called_in_the_run(tmp_path):
    # Given callbacks that would change what the run computes, and one that fails,
    called, active = [], [True]

    def calls(name):
        def callback():
            if active[0] and os.getpid() == RUN:
                called.append(name)
                torch.manual_seed(1)

        return callback

    os.register_at_fork(before=calls("before"), after_in_parent=calls("after"), after_in_child=lambda: 1 / 0)
    try:
        # when a step is computed again, then none is called in the run, which ends as it would alone.
        run = watched(training(), tmp_path, steps=4)
        assert run.digest == run_once(training(), 4).digest, "the same bits"
        assert run.results == [(2, "reproduced")] and called == []
    finally:
        active[0] = False


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells what a thread waits for on Linux alone")
@pytest.mark.parametrize("any_child", [True, False])
def test_a_thread_that_waits_for_whichever_child_ends_hears_of_none_of_ours(tmp_path, any_child):
    # Given a program whose thread waits for its child, which ends later than the run,
    its = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(os.waitpid(-1 if any_child else its.pid, 0)[0]))
    thread.start()
    try:
        time.sleep(0.2)
        run = watched(training(), tmp_path, steps=4)
    finally:
        its.stdin.close()
        thread.join()
        its.returncode = 0
    # then it hears of that one, and the step is computed again only where it would not hear of another.
    assert ended == [its.pid]
    assert run.results == [(2, "refused" if any_child else "reproduced")], run.texts
    assert not any_child or "waits for whichever child process ends" in run.texts[0]
