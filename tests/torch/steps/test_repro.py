# SPDX-License-Identifier: Apache-2.0
"""`nanhunt repro` writes a script that needs PyTorch alone and shows the same bad numbers."""
from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import nanhunt
import pytest
import torch
from captures import captures_of, origin_of, read_safetensors, train
from saved import report_of

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture
def tool():
    path = Path(os.environ.get("NANHUNT_BIN_DIR", "")) / "nanhunt"
    if not path.is_file():
        found = shutil.which("nanhunt")
        built = Path(os.environ["NANHUNT_LIBRARY"]).resolve().parent.parent / "bin" / "nanhunt"
        path = built if built.is_file() else Path(found or "")
    if not path.is_file():
        pytest.skip("the command line tool is not built")
    return lambda *args: subprocess.run([str(path), *map(str, args)], capture_output=True, text=True, check=False)


def run_script(folder):
    return subprocess.run([sys.executable, "-I", str(folder / "repro.py")], capture_output=True, text=True, check=False)


BUGS = {
    "aten::log": (lambda y, step: torch.log(y * 0 + (0.0 if step == 1 else 1.0)).sum(), torch.float32),
    "aten::pow": (lambda y, step: (y * 0 + (300.0 if step == 1 else 1.0)).pow(2).sum(), torch.float16),
}


@pytest.mark.parametrize("op", ["aten::log", "aten::pow"])
def test_the_script_shows_the_failure_in_torch(tmp_path, tool, op):
    forward, dtype = BUGS[op]
    train(tmp_path / "run", forward, dtype)
    assert origin_of(report_of(tmp_path / "run"))["op"] == op
    done = tool("repro", tmp_path / "run", "--out", tmp_path / "repro")
    assert done.returncode == 0, done.stderr
    script = (tmp_path / "repro" / "repro.py").read_text()
    assert script.count("\n") < 30 and "numpy" not in script and "pickle" not in script
    shown = run_script(tmp_path / "repro")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.startswith(op) and "12 Inf of 12" in shown.stdout


def test_what_an_operation_read_is_kept_without_numpy(tmp_path, monkeypatch, tool):
    def numpy(self, **_):
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    forward, dtype = BUGS["aten::log"]
    train(tmp_path / "run", forward, dtype)
    done = tool("repro", tmp_path / "run", "--out", tmp_path / "repro")
    assert done.returncode == 0, done.stderr


def rewrite_call(path, change):
    """The capture again, with another call in it."""
    raw = path.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    call = json.loads(header["__metadata__"]["nanhunt.call"])
    change(call)
    header["__metadata__"]["nanhunt.call"] = json.dumps(call)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size:])


@pytest.mark.parametrize("change", [
    lambda call: call.update(op="from_file"),
    lambda call: call.update(op="log'); import os #"),
    lambda call: call.update(namespace="prims"),
    lambda call: call.update(args=[["code", "1"]]),
    lambda call: call.update(args=[["tensor", "other"]]),
    lambda call: call.update(args=[["dtype", "load"]]),
    lambda call: call.update(overload="__class__.__init__"),
], ids=["file", "quote", "namespace", "kind", "missing", "dtype", "overload"])
def test_a_hostile_capture_is_refused(tmp_path, tool, change):
    train(tmp_path / "run", *BUGS["aten::log"])
    origin = origin_of(report_of(tmp_path / "run"))
    path = next(p for p in captures_of(tmp_path / "run") if p.name == f"op-{origin['op_seq']}.safetensors")
    assert read_safetensors(path)[1]["op"] == "aten::log"
    rewrite_call(path, change)
    done = tool("repro", tmp_path / "run", "--out", tmp_path / "repro")
    assert done.returncode in (2, 3) and not (tmp_path / "repro" / "repro.py").exists()


def test_a_run_at_level_ops_is_told_to_use_the_default_level(tmp_path, tool):
    with nanhunt.watch(out=tmp_path / "run", level="ops", quiet=True):
        model = torch.nn.Linear(4, 4)
        (torch.log(model(torch.ones(3, 4)) * 0)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    done = tool("repro", tmp_path / "run", "--out", tmp_path / "repro")
    assert done.returncode == 3, done.stdout
    assert "aten::log of F1 read was not kept: level ops keeps no inputs" in done.stderr
    assert "default level" in done.stderr and not (tmp_path / "repro").exists()
