# SPDX-License-Identifier: Apache-2.0
"""Contents that something past PyTorch wrote between steps are told as such, with the interval, and not as a fault of
the op that reads them."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from own_programs import LEVELS, Net, Told, assert_silent, classifier, data, loop, told
from step_runs import watched
from torch import nn
from torch.nn import functional as F


class Normed(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.last(self.norm(torch.tanh(self.first(x))))


class Linear(Net):
    def forward(self, x):
        return self.last(self.first(x))


def flipped(number, bit=30):
    """With one bit of its exponent turned."""
    return struct.unpack("f", struct.pack("I", struct.unpack("I", struct.pack("f", number))[0] ^ 1 << bit))[0]


def training(write, model=Normed, at=3, **options):
    """`write(model, optimizer)` runs before step `at`, past PyTorch."""
    return classifier(lambda i, net, opt, x: write(net, opt) if i == at else None, model=model, **options)


def weight_to(number):
    def write(net, opt):
        net.first.weight.detach().numpy()[1, 2] = number

    return write


def bit_of_weight(net, opt):
    w = net.last.weight.detach().numpy()
    w[0, 0] = flipped(float(w[0, 0]))


def momentum(net, opt):
    opt.state[net.first.weight]["momentum_buffer"].numpy()[0, 0] = 3e38


def buffer(net, opt):
    net.norm.running_var.numpy()[2] = math.nan


def small(net, opt):
    net.first.weight.detach().numpy()[1, 2] *= 1.01  # on purpose, as an initialisation by hand


WRITES = {
    "NaN into a weight": (training(weight_to(math.nan)), "first.weight"),
    "a huge number into a weight": (training(weight_to(3e38)), "first.weight"),
    "a bit of a weight": (training(bit_of_weight), "last.weight"),
    "a huge number into momentum": (training(momentum, momentum=0.9), "first.weight.momentum_buffer"),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", WRITES)
def test_what_was_written_past_pytorch_between_steps_is_told_with_the_interval(name, level, tmp_path):
    build, module = WRITES[name]
    said = told(build, tmp_path, level, steps=7)
    assert said.loud and said.first["class"] in ("corruption", "bad_state"), said.show()
    assert said.first["module"] == module and said.first["op"] == "<state>", said.show()
    assert said.first["step"] == 3, said.show()
    text = " ".join([said.first["title"], said.first["explanation"], *said.first["evidence"]])
    assert "step 2" in text, text
    assert_silent(training(lambda net, opt: None, momentum=0.9), tmp_path, level, steps=7)


@pytest.mark.parametrize("number", [math.nan, math.inf, 3e38])
def test_what_was_written_before_a_late_step_is_found_as_well(number, tmp_path):
    # Given a write past PyTorch between two steps
    def run(write, folder):
        return Told(watched(training(write, Linear, at=11), folder, 14, level="live"))

    said = run(weight_to(number), tmp_path / "past")
    # then it is the origin, with the interval
    assert said.what == ("corruption", "<state>", "data", "first.weight") and said.first["step"] == 11, said.show()
    assert "between step 10 and" in said.first["explanation"], said.first["explanation"]

    # and what PyTorch counts was written by the program
    def counted(net, opt):
        with torch.no_grad():
            net.first.weight[1, 2] = number

    assert "corruption" not in [cls for cls, _ in run(counted, tmp_path / "counted").loud]
    quiet = run(lambda net, opt: None, tmp_path / "twin")
    assert quiet.status == "clean" and not quiet.loud, quiet.show()


@pytest.mark.parametrize("level", LEVELS)
def test_a_small_write_past_pytorch_harms_nobody(level, tmp_path):
    said = told(training(small), tmp_path, level, steps=7)
    assert not [f for f in said.run.report["findings"] if f["severity"] in ("fault", "warning")] or (
        said.status != "fault"
    ), said.show()


def weighing(bad):
    """Each step makes the weights of its classes anew and fills them in through NumPy."""

    def build():
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            x, y = data()
            opt.zero_grad()
            out = net(x)
            weights = torch.ones(3)
            weights.numpy()[0] = math.nan if bad and i == 3 else 2.0
            F.cross_entropy(out * weights, y).backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", ["live", "ops"])
def test_a_write_through_numpy_inside_of_a_loss_is_told_as_a_write_past_pytorch(level, tmp_path):
    said = told(weighing(True), tmp_path, level)
    assert said.status == "fault" and said.first["step"] == 3, said.show()
    assert said.first["advice"][0]["id"] == "find-stray-write", said.first["advice"]
    assert "past the framework" in said.first["explanation"], said.first["explanation"]
    assert said.what[:3] == ("corruption", "aten::mul", "loss") and "other of aten::mul" in said.first["title"]
    quiet = told(weighing(False), tmp_path, level)
    assert not quiet.loud and quiet.status == "clean", quiet.show()


def replayed(slack, by="rows"):
    """Samples are kept in memory that is filled row by row; in step 9 what is read of it is `slack` rows too many."""

    def build():
        torch.manual_seed(0)
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)
        memory = torch.empty(64, 6)
        memory.numpy()[:] = math.nan  # as whoever had it before has left it

        def step(i):
            x, _ = data(1)
            if by == "rows":
                memory[i] = x[0]
            elif i == 0:
                for column in range(6):
                    memory[:, column] = x[0, column]
            kept = memory[: i + 1 + (slack if i == 9 else 0)]
            opt.zero_grad()
            F.cross_entropy(net(kept), kept[:, :3].argmax(1)).backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_memory_of_which_a_part_was_written_is_named_where_the_rest_is_read(level, tmp_path):
    said = told(replayed(1), tmp_path, level, steps=12)
    assert said.what[:2] == ("uninitialised", "aten::empty") and len(said.loud) == 1, said.show()
    assert said.first["step"] == 9, said.show()
    assert [a["id"] for a in said.first["advice"]] == ["write-before-read"], said.show()
    assert_silent(replayed(0), tmp_path, level, steps=12)
    assert_silent(replayed(20, by="columns"), tmp_path, level, steps=12)


def filled_by_numpy(bad):
    """A half of what a model is given is written by NumPy, with one number that is missing in step 5."""

    def step(i, net, opt):
        x, y = data(8)
        given = torch.empty(8, 6)
        given[:, :3] = x[:, :3]
        given.numpy()[:, 3:] = x[:, 3:].numpy()
        if bad and i == 5:
            given.numpy()[5, 4] = math.nan
        opt.zero_grad()
        F.cross_entropy(net(given), y).backward()
        opt.step()

    return loop(step)


@pytest.mark.parametrize("level", LEVELS)
def test_a_missing_number_that_numpy_writes_into_new_memory_is_one_of_the_data(level, tmp_path):
    said = told(filled_by_numpy(True), tmp_path, level, steps=8)
    assert said.what[0] == "bad_input" and said.first["step"] == 5, said.show()
    assert_silent(filled_by_numpy(False), tmp_path, level, steps=8)


def halves(x):
    """Two results of one operation are the two halves of one memory."""
    ends = torch.empty(2, len(x))
    torch.aminmax(x.detach(), dim=1, out=(ends[0], ends[1]))
    return ends[1] - ends[0]


def grown(x):
    """Memory with contents is made larger."""
    kept = torch.log(x.detach().abs().sum(1))
    kept.resize_(2 * len(x))
    kept[len(x) :] = 0
    return kept[: len(x)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("made", "ops"), [(halves, ("aten::fill_", "aten::copy_", "aten::sub")), (grown, ("aten::log",))]
)
def test_memory_that_was_written_in_two_ways_is_not_called_unwritten(made, ops, level, tmp_path):
    def build(bad):
        def step(i, net, opt):
            x, y = data(8)
            if bad and i == 5:
                x[2] = math.inf if made is halves else 0.0
            opt.zero_grad()
            (F.cross_entropy(net(x.clamp(-3, 3)), y) * made(x).mean()).backward()
            opt.step()

        return loop(step)

    said = told(build(True), tmp_path / "bad", level, steps=8)
    assert said.status == "fault" and said.what[0] != "uninitialised", said.show()
    assert said.what[1] in ops, said.show()
    assert_silent(build(False), tmp_path / "twin", level, steps=8)
