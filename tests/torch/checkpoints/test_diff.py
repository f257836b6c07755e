# SPDX-License-Identifier: Apache-2.0
"""Two checkpoints compared: the most important difference first."""

from __future__ import annotations

import json
import math

import pytest
import torch
from checkpoint_runs import ROOT, nanhunt

SCHEMA = json.loads((ROOT / "reports" / "schema" / "nanhunt.checkpoint_diff.schema.json").read_text())


def diff(tmp_path, a, b, legacy_b=False):
    torch.save(a, tmp_path / "a.pt")
    torch.save(b, tmp_path / "b.pt", _use_new_zipfile_serialization=not legacy_b)
    text = nanhunt("diff", tmp_path / "a.pt", tmp_path / "b.pt")
    assert text.returncode == 0, text.stderr
    answer = json.loads(nanhunt("diff", tmp_path / "a.pt", tmp_path / "b.pt", "--json").stdout)
    return text.stdout.splitlines()[0], answer


def test_equal_checkpoints_are_the_same_bits_whatever_their_layout(tmp_path):
    w = torch.randn(30, 20)
    w[1, 2] = math.nan
    first, answer = diff(
        tmp_path, {"w": w.t(), "n": torch.arange(4)}, {"w": w.t().contiguous(), "n": torch.arange(4)}, legacy_b=True
    )
    assert first == "the same bits in 2 tensors"
    assert answer["same"] is True


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2])
def test_changes_are_those_that_pytorch_computes(tmp_path, dtype):
    torch.manual_seed(2)
    a = torch.randn(300, 257).to(dtype)
    b = (a.double() * (1 + 0.25 * (torch.rand(300, 257) > 0.5))).to(dtype)
    first, answer = diff(tmp_path, {"w": a}, {"w": b})
    assert first.startswith("1 of 1 tensor changed, most w: ")
    (change,) = answer["tensors"]
    delta = (b.double() - a.double()).abs()
    assert change["changed"] == int((a.double() != b.double()).sum())
    assert change["largest_change"] == float(delta.max())
    nonzero = a.double() != 0
    assert change["largest_relative"] == float((delta[nonzero] / a.double().abs()[nonzero]).max())
    assert change["relative_norm"] == pytest.approx(float(delta.norm() / a.double().norm()), rel=1e-12)


def test_what_became_not_finite_comes_first(tmp_path):
    a = {"x": torch.ones(5), "y": torch.ones(4), "z": torch.tensor([math.inf])}
    b = {
        "x": torch.full((5,), 9.0),
        "y": torch.tensor([1.0, math.nan, math.inf, 1.0]),
        "z": torch.ones(1),
        "new": torch.ones(2),
    }
    first, answer = diff(tmp_path, a, b)
    assert first == "1 tensor became NaN or Inf, first y: 2 of 4 changed, 2 became NaN or Inf"
    assert [t["newly_finite"] for t in answer["tensors"]] == [0, 0, 1]
    assert answer["only_in_b"] == ["new"]


def test_shapes_dtypes_and_missing_tensors_are_named_in_this_order(tmp_path):
    w = torch.randn(4, 4).half()
    first, answer = diff(tmp_path, {"w": w, "gone": w}, {"w": w.float()})
    assert first.startswith("1 tensor of another shape or dtype, first w: fp16 in A, fp32 in B: 0 of 16 changed")
    assert (answer["tensors"][0]["compared"], answer["only_in_a"]) == (True, ["gone"])
    first, _ = diff(tmp_path, {"w": w}, {"w": w[:2].clone()})
    assert first == "1 tensor of another shape or dtype, first w: shape [4, 4] in A, [2, 4] in B"
    first, _ = diff(tmp_path, {"w": w, "gone": w}, {"w": w})
    assert first == "1 tensor only in A, first gone"


def test_answers_follow_the_schema(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    quantised = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    a = {
        "w": torch.tensor([0.0, math.inf]),
        "q": quantised,
        "shape": torch.ones(3),
        "dtype": torch.ones(3),
        "gone": torch.ones(1),
    }
    b = {
        "w": torch.tensor([1.0, math.nan]),
        "q": quantised,
        "shape": torch.ones(2),
        "dtype": torch.ones(3).half(),
        "new": torch.ones(1),
    }
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for first, second in ((a, b), (b, a), (a, a)):
        _, answer = diff(tmp_path, first, second)
        validator.validate(answer)
    assert not validator.is_valid(answer | {"format": "torch"})


def test_options_of_runs_and_mixtures_are_refused(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    a = tmp_path / "a.pt"
    for words in (
        [a, a, "--rank", 0],
        [a, a, "--attempt-a", 1],
        [a, a, "--tolerance", 0],
        [a, tmp_path / "run"],
        [tmp_path / "run", a],
    ):
        done = nanhunt("diff", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr
    assert nanhunt("diff", a, tmp_path / "nothing.pt").returncode == 3
