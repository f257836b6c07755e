# SPDX-License-Identifier: Apache-2.0
"""A fault handed to a webhook or a command, by a program of its own (`python -m nanhunt.on_fault TARGET`) that nobody
waits for: what hangs there holds up no training.
"""
from __future__ import annotations

import ctypes as c
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanhunt import _library as lib
from nanhunt.store.remote import is_url

if TYPE_CHECKING:
    from nanhunt._load import Finding

_PROGRAM = Path(__file__).with_name("__main__.py")


def describe(finding: Finding, run: str, rank: int) -> dict[str, Any]:
    """What a webhook or a command is given."""
    run = run if is_url(run) else str(Path(run).absolute())
    return {"schema": "nanhunt.fault", "schema_version": 1, "run": run, "rank": rank, "step": finding.step,
            "headline": finding.title, "class": finding.class_, "op": finding.op, "module": finding.module,
            "call_site": finding.call_site, "report": f"nanhunt report {shlex.quote(run)}"}


def start(target: str, fault: dict[str, Any]) -> None:
    """Returns when the program runs, which is no child of this process. Raises where it cannot be started."""
    if not sys.executable:
        raise OSError("this Python does not know its own program")
    words = [os.fsencode(word) for word in (sys.executable, "-I", "-S", str(_PROGRAM), target)]
    settings = [os.fsencode(f"{name}={value}") for name, value in os.environ.items()]
    text = json.dumps(fault).encode()
    library = lib.load_library()
    command = (c.c_char_p * (len(words) + 1))(*words, None)
    environment = (c.c_char_p * (len(settings) + 1))(*settings, None)
    if library.slow.nanhunt_start_detached(command, environment, text, len(text)) != lib.OK:
        raise OSError(library.last_error())
