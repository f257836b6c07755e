# SPDX-License-Identifier: Apache-2.0
"""The table of releases: what passed of each column, from the files of results that pytest wrote."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

COLUMN = "column"  # the property of a result that names it, as tests/torch/releases.py notes it


@dataclass
class Cell:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def text(self) -> str:
        ran = self.passed + self.failed
        if not ran:
            return f"– {self.skipped} skipped" if self.skipped else "– not chosen"
        return f"{self.passed}/{ran}" + (f", {self.skipped} skipped" if self.skipped else "")


@dataclass
class Result:
    """What came of one release. `why` says why it, or the rest of it, was not run."""

    version: str
    torch: str = ""
    python: str = ""
    date: str = ""
    quick: bool = False
    seconds: float = 0.0
    why: str = ""
    status: int = 0  # of pytest
    cells: dict[str, Cell] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)  # reasons, and how many tests

    @property
    def outcome(self) -> str:
        """As tools/summarize_tests.py calls it."""
        if self.failures or self.status not in (0, 5):
            return "failed"
        return "passed" if not self.why and any(cell.passed for cell in self.cells.values()) else "skipped"

    @property
    def told(self) -> str:
        """The outcome's reason, in one line."""
        if self.failures:
            more = f" and {len(self.failures) - 1} more" if len(self.failures) > 1 else ""
            return f"{self.failures[0]}{more}"
        if self.outcome == "skipped":
            return self.why or max(self.skips, key=self.skips.__getitem__, default="nothing ran")
        return f"pytest ended with {self.status}" if self.status not in (0, 5) else ""


def read_junit(path: Path, result: Result) -> None:
    """Adds what a file of pytest's results says."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        name = f"{case.get('classname', '?').rpartition('.')[2]}::{case.get('name', '?')}"
        problem = next((e for tag in ("failure", "error") if (e := case.find(tag)) is not None), None)
        column = properties.get(COLUMN)
        if column is None:  # a file that could not be collected, for one
            if problem is not None:
                result.failures.append(f"{name}: {_first_line(problem.get('message'))}")
            continue
        cell = result.cells.setdefault(column, Cell())
        skipped = case.find("skipped")
        if problem is not None:
            cell.failed += 1
            result.failures.append(f"{name}: {_first_line(problem.get('message'))}")
        elif skipped is not None:
            cell.skipped += 1
            reason = _first_line(skipped.get("message"))
            result.skips[reason] = result.skips.get(reason, 0) + 1
        else:
            cell.passed += 1


def write_result(result: Result, path: Path) -> None:
    path.write_text(json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_result(path: Path) -> Result:
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields["cells"] = {column: Cell(**cell) for column, cell in fields["cells"].items()}
    return Result(**fields)


def markdown(results: list[Result], columns: list[str], command: str) -> str:
    """The table, and under it what a cell has no room for."""
    rows = [["PyTorch", "Python", *columns]]
    for result in results:
        lacking = f"– {result.why or 'nothing ran'}"
        cells = [result.cells[c].text() if c in result.cells else lacking if not result.cells else "–" for c in columns]
        if not result.cells:  # the reason once
            cells = [lacking, *["–"] * (len(columns) - 1)]
        rows.append([result.torch or result.version, result.python or "–", *cells])
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    dates = sorted({result.date for result in results if result.date and result.cells})
    if dates:
        when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        quick = ", the quick set" if any(result.quick and result.cells for result in results) else ""
        lines += ["", f"Tests that passed, of those that ran: `{command}`, {when}{quick}."]
    else:
        lines += ["", f"`{command}`: nothing was run."]
    skips = Counter()
    for result in results:
        for reason, count in result.skips.items():
            skips[reason] += count
    if skips:
        lines += ["", "Skipped:", "", *[f"- {reason} ({count})" for reason, count in sorted(skips.items())]]
    failures = [f"- {result.version}: `{failure}`" for result in results for failure in result.failures]
    if failures:
        lines += ["", "Failed:", "", *failures]
    return "\n".join(lines) + "\n"


def _first_line(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[0][:200] if lines else "no reason given"
