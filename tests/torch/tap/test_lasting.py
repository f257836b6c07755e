# SPDX-License-Identifier: Apache-2.0
"""Level ops: contents that went bad past PyTorch are told; what users write on purpose is no corruption."""
from __future__ import annotations

import pytest
from lasting_runs import legitimate_writes, train

pytestmark = pytest.mark.usefixtures("library")


def test_a_weight_that_went_bad_behind_torch_is_corruption(tmp_path):
    def poison(step, model, optimizer):
        if step == 2:
            model[0].weight.detach().numpy()[1, 1] = float("nan")

    report = train(tmp_path / "run", poison)
    origin = next(f for f in report["findings"] if f["id"] == report["verdict"]["origin"])
    assert origin["class"] == "corruption" and origin["step"] == 3 and origin["module"] == "0.weight"


def test_a_buffer_that_went_bad_behind_torch_is_corruption(tmp_path):
    def poison(step, model, optimizer):
        if step == 2:
            model[1].mean.numpy()[3] = float("inf")

    report = train(tmp_path / "run", poison)
    classes = {(f["class"], f["module"]) for f in report["findings"]}
    assert ("corruption", "1.mean") in classes


@pytest.mark.parametrize("between", legitimate_writes(), ids=lambda f: f.__name__)
def test_what_users_write_on_purpose_is_no_finding(tmp_path, between):
    report = train(tmp_path / "run", between)
    assert report["verdict"]["status"] == "clean" and report["findings"] == []
