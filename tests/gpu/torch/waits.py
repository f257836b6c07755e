# SPDX-License-Identifier: Apache-2.0
"""How often the host waits for the device in a step, unwatched and watched, as torch.profiler counts calls of CUDA.

    python3 waits.py DEVICE SCALER WATCH     with a folder in GPU_CHECK_OUT

It prints one JSON line: {"heard": launches, "waits": {call: count}, "trouble": why the watch proves nothing}.

SCALER: "fp16" (autocast and a GradScaler, which reads its flag) or "fp32". WATCH: a name in WATCHES. What the library
of nanhunt waits for it counts itself, for a profiler does not hear of each call of the driver.
"""

from __future__ import annotations

import json
import os
import sys

WARM, STEPS = 20, 40  # learnt, opened and copied once is not of a step
OWN = "nanhunt: waits of its library"
WATCHES: dict[str, dict] = {
    "unwatched": {},
    "live": {"level": "live"},
    "steps": {"level": "steps"},
    "ops": {"level": "ops"},
}
# Beginnings of names, as in tests/gpu/api_counts.cpp.
_WAITING = ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cudaStreamSynchronize",
            "cudaDeviceSynchronize", "cudaEventSynchronize", "cuMemcpyDtoH", "cuMemFree", "cudaFree")  # fmt: skip


def is_wait(name: str) -> bool:
    if "Async" in name:
        return False  # PyTorch waits for such a copy by a call of its own
    copies = name.startswith(("cuMemcpy", "cudaMemcpy")) and "DtoD" not in name
    return copies or name.startswith(_WAITING)


def waits_among(names) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        if is_wait(name):
            found[name] = found.get(name, 0) + 1
    return found


def judge(alone: dict[str, int], watched: dict[str, int]) -> tuple[bool, int, str]:
    """Whether nothing more was waited for, how many waits were added, and in words which."""
    added = sum(watched.values()) - sum(alone.values())
    names = sorted({*alone, *watched})
    told = ", ".join(f"{name} {alone.get(name, 0)} -> {watched.get(name, 0)}" for name in names) or "no waits"
    return added == 0, added, told


def told_of(names: list[str]) -> dict:
    """Without any launch among them the profiler heard nothing, and no wait means nothing."""
    return {"heard": sum(name.startswith(("cudaLaunch", "cuLaunch")) for name in names), "waits": waits_among(names)}


def counted(device: str, scaling: str, watch: str) -> dict:
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device != "cpu"
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 10)).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kind = device.split(":", maxsplit=1)[0]
    scaler = torch.amp.GradScaler(kind, init_scale=256.0, enabled=scaling == "fp16")
    x, y = torch.randn(32, 64, device=device), torch.randint(10, (32,), device=device)
    watching = None
    if WATCHES[watch]:
        import nanhunt

        out = os.path.join(os.environ["GPU_CHECK_OUT"], f"{scaling}-{watch}".replace(" ", "-"))  # noqa: PTH118
        watching = nanhunt.watch(model, opt, scaler if scaling == "fp16" else None, out=out, **WATCHES[watch])

    def step() -> None:
        opt.zero_grad()
        with torch.autocast(kind, dtype=torch.float16, enabled=scaling == "fp16"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()

    def own_waits() -> int:
        recorder = getattr(getattr(watching, "_session", None), "recorder", None)
        return 0 if recorder is None else int(recorder.device_counts().waits)

    for _ in range(WARM):
        step()
    before = own_waits()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiled:
        for _ in range(STEPS):
            step()
    # What beginning and ending the profiler waits for is the same in each run.
    found = told_of([event.name for event in profiled.events()])
    if own_waits() > before:
        found["waits"][OWN] = own_waits() - before
    if watching is not None:
        found["trouble"] = trouble_of(watching._session, watch, on_gpu)
        watching.close()
    return found


def trouble_of(session, watch: str, on_gpu: bool) -> str:
    """Why a watch that added no wait proves nothing: it did not watch. Empty: it did."""
    if session.dead or session.errors:
        return f"the watch failed: {session.last_error or 'it ended early'}"
    if watch == "ops" and on_gpu and session.recorder.device_counts().asked == 0:
        return "nothing was read on the device"
    return ""


if __name__ == "__main__":
    print(json.dumps(counted(*sys.argv[1:4])))
