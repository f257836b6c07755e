# SPDX-License-Identifier: Apache-2.0
"""Answers of `nanhunt autopsy --json`, each held to its schema."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

from hunting import TIMEOUT, cli

_SCHEMA = Path(__file__).resolve().parents[2] / "reports" / "schema" / "nanhunt.autopsy.schema.json"


def autopsy(*words: str, text: str | None = None) -> tuple[int, dict[str, Any], str]:
    """Exit status, the answer (empty where there is none) and what was said."""
    done = subprocess.run(
        [cli(), "autopsy", "--json", *words], capture_output=True, text=True, timeout=TIMEOUT, input=text, check=False
    )
    answer = json.loads(done.stdout) if done.stdout else {}
    if answer and importlib.util.find_spec("jsonschema") is not None:
        import jsonschema

        jsonschema.Draft202012Validator(json.loads(_SCHEMA.read_text())).validate(answer)
    return done.returncode, answer, done.stderr
