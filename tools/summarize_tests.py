#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up JUnit files (ctest's, GoogleTest's and pytest's) and single checks into one table.

The last line is always `N passed, N failed, N skipped`. Exits 1 when anything failed, when a file of
results is missing or broken, or when nothing ran at all.
"""

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# A test that could not be started is a failure, although ctest files it under "skipped".
NOT_STARTED = ("Unable to find", "Required", "Fixture dependency failed", "Failed test dependencies")


@dataclass
class Case:
    suite: str
    name: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0


@dataclass
class Suite:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = field(default=0.0)


def one_line(text: str, limit: int = 160) -> str:
    """First line that says something, without control characters."""
    for line in text.splitlines():
        line = "".join(c for c in line if c.isprintable()).strip()
        if line:
            return line if len(line) <= limit else line[: limit - 3] + "..."
    return ""


def gtest_skip_reason(output: str) -> str:
    match = re.search(r": Skipped\n(.*)", output)
    return one_line(match.group(1)) if match else ""


def ctest_case(element: ElementTree.Element) -> Case:
    name = element.get("name", "?")
    status = element.get("status", "")
    output = element.findtext("system-out") or ""
    suite = name.split("/", 1)[0] if "/" in name else "other"
    case = Case(suite, name, PASSED, seconds=float(element.get("time") or 0))
    skipped = element.find("skipped")
    if status == "fail" or element.find("failure") is not None:
        case.outcome = FAILED
        lines = [line for line in output.splitlines() if re.search(r": Failure$|: error:|runtime error:|ERROR: ", line)]
        case.reason = one_line(lines[0]) if lines else "crashed or timed out" if not output.strip() else ""
    elif status == "disabled":
        case.outcome, case.reason = SKIPPED, "disabled"
    elif skipped is not None:
        message = skipped.get("message", "")
        if message.startswith(NOT_STARTED):
            case.outcome, case.reason = FAILED, one_line(output) or message
        else:
            case.outcome = SKIPPED
            own_words = "" if "[ RUN      ]" in output else one_line(output)
            case.reason = gtest_skip_reason(output) or own_words or message or "no reason given"
    elif status != "run":
        case.outcome, case.reason = FAILED, f"did not run (status '{status}')"
    return case


def gtest_case(suite: str, element: ElementTree.Element) -> Case:
    name = f"{suite}/{element.get('classname', '?')}.{element.get('name', '?')}"
    case = Case(suite, name, PASSED, seconds=float(element.get("time") or 0))
    failure, skipped = element.find("failure"), element.find("skipped")
    if failure is not None:
        case.outcome, case.reason = FAILED, one_line(failure.get("message", ""))
    elif skipped is not None:
        lines = skipped.get("message", "").split("\n", 1)  # the first says where
        case.outcome, case.reason = SKIPPED, one_line(lines[-1]) or "no reason given"
    elif element.get("status") == "notrun":
        case.outcome, case.reason = SKIPPED, "disabled"
    return case


def cases_inside(suite_case: Case, folder: str) -> list[Case]:
    """A ctest that is a suite of GoogleTest wrote its cases into a file; what it says of itself counts if it failed
    otherwise than by a case, or died before it wrote."""
    prefix, _, rest = suite_case.name.partition("/")
    path = Path(folder, f"{prefix}.{rest.replace('/', '.')}.xml")
    if not folder or not path.is_file():
        return [suite_case]
    cases = [gtest_case(prefix, e) for e in ElementTree.fromstring(path.read_bytes()).iter("testcase")]
    if not cases or (suite_case.outcome == FAILED and not any(case.outcome == FAILED for case in cases)):
        cases.append(Case(prefix, suite_case.name, FAILED, suite_case.reason or "no tests were found"))
    return cases


def pytest_case(element: ElementTree.Element) -> Case:
    folder = element.get("classname", "").split(".")
    suite = "python " + (folder[1] if len(folder) > 1 and folder[0] == "tests" else folder[0] or "?")
    name = "::".join(part for part in (element.get("classname", ""), element.get("name", "?")) if part)
    case = Case(suite, name, PASSED, seconds=float(element.get("time") or 0))
    for tag in ("failure", "error"):
        problem = element.find(tag)
        if problem is not None:
            case.outcome, case.reason = FAILED, one_line(problem.get("message", ""))
            return case
    skipped = element.find("skipped")
    if skipped is not None:
        case.outcome, case.reason = SKIPPED, one_line(skipped.get("message", "")) or "no reason given"
    return case


READERS = {"ctest": ctest_case, "pytest": pytest_case}


def read_results(kind: str, path: str, status: int, gtest: str = "") -> list[Case]:
    """All cases of one JUnit file; whatever is wrong with the run itself becomes a failed case."""
    cases = []
    try:
        root = ElementTree.fromstring(Path(path).read_bytes())
        cases = [READERS[kind](element) for element in root.iter("testcase")]
        if kind == "ctest":
            cases = [inside for case in cases for inside in cases_inside(case, gtest)]
    except (OSError, ElementTree.ParseError, ValueError) as error:
        cases.append(Case(kind, f"{kind} results", FAILED, f"{path}: {error}"))
    if status != 0 and not any(case.outcome == FAILED for case in cases):
        cases.append(Case(kind, f"{kind} itself", FAILED, f"exit status {status}, though no test failed"))
    if not cases:
        cases.append(Case(kind, f"{kind} itself", FAILED, "no tests were found"))
    return cases


def summarize(cases: list[Case], out) -> bool:
    """Prints the table and the closing line; true when all is well."""
    suites: dict[str, Suite] = {}
    for case in cases:
        suite = suites.setdefault(case.suite, Suite())
        setattr(suite, case.outcome, getattr(suite, case.outcome) + 1)
        suite.seconds += case.seconds
    for outcome, heading in ((SKIPPED, "Skipped:"), (FAILED, "Failed:")):
        chosen = [case for case in cases if case.outcome == outcome]
        if chosen:
            print(f"\n{heading}", file=out)
        for case in chosen:
            print(f"  {case.name}" + (f": {case.reason}" if case.reason else ""), file=out)
    width = max([len(name) for name in suites] + [len("suite")])
    print(f"\n{'suite':<{width}}  passed  failed  skipped  seconds", file=out)
    for name in sorted(suites):
        s = suites[name]
        print(f"{name:<{width}}  {s.passed:6}  {s.failed:6}  {s.skipped:7}  {s.seconds:7.1f}", file=out)
    totals = {o: sum(case.outcome == o for case in cases) for o in (PASSED, FAILED, SKIPPED)}
    print(f"\n{totals[PASSED]} passed, {totals[FAILED]} failed, {totals[SKIPPED]} skipped", file=out)
    return totals[FAILED] == 0 and totals[PASSED] > 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ctest", nargs=2, action="append", default=[], metavar=("JUNIT", "STATUS"))
    parser.add_argument("--pytest", nargs=2, action="append", default=[], metavar=("JUNIT", "STATUS"))
    parser.add_argument("--gtest", default="", metavar="FOLDER", help="where ctest's suites wrote their cases")
    parser.add_argument(
        "--check",
        nargs=4,
        action="append",
        default=[],
        metavar=("SUITE", "NAME", "OUTCOME", "REASON"),
        help="a single check; OUTCOME is passed, failed or skipped",
    )
    options = parser.parse_args(arguments)
    cases = []
    for kind in ("ctest", "pytest"):
        for path, status in getattr(options, kind):
            cases += read_results(kind, path, int(status), options.gtest)
    for suite, name, outcome, reason in options.check:
        if outcome not in (PASSED, FAILED, SKIPPED):
            parser.error(f"OUTCOME must be passed, failed or skipped, not '{outcome}'")
        cases.append(Case(suite, name, outcome, reason))
    return 0 if summarize(cases, sys.stdout) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
