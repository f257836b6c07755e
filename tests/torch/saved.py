# SPDX-License-Identifier: Apache-2.0
"""What a run left in its folder, as users read it: the report, and records of any kind."""
from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import nanhunt
from hunting import cli


def report_of(run: Path | str) -> dict[str, Any]:
    return nanhunt.load(run).data


TEXTS = {"path", "module", "text", "message", "name", "first_bad", "call_site", "site", "file", "op"}


def _plain(name: str, text: str) -> Any:
    """A cell of `nanhunt export`: a number, a list, None or the text."""
    if name in TEXTS:
        return text or None
    if text in ("", "true", "false"):
        return {"": None, "true": True, "false": False}[text]
    try:
        return json.loads(text) if text[0] in "[{" else int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def records_of(run: Path | str, kind: str) -> list[dict[str, Any]]:
    """The records of one kind, in their order: needs no library that reads Arrow streams."""
    command = [cli(), "export", "--kind", kind, str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    rows = csv.DictReader(io.StringIO(done.stdout))
    return [{name: _plain(name, cell) for name, cell in row.items()} for row in rows]
