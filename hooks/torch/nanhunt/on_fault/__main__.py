# SPDX-License-Identifier: Apache-2.0
"""`python -m nanhunt.on_fault TARGET`: hands the fault on stdin, one JSON object, to TARGET.

TARGET is a URL (http, https), to which it is posted, 10 seconds a try and three tries; else a command for the shell,
with the same JSON on its stdin and each of its values in the environment, as NANHUNT_FAULT_STEP and so on. The exit
status is the command's; for a URL 0, or 1 where no try was accepted, with why on stderr. Runs by itself, also as a
file: it imports nothing of this package.
"""
from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

_BOOT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "boot")  # noqa: PTH118, PTH120, PTH100
_TRIES, _TIMEOUT, _BACK_OFF = 3, 10.0, 1.0


def is_webhook(target: str) -> bool:
    return target.lower().startswith(("http://", "https://"))


def post(url: str, text: bytes, back_off: float = _BACK_OFF) -> str:
    """Why it was not accepted; empty: it was."""
    why = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(back_off * 2 ** (attempt - 1))
        request = urllib.request.Request(url, text, {"Content-Type": "application/json", "User-Agent": "nanhunt"})
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT):
                return ""
        except urllib.error.HTTPError as error:
            why = f"status {error.code}"
            if 400 <= error.code < 500 and error.code not in (408, 429):
                return why
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = str(getattr(error, "reason", error))
    return why


def plain_environment() -> dict[str, str]:
    """Ours, without what would have a Python that the command starts watched as well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NANHUNT_")}
    folders = [folder for folder in kept.pop("PYTHONPATH", "").split(os.pathsep) if folder and folder != _BOOT]
    return {**kept, "PYTHONPATH": os.pathsep.join(folders)} if folders else kept


def run_command(command: str, text: bytes, fault: dict[str, object]) -> int:
    values = {f"NANHUNT_FAULT_{name.upper()}": "" if value is None else str(value) for name, value in fault.items()}
    # A NUL cannot be in an environment; nothing else is changed.
    environment = {**plain_environment(), **{name: value.replace("\0", "") for name, value in values.items()}}
    done = subprocess.run(command, shell=True, input=text, env=environment, check=False)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def main(words: list[str]) -> int:
    if len(words) != 1:
        print("usage: python -m nanhunt.on_fault URL-OR-COMMAND < fault.json", file=sys.stderr)
        return 2
    (target,) = words
    text = sys.stdin.buffer.read()
    try:
        fault = json.loads(text)
    except ValueError:
        fault = None
    if not isinstance(fault, dict):
        print("nanhunt: on_fault: expected a JSON object on stdin", file=sys.stderr)
        return 2
    if not is_webhook(target):
        return run_command(target, text, fault)
    why = post(target, text)
    if why:
        print(f"nanhunt: on_fault: {target} did not take the fault: {why}", file=sys.stderr)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
