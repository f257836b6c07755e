# SPDX-License-Identifier: Apache-2.0
"""The PyTorch of the machine, and an environment in which it and nanhunt's package work together."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from part import DEVICE, ROOT, parsed, run

LOOK = """
import json, sys, torch
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0],
                  "usable": torch.cuda.is_available()}))
"""
LOAD = "import ctypes, os, torch; ctypes.CDLL(os.environ['NANHUNT_LIBRARY']); print('loaded')"
PACKAGE = ROOT / "hooks" / "torch" / "nanhunt"  # as the wheel has it


@dataclass
class Torch:
    python: str
    version: str  # for people
    env: dict[str, str]

    @property
    def nanhunt(self) -> Path:
        """The command line tool of the package."""
        return PACKAGE / "bin" / "nanhunt"


def find(package: bool) -> tuple[Torch | None, str]:
    """A PyTorch that can use the device (`package`: with which libnanhunt.so loads), or why there is none."""
    said = []
    for python in dict.fromkeys(
        filter(None, [os.environ.get("NANHUNT_TORCH_PYTHON", ""), sys.executable, "python3", "python"])
    ):
        env = environment()
        done = run([python, "-c", LOOK], 120, env)
        found = parsed(done.out.strip().splitlines()[-1]) if done.status == 0 and done.out.strip() else None
        if not isinstance(found, dict):
            said.append(f"{python}: {done.told() or 'no PyTorch'}")
            continue
        version = f"PyTorch {found['torch']} (CUDA {found['cuda']}) on Python {found['python']}"
        if DEVICE != "cpu" and not found["usable"]:
            said.append(f"{python}: {version} cannot use a GPU here")
            continue
        if not package:
            return Torch(python, version, env), ""
        done = run([python, "-c", LOAD], 120, env)
        if "loaded" in done.out:
            return Torch(python, version, env), ""
        said.append(f"{python}: {version}, but libnanhunt.so does not load: {done.told()}")
    return None, "; ".join(said)


def environment() -> dict[str, str]:
    """As it was before gpu_check, for what PyTorch has beside it may need other libraries than nanhunt's programs."""
    found = dict(os.environ)
    before = found.get("GPU_CHECK_LIBRARIES_BEFORE", "")
    if before:
        found["LD_LIBRARY_PATH"] = before
    else:
        found.pop("LD_LIBRARY_PATH", None)
    found["NANHUNT_LIBRARY"] = str(PACKAGE / "lib" / "libnanhunt.so")
    found["NANHUNT_BIN_DIR"] = str(PACKAGE / "bin")
    found["PYTHONPATH"] = ":".join([str(PACKAGE.parent), *filter(None, [found.get("PYTHONPATH", "")])])
    return found
