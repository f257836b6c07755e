# SPDX-License-Identifier: Apache-2.0
"""Bytes of a device that a watch takes: `memory.py LEVEL FOLDER DEVICE` prints one line of JSON.

`taken` is what the device has less of, beside what PyTorch's own allocator holds; `torch` what that one holds more of.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

level, folder, device = sys.argv[1:4]
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "torch" / "bench"))
from overhead import make  # noqa: E402


def state() -> tuple[int, int]:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free, torch.cuda.memory_reserved()


_, step = make("transformer", device)
for _ in range(5):
    step()
before = state()
import nanhunt  # noqa: E402

watch = nanhunt.watch(out=folder, level=level, quiet=True)
_, step = make("transformer", device)
for _ in range(20):
    step()
after = state()
watch.close()
more = [b - a for a, b in zip(before, after, strict=True)]
print(json.dumps({"taken": more[0] - more[1], "torch": more[1]}))
