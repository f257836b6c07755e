# SPDX-License-Identifier: Apache-2.0
"""tools/fetch_torch takes the CPU build and no other, once, says so when there is none, and what else is missing."""

import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("ensurepip", reason="python3-venv is not installed: no environment can be made")

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tools" / "fetch_torch"
LINES = (ROOT / "tests" / "torch" / "requirements.txt").read_text().splitlines()
REQUIREMENTS = dict(line.split("==") for line in LINES if not line.startswith("#"))
VERSION = REQUIREMENTS["torch"].removesuffix("+cpu")


def make_wheel(folder: Path, version: str, name: str = "torch") -> None:
    """A wheel that holds nothing but its name."""
    file = name.replace("-", "_")
    info = f"{file}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{file}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
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
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)

    run.wheels = wheels
    return run


def test_a_build_for_other_devices_is_not_taken_the_cpu_build_is_and_so_is_what_there_is_of_the_rest(fetch):
    # given a plain build, which is a large one on most platforms
    make_wheel(fetch.wheels, VERSION)
    # then
    refused = fetch()
    assert refused.returncode == 1
    assert "no CPU build" in refused.stderr and "skipped" in refused.stderr
    assert fetch("--check").returncode == 1
    # and given the CPU build beside it, and some of the rest
    make_wheel(fetch.wheels, f"{VERSION}+cpu")
    for name in REQUIREMENTS.keys() - {"transformers"}:
        make_wheel(fetch.wheels, REQUIREMENTS[name], name)
    partly = fetch()
    lacking = f"transformers=={REQUIREMENTS['transformers']}"
    assert partly.returncode == 0
    assert "not to be had" in partly.stderr and partly.stderr.rstrip().endswith(f": {lacking}")
    checked = fetch("--check")
    assert checked.returncode == 0 and lacking in checked.stderr
    # and given everything
    make_wheel(fetch.wheels, REQUIREMENTS["transformers"], "transformers")
    assert fetch().returncode == 0
    # then nothing is fetched again
    for again in (fetch("--check"), fetch()):
        assert (again.returncode, again.stderr) == (0, "")


def test_every_requirement_is_an_exact_version_and_names_no_place():
    assert all(re.fullmatch(r"[a-z][a-z0-9-]*==[0-9.]+(\+cpu)?", line) for line in LINES if not line.startswith("#"))
    assert VERSION and "://" not in "".join(LINES)


def test_wrong_usage_is_told(fetch):
    for arguments in (["--no-such-option"], ["--into"]):
        run = subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, timeout=1800)
        assert run.returncode == 2
        assert "Usage" in run.stderr
