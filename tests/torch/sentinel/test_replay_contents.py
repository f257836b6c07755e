# SPDX-License-Identifier: Apache-2.0
"""What forward changes in place is put back as it was before the call, or the replay is refused with the reason; and
the run is the same."""
from __future__ import annotations

import logging
import random
import sys
import threading

import pytest
import torch
from sentinel_runs import Root, batch, watched
from torch import nn
from torch.nn import functional as F

LEARNT = 3  # calls


class Model(nn.Module):
    """What it computes depends on what an earlier call left."""

    def __init__(self, kind, since=0):
        super().__init__()
        self.kind, self.since, self.calls = kind, since, 0
        self.inner, self.first, self.last = Root(), nn.Linear(6, 8), nn.Linear(8, 3)
        self.key = nn.Parameter(torch.ones(6), requires_grad=False)
        self.plain, self.held = torch.ones(6), {"deep": [torch.ones(6)]}
        self.bank, self.counts, self.own = [], {"calls": 0}, random.Random(3)
        self.register_buffer("statistics", torch.ones(6))

    def factor(self, x):
        mean = x.detach().clamp(-3, 3).mean(0)
        if self.kind == "parameter":
            with torch.no_grad():
                return self.key.mul_(0.9).add_(mean, alpha=0.1).clone()
        if self.kind == "parameter by data":
            self.key.data = self.key.data * 0.9 + 0.1 * mean
            return self.key.detach().clone()
        if self.kind == "new parameter":
            self.key = nn.Parameter(self.key.data * 0.9 + 0.1 * mean, requires_grad=False)
            return self.key.detach()
        if self.kind == "plain tensor":
            return self.plain.mul_(0.9).add_(mean, alpha=0.1).clone()
        if self.kind == "tensor in containers":
            return self.held["deep"][0].mul_(0.9).add_(mean, alpha=0.1).clone()
        if self.kind == "list":
            self.bank.append(float(mean.sum()))
            return 1 + 0.01 * sum(self.bank[-4:])
        if self.kind == "dict":
            self.counts["calls"] += 1
            return 1 + 0.01 * self.counts["calls"]
        if self.kind == "own random":
            return self.own.random()
        if self.kind == "statistics past torch":  # without torch's count of writes
            self.statistics.numpy()[:] += mean.numpy()
            return self.statistics.clone()
        return 1.0

    def forward(self, x):
        self.calls += 1
        x = self.inner(x)
        return self.last(torch.tanh(self.first(x * self.factor(x) if self.calls > self.since else x)))


def loop(kind, bad=(), since=0):
    def build():
        model = Model(kind, since)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i):
            x, y = batch(i in bad)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        hangs = lambda: [model.plain, model.held["deep"][0], model.key, torch.tensor(model.bank),  # noqa: E731
                         repr((model.counts, model.own.getstate()))]
        return step, model, optimizer, hangs

    return build


KINDS = ["nothing", "parameter", "parameter by data", "new parameter", "plain tensor", "tensor in containers", "list",
         "dict", "own random", "statistics past torch"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_as_before_the_call(kind, tmp_path, library):
    run = watched(loop(kind), tmp_path, steps=6, wanted={3, 5})
    assert run.results == [(3, "reproduced"), (5, "reproduced")], run.texts
    run = watched(loop(kind, bad={4}), tmp_path, steps=5)
    assert run.results == [(4, "reproduced")], run.texts
    if kind != "statistics past torch":  # what NumPy writes into the module is a bad state of its own
        assert (run.headline["op"], run.headline["module"], run.headline["step"]) == ("aten::sqrt", "inner", 4)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("nothing", "statistics past torch")])
def test_what_is_changed_for_the_first_time_late_is_refused_and_then_known(kind, tmp_path, library):
    since = LEARNT + 1
    run = watched(loop(kind, since=since), tmp_path, steps=since + 5, wanted={2, since, since + 1, since + 4})
    told = dict(run.results)
    assert told[2] == told[since + 4] == "reproduced", run.texts
    assert told[since] == "refused" and "before the call is not known" in run.texts[1], run.texts
    assert "differs" not in told.values() and "clean" not in told.values(), run.texts


def test_a_buffer_that_took_anothers_place_is_refused_once(tmp_path, library):
    def build():
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i):
            if i == 3:
                model[1].running_mean = torch.zeros(8)
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step, model, optimizer

    run = watched(build, tmp_path, steps=7, wanted={2, 3, 5})
    assert run.results == [(2, "reproduced"), (3, "refused"), (5, "reproduced")], run.texts
    assert "running_mean" in run.texts[1]


def test_running_statistics_that_went_bad_are_no_state_that_was_bad_before(tmp_path, library):
    """A batch that overflows poisons them: the batch's op is named, once."""
    def build():
        model = nn.Sequential(Root(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

        def step(i):
            x, y = batch(i == 3)
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()

        return step, model, optimizer, scaler.state_dict

    run = watched(build, tmp_path, steps=4)
    assert run.results == [(3, "reproduced")], run.texts
    assert (run.headline["op"], run.headline["module"]) == ("aten::sqrt", "0")
    assert "bad_state" not in {f["class"] for f in run.report["findings"]}


class Talks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 3)

    def forward(self, x):
        print("forward")
        sys.stderr.write("forward, too\n")
        return self.body(x)


def trains(kind):
    def build():
        model = kind()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i):
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step, model, optimizer

    return build


def test_what_forward_prints_is_printed_once(tmp_path, library, capsys):
    before = sys.stdout, sys.stderr
    run = watched(trains(Talks), tmp_path, steps=3, wanted={1, 2})
    assert run.results == [(1, "reproduced"), (2, "reproduced")], run.texts
    out, err = capsys.readouterr()
    assert out.count("forward\n") == 6 and err.count("forward, too\n") == 6  # unwatched, and watched
    assert (sys.stdout, sys.stderr) == before


def test_other_threads_go_on_printing_meanwhile(capsys):
    from nanhunt._sentinel.unchanged import hushed

    with hushed():
        print("mine")
        thread = threading.Thread(target=print, args=("theirs",))
        thread.start()
        thread.join()
        taken = sys.stdout
        sys.stdout.flush()
    taken.write("later\n")
    out, _ = capsys.readouterr()
    assert out == "theirs\nlater\n"


def test_what_forward_logs_is_logged_once(tmp_path, library, caplog):
    class Logs(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 3)

        def forward(self, x):
            logging.getLogger("model").warning("forward")
            return self.body(x)

    handle = logging.Logger.handle
    run = watched(trains(Logs), tmp_path, steps=3, wanted={1, 2})
    assert run.results == [(1, "reproduced"), (2, "reproduced")], run.texts
    assert caplog.messages == ["forward"] * 6  # unwatched, and watched
    assert logging.Logger.handle is handle


def test_other_threads_go_on_logging_meanwhile(caplog):
    from nanhunt._sentinel.unchanged import hushed

    with hushed():
        logging.getLogger("model").warning("mine")
        thread = threading.Thread(target=logging.getLogger("model").warning, args=("theirs",))
        thread.start()
        thread.join()
    assert caplog.messages == ["theirs"]


def test_hooks_of_the_program_run_again_which_is_told(tmp_path, library):
    def build():
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
        model[0].register_forward_hook(lambda module, args, output: output * 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i):
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step, model, optimizer

    run = watched(build, tmp_path, steps=3, wanted={1})
    assert run.results == [(1, "reproduced")] and "1 forward hook of the program ran again" in run.texts[0]


def test_what_ops_outside_of_modules_read_counts_as_held(tmp_path, library, monkeypatch):
    """Of micro-batches before the last two."""
    from nanhunt._sentinel import tape

    monkeypatch.setattr(tape, "MAX_HELD", 100_000)

    def build():
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i):
            optimizer.zero_grad()
            for _ in range(6 if i == 2 else 2):
                (x, y), mask = batch(), torch.ones(10_000)
                (F.cross_entropy(model(x), y) + (model.weight.sum() * mask).mean()).backward()
            optimizer.step()

        return step, model, optimizer

    run = watched(build, tmp_path, steps=4, wanted={1, 2, 3})
    assert run.results == [(1, "reproduced"), (2, "refused"), (3, "reproduced")], run.texts
    assert "inputs of more calls" in run.texts[1]
