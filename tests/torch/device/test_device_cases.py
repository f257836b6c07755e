# SPDX-License-Identifier: Apache-2.0
"""The planted faults and their twins, trained on a device whose memory the host cannot read: as on the CPU."""
from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path

import nanhunt
import pytest
from on_device import on_device

HERE = Path(__file__).resolve().parents[1]
CASES = HERE / "cases"
sys.path.insert(0, str(CASES))

from expected import ALL  # noqa: E402

SLOW = ("t5_feed_forward", "scaler_calibration")  # once
NOT_THERE = {"no_valid_label": "the device has no kernel for GRU", "changed_outside": "NumPy writes host memory only"}
THERE = ", there"
AT_OPS = ("masked_softmax", "sqrt_backward", "adam_eps", "bad_batch", "swallowed_inf", "lost_updates",
          "clip_before_unscale", "poisoned_statistics")


def report_of(name, options, level, out):
    """The script as `nanhunt run` would run it, in this process. "live, there": tensors are read where they are."""
    if level.endswith(THERE):
        from read_there import read_there

        with read_there():
            found = report_of(name, options, level.removesuffix(THERE), out)
        assert "copied to the host" not in str(found[0]["coverage"])
        return found
    from saved import report_of as read_report

    watch = nanhunt.watch(out=out, level=level, quiet=True)
    before, sys.argv = sys.argv, [name, "--device", "walled", *options]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(str(CASES / f"{name}.py"), run_name="__main__")
    finally:
        sys.argv = before
        watch.close()
    assert not [note for note in watch.notes if note.startswith("errors inside")], watch.notes
    report = read_report(out)
    assert [rank["device"] for rank in report["run"]["ranks"]] == ["walled"]
    assert not [note for note in watch.notes if "threads" in note or note.startswith("walled")], watch.notes
    return report, printed.getvalue()


def pairs():
    for case in ALL:
        for level in ("live", "live, there", "ops", "ops, there"):
            if case.name in NOT_THERE or level.startswith("ops") and case.name not in AT_OPS:
                continue
            yield pytest.param(case.name, level, id=f"{case.name}-{level}")


@pytest.mark.parametrize(("name", "level"), [p for p in pairs() if p.values[1].startswith("ops") or
                                             next(c for c in ALL if c.name == p.values[0]).level == "live"])
@on_device
def test_the_fault_is_named_as_on_the_cpu(name, level, tmp_path, library):
    case = next(case for case in ALL if case.name == name)
    report, _ = report_of(name, case.options, level, tmp_path / "run")
    origin = report["verdict"]["origin"]
    found = next((f for f in report["findings"] if f["id"] == origin), report["findings"][0])
    assert report["verdict"]["status"] == case.status, report["verdict"]
    assert found["class"] in case.classes, found
    assert (found["severity"], found["step"]) == (case.severity, case.step), found
    if case.op is not None:  # what loops over parameters on the CPU is one op for all of them here
        assert found["op"].replace("_foreach_", "") == case.op, found
    if case.phase is not None:
        assert found["phase"] == case.phase, found
    if case.module is not None:
        assert found["module"] in ((case.module,) if isinstance(case.module, str) else case.module), found


@pytest.mark.parametrize(("name", "level"), [pytest.param(*p.values, id=p.id) for p in pairs()
                                             if p.values[0] not in SLOW])
@on_device
def test_the_repaired_twin_is_silent_as_on_the_cpu(name, level, tmp_path, library):
    report, printed = report_of(name, ["--fixed"], level, tmp_path / "run")
    assert "weights finite: True" in printed
    assert report["verdict"]["status"] in ("clean", "calibrating"), report["verdict"]
    assert [f for f in report["findings"] if f["severity"] in ("warning", "fault")] == []
