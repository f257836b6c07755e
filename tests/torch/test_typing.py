# SPDX-License-Identifier: Apache-2.0
"""The package's types hold: users of a typed package rely on them (py.typed)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")
pytest.importorskip("torch")
PACKAGE = Path(__file__).resolve().parents[2] / "hooks" / "torch"


def test_mypy_finds_nothing_wrong_in_the_package(tmp_path):
    done = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)], cwd=PACKAGE, text=True,
                          capture_output=True, timeout=900)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_users_get_types_from_the_package_and_mistakes_are_found(tmp_path):
    user = tmp_path / "user.py"
    user.write_text(
        "import nanhunt\n"
        "run = nanhunt.load('run')\n"
        "module: str | None = run.findings[0].module\n"
        "step: str = run.findings[0].step\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(user)],
        env={"MYPYPATH": str(PACKAGE)}, cwd=tmp_path, text=True, capture_output=True, timeout=900,
    )  # fmt: skip
    wrong = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(wrong) == 1 and "user.py:4" in wrong[0], done.stdout + done.stderr
