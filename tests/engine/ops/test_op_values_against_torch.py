# SPDX-License-Identifier: Apache-2.0
"""Results and gradients of ops beside torch's for the same inputs, in every format.

Torch rounds intermediates of a composite op (logsumexp) in a format of 16 bits, and its vectorised functions differ
from the C library's in the last place; so bounds are in steps of the format: epsilon times the value, of gradients the
largest of the tensor.
"""

import json
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
OPS = ["expm1", "log10", "log2", "log1p", "sinh", "cosh", "tan", "asin", "acos", "atan2", "softplus", "prelu",
       "logsumexp", "mv", "dot", "addmv", "addr", "baddbmm", "rms_norm", "huber_loss", "binary_cross_entropy",
       "margin_ranking_loss", "hinge_embedding_loss", "triplet_margin_loss", "cosine_embedding_loss",
       "poisson_nll_loss", "cosine_similarity"]  # fmt: skip
# Of results and of gradients.
BOUNDS = {"fp16": (2, 8), "bf16": (2, 8), "fp32": (4, 8), "fp64": (4, 8)}
OF_COSINES = 32  # of gradients that are what two larger numbers differ by


@pytest.fixture(scope="module")
def differences(torch_python, binaries):
    program = binaries / "engine_op_values"
    assert program.exists(), f"{program} was not built"
    ours = subprocess.run([program, *OPS], capture_output=True, text=True, timeout=600, check=True).stdout
    command = [torch_python, "-W", "ignore", str(HERE / "torch_op_values.py")]
    theirs = subprocess.run(command, input=ours, capture_output=True, text=True, timeout=1800)
    assert theirs.returncode == 0, theirs.stderr
    return [json.loads(line) for line in theirs.stdout.splitlines()]


def test_every_op_was_compared(differences):
    labels = {label for label, *_ in differences}
    for op in OPS:
        assert any(label.startswith(op) for label in labels), op
    assert sum(count for *_, count in differences) > 500


@pytest.mark.parametrize("dtype", BOUNDS)
def test_results_and_gradients_are_torchs(differences, dtype):
    of_result, of_gradient = BOUNDS[dtype]
    far = [entry for entry in differences if entry[1] == dtype and (
        entry[2] > of_result or entry[3] > (OF_COSINES if entry[0].startswith("cosine") else of_gradient))]  # fmt: skip
    assert far == []
