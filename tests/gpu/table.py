# SPDX-License-Identifier: Apache-2.0
"""Rows of gpu_check's parts: read back, and as a table for people."""

from __future__ import annotations

import json
import sys
from pathlib import Path

STATUSES = ("passed", "failed", "skipped", "measured")


def read_rows(path: Path) -> list[dict]:
    """Head and rows of one part; a line that is none is a failure, not a reason to stop."""
    rows: list[dict] = []
    for line in filter(None, path.read_text(encoding="utf-8", errors="replace").splitlines()):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if rows and isinstance(row, dict) and "part_took" in row:
            rows[0]["took"] = row["part_took"]
        elif not rows:
            rows.append(row if isinstance(row, dict) and "part" in row else {})
        elif is_row(row):
            rows.append(row)
        else:
            rows.append({"check": path.stem, "status": "failed", "detail": f"a row was cut short: {line[:80]!r}"})
    return rows or [{}]


def is_row(row: object) -> bool:
    return (
        isinstance(row, dict)
        and row.get("status") in STATUSES
        and all(isinstance(row.get(key), str) for key in ("check", "detail"))
        and all(isinstance(row.get(key, 0), (int, float)) for key in ("ratio", "required", "at_most"))  # noqa: UP038
    )


def ratio_of(row: dict) -> str:
    text = f"{row['ratio']:.3f}" if "ratio" in row else ""
    if row.get("required"):
        text += f" of {row['required']:.2f}"
    if "at_most" in row:
        text += f", at most {row['at_most']:g}"
    return text


def print_rows(rows: list[dict], file=None) -> None:
    for row in rows:
        print(f"{row['status']:<9} {row['check']:<62} {ratio_of(row):<22} {row['detail']}", file=file or sys.stdout)


def print_briefly(rows: list[dict]) -> None:
    """What failed or was measured, of the rest how many: where only the end of the output comes back."""
    told = [row for row in rows if row["status"] in ("failed", "measured") or "ratio" in row]
    print_rows([{**row, "detail": row["detail"][:200]} for row in told])
    reasons = [row["detail"] for row in rows if row["status"] == "skipped"]
    for reason in dict.fromkeys(reasons):
        print(f"skipped   {reasons.count(reason)}: {reason[:200]}")
    print(f"passed    {sum(row['status'] == 'passed' and 'ratio' not in row for row in rows)} more")


def machine_lines(table: dict) -> list[str]:
    machine, about = table["machine"] or {}, table["about"] or {}
    driver = machine.get("driver")
    version = f"{driver // 1000}.{driver % 1000 // 10}" if isinstance(driver, int) else driver
    lines = [
        f"{machine.get('device')} (compute capability {machine.get('compute')}), driver for CUDA {version}, "
        f"{', '.join(table['dates'])}, commit {about.get('commit')}"
    ]
    env = table["environment"] or {}
    if "unknown" in env:
        lines.append(f"The machine's facts are unknown: {env['unknown']}")
    libraries = [env.get("driver"), *(env.get("libraries") or []), env.get("cupti")]
    named = [
        f"{library.get('name', 'CUPTI')} {library.get('version') or 'not found'}"
        for library in libraries
        if isinstance(library, dict)
    ]
    if named:
        lines.append("; ".join(named))
    lines += [f"{finding.get('level')}: {finding.get('what')}" for finding in env.get("findings") or []]
    if not table["same_machine"]:
        lines.append("The parts ran on different machines or builds: their numbers do not belong together.")
    for number, title in zip(table["parts_missing"], table["titles_missing"]):  # noqa: B905
        lines.append(f"Part {number} was not run. ({title})")
    return lines


def totals(table: dict) -> str:
    return ", ".join(f"{count} {status}" for status, count in table["counts"].items())


def print_table(table: dict, file) -> None:
    for line in machine_lines(table):
        print(line, file=file)
    print_rows(table["rows"], file)
    print(totals(table), file=file)


def markdown(table: dict) -> str:
    """For tests/bench/README.md: what was measured, failed or skipped row by row, of the rest how much passed."""

    def cell(text: object) -> str:
        return str(text).replace("|", "\\|").replace("\n", " ")

    lines = [f"### On a GPU: {cell((table['machine'] or {}).get('device'))}", ""]
    lines += [f"{cell(line)}  " for line in machine_lines(table)]
    lines += ["", "| part | check | result | ratio | |", "| --- | --- | --- | --- | --- |"]
    for row in table["rows"]:
        if row["status"] != "passed" or "ratio" in row:
            told = (row["part"], row["check"], row["status"], ratio_of(row), row["detail"])
            lines.append("| " + " | ".join(cell(text) for text in told) + " |")
    for number, title in table["parts"].items():
        rows = [row for row in table["rows"] if str(row["part"]) == number]
        plain = sum(row["status"] == "passed" and "ratio" not in row for row in rows)
        lines.append(f"| {number} | {cell(title)} | {plain} more passed | | |")
    return "\n".join([*lines, "", totals(table)]) + "\n"
