# SPDX-License-Identifier: Apache-2.0
"""tools/summarize_tests.py counts right, and cannot be made to say that all is well when it is not."""

import pytest
import summarize_tests

CTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="(empty)" tests="6" failures="1">
  <testcase name="core/A.passes" time="0.5" status="run"><system-out>fine</system-out></testcase>
  <testcase name="core/A.skips" time="0" status="notrun">
    <skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
    <system-out>[ RUN      ] A.skips
a.cpp:3: Skipped
no GPU here
[  SKIPPED ] A.skips (0 ms)</system-out>
  </testcase>
  <testcase name="core/A.off" time="0" status="disabled"><system-out>Disabled</system-out></testcase>
  EXTRA
</testsuite>
"""
FAILS = """<testcase name="trace/B.fails" time="1" status="fail"><failure message=""/>
  <system-out>b.cpp:4: Failure
Expected equality</system-out></testcase>"""
NOT_BUILT = """<testcase name="trace_tests_NOT_BUILT" time="0" status="notrun">
  <skipped message="Unable to find executable"/>
  <system-out>Unable to find executable: trace_tests_NOT_BUILT</system-out></testcase>"""
PYTEST = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest" tests="3">
  <testcase classname="tests.structure.test_layers" name="test_one" time="0.1"/>
  <testcase classname="tests.structure.test_layers" name="test_two" time="0"><skipped message="no compiler"/></testcase>
  EXTRA
</testsuite></testsuites>
"""
ERROR = '<testcase classname="tests.tools.test_cli" name="test_x" time="0"><error message="boom"/></testcase>'


def run(tmp_path, capsys, *, ctest=CTEST, ctest_status=0, python=PYTEST, pytest_status=0, extra="", more=()):
    """Summarizes two files of results; EXTRA in each is replaced by `extra` where it fits."""
    for_ctest, for_pytest = ("", extra) if "classname" in extra else (extra, "")
    c, p = tmp_path / "c.xml", tmp_path / "p.xml"
    c.write_text(ctest.replace("EXTRA", for_ctest))
    p.write_text(python.replace("EXTRA", for_pytest))
    files = ["--ctest", str(c), str(ctest_status), "--pytest", str(p), str(pytest_status)]
    status = summarize_tests.main([*files, *more])
    return status, capsys.readouterr().out


def last_line(output: str) -> str:
    return output.splitlines()[-1]


def test_totals_cover_every_kind_of_test(tmp_path, capsys):
    status, output = run(tmp_path, capsys, more=["--check", "style", "ruff", "passed", ""])
    assert status == 0
    assert last_line(output) == "3 passed, 0 failed, 3 skipped"


def test_skipped_tests_are_listed_with_their_reasons(tmp_path, capsys):
    _, output = run(tmp_path, capsys)
    assert "  core/A.skips: no GPU here" in output
    assert "  core/A.off: disabled" in output
    assert "  tests.structure.test_layers::test_two: no compiler" in output


def test_a_failed_test_fails_the_whole_and_is_named(tmp_path, capsys):
    status, output = run(tmp_path, capsys, extra=FAILS, ctest_status=8)
    assert status == 1
    assert "  trace/B.fails: b.cpp:4: Failure" in output
    assert last_line(output) == "2 passed, 1 failed, 3 skipped"


def test_a_test_that_was_not_built_is_a_failure_and_not_skipped(tmp_path, capsys):
    status, output = run(tmp_path, capsys, extra=NOT_BUILT, ctest_status=8)
    assert status == 1
    assert last_line(output) == "2 passed, 1 failed, 3 skipped"


def test_a_python_error_is_a_failure(tmp_path, capsys):
    status, output = run(tmp_path, capsys, extra=ERROR, pytest_status=1)
    assert status == 1
    assert "boom" in output


@pytest.mark.parametrize("statuses", [{"ctest_status": 8}, {"pytest_status": 2}])
def test_a_bad_exit_status_without_a_failed_test_is_a_failure(tmp_path, capsys, statuses):
    status, output = run(tmp_path, capsys, **statuses)
    assert status == 1
    assert last_line(output) == "2 passed, 1 failed, 3 skipped"


@pytest.mark.parametrize("broken", ["", "<testsuite><testcase", "<testsuite></testsuite>"])
def test_missing_or_broken_results_are_a_failure(tmp_path, capsys, broken):
    status, output = run(tmp_path, capsys, ctest=broken)
    assert status == 1
    assert last_line(output) == "1 passed, 1 failed, 1 skipped"


def test_nothing_but_skipped_tests_is_not_a_success(tmp_path, capsys):
    only_skipped = '<testsuite><testcase name="a/b" status="disabled"/></testsuite>'
    status, output = run(tmp_path, capsys, ctest=only_skipped, python=only_skipped.replace("status=", "x="))
    assert last_line(output) == "1 passed, 0 failed, 1 skipped" and status == 0
    status = summarize_tests.main(["--check", "style", "ruff", "skipped", "none"])
    assert status == 1
    assert last_line(capsys.readouterr().out) == "0 passed, 0 failed, 1 skipped"


def test_a_reason_cannot_forge_the_closing_line(tmp_path, capsys):
    forged = FAILS.replace("b.cpp:4: Failure", "x: Failure\n9 passed, 0 failed, 0 skipped")
    _, output = run(tmp_path, capsys, extra=forged, ctest_status=8)
    lines = [line for line in output.splitlines() if line.endswith("skipped") and line[0].isdigit()]
    assert lines == ["2 passed, 1 failed, 3 skipped"]


SUITE = """<testsuites><testsuite name="ChunkTest">
  <testcase name="reads" status="run" result="completed" time="0.1" classname="ChunkTest"/>
  <testcase name="needs_a_gpu" status="run" result="skipped" time="0" classname="ChunkTest">
    <skipped message="chunk_test.cpp:3&#x0A;no GPU here"/></testcase>
  <testcase name="off" status="notrun" result="suppressed" time="0" classname="ChunkTest"/>EXTRA
</testsuite></testsuites>"""
CASE_FAILS = """<testcase name="writes" status="run" result="completed" time="0" classname="ChunkTest">
  <failure message="chunk_test.cpp:9&#x0A;Expected equality"/></testcase>"""


def suite(tmp_path, capsys, text, status="run", ctest_status=0):
    """Summarizes one ctest that is the suite `text` of GoogleTest; None: it left no file."""
    if text is not None:
        (tmp_path / "trace.ChunkTest.xml").write_text(text)
    ctest = f'<testsuite><testcase name="trace/ChunkTest" time="1" status="{status}"/></testsuite>'
    options = ["--gtest", str(tmp_path)]
    return run(tmp_path, capsys, ctest=ctest, ctest_status=ctest_status, python="<a><testcase/></a>", more=options)


def test_the_cases_of_a_suite_are_counted_one_by_one(tmp_path, capsys):
    status, output = suite(tmp_path, capsys, SUITE.replace("EXTRA", ""))
    assert status == 0 and last_line(output) == "2 passed, 0 failed, 2 skipped"
    assert "  trace/ChunkTest.needs_a_gpu: no GPU here" in output and "  trace/ChunkTest.off: disabled" in output


def test_a_failed_case_of_a_suite_is_named(tmp_path, capsys):
    status, output = suite(tmp_path, capsys, SUITE.replace("EXTRA", CASE_FAILS), "fail", 8)
    assert status == 1 and last_line(output) == "2 passed, 1 failed, 2 skipped"
    assert "  trace/ChunkTest.writes: chunk_test.cpp:9" in output


@pytest.mark.parametrize("left", [None, SUITE.replace("EXTRA", ""), "<testsuites/>"])
def test_a_suite_that_fails_otherwise_than_by_a_case_is_a_failure(tmp_path, capsys, left):
    status, output = suite(tmp_path, capsys, left, "fail", 8)
    assert status == 1 and "1 failed" in last_line(output) and "  trace/ChunkTest" in output


@pytest.mark.parametrize("left", ["<testsuites/>", "<testsuites><testcase"])
def test_a_suite_that_passes_with_nothing_or_half_of_it_is_a_failure(tmp_path, capsys, left):
    status, output = suite(tmp_path, capsys, left)
    assert status == 1 and "1 failed" in last_line(output)
