# SPDX-License-Identifier: Apache-2.0
"""Programs that train complex numbers: a healthy one is clean, and a quotient of them is told where it is 0/0."""

from __future__ import annotations

import pytest
import torch
from own_programs import LEVELS, assert_silent, told
from torch import nn

STEPS, BAD = 8, 5


class Spectrum(nn.Module):
    def __init__(self, guard):
        super().__init__()
        self.guard = guard
        self.lift = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.ones(5, dtype=torch.cfloat))

    def forward(self, x, cut):
        z = torch.fft.rfft(self.lift(x)) * self.weight
        if cut:
            z = z * 0
        return torch.fft.irfft(z / (z.abs() + self.guard), n=8)


def spectral(guard):
    def build():
        net = Spectrum(guard)
        opt = torch.optim.Adam(net.parameters(), 1e-3)

        def step(i):
            opt.zero_grad()
            net(torch.randn(4, 8), cut=i == BAD).pow(2).mean().backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_complex_weights_are_read_and_a_healthy_run_is_clean(level, tmp_path):
    assert_silent(spectral(1e-6), tmp_path / "good", level, STEPS)


def test_a_quotient_of_complex_numbers_is_told_where_it_is_0_of_0(tmp_path):
    said = told(spectral(0), tmp_path / "bad", "live", STEPS)
    assert said.what[:2] == ("divide_by_zero", "aten::div") and said.first["step"] == BAD, said.show()
