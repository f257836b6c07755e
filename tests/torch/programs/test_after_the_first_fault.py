# SPDX-License-Identifier: Apache-2.0
"""A fault, and a hundred more steps, as training goes on in real life: one verdict with one origin. What the first
fault spoilt, weights, state, a table or a buffer, and what comes of it later is no second one."""

from __future__ import annotations

import numpy
import pytest
import torch
from own_programs import LEVELS, Net, Told, assert_silent, data, told
from torch import nn
from torch.nn import functional as F

BAD, STEPS = 5, 106


def zero(i, bad):
    """By which a number is divided that becomes infinite in the step that is bad."""
    return torch.zeros(()) if i == bad else torch.ones(())


def weights(bad, make=Net):
    """The loss of one step is NaN, and so are all weights from there on."""
    torch.manual_seed(0)
    net = make()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step(i):
        x, y = data()
        opt.zero_grad()
        out = net(x)
        (F.cross_entropy(out, y) + 0 * (out.sum() / zero(i, bad))).backward()
        opt.step()

    return step, net, opt


def state(bad):
    """An infinite gradient stays in the second moment, whose weights never move again."""
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)

    def step(i):
        x, y = data()
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        before = [p.detach().clone() for p in net.parameters()]
        net.last.bias.grad.div_(zero(i, bad))
        opt.step()
        if i == bad:
            with torch.no_grad():
                for p, old in zip(net.parameters(), before, strict=True):
                    p.copy_(old)

    return step, net, opt


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(40, 8, sparse=True), nn.Linear(8, 3)

    def forward(self, words):
        return self.last(self.table(words).mean(1))


def table(bad):
    """Rows of a sparse table are met again long after they were spoilt."""
    torch.manual_seed(0)
    net = Words()
    opt = torch.optim.SparseAdam(net.table.parameters(), lr=1e-2)
    dense = torch.optim.SGD(net.last.parameters(), lr=1e-2)

    def step(i):
        words, y = torch.randint(0, 40, (8, 2)), torch.randint(0, 3, (8,))
        out = net(words)
        loss = F.cross_entropy(out, y) + 0 * (out[:1].sum() / zero(i, bad))
        loss.backward()
        opt.step()
        if torch.isfinite(net.last.weight.grad).all():
            dense.step()
        opt.zero_grad()
        dense.zero_grad()

    return step, net, opt


class Normed(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def buffer(bad):
    """A step that the program gives up leaves NaN in the running mean, which only a validation reads."""
    torch.manual_seed(0)
    net = Normed()
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)

    def step(i):
        x, y = data()
        opt.zero_grad()
        loss = F.cross_entropy(net(x / zero(i, bad)), y)
        if i != bad:
            loss.backward()
            opt.step()
        if i % 20 == 19:
            net.eval()
            with torch.no_grad():
                net(x)
            net.train()

    return step, net, opt


PROGRAMS = {
    "weights": (weights, "aten::div", True),
    "state": (state, "aten::div_", False),
    "table": (table, "aten::div", False),
    "buffer": (buffer, "aten::div", False),
}


def faults(said: Told) -> list[dict]:
    return [f for f in said.run.report["findings"] if f["severity"] == "fault"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_fault_spoilt_is_its_own_for_ever(name, level, tmp_path):
    program, op, to_the_end = PROGRAMS[name]
    said = told(lambda: program(BAD), tmp_path, level, steps=STEPS)
    assert said.status == "fault" and len(faults(said)) == 1, said.show()
    first = said.first
    assert (first["op"], first["step"]) == (op, BAD), said.show()
    assert [f for f in said.loud if "from the start" in f[1] or "between two looks" in f[1]] == [], said.show()
    if to_the_end:
        assert first["bad_steps"]["last_step"] == STEPS - 1, first["bad_steps"]
        assert first["bad_steps"]["count"] == STEPS - BAD, first["bad_steps"]
    assert_silent(lambda: program(-1), tmp_path, level, steps=STEPS)


@pytest.mark.parametrize("level", LEVELS)
def test_buffers_that_are_bad_when_training_ends_add_no_step(level, tmp_path):
    def normed():
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    said = told(lambda: weights(BAD, normed), tmp_path, level, BAD + 5)
    assert (said.first["bad_steps"]["first_step"], said.first["bad_steps"]["last_step"]) == (BAD, BAD + 4), said.show()


def handed_on(bad, other=-1, resets=False):
    """The hidden state goes from step to step; steps with a bad loss are skipped."""
    torch.manual_seed(0)
    rnn, out = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 1)
    opt = torch.optim.SGD([*rnn.parameters(), *out.parameters()], 0.01)
    hidden = [torch.zeros(1, 4, 6)]

    def step(i):
        x = torch.randn(4, 5, 3)
        if i == bad:
            x = x / zero(i, bad)
        if i == other:
            rows = x.numpy().copy()
            rows[1] = numpy.nan
            x = torch.from_numpy(rows)
        made, h = rnn(x, hidden[0])
        hidden[0] = torch.zeros_like(h) if resets and not h.isfinite().all() else h.detach()
        loss = out(made).pow(2).mean()
        if loss.isfinite():
            opt.zero_grad()
            loss.backward()
            opt.step()

    return step, rnn, opt


def sampled(bad):
    """What a model denoises, with gradients off; nothing is trained."""
    torch.manual_seed(0)
    net, x = nn.Linear(4, 4), [torch.randn(2, 4)]

    def step(i):
        with torch.no_grad():
            x[0] = (x[0] - 0.1 * net(x[0])) / zero(i, bad)

    return step, net, None


@pytest.mark.parametrize("program", [handed_on, sampled])
@pytest.mark.parametrize("level", LEVELS)
def test_what_a_loop_hands_on_from_a_bad_step_is_no_bad_batch_of_later_ones(program, level, tmp_path):
    said = told(lambda: program(BAD), tmp_path, level, steps=BAD + 9)
    assert said.first["op"] == "aten::div" and said.first["step"] == BAD and len(faults(said)) == 1, said.show()
    steps = said.first["bad_steps"]
    first = BAD + (program is sampled)  # nobody is given it before the next call
    assert (steps["first_step"], steps["last_step"], steps["count"]) == (first, BAD + 8, BAD + 9 - first), steps
    assert_silent(lambda: program(-1), tmp_path, level, steps=BAD + 9)


@pytest.mark.parametrize("level", LEVELS)
def test_a_bad_batch_after_steps_that_were_sound_again_is_told_by_itself(level, tmp_path):
    said = told(lambda: handed_on(BAD, other=BAD + 5, resets=True), tmp_path, level, steps=BAD + 9)
    found = [(f["class"], f["step"]) for f in said.run.report["findings"] if f["severity"] != "info"]
    assert found == [("divide_by_zero", BAD), ("bad_input", BAD + 5)], said.show()
