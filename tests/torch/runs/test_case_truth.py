# SPDX-License-Identifier: Apache-2.0
"""The cases fail as their table says and their twins do not: by a plain dispatch mode, without nanhunt."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE / "cases")]

from expected import ALL, KNOWN, LOSS, OTHERS  # noqa: E402
from support import new_path  # noqa: E402

WRITES_INF_ON_PURPOSE = ("aten::masked_fill", "aten::masked_fill_", "aten::fill_", "aten::full")
RENAME_SEED = 5


def _trace(script: Path, arguments: list[str], out: Path) -> None:
    import first_bad

    os.environ["FIRST_BAD_OUT"] = str(out)
    sys.argv = ["first_bad.py", str(script), *arguments]
    with Path(f"{out}.txt").open("w", encoding="utf-8") as printed, contextlib.redirect_stdout(printed):
        first_bad.main()


def first_bad_ops(script: Path, arguments: list[str], tmp_path: Path) -> tuple[list[dict], str]:
    """Lines of the plain trace, and what the script printed. Forked, since importing torch is the slowest part."""
    import torch._dynamo  # noqa: F401 - optimizers import it at their first step

    out = tmp_path / "trace.jsonl"
    child = multiprocessing.get_context("fork").Process(target=_trace, args=(script, arguments, out))
    child.start()
    child.join()
    assert child.exitcode == 0, f"{script.name} {arguments} ended with {child.exitcode}"
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return lines, Path(f"{out}.txt").read_text(encoding="utf-8")


def births(lines: list[dict]) -> list[dict]:
    """Where badness began: not where an infinity was written on purpose, but where that became NaN."""
    return [
        line
        for line in lines
        if line["lifecycle"] in ("appear", "transform") and line["op"] not in WRITES_INF_ON_PURPOSE
    ]


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case.name)
def test_the_first_bad_number_of_a_known_case_is_born_where_the_table_says(case, tmp_path):
    script = HERE / "cases" / f"{case.name}.py"
    lines, _ = first_bad_ops(script, ["--rename-seed", str(RENAME_SEED), *case.options], tmp_path)
    born = births(lines)
    assert born, "nothing became bad"
    first = born[0]
    assert first["step"] == case.step
    if case.op is None:
        return
    assert first["op"] == case.op
    if case.phase == "optimizer":
        assert first["phase"] == "optimizer"
        return
    assert first["phase"] == case.phase
    assert first["module"] == (case.module if case.module == LOSS else new_path(RENAME_SEED, case.module))


@pytest.mark.parametrize(
    "case",
    [case for case in OTHERS if case.op and case.op.startswith("aten::") and case.cls != "update_loss"],
    ids=lambda case: case.name,
)
def test_the_first_bad_number_of_another_case_is_born_where_the_table_says(case, tmp_path):
    lines, _ = first_bad_ops(HERE / "cases" / f"{case.name}.py", list(case.options), tmp_path)
    first = births(lines)[0]
    found = (first["step"], first["op"], first["module"], first["phase"])
    assert found == (case.step, case.op, case.module, case.phase)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_a_repaired_twin_makes_no_bad_number(case, tmp_path):
    script = HERE / "cases" / f"{case.name}.py"
    lines, printed = first_bad_ops(script, ["--fixed", *case.options], tmp_path)
    assert births(lines) == []
    assert "weights finite: True" in printed
    assert "evaluation finite: False" not in printed


def test_the_plain_trace_tells_birth_from_transport(tmp_path):
    """The tracer itself on the smallest script: Inf begins at exp, NaN of it at sub, and relu makes nothing."""
    script = tmp_path / "small.py"
    script.write_text("import torch\nx = torch.full((3,), 100.0).exp()\ny = torch.relu(x - x)\n", encoding="utf-8")
    lines, _ = first_bad_ops(script, [], tmp_path)
    assert [(line["op"], line["lifecycle"]) for line in births(lines)] == [
        ("aten::exp", "appear"),
        ("aten::sub", "transform"),
    ]
