# SPDX-License-Identifier: Apache-2.0
"""What `pip install .` gives: one wheel for every Python 3 with package, library, command line tool and tap in it.

Compiling takes minutes, so the wheel is packed from the build that is tested (NANHUNT_PREBUILT); everything else is
what `pip install .` does.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed: no wheel can be built")
ROOT = Path(__file__).resolve().parents[3]
VERSION = re.search(r"project\(nanhunt VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def run(*command: object, **options) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NANHUNT", "PYTHONPATH"))}
    done = subprocess.run(
        [str(word) for word in command], env=kept, text=True, capture_output=True, timeout=1800, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def build() -> Path:
    folder = Path(os.environ.get("NANHUNT_BUILD_DIR", "/nonexistent"))
    if not (folder / "bin/nanhunt").exists() or not (folder / "lib/libnanhunt.so").exists():
        pytest.skip("NANHUNT_BUILD_DIR does not name a build with nanhunt and libnanhunt.so (tools/test sets it)")
    return folder


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> Path:
    """A copy as pip gets it: what git has, and nothing that was built."""
    copy = tmp_path_factory.mktemp("sources")
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True
    )
    if names.returncode != 0:
        pytest.skip("not a git checkout: what belongs to the project is not known")
    for name in filter(None, names.stdout.decode().split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/golden"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    return copy


@pytest.fixture(scope="session")
def wheel(build, sources, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    settings = f"--config-settings=cmake.define.NANHUNT_PREBUILT={build}"
    options = ["--no-build-isolation", "--no-deps", "--no-index", settings]
    run(sys.executable, "-m", "pip", "wheel", *options, "-w", out, sources)
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """An environment that has nanhunt and nothing else."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    run(sys.executable, "-m", "pip", f"--python={venv / 'bin/python'}", "install", "--no-index", "--no-deps", wheel)
    return venv


def test_one_wheel_serves_every_python_3_and_needs_nothing(wheel):
    assert re.fullmatch(rf"nanhunt-{re.escape(VERSION)}-py3-none-linux_\w+\.whl", wheel.name)  # tools/wheel: manylinux
    with zipfile.ZipFile(wheel) as packed:
        metadata = packed.read(f"nanhunt-{VERSION}.dist-info/METADATA").decode()
    assert "Requires-Python: >=3.9" in metadata and "License-Expression: Apache-2.0" in metadata
    assert all("extra ==" in line for line in metadata.splitlines() if line.startswith("Requires-Dist"))


@pytest.fixture(scope="session")
def tap_name(sources) -> str:
    """Of the tap for the PyTorch of this Python, which builds the wheel."""
    script = f"""
import sys
sys.path.insert(0, {str(sources / 'hooks' / 'torch')!r})
from nanhunt._tap import tap_build
print(tap_build.tap_name(tap_build.source_root()))
"""
    return run(sys.executable, "-c", script).strip()


def test_the_tap_for_the_pytorch_that_builds_the_wheel_is_in_it_and_used(installed, tap_name, tmp_path):
    # Given no compiler and no cache,
    script = "from nanhunt._tap.tap_library import load_tap; print(load_tap().path)"
    site = next(installed.glob("lib/python*/site-packages"))
    environment = {"PATH": str(tmp_path), "CXX": "", "NANHUNT_CACHE": str(tmp_path / "none"), "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True,
                          text=True, timeout=1800)
    assert (done.stdout, done.stderr) == (f"{site / 'nanhunt' / 'lib' / tap_name}\n", "")


def test_taps_of_the_pythons_that_are_named_are_built_and_one_without_pytorch_is_an_error(sources, tmp_path):
    program = sources / "tools" / "build_taps"
    empty = tmp_path / "empty"
    run(sys.executable, "-m", "venv", "--without-pip", empty)
    done = subprocess.run([empty / "bin" / "python", program, tmp_path / "taps", "installed"], capture_output=True,
                          text=True, timeout=1800, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 3 and "no tap is built for" in done.stderr and "torch" in done.stderr
    assert list((tmp_path / "taps").glob("*")) == []


def test_it_holds_the_package_the_library_the_program_and_the_licence_and_nothing_else(wheel, tap_name):
    with zipfile.ZipFile(wheel) as packed:
        modes = {info.filename: info.external_attr >> 16 for info in packed.infolist()}
    names = set(modes)
    package = ROOT / "hooks" / "torch" / "nanhunt"
    expected = {f"nanhunt/{path.relative_to(package)}" for path in package.rglob("*.py")}
    tap = ROOT / "hooks" / "torch" / "tap"
    expected |= {f"nanhunt/tap/hooks/torch/tap/{path.relative_to(tap)}" for path in tap.rglob("*.[hc]*")}
    expected |= {f"nanhunt/tap/include/nanhunt/{name}" for name in ("c_api.h", "c_adapter.h")}
    expected |= {f"nanhunt/lib/{tap_name}", "nanhunt/lib/taps.json"}
    expected |= {"nanhunt/py.typed", "nanhunt/SKILL.md", "nanhunt/bin/nanhunt", "nanhunt/lib/libnanhunt.so"}
    assert {name for name in names if not name.startswith(f"nanhunt-{VERSION}.dist-info/")} == expected
    assert any(name.endswith("/LICENSE") for name in names)
    assert any(name.endswith("/THIRD-PARTY.txt") for name in names)
    assert modes["nanhunt/bin/nanhunt"] & stat.S_IXUSR


def test_what_is_inside_is_listed(wheel, tap_name):
    import torch

    with zipfile.ZipFile(wheel) as packed:
        listed = json.loads(packed.read(f"nanhunt-{VERSION}.dist-info/sboms/nanhunt.cdx.json"))
        tap = packed.read(f"nanhunt/lib/{tap_name}")
        licences = packed.read(next(name for name in packed.namelist() if name.endswith("/THIRD-PARTY.txt"))).decode()
    assert (listed["bomFormat"], listed["metadata"]["component"]["version"]) == ("CycloneDX", VERSION)
    inside = {one["name"]: one for one in listed["components"]}
    assert {"CLI11", "digits", "nlohmann_json", "torch"} <= set(inside)
    assert inside["torch"]["version"] == str(torch.__version__).split("+")[0]
    assert inside["torch"]["properties"] == [{"name": tap_name, "value": hashlib.sha256(tap).hexdigest()}]
    for one in listed["components"]:
        assert re.fullmatch(r"\d[\w.]*", one["version"]) and one["licenses"] and one["purl"].startswith("pkg:")
        assert {"nlohmann_json": "nlohmann/json", "torch": "PyTorch", "uplot": "uPlot"}.get(
            one["name"], one["name"] if one["name"] != "zstd" else "Zstandard") in licences


def test_program_and_module_answer_and_know_version_commit_and_tap(installed):
    import torch

    python = installed / "bin" / "python"
    told = run(installed / "bin" / "nanhunt", "--version")
    release = re.escape(str(torch.__version__).split("+")[0])
    assert re.fullmatch(rf"nanhunt {re.escape(VERSION)}\ncommit \w+\+? · a tap for PyTorch {release}\n", told)
    assert run(python, "-m", "nanhunt", "--version") == told
    wrong = subprocess.run([python, "-m", "nanhunt", "check"], capture_output=True, text=True, timeout=1800)
    assert wrong.returncode == 2 and "RUN" in wrong.stderr
    assert run(python, "-c", "import importlib.metadata as m; print(m.version('nanhunt'))").strip() == VERSION


def test_a_damaged_list_of_taps_is_as_none_for_the_version_too(installed, tmp_path):
    site = next(installed.glob("lib/python*/site-packages"))
    copy = tmp_path / "nanhunt"
    shutil.copytree(site / "nanhunt", copy)
    for damage in ("{", "[]", '{"tap-x.so": {"releases": ["2.9.1 abi 1"]}}', '{"tap-x.so": 3}'):
        (copy / "lib" / "taps.json").write_text(damage)
        assert run(copy / "bin" / "nanhunt", "--version").endswith(" · no taps: compiled at first use\n")
    for name in ("tap-x.so", "tap-y.so"):
        (copy / "lib" / name).write_bytes(b"")
    (copy / "lib" / "taps.json").write_text(
        '{"tap-x.so": {"releases": ["2.10.0 abi 1", "2.9.1 abi 1"]}, "tap-y.so": {"releases": ["2.9.1 abi 0"]}}')
    told = run(copy / "bin" / "nanhunt", "--version")
    assert told.endswith(" · taps for PyTorch 2.9.1 to 2.10.0 (2 releases)\n")


def test_pip_refuses_it_where_the_c_library_is_musl(wheel, tmp_path):
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--only-binary", ":all:",
                           "--platform", "musllinux_1_2_x86_64", "--target", tmp_path / "to", wheel],
                          capture_output=True, text=True, timeout=1800)  # fmt: skip
    assert done.returncode == 1 and "is not a supported wheel on this platform" in done.stderr


def test_a_program_whose_loader_is_not_there_is_named_with_the_reason(installed, tmp_path):
    # Given a package that was put by force where programs have another loader,
    copy = tmp_path / "nanhunt"
    shutil.copytree(next(installed.glob("lib/python*/site-packages")) / "nanhunt", copy)
    (copy / "bin" / "nanhunt").write_text(f"#!{tmp_path / 'no-loader'}\n")
    done = subprocess.run([sys.executable, "-m", "nanhunt", "--version"], capture_output=True, text=True, timeout=1800,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})  # fmt: skip
    # when it is started, then it says what it needs.
    assert done.returncode == 3
    assert "this system has no loader for it" in done.stderr and "glibc" in done.stderr


def test_the_package_imports_and_finds_its_library_without_torch(installed):
    script = """
import ctypes, sys, nanhunt
from nanhunt._library import library_path
path = library_path()
version = ctypes.CDLL(str(path)).nanhunt_version
version.restype = ctypes.c_char_p
assert version().decode() == sys.argv[1]
assert "torch" not in sys.modules
print(path)
"""
    path = run(installed / "bin" / "python", "-c", script, VERSION).strip()
    assert path.endswith("site-packages/nanhunt/lib/libnanhunt.so") and path.startswith(str(installed))


def test_nanhunt_run_finds_the_start_up_file_of_the_wheel(installed, tmp_path):
    # given a Python of another environment
    script = "import os; print(os.environ['PYTHONPATH'])"
    out = run(installed / "bin" / "python", "-m", "nanhunt", "run", "--", sys.executable, "-c", script, cwd=tmp_path)
    assert out.strip().endswith("site-packages/nanhunt/boot") and out.startswith(str(installed))


def test_the_source_package_holds_what_a_build_needs(sources, tmp_path):
    script = "import sys, scikit_build_core.build as b; print(b.build_sdist(sys.argv[1]))"
    name = run(sys.executable, "-c", script, tmp_path, cwd=sources).split()[-1]
    with tarfile.open(tmp_path / name) as packed:
        names = {"/".join(member.split("/")[1:]) for member in packed.getnames()}
    needed = {path.relative_to(sources).as_posix() for path in sources.rglob("*") if path.is_file()}
    needed = {path for path in needed if not path.startswith(("tests/", ".")) and "/node_modules/" not in path}
    assert needed - names == set()
    assert not any(member.startswith(("build/", "tests/")) for member in names)
