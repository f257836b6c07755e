# SPDX-License-Identifier: Apache-2.0
"""The engine's autocast table is torch's for CUDA: the same ops intercepted, the same result formats.

C++ tests hold every op to its row; here the rows are held to torch.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

# Result formats for inputs of fp16, fp32 and fp64. Whether inputs are cast for an fp32 result, torch does not tell.
RESULTS = {
    "kLow": ["fp16", "fp16", "fp64"],
    "kFp32": ["fp32", "fp32", "fp64"],
    "kFp32Output": ["fp32", "fp32", "fp64"],
    "kAppendDtype": ["fp32", "fp32", "fp64"],
    "kPromote": ["fp16", "fp32", "fp64"],
}


def policies() -> dict[str, str]:
    text = (ROOT / "src/engine/amp/policy.cpp").read_text()
    return dict(re.findall(r'PolicyRow\{"(\w+)", Policy::(\w+)\}', text))


def ops_of_the_engine() -> set[str]:
    text = (ROOT / "include/nanhunt/engine/ops.h").read_text()
    return set(re.findall(r"^Tensor (\w+)\(", text, re.MULTILINE))


@pytest.fixture(scope="module")
def torch_lists(torch_python):
    command = [torch_python, str(HERE / "torch_autocast_lists.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_torch_was_asked_about_every_op_of_the_engine(torch_lists):
    assert len(ops_of_the_engine()) > 50
    assert set(torch_lists) == ops_of_the_engine()


def test_the_table_has_the_ops_that_torch_intercepts_and_no_other(torch_lists):
    intercepted = {op for op, answer in torch_lists.items() if answer["intercepted"]}
    assert len(intercepted) > 20
    assert set(policies()) == intercepted


def test_results_have_the_formats_that_they_have_in_torch(torch_lists):
    told = 0
    for op, policy in policies().items():
        results = list(torch_lists[op]["results"].values())
        if None in results:
            continue  # torch cannot fake it without its CUDA library
        assert results == RESULTS[policy], op
        told += 1
    assert told > 15
