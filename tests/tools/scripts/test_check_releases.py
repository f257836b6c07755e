# SPDX-License-Identifier: Apache-2.0
"""tools/check_releases says what it knows, what it found and what it did not do; stand-ins stand in. No network."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tools" / "check_releases"
sys.path[:0] = [str(ROOT / "tools" / "torch_releases"), str(ROOT / "tests" / "torch")]
from elf import read_library  # noqa: E402
from environments import Clock, NotToBeHad, TimeIsUp, read_releases, run  # noqa: E402
from release_table import Cell, Result, markdown, read_junit, read_result, write_result  # noqa: E402
from releases import column_of, columns, read_choices  # noqa: E402
from stand_ins import MARK, NO_DEVICE, CannotMake, make_stand_ins  # noqa: E402

compiler = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(compiler is None, reason="there is no C compiler")
JUNIT = """<testsuites><testsuite>
<testcase classname="tests.torch.tap.test_tap" name="test_a"><properties><property name="column" value="tap"/></properties></testcase>
<testcase classname="tests.torch.tap.test_tap" name="test_b"><properties><property name="column" value="tap"/></properties>
  <failure message="assert 1 == 2&#10;more">text</failure></testcase>
<testcase classname="tests.torch.runs.test_ranks" name="test_c"><properties><property name="column" value="DDP"/></properties>
  <skipped message="this PyTorch has no gloo"/></testcase>
{more}</testsuite></testsuites>"""  # noqa: E501


def called(*arguments: str, **more: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", **more}
    return subprocess.run(
        [str(SCRIPT), *arguments], capture_output=True, text=True, timeout=1800, env=environment, check=False
    )


@pytest.fixture
def built(tmp_path) -> Path:
    """A folder that looks like a build."""
    for name in ("lib/libnanhunt.so", "bin/nanhunt"):
        path = tmp_path / "build" / name
        path.parent.mkdir(parents=True)
        path.touch()
    return tmp_path / "build"


def test_it_lists_the_releases_that_it_knows_and_refuses_others():
    listed = called("--list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [release.version for release in read_releases()]
    assert "--within" in called("--help").stdout
    refused = called("1.13.0")
    assert refused.returncode == 2 and "no release 1.13.0" in refused.stderr and "2.13.0" in refused.stderr
    assert called("--jobs", "0").returncode == called("--wheels", "/nowhere").returncode == 2


def test_releases_are_listed_once_and_oldest_first():
    versions = [tuple(map(int, release.version.split("."))) for release in read_releases()]
    assert versions == sorted(set(versions)) and (2, 13, 0) in versions


def test_every_line_of_the_list_of_tests_names_a_file_and_a_test_in_it():
    choices = read_choices()
    for choice in choices:
        text = (ROOT / "tests" / "torch" / choice.file).read_text(encoding="utf-8")
        names = [line[4:].partition("(")[0] for line in text.splitlines() if line.startswith("def test_")]
        for words in choice.names:  # the first word is one of the name itself, the others may be of its parameters
            assert any(words[0] in name for name in names), (choice.file, words)
    assert {choice.column for choice in choices if choice.quick} == {choice.column for choice in choices}
    wanted = ["tap", "programs, default", "programs, ops", "endings", "neutral", "threads", "DDP", "compile"]
    assert columns(choices) == wanted


def test_a_test_counts_to_the_column_of_the_first_line_that_names_it(tmp_path):
    listed = tmp_path / "list.txt"
    listed.write_text("# a list\n[tap]\na.py\n[programs]\n+ a.py: two words | other\n[threads]\na.py: two words\n")
    choices = read_choices(listed)
    assert [choice.quick for choice in choices] == [False, True, False]
    assert column_of(choices, "a.py", "test_two_of_the_words[ops]", "ops") == "programs, ops"
    assert column_of(choices, "a.py", "test_an_other", "live") == "programs, default"
    assert column_of(choices, "a.py", "test_two", None) == "tap"
    assert column_of(choices, "b.py", "test_two", None) is None


def test_with_no_time_it_says_what_it_did_not_do(built, tmp_path):
    outcomes, table = tmp_path / "outcomes", tmp_path / "table.md"
    done = called("--quick", "--within", "0", "--into", str(tmp_path / "releases"), "--build", str(built),
                  "--outcomes", str(outcomes), "--markdown", str(table))  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in outcomes.read_text().splitlines()]
    first, last = read_releases()[0].version, read_releases()[-1].version
    assert [row[:2] for row in rows] == [[f"PyTorch {first}", "skipped"], [f"PyTorch {last}", "skipped"]]
    assert all("no time left of 0 s" in row[2] for row in rows)
    assert table.read_text() in done.stdout and f"| {first} | – | – no time left of 0 s |" in done.stdout


def test_without_a_build_it_says_how_to_make_one(tmp_path):
    done = called("--build", str(tmp_path))
    assert done.returncode == 1 and "tools/test makes" in done.stderr


def test_a_release_that_is_not_to_be_had_is_a_failure_but_not_within_a_time(built, tmp_path):
    pytest.importorskip("ensurepip", reason="python3-venv is not installed: no environment can be made")
    # Given PyTorch's wheel and nothing that it needs, and a pip that is told to hold PyTorch down,
    version, wheels = read_releases()[0].version, tmp_path / "wheels"
    wheels.mkdir()
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(wheels / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")
    (tmp_path / "held").write_text("torch<1\n")
    options = ("--into", str(tmp_path / "releases"), "--build", str(built), "--wheels", str(wheels), version)
    # when it is asked for, then the constraint is left out and told, and the packages are what lacks.
    done = called(*options, PIP_CONSTRAINT=str(tmp_path / "held"))
    assert done.returncode == 1 and "without its constraints" in done.stderr
    assert f"packages of PyTorch {version}: fetching numpy" in done.stderr and "pip did not find" in done.stdout
    assert not (tmp_path / "releases" / version).exists()
    assert called(*options, "--within", "1800").returncode == 0


def test_a_program_that_takes_too_long_is_ended_with_what_it_started(tmp_path):
    with pytest.raises(TimeIsUp, match="not done within 1 s"):
        run(["sh", "-c", "sleep 1000 & wait"], Clock(1.0), "it")
    assert issubclass(TimeIsUp, NotToBeHad)
    assert run(["sh", "-c", "echo said; exit 3"], Clock(), "it") == (3, "said\n")


def test_the_table_has_what_passed_what_was_skipped_and_what_failed(tmp_path):
    # Given results of one release, and another that was not to be had,
    junit = tmp_path / "results.xml"
    junit.write_text(JUNIT.format(more=""))
    result = Result("2.4.1", torch="2.4.1+cpu", python="3.11.2", date="2026-01-02", status=1)
    read_junit(junit, result)
    write_result(result, tmp_path / "2.4.1.json")
    assert read_result(tmp_path / "2.4.1.json") == result
    assert result.outcome == "failed" and result.told == "test_tap::test_b: assert 1 == 2"
    lacking = Result("2.5.1", why="pip did not find it")
    assert (lacking.outcome, lacking.told) == ("skipped", "pip did not find it")
    # then the table says all of it.
    text = markdown([result, lacking], ["tap", "DDP", "compile"], "tools/check_releases")
    assert text.splitlines()[:4] == [
        "| PyTorch | Python | tap | DDP | compile |",
        "| --- | --- | --- | --- | --- |",
        "| 2.4.1+cpu | 3.11.2 | 1/2 | – 1 skipped | – |",
        "| 2.5.1 | – | – pip did not find it | – | – |",
    ]
    for said in ("`tools/check_releases`, 2026-01-02.", "- this PyTorch has no gloo (1)", "`test_tap::test_b: assert"):
        assert said in text


def test_a_file_that_cannot_be_collected_is_a_failure(tmp_path):
    junit = tmp_path / "results.xml"
    more = '<testcase classname="" name="tests.torch.tap.test_x"><error message="collection failure"/></testcase>'
    junit.write_text(JUNIT.format(more=more))
    result = Result("2.4.1", cells={"tap": Cell()})
    read_junit(junit, result)
    assert any("test_x: collection failure" in failure for failure in result.failures)


def test_earlier_results_are_shown_without_running(tmp_path):
    (tmp_path / "results").mkdir()
    result = Result("2.13.0", torch="2.13.0+cpu", python="3.11.2", date="2026-01-02", cells={"tap": Cell(3, 0, 0)})
    write_result(result, tmp_path / "results" / "2.13.0.json")
    assert json.loads((tmp_path / "results" / "2.13.0.json").read_text())["cells"]["tap"]["passed"] == 3
    done = called("--table", "--into", str(tmp_path), "2.13.0", "2.4.1")
    assert done.returncode == 0
    assert "| 2.13.0+cpu | 3.11.2 | 3/3 | –" in done.stdout and "| 2.4.1 | – | – not run yet |" in done.stdout


@pytest.fixture
def lonely(tmp_path) -> Path:
    """A folder with a library that needs symbols, with versions and without, of a library of CUDA's that is gone."""
    there, alone = tmp_path / "there", tmp_path / "torch" / "lib"
    there.mkdir()
    alone.mkdir(parents=True)

    def make(source: str, *options: str) -> None:
        (tmp_path / "made.c").write_text(source)
        subprocess.run([compiler, "-shared", "-fPIC", str(tmp_path / "made.c"), *options], check=True, timeout=1800)

    (tmp_path / "map").write_text("CU_MADE_UP_1 { global: cuMadeUp; };\n")
    make("int cuMadeUp(void) { return 1; }\nconst char* cuMadeUpString(void) { return 0; }", "-o",
         str(there / "libcumadeup.so.7"), "-Wl,-soname,libcumadeup.so.7", f"-Wl,--version-script={tmp_path / 'map'}")
    make("int cuMadeUp(void); const char* cuMadeUpString(void);\n"
         "int called(void) { return cuMadeUp(); }\nconst char* text(void) { return cuMadeUpString(); }",
         "-o", str(alone / "libtiny.so"), str(there / "libcumadeup.so.7"), f"-Wl,-rpath,{alone}")  # fmt: skip
    (alone / "notes.so.txt").write_text("no library")
    return alone


@needs_compiler
def test_a_library_that_needs_a_missing_library_of_cuda_loads_with_a_stand_in(lonely):
    # Given a library that cannot be loaded,
    tiny = read_library(lonely / "libtiny.so")
    assert "libcumadeup.so.7" in tiny.needed and ("cuMadeUp", "libcumadeup.so.7", "CU_MADE_UP_1") in tiny.undefined
    with pytest.raises(OSError, match="libcumadeup"):
        ctypes.CDLL(str(lonely / "libtiny.so"))
    # when stand-ins were made, then it loads, and there is no device.
    assert make_stand_ins(lonely) == ["libcumadeup.so.7"]
    made = read_library(lonely / "libcumadeup.so.7")
    assert {"cuMadeUp", "cuMadeUpString", MARK} <= made.defined
    loaded = ctypes.CDLL(str(lonely / "libtiny.so"))
    loaded.text.restype = ctypes.c_char_p
    assert (loaded.called(), loaded.text()) == (NO_DEVICE, b"stand-in")
    # And there is nothing else in the folder, and nothing to do a second time.
    assert sorted(path.name for path in lonely.iterdir()) == ["libcumadeup.so.7", "libtiny.so", "notes.so.txt"]
    assert make_stand_ins(lonely) == []


def test_a_folder_without_libraries_is_refused(tmp_path):
    with pytest.raises(CannotMake, match="no shared library"):
        make_stand_ins(tmp_path)
    (tmp_path / "empty.so").touch()
    (tmp_path / "text.so").write_text("no library" * 20)
    assert read_library(tmp_path / "empty.so") is None and read_library(tmp_path / "text.so") is None
