# SPDX-License-Identifier: Apache-2.0
"""The document beside the autocast lists names exactly the listed ops that the engine does not have."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LISTS = ROOT / "src/core/ops/autocast"
# What the engine has under another name, or only inside of another op.
HAS = {"cross_entropy_loss": "cross_entropy", "mm": "matmul", "native_layer_norm": "layer_norm",
       "convolution": "conv2d", "_convolution": "conv2d"}  # fmt: skip


def listed(name: str) -> set[str]:
    return set(re.findall(r'CastRow\{"(\w+)"', (LISTS / f"{name}.cpp").read_text()))


def lacking(listed_ops: set[str]) -> set[str]:
    engine = set(re.findall(r"^Tensor (\w+)\(", (ROOT / "include/nanhunt/engine/ops.h").read_text(), re.MULTILINE))
    return {op for op in listed_ops if HAS.get(op, op) not in engine}


def named(device: str, text: str) -> set[str]:
    row = re.search(rf"^\| {device} \| (.*) \|$", text, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row[1])) if row else set()


def test_a_planted_list_is_read():
    assert named("CUDA", "| device | ops |\n| CUDA | `a`, `b_c` |\n") == {"a", "b_c"}
    assert lacking({"exp", "no_such_op", "mm"}) == {"no_such_op"}


@pytest.mark.parametrize(("device", "name"), [("CUDA", "torch_cuda"), ("CPU", "torch_cpu")])
def test_the_listed_ops_that_the_engine_lacks_are_named(device, name):
    assert named(device, (LISTS / "README.md").read_text()) == lacking(listed(name))
