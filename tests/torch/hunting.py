# SPDX-License-Identifier: Apache-2.0
"""Runs scripts under `nanhunt run` as a user would, and reads the report."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ready_python

CASES = Path(__file__).resolve().parent / "cases"
TIMEOUT = 1800.0  # it ends what hangs, however slow the machine


@dataclass(frozen=True)
class Hunt:
    status: int
    printed: str
    errors: str
    report: dict[str, Any]

    @property
    def verdict(self) -> str:
        return self.report["verdict"]["status"]

    @property
    def headline(self) -> dict[str, Any]:
        findings = {finding["id"]: finding for finding in self.report["findings"]}
        origin = self.report["verdict"]["origin"]
        return findings[origin] if origin is not None else self.report["findings"][0]

    def findings(self, *severities: str) -> list[dict[str, Any]]:
        return [finding for finding in self.report["findings"] if finding["severity"] in severities]

    def told(self) -> str:
        """What a failed assertion should show."""
        keys = ("class", "severity", "step", "phase", "op", "module")
        findings = [{key: finding[key] for key in keys} for finding in self.report["findings"][:8]]
        parts = [self.verdict, *map(str, findings), str(self.report["coverage"]["unwatched"]), self.errors[-2000:]]
        return "\n".join(parts)


_CLI = Path(os.environ.get("NANHUNT_BIN_DIR", "/nonexistent"), "nanhunt")
_NO_CLI = "nanhunt is not built: NANHUNT_BIN_DIR names no folder with it"
needs_cli = pytest.mark.skipif(not _CLI.is_file(), reason=_NO_CLI)


def cli() -> str:
    """The command line tool; skips where it is not built."""
    if not _CLI.is_file():
        pytest.skip(_NO_CLI)
    return str(_CLI)


def with_package() -> dict[str, str]:
    """The environment in which `nanhunt run` attaches the package of the source tree."""
    return {**os.environ, "NANHUNT_BOOT_DIR": str(Path(__file__).resolve().parents[2] / "hooks/torch/nanhunt/boot")}


@functools.cache
def alone(text: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The script of a program, and how it ends where nobody watches it: it is run once, however many levels ask."""
    folder = tempfile.TemporaryDirectory(prefix="alone")
    atexit.register(folder.cleanup)
    script = Path(folder.name) / "train.py"
    script.write_text(text)
    return script, subprocess.run([*ready_python.command(), script], capture_output=True, text=True, timeout=TIMEOUT,
                                  env=with_package(), check=False)  # fmt: skip


def hunt(out: Path, level: str, script: Path, *arguments: str, options: tuple[str, ...] = (),
         python: list[str] | None = None) -> Hunt:  # fmt: skip
    """Runs the script in a process of its own. The report is what `run` left beside the trace."""
    command = [cli(), "run", "--level", level, "--out", str(out), *options, "--"]
    command += [*(python or ready_python.command()), str(script), *arguments]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, cwd=out.parent, check=False
    )
    path = out / "report.json"
    assert path.is_file(), f"no report from {command}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
    return Hunt(done.returncode, done.stdout, done.stderr, json.loads(path.read_text(encoding="utf-8")))


class Ahead:
    """Runs what will be asked for before it is asked for, as many at a time as there are processors."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
        self._runs: dict[Any, Future[Hunt]] = {}

    def start(self, key: Any, out: Path, level: str, script: Path, *arguments: str, **how: Any) -> None:
        if key not in self._runs:
            self._runs[key] = self._pool.submit(hunt, out, level, script, *arguments, **how)

    def result(self, key: Any) -> Hunt:
        return self._runs[key].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
