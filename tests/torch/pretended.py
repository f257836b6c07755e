# SPDX-License-Identifier: Apache-2.0
"""Tensors of the CPU that pass for tensors of a device: numbers come late, and every wait is counted."""
from __future__ import annotations

from contextlib import contextmanager

import torch
from nanhunt import _device

NEVER = 1 << 60


class PretendedFetch(_device.Fetch):
    def __init__(self, lane, tensors):
        self._lane, self._found = lane, [t.tolist() for t in tensors]
        self._sent_in, self._sent_at, self._awaited = lane.step, lane.reads, False

    def is_here(self):
        if self._awaited or self._lane.until_read and self._lane.reads > self._sent_at:
            return True
        return self._lane.step >= self._sent_in + self._lane.lag

    def wait(self):
        self._lane.waits_made += not self.is_here()
        self._awaited = True

    def numbers(self):
        return self._found


class PretendedLane(_device.Lane):
    """`lag`: numbers are there so many steps later. `until_read`: ... or once the run has read a tensor itself."""

    waits = False

    def __init__(self, lag=0, room=1 << 40, until_read=False):
        self.lag, self.free, self.until_read = lag, room, until_read
        self.step = 0                  # of the run
        self.reads = 0                 # by the run
        self.copies = self.waits_made = 0

    def send(self, tensors):
        self.copies += len(tensors)
        return PretendedFetch(self, tensors)

    def room(self):
        return self.free


def counted(build, lane):
    """The lane knows which step runs."""

    def make():
        step, *things = build()

        def step_of(i):
            lane.step = i
            step(i)

        return step_of, *things

    return make


@contextmanager
def pretended(lane, chosen=lambda t: True):
    before = _device.pretend, _device.lane_of, torch.Tensor.item
    item = torch.Tensor.item

    def read(t):
        lane.reads += 1
        return item(t)

    _device.pretend, _device.lane_of = chosen, lambda device: lane
    torch.Tensor.item = read
    try:
        yield lane
    finally:
        _device.pretend, _device.lane_of, torch.Tensor.item = before
