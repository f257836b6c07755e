# SPDX-License-Identifier: Apache-2.0
"""A run whose origin is computed again, and the inputs that it leaves in the run folder."""
from __future__ import annotations

import json
import struct

import nanhunt
import torch
from torch import nn

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
    """A small model whose loss region is `forward`."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to(dtype)
    with nanhunt.watch(out=folder, captures=captures, quiet=True) as watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(steps):
            loss = forward(model(torch.ones(3, 4, dtype=dtype)), step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not [note for note in watch.notes if note.startswith("errors inside")], watch.notes


def captures_of(folder):
    return sorted(folder.glob("rank-00000/attempt-0/captures/*.safetensors"))


def origin_of(report):
    return next(f for f in report["findings"] if f["id"] == report["verdict"]["origin"])
