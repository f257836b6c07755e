# SPDX-License-Identifier: Apache-2.0
"""Parts of `tools/gpu_check` as they are carried, for tests with programs that were made up."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HELPERS = ("part.py", "pairs.py", "found_torch.py", "processes.py")
FOUND_CUPTI = '{"cupti": {"path": "/there"}}'


class Carried:
    """A folder as it was carried and unpacked, without programs."""

    def __init__(self, at: Path):
        self.at, self.rows_file = at, at / "rows"
        (at / "bin").mkdir(parents=True)
        for name in HELPERS:
            shutil.copy2(ROOT / "tests" / "gpu" / name, at / name)
        shutil.copy2(Path(__file__).with_name("made_up_time.py"), at / "sitecustomize.py")
        self.environment = {"GPU_CHECK_SECONDS": "60", "MADE_UP_TIME": str(at / "time")}
        self.program("nanhunt", f"print({FOUND_CUPTI!r})")

    def program(self, name: str, body: str) -> None:
        """A Python program in its place; `words` are its arguments."""
        self.write(self.at / "bin" / name, body)

    def in_package(self, body: str) -> None:
        """The command line tool of the wheel."""
        self.write(self.at / "hooks" / "torch" / "nanhunt" / "bin" / "nanhunt", body)

    def write(self, path: Path, body: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{sys.executable}\nimport json, math, os, signal, sys, time\nwords = sys.argv[1:]\n{body}\n")
        path.chmod(0o755)

    def run(self, number: int) -> tuple[int, list[dict]]:
        part = next((ROOT / "tests" / "gpu" / "parts").glob(f"{number}-*"))
        self.rows_file.unlink(missing_ok=True)
        (self.at / "time").unlink(missing_ok=True)
        environment = {
            **os.environ,
            "GPU_CHECK_BIN": str(self.at / "bin"),
            "GPU_CHECK_ROWS": str(self.rows_file),
            "PYTHONPATH": str(self.at),
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.environment,
        }
        environment.pop("NANHUNT_TORCH_PYTHON", None)
        environment.update({key: value for key, value in self.environment.items() if key == "NANHUNT_TORCH_PYTHON"})
        done = subprocess.run([sys.executable, str(part)], env=environment, timeout=1800, capture_output=True)
        lines = self.rows_file.read_text().splitlines() if self.rows_file.exists() else []
        return done.returncode, [json.loads(line) for line in lines]


def by_check(rows: list[dict]) -> dict[str, tuple[str, str]]:
    return {row["check"]: (row["status"], row["detail"]) for row in rows}
