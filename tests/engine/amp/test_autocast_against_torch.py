# SPDX-License-Identifier: Apache-2.0
"""The autocast lists are torch's for CUDA and for the CPU: every op intercepted, what is done to its arguments, and the
formats of results.

C++ tests hold every op of the engine to its row; here the rows are held to torch.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

LISTS = {"cuda": "src/core/ops/autocast/torch_cuda.cpp", "cpu": "src/core/ops/autocast/torch_cpu.cpp"}

# Result formats for inputs of fp16, fp32 and fp64.
RESULTS = {
    "kLow": ["fp16", "fp16", "fp64"],
    "kFp32": ["fp32", "fp32", "fp64"],
    "kFp32Output": ["fp32", "fp32", "fp64"],
    "kAppendDtype": ["fp32", "fp32", "fp64"],
    "kPromote": ["fp16", "fp32", "fp64"],
    "kBanned": ["banned", "banned", "banned"],
}


def rows(device: str) -> dict[str, str]:
    """Policy by op and overload, "sum.dim_IntList"."""
    text = (ROOT / LISTS[device]).read_text()
    found = re.findall(r'CastRow\{"(\w+)", CastPolicy::(\w+)(?:, "([\w ]+)")?\}', text)
    assert len(found) == text.count("CastRow{"), "a row that this expression does not read"
    return {f"{op}.{overload}": policy for op, policy, names in found for overload in (names or "default").split()}


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
    assert set(torch_lists["cuda"]["results"]) == ops_of_the_engine()


@pytest.mark.parametrize("device", LISTS)
def test_the_list_has_every_op_that_torch_intercepts_and_no_other(torch_lists, device):
    assert set(rows(device)) == set(torch_lists[device]["intercepted"])


@pytest.mark.parametrize("device", LISTS)
def test_arguments_are_cast_as_torch_casts_them(torch_lists, device):
    seen = {op: policy for op, policy in torch_lists[device]["intercepted"].items() if policy is not None}
    assert len(seen) > 100, "of the others torch does not tell"
    assert seen == {op: policy for op, policy in rows(device).items() if op in seen}


@pytest.mark.parametrize("device", LISTS)
def test_results_have_the_formats_that_they_have_in_torch(torch_lists, device):
    policies = {op.partition(".")[0]: policy for op, policy in rows(device).items()}
    told = 0
    for op, (aten, *results) in ((op, answer.values()) for op, answer in torch_lists[device]["results"].items()):
        if aten not in policies or None in results:
            continue  # torch cannot fake it without its CUDA library
        assert results == RESULTS[policies[aten]], op
        told += 1
    assert told > 15
