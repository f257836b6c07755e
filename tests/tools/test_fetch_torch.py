# SPDX-License-Identifier: Apache-2.0
"""tools/fetch_torch takes the CPU build and no other, once, and says so when there is none."""

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("ensurepip", reason="python3-venv is not installed: no environment can be made")

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "fetch_torch"
VERSION = "2.13.0"


def make_wheel(folder: Path, version: str) -> None:
    """A wheel that is called torch and holds nothing."""
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def fetch(tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()

    def run(*arguments: str) -> subprocess.CompletedProcess:
        # pip sees the folder of wheels and nothing else
        environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
        command = [str(SCRIPT), "--into", str(tmp_path / "venv"), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)

    run.wheels = wheels
    return run


def test_a_build_for_other_devices_is_not_taken_and_the_cpu_build_is(fetch):
    # given a plain build, which is a large one on most platforms
    make_wheel(fetch.wheels, VERSION)
    # then
    refused = fetch()
    assert refused.returncode == 1
    assert "no CPU build" in refused.stderr and "skipped" in refused.stderr
    assert fetch("--check").returncode == 1
    # and given the CPU build beside it
    make_wheel(fetch.wheels, f"{VERSION}+cpu")
    assert fetch().returncode == 0
    assert fetch("--check").returncode == 0
    # and it is not fetched a second time
    again = fetch()
    assert (again.returncode, again.stderr) == (0, "")


def test_wrong_usage_is_told(fetch):
    for arguments in (["--no-such-option"], ["--into"]):
        run = subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60)
        assert run.returncode == 2
        assert "Usage" in run.stderr
