# SPDX-License-Identifier: Apache-2.0
"""The origin of a trip is computed again in fp32 and fp64, and what it read is kept."""
from __future__ import annotations

import json
import stat

import pytest
import torch
from captures import captures_of, origin_of, read_safetensors, train
from saved import report_of

pytestmark = pytest.mark.usefixtures("library")


def test_an_overflow_is_proved_by_wider_formats(tmp_path):
    train(tmp_path / "run", lambda y, step: (y * 0 + (300.0 if step == 1 else 1.0)).pow(2).sum(), torch.float16)
    origin = origin_of(report_of(tmp_path / "run"))
    assert origin["class"] == "overflow" and origin["op"] == "aten::pow" and origin["confidence"] == "proved"


def test_a_pole_stays_bad_in_every_format_and_is_proved(tmp_path):
    train(tmp_path / "run", lambda y, step: torch.log(y * 0 + (0.0 if step == 1 else 1.0)).sum())
    origin = origin_of(report_of(tmp_path / "run"))
    assert origin["class"] == "divide_by_zero" and origin["op"] == "aten::log" and origin["confidence"] == "proved"


@pytest.mark.parametrize("factor", [10.0, 0.5])
def test_a_number_of_python_decides_no_format_when_an_overflow_is_computed_again(tmp_path, factor):
    """Beside tensors without dimensions, where a tensor of fp64 would."""
    train(tmp_path / "run", lambda y, step: (y * 0 + 1).mean() * torch.tensor(3e38 if step == 1 else 1.0) * factor)
    report = report_of(tmp_path / "run")
    if factor > 1:
        origin = origin_of(report)
        assert (origin["class"], origin["op"], origin["confidence"]) == ("overflow", "aten::mul", "proved"), origin
    assert not [f for f in report["findings"] if f["class"] in ("not_reproducible", "scaler_calibration")]


def test_the_twin_leaves_no_capture(tmp_path):
    train(tmp_path / "run", lambda y, step: torch.log(y * 0 + 1.0).sum())
    assert report_of(tmp_path / "run")["verdict"]["status"] == "clean"
    assert captures_of(tmp_path / "run") == []


def test_inputs_are_kept_as_they_were_read_also_of_an_op_in_place(tmp_path):
    def forward(y, step):
        z = y.detach() * 0 + 2.0
        z.div_(torch.full_like(z, 0.0 if step == 1 else 1.0))
        return (y * z).sum()

    train(tmp_path / "run", forward)
    origin = origin_of(report_of(tmp_path / "run"))
    assert origin["op"] == "aten::div_"
    path = next(p for p in captures_of(tmp_path / "run") if p.name == f"op-{origin['op_seq']}.safetensors")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    tensors, metadata = read_safetensors(path)
    assert torch.equal(tensors["self"], torch.full((3, 4), 2.0)) and torch.equal(tensors["other"], torch.zeros(3, 4))
    call = json.loads(metadata["nanhunt.call"])
    assert call["op"] == "div_" and call["args"] == [["tensor", "self"], ["tensor", "other"]]
    named = torch.ops.aten.div_.Tensor(tensors["self"], tensors["other"])
    assert bool(torch.isinf(named).all())


def test_no_captures_keeps_none(tmp_path):
    train(tmp_path / "run", lambda y, step: torch.log(y * 0 + (0.0 if step == 1 else 1.0)).sum(), captures=False)
    assert captures_of(tmp_path / "run") == []
    assert origin_of(report_of(tmp_path / "run"))["confidence"] == "proved"


def test_what_is_too_large_is_not_kept_and_noted_nowhere_as_an_error(tmp_path):
    large = torch.zeros(17 << 20)  # 68 MiB

    def forward(y, step):
        return y.mean() + (torch.log(large).max() if step == 1 else 0)

    train(tmp_path / "run", forward)
    assert captures_of(tmp_path / "run") == []
    assert origin_of(report_of(tmp_path / "run"))["op"] == "aten::log"
