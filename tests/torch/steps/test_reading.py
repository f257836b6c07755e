# SPDX-License-Identifier: Apache-2.0
"""Gradients are read the same whether C++ collects all of them or Python looks at each."""
from __future__ import annotations

import math

import pytest
import torch
from nanhunt._options import Options
from nanhunt._session import Session
from nanhunt._steps.reading import Reader
from nanhunt._tap.values import Values

pytestmark = pytest.mark.usefixtures("library")


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


@pytest.mark.parametrize("change", [lambda p: None, none_of_them, one_is_missing, one_is_bad, one_has_other_strides,
                                    one_is_sparse, one_has_become_another_format, one_has_become_larger])
def test_a_gradient_is_read_as_what_it_is_now_however_it_is_found(tmp_path, change):
    session = Session(Options(out=str(tmp_path / "run")))
    try:
        session.open()
        parameters = [torch.nn.Parameter(torch.zeros(size)) for size in ((5,), (3, 4), (2,))]
        for p in parameters:
            p.grad = torch.full_like(p, 2.0)
        named = [(p, f"p{i}") for i, p in enumerate(parameters)]
        # Given parameters that were looked at once, when what they hold or their gradients change,
        natively, alone = Reader(session, Values(session)), Reader(session, Values(session))
        natively.gradients(named)
        assert natively._plain is not None
        change(parameters)
        # then both readings see what is there now, and it is what torch says.
        found = natively.gradients(named)
        alone._prepare(named)
        alone._plain, alone._rest = None, named
        python = alone.gradients(named)
        first, second = (sorted(map(repr, zip(paths, *words, strict=True))) for paths, words, _ in (found, python))
        assert first == second
        there = {path: p.grad.to_dense() for p, path in named if p.grad is not None}
        assert set(found[0]) == set(there)
        assert found[2] == python[2] == [path for path, g in there.items() if not g.isfinite().all()]
        for path, norm in zip(found[0], found[1][0], strict=False):
            expected = float(there[path].double().norm())
            assert math.isnan(norm) if math.isnan(expected) else norm == pytest.approx(expected)
    finally:
        session.close()
