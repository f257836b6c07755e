# SPDX-License-Identifier: Apache-2.0
"""How fast the tables of many ranks are made: beside reading their traces alone, and with two Ray workers beside one
process. Run by hand on an idle machine:

    python tests/torch/bench/fleet_tables.py [--ranks 16] [--steps 5000]
"""
from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "hooks" / "torch"), str(ROOT / "tests" / "torch")]

import nanhunt  # noqa: E402
from hunting import cli  # noqa: E402
from nanhunt.fleet import LocalEngine, RayEngine, make_tables  # noqa: E402


def seconds_to_read(run: Path) -> float:
    """All ranks by one thread, nothing made of them: a kind without records."""
    import pyarrow

    began = time.perf_counter()
    rows = pyarrow.table(nanhunt.load(run).records("kernels")).num_rows
    assert rows == 0
    return time.perf_counter() - began


def seconds_to_make(run: Path, engine: LocalEngine | RayEngine) -> float:
    out = tempfile.mkdtemp()
    try:
        began = time.perf_counter()
        make_tables(str(run), out, engine, 8)
        return time.perf_counter() - began
    finally:
        shutil.rmtree(out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, scenario in (("healthy", "adam-eps-fixed"), ("every step bad", "adam-eps")):
            one, run = Path(folder, f"{name} one"), Path(folder, name)
            subprocess.run([cli(), "train", scenario, "--steps", str(given.steps), "--level", "ops",
                            "--out", str(one)], check=True, capture_output=True)
            for rank in range(given.ranks):
                shutil.copytree(one / "rank-00000" / "attempt-0", run / f"rank-{rank:05}" / "attempt-0")
            engines = {"one process": LocalEngine(1), "two processes": LocalEngine(2), "two Ray workers": RayEngine()}
            try:
                for engine in engines.values():
                    seconds_to_make(run, engine)  # their processes are there, and what they import
                read = statistics.median(seconds_to_read(run) for _ in range(given.rounds))
                took = {which: statistics.median(seconds_to_make(run, engine) for _ in range(given.rounds))
                        for which, engine in engines.items()}
            finally:
                for engine in engines.values():
                    engine.close()
            print(f"{name}: {given.ranks} ranks of {given.steps} steps: read {read:.2f} s; "
                  + ", ".join(f"{which} {seconds:.2f} s" for which, seconds in took.items()))
            print(f"  of one process's reader speed a core: {read / took['one process']:.2f} by one, "
                  f"{read / took['two processes'] / 2:.2f} by two; Ray's two beside one process: "
                  f"{took['one process'] / took['two Ray workers']:.2f}", flush=True)


if __name__ == "__main__":
    main()
