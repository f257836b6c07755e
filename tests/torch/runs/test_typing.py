# SPDX-License-Identifier: Apache-2.0
"""The package's types hold: users of a typed package rely on them (py.typed)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")
pytest.importorskip("torch")
PACKAGE = Path(__file__).resolve().parents[3] / "hooks" / "torch"


@pytest.fixture(scope="module")
def learnt(tmp_path_factory) -> str:
    """What mypy learnt of PyTorch's own types, which takes it the longest."""
    return str(tmp_path_factory.mktemp("mypy"))


def test_mypy_finds_nothing_wrong_in_the_package(learnt):
    done = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", learnt], cwd=PACKAGE, text=True,
                          capture_output=True, timeout=1800)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_users_get_types_from_the_package_and_mistakes_are_found(tmp_path, learnt):
    user = tmp_path / "user.py"
    user.write_text(
        "import nanhunt\n"
        "run = nanhunt.load('run')\n"
        "module: str | None = run.findings[0].module\n"
        "step: str = run.findings[0].step\n"
    )
    done = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", learnt, str(user)], cwd=PACKAGE, text=True,
                          capture_output=True, timeout=1800)  # fmt: skip
    wrong = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(wrong) == 1 and "user.py:4" in wrong[0], done.stdout + done.stderr
