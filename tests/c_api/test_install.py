# SPDX-License-Identifier: Apache-2.0
"""The installed library: found by find_package, used from C99 and C++20, and showing nothing but nanhunt_*."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command, **options) -> str:
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, timeout=1800, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def build() -> pathlib.Path:
    folder = os.environ.get("NANHUNT_BUILD_DIR")
    if folder is None or not list(pathlib.Path(folder).glob("lib/libnanhunt.so*")):
        pytest.skip("NANHUNT_BUILD_DIR does not name a build with libnanhunt.so (tools/test sets it)")
    if "NANHUNT_SANITIZE:STRING=\n" not in (pathlib.Path(folder) / "CMakeCache.txt").read_text():
        pytest.skip("a sanitizer's libraries cannot be linked by a consumer without it")
    return pathlib.Path(folder)


@pytest.fixture(scope="module")
def consumers(build, tmp_path_factory) -> tuple[pathlib.Path, pathlib.Path]:
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", build, "--prefix", prefix)
    out = tmp_path_factory.mktemp("consumer")
    run("cmake", "-S", ROOT / "tests/c_api/consumer", "-B", out, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", out)
    return prefix, out


@pytest.mark.parametrize("program", ["consumer_c", "consumer_cpp"])
def test_a_foreign_loop_records_and_gets_the_report(consumers, tmp_path, program):
    report = json.loads(run(consumers[1] / program, tmp_path / "run"))
    finding = report["findings"][0]
    assert report["verdict"]["status"] == "fault"
    assert (finding["class"], finding["op"], finding["module"], finding["phase"]) == (
        "divide_by_zero",
        "log",
        "<loss>",
        "loss",
    )


def test_the_installed_tool_reads_what_the_foreign_loop_recorded(consumers, tmp_path):
    prefix, out = consumers
    run(out / "consumer_c", tmp_path / "run")
    done = subprocess.run([prefix / "bin/nanhunt", "check", tmp_path / "run"], capture_output=True, timeout=1800)
    assert done.returncode == 1


def test_the_shared_library_shows_nothing_but_its_interface(build):
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    library = next(build.glob("lib/libnanhunt.so"))
    symbols = [line.split()[-2:] for line in run(nm, "-D", "--defined-only", library).splitlines()]
    names = [name.split("@")[0] for kind, name in symbols if kind != "A"]  # A: the version itself
    assert "nanhunt_record_op" in names
    assert [name for name in names if not name.startswith("nanhunt_")] == []
    headers = "".join((ROOT / "include/nanhunt" / name).read_text() for name in ("c_api.h", "c_adapter.h"))
    assert [name for name in names if f"{name}(" not in headers] == []


def test_the_shared_library_links_nothing_of_cuda(build):
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed")
    library = next(build.glob("lib/libnanhunt.so"))
    needed = [line for line in run(readelf, "-d", library).splitlines() if "NEEDED" in line]
    assert any("libc.so" in line for line in needed)
    assert [line for line in needed if "cupti" in line or "cuda" in line or "nvidia" in line] == []
