# SPDX-License-Identifier: Apache-2.0
"""A release, but for the index: from a clean clone to `pip install nanhunt` out of an index on loopback.

Compiling takes minutes, so the wheel is packed from the build that is tested, with the tap of this PyTorch alone.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
for needed in ("scikit_build_core", "twine"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: no release can be rehearsed", allow_module_level=True)


@pytest.fixture(scope="session")
def build() -> Path:
    folder = Path(os.environ.get("NANHUNT_BUILD_DIR", "/nonexistent"))
    if not (folder / "bin/nanhunt").exists() or not (folder / "lib/libnanhunt.so").exists():
        pytest.skip("NANHUNT_BUILD_DIR does not name a build with nanhunt and libnanhunt.so (tools/test sets it)")
    return folder


def test_a_clean_clone_becomes_a_release_that_pip_installs_from_an_index(build, tmp_path):
    if subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True).returncode != 0:
        pytest.skip("not a git checkout: there is nothing to clone")
    # Given the tap for this PyTorch,
    subprocess.run([sys.executable, ROOT / "tools" / "build_taps", tmp_path / "taps", "installed"], check=True,
                   capture_output=True, timeout=1800)  # fmt: skip
    # when a release is rehearsed,
    command = [ROOT / "tools" / "release_dry_run", "--python", sys.executable, "--", "--for-this-machine",
               "--build", build, "--taps", tmp_path / "taps"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    # then wheel and source package pass twine's checks, are taken by the index, and the wheel is installed from there.
    assert done.returncode == 0, done.stdout + done.stderr
    assert "this can be released" in done.stderr and ".tar.gz to http://127.0.0.1:" in done.stderr
    release = re.escape(str(torch.__version__).split("+")[0])
    assert re.search(rf"^commit \w+\+? · a tap for PyTorch {release}$", done.stdout, re.MULTILINE)
