#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`nanhunt check` of a 2 GiB checkpoint beside `cat` of the same file, both from a warm page cache, in turn.

Usage: checkpoint_bench.py [FOLDER of nanhunt, default build/ci/bin] [FOLDER with room for the files, default /tmp].
Needs a Python with torch and safetensors.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUNDS = 5
TENSORS, SHAPE = 32, (8192, 4096)  # of 64 MiB each in bf16

# In a process of its own: the memory of this one would count as that of the programs that it starts.
WRITE = """
import sys, torch
from safetensors.torch import save_file
torch.manual_seed(0)
weight = torch.randn(*SHAPE).to(torch.bfloat16)
weights = {f"layers.{i}.weight": weight.clone() for i in range(TENSORS)}
save_file(weights, sys.argv[1])
torch.save(weights, sys.argv[2])
"""


def run(command) -> tuple[float, float, float]:
    """Seconds, seconds of a processor, and the most memory that was resident, in MiB."""
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"checkpoint_bench: {command[0]} ended with {status}")
    return time.perf_counter() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main():
    nanhunt = (pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "ci" / "bin") / "nanhunt"
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as scratch:
        safetensors, torch_file = pathlib.Path(scratch) / "model.safetensors", pathlib.Path(scratch) / "model.pt"
        script = WRITE.replace("SHAPE", repr(SHAPE)).replace("TENSORS", str(TENSORS))
        subprocess.run([sys.executable, "-c", script, safetensors, torch_file], check=True)
        for path in (safetensors, torch_file):
            programs = {"cat": ["cat", str(path)], "check": [str(nanhunt), "check", str(path)]}
            for command in programs.values():
                run(command)  # into the page cache
            rounds = [{name: run(command) for name, command in programs.items()} for _ in range(ROUNDS)]
            cat, check = (statistics.median(one[name][0] for one in rounds) for name in programs)
            cpu_cat, cpu_check = (statistics.median(one[name][1] for one in rounds) for name in programs)
            ratio = statistics.median(one["cat"][0] / one["check"][0] for one in rounds)
            memory = max(one["check"][2] for one in rounds)
            print(
                f"{path.suffix[1:]}: {path.stat().st_size / 2**30:.2f} GiB, cat {cat:.2f} s (processor {cpu_cat:.2f}), "
                f"check {check:.2f} s ({cpu_check:.2f}), of_cat {ratio:.2f}, at most {memory:.0f} MiB"
            )


if __name__ == "__main__":
    main()
