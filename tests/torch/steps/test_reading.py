# SPDX-License-Identifier: Apache-2.0
"""A gradient is read as what it is now, whether C++ collects it or, where there is no tap, Python looks at each."""
from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import nanhunt
import pytest
import torch

CHANGED, END = 2, 3  # steps
PACKAGE = Path(__file__).resolve().parents[3] / "hooks" / "torch"


def nothing(p):
    pass


def none_of_them(p):
    p[0].grad = p[1].grad = p[2].grad = None


def one_is_missing(p):
    p[1].grad = None


def one_is_bad(p):
    p[1].grad[1, 0] = math.inf
    p[2].grad[0] = math.nan


def one_has_other_strides(p):
    p[1].grad = torch.full((4, 3), 3.0).t()


def one_is_sparse(p):
    p[1].grad = torch.full((3, 4), 3.0).to_sparse()


def one_has_become_another_format(p):
    p[1].data = p[1].data.half()
    p[1].grad = torch.full((3, 4), 3.0, dtype=torch.float16)


def one_has_become_larger(p):
    p[1].data = torch.zeros(30, 4)
    p[1].grad = torch.full((30, 4), 3.0)


CHANGES = [nothing, none_of_them, one_is_missing, one_is_bad, one_has_other_strides, one_is_sparse,
           one_has_become_another_format, one_has_become_larger]


def train(folder, change):
    """Parameters that were looked at in some steps, when what they hold or their gradients change. The last step is
    bad, so that norms of those before it are written."""
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in ((5,), (3, 4), (2,))]
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    with nanhunt.watch(out=folder, level="steps", quiet=True):
        for step in range(END + 1):
            for p in parameters:
                p.grad = torch.full_like(p, math.nan if step == END else 2.0)
            if step == CHANGED:
                change(parameters)
                there = [None if p.grad is None else p.grad.to_dense().double() for p in parameters]
            optimizer.step()
    return {f"param_groups.0.{i}": g for i, g in enumerate(there) if g is not None}


@pytest.fixture(scope="module", params=["by the tap", "by Python"])
def runs(request, tmp_path_factory):
    """The folder of the runs, of a process of their own."""
    folder = tmp_path_factory.mktemp("runs")
    tapless = {"NANHUNT_CACHE": str(folder / "cache"), "CXX": "", "PATH": str(folder)}
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), **(tapless if request.param == "by Python" else {})}
    done = subprocess.run([sys.executable, __file__, folder], env=environment, capture_output=True, text=True,
                          timeout=1800)
    assert done.returncode == 0, done.stderr
    notes = nanhunt.load(folder / "nothing").unwatched
    assert any("no C++ compiler" in note for note in notes) == (request.param == "by Python"), notes
    return folder


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_gradient_is_read_as_what_it_is_now_however_it_is_found(runs, tmp_path, change, library):
    from saved import records_of

    there = train(tmp_path / "here", change)
    run = runs / change.__name__
    found = {row["path"]: row["norm"] for row in records_of(run, "norms")
             if row["mark"] == "boundary_gradient" and row["step"] == CHANGED}
    assert set(found) == set(there)
    for path, g in there.items():
        expected = float(g.norm())
        assert math.isnan(found[path]) if math.isnan(expected) else found[path] == pytest.approx(expected)
    bad = [path for path, g in there.items() if not g.isfinite().all()]
    health = records_of(run, "health")[CHANGED]
    assert (health["bad_tensors"], health["first_bad"]) == (len(bad), bad[0] if bad else None)


if __name__ == "__main__":
    for its in CHANGES:
        train(Path(sys.argv[1]) / its.__name__, its)
