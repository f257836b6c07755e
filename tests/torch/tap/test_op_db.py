# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own operators and modules, salted with finite extremes: no bit changes, and the op that made what is not
finite is named. A slice; `op_samples.py` runs all (tests/bench/README.md)."""
from __future__ import annotations

import pytest
import torch

pytest.importorskip("expecttest", reason="PyTorch's database of operators needs expecttest")
from op_samples import examined, module_cases, op_cases  # noqa: E402

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.parametrize("kind", ["operators", "modules"])
def test_operators_and_modules_of_pytorch_are_right_on_finite_extremes(kind):
    cases = op_cases(torch.float32, samples=1, every=16, first=5) if kind == "operators" else module_cases(
        torch.float32, samples=1, every=8, first=3)
    table = examined(cases)
    said = "\n".join(table.lines())
    assert table.samples >= (30 if kind == "operators" else 8), said
    assert not table.changed, said
    assert not table.missed and len(table.wrong) <= 0.01 * table.found, said
    assert len(table.unexplained) <= 0.02 * table.bad, said
