# SPDX-License-Identifier: Apache-2.0
"""torch.profiler beside a watch with kernels: `profiled.py DEVICE`, with a folder in GPU_CHECK_OUT.

Prints one JSON line: how many kernels the profiler's table has, alone and watched, and what the watch says of kernels.
A process for each, for what one has done to CUPTI stays in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

WHEN = ("which came first", "which came later")


def counted(device: str, when: str, watched: bool) -> dict:
    import torch
    from torch.profiler import ProfilerActivity, profile

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4)).to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(8, 64, device=device)
    notes: list[str] = []

    def step() -> None:
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()

    def profiled() -> int:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device != "cpu" else [])]
        with profile(activities=activities) as prof:
            if when == WHEN[0]:
                begin()
            step()
            if device != "cpu":
                torch.cuda.synchronize()
        kind = torch.autograd.DeviceType.CUDA
        launched = [e for e in prof.events() if e.device_type == kind and not e.name.startswith(("Mem", "nanhunt"))]
        names = {"gemm", "tanh", "addmm", "square", "pow"}
        return sum(any(name in e.name.lower() for name in names) for e in launched)

    watch = None

    def begin() -> None:
        nonlocal watch
        if watched and watch is None:
            import nanhunt

            out = os.path.join(os.environ["GPU_CHECK_OUT"], when.replace(" ", "-"))  # noqa: PTH118
            watch = nanhunt.watch(model, opt, out=out, level="ops", kernels=True)

    if when == WHEN[1]:
        begin()
        step()
    found = profiled()
    if watch is not None:
        notes = [note for note in watch.notes if "kernel" in note]
        watch.close()
    return {"found": found, "notes": notes}


def main() -> None:
    if len(sys.argv) > 2:
        print(json.dumps(counted(sys.argv[1], sys.argv[2], sys.argv[3] == "watched")))
        return
    told: dict[str, dict] = {}
    for when in WHEN:
        told[when] = {"notes": []}
        for how in ("alone", "watched"):
            command = [sys.executable, __file__, sys.argv[1], when, how]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
            found = json.loads(done.stdout.strip().splitlines()[-1])
            told[when][how] = found["found"]
            told[when]["notes"] += found["notes"]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
