# SPDX-License-Identifier: Apache-2.0
"""What parts of gpu_check share: rows, programs that may fail in any way, and a clock.

A part must not die of what it checks: whatever a program does comes back as a `Done`. Python 3.8 is enough.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from processes import ended

if TYPE_CHECKING:
    from collections.abc import Callable

BIN = Path(os.environ.get("GPU_CHECK_BIN", "bin"))
ROOT = BIN.parent
ROWS = os.environ.get("GPU_CHECK_ROWS", "/dev/stdout")
DEVICE = os.environ.get("GPU_CHECK_DEVICE", "cuda")  # tests of the parts themselves say cpu
# By its number: `train --device cuda` takes the CPU where there is no GPU, and would pass.
TRAINED_ON = "cuda:0" if DEVICE == "cuda" else DEVICE
UNUSABLE = 5
COMPARED = ("class", "op", "module", "phase", "step")  # of a verdict's finding, between devices
NOT_BEGUN = "was not begun: the part's time is over"
ENDS = time.monotonic() + float(os.environ.get("GPU_CHECK_SECONDS", "440"))


def left() -> float:
    """Seconds until the part should be done."""
    return max(0.0, ENDS - time.monotonic())


class Rows:
    """Written at once, so that a part that dies leaves what it had found."""

    failed = False

    def write(self, check: str, status: str, detail: str, **numbers: float) -> None:
        if status == "failed" and NOT_BEGUN in detail:  # nothing is known of it
            status = "skipped"
        self.failed = self.failed or status == "failed"
        row = {"check": check, "status": status, "detail": " ".join(detail.split())[:600], **numbers}
        with Path(ROWS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def check(self, check: str, passed: bool, detail: str) -> bool:
        self.write(check, "passed" if passed else "failed", detail)
        return passed

    def skip(self, check: str, why: str) -> None:
        self.write(check, "skipped", why)

    def fail(self, check: str, why: str) -> None:
        self.write(check, "failed", why)

    def measure(self, check: str, ratio: float, detail: str, at_most: float | None = None) -> None:
        if at_most is None:
            self.write(check, "measured", detail, ratio=ratio)
        else:
            self.write(check, "passed" if ratio <= at_most else "failed", detail, ratio=ratio, at_most=at_most)


@dataclass
class Done:
    status: int | None  # None: it was ended, or never began
    out: str
    err: str
    why: str  # in words, where it did not end by itself with a status of its own

    def told(self) -> str:
        """The end of what it said, for a row; empty where it said nothing and ended well."""
        said = " ".join(filter(None, [self.why, *(self.err.strip() or self.out.strip()).splitlines()[-3:]]))
        return said or (ended(self.status) if self.status else "")


def run(command: list[str | Path], seconds: float, env: dict[str, str] | None = None, cwd: Path | None = None) -> Done:
    words = [str(word) for word in command]
    seconds = min(seconds, left())
    if seconds <= 0:
        return Done(None, "", "", NOT_BEGUN)
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=cwd,
            start_new_session=True)  # fmt: skip
    except OSError as error:
        return Done(None, "", "", f"{words[0]} could not be started: {error.strerror or error}")
    try:
        out, err = process.communicate(timeout=seconds)
        why = "" if process.returncode >= 0 else ended(process.returncode)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        why, status = f"did not end within {seconds:.0f} s", None
    return Done(status, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), why)


def parsed(text: str) -> dict | list | None:
    try:
        return json.loads(text)
    except ValueError:
        return None


def nanhunt(*words: str | Path, seconds: float = 120) -> Done:
    return run([BIN / "nanhunt", *words], seconds)


def scenarios(rows: Rows) -> list[str]:
    """Their names; none, and a row that says why, where the command line does not list them."""
    listed = nanhunt("train", "--list", "--json")
    found = parsed(listed.out)
    if isinstance(found, list) and found:
        return [scenario["name"] for scenario in found]
    rows.fail("scenarios", f"their list could not be had: {listed.told()}")
    return []


def side_by_side(work: Callable[[str], None], names: list[str]) -> None:
    """Several at a time where there are cores for it: a scenario keeps neither a core nor a device busy for long."""
    with ThreadPoolExecutor(max_workers=max(1, min(4, (os.cpu_count() or 1) // 4))) as pool:
        for _ in pool.map(work, names):
            pass


def headline(reported: Done) -> dict | None:
    """What `nanhunt report --json` blames, for comparison; None where it gave no verdict."""
    report = parsed(reported.out)
    verdict = report.get("verdict") if isinstance(report, dict) else None
    if not isinstance(verdict, dict):
        return None
    first = next((found for found in report.get("findings") or [] if found.get("id") == verdict.get("origin")), {})
    return {"status": verdict.get("status"), **{key: first.get(key) for key in COMPARED}}


def prove_neutral(rows: Rows, check: str, scenario: str, *more: str) -> None:
    """`nanhunt train SCENARIO --prove-neutral`: losses, parameters, buffers and state bit for bit, as a row."""
    done = nanhunt("train", scenario, "--prove-neutral", *more, "--device", TRAINED_ON, "--json")
    proof = parsed(done.out)
    if done.why or done.status not in (0, 1) or not isinstance(proof, dict):
        rows.fail(check, done.told())
        return
    levels = proof.get("levels") or []

    def way(level: dict) -> str:
        return " ".join(str(level[key]) for key in ("level", "way") if level.get(key))

    changed = [
        f"{way(level)} ({level.get('first_difference') or 'losses'})"
        for level in levels
        if level.get("differing_bytes") != 0 or level.get("first_differing_step") is not None
    ]
    told = f"{proof.get('steps')} steps, {proof.get('bytes')} bytes at {', '.join(map(way, levels))}"
    rows.check(check, done.status == 0 and bool(levels) and not changed,
               f"other bits at {', '.join(changed)}; {told}" if changed else told)  # fmt: skip


def why_no_cupti() -> str:
    """Why there is no CUPTI on this machine; empty where there is one, whether it will do or not."""
    facts = parsed(nanhunt("doctor", "--env", "--json").out)
    cupti = facts.get("cupti") if isinstance(facts, dict) else None
    if not isinstance(cupti, dict) or cupti.get("path"):
        return ""
    return str(cupti.get("why_not") or "it was not found")


def main(name: str, work: Callable[[Rows], None]) -> None:
    """Runs a part: what it does not expect becomes a row as well."""
    rows = Rows()
    try:
        work(rows)
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        rows.fail(name, "the part itself failed: " + traceback.format_exc().strip().splitlines()[-1])
    sys.exit(1 if rows.failed else 0)
