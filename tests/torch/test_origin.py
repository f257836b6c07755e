# SPDX-License-Identifier: Apache-2.0
"""The origin of a trip is computed again in fp32 and fp64, and what it read is kept."""
from __future__ import annotations

import json
import stat
import struct

import pytest
import torch
from torch import nn
from watched import report_of

pytestmark = pytest.mark.usefixtures("library")
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
          "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}


def read_safetensors(path):
    raw = path.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        data = bytearray(raw[8 + size + begin:8 + size + end])
        dtype = DTYPES[entry["dtype"]]
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, metadata


def train(folder, forward, dtype=torch.float32, steps=2, captures=True):
    """A small model whose loss region is `forward`, at level sentinel."""
    from nanhunt import _levels, _taps
    from nanhunt._session import Options, Session

    torch.manual_seed(0)
    model = nn.Linear(4, 4).to(dtype)
    session = Session(Options(out=str(folder), level="sentinel", captures=captures))
    _levels.add_listeners(session)
    _taps.install(session)
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(steps):
            loss = forward(model(torch.ones(3, 4, dtype=dtype)), step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        session.close()
    assert not [n for n in session.notes if n.startswith("errors inside")], session.last_error
    return session


def captures_of(folder):
    return sorted(folder.glob("rank-00000/attempt-0/captures/*.safetensors"))


def origin_of(report):
    return next(f for f in report["findings"] if f["id"] == report["verdict"]["origin"])


def test_an_overflow_is_proved_by_wider_formats(tmp_path):
    train(tmp_path / "run", lambda y, step: (y * 0 + (300.0 if step == 1 else 1.0)).pow(2).sum(), torch.float16)
    origin = origin_of(report_of(tmp_path / "run"))
    assert origin["class"] == "overflow" and origin["op"] == "aten::pow" and origin["confidence"] == "proved"


def test_a_pole_stays_bad_in_every_format_and_is_proved(tmp_path):
    train(tmp_path / "run", lambda y, step: torch.log(y * 0 + (0.0 if step == 1 else 1.0)).sum())
    origin = origin_of(report_of(tmp_path / "run"))
    assert origin["class"] == "divide_by_zero" and origin["op"] == "aten::log" and origin["confidence"] == "proved"


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


def test_what_is_too_large_is_not_kept_and_noted_nowhere_as_an_error(tmp_path, monkeypatch):
    from nanhunt import _origin

    monkeypatch.setattr(_origin, "MAX_BYTES", 8)
    train(tmp_path / "run", lambda y, step: torch.log(y * 0 + (0.0 if step == 1 else 1.0)).sum())
    assert captures_of(tmp_path / "run") == []
    assert origin_of(report_of(tmp_path / "run"))["op"] == "aten::log"
