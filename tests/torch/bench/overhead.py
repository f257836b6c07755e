# SPDX-License-Identifier: Apache-2.0
"""What a training step costs under nanhunt and under what people use instead, against the same step unwatched.

Every instrument has a process of its own, with one thread, that trains the same model and waits for its turn. In each
turn all of them do the same few steps, in random order; a second unwatched process is the control. A figure is the
median over turns of the ratio to the unwatched process of the same turn.

    NANHUNT_BIN_DIR=build/ci/bin python tests/torch/bench/overhead.py --turns 60 --json out.json

Run it on an idle machine. On a busy one `--clock cpu` says something, the wall clock nothing. With `--device cuda` the
steps of a turn follow each other without a wait, and the wall clock is CUDA events between them; `gpt124m` (fp16
autocast, loss scaling) is for there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

Step = Callable[[], None]
UNWATCHED, CONTROL = "unwatched", "unwatched again"
LEVELS = ("live", "ops", "steps")
OPTIONS = {
    "live": ["--level", "live"],
    "ops": ["--level", "ops"],
    "steps": ["--level", "steps"],
}
KERNELS = "+kernels"  # with --kernels, on a GPU
WITH_KERNELS = tuple(level + KERNELS for level in LEVELS)
ABOVE = "+above"  # the tap listens above autograd
LISTENING_ABOVE = tuple(level + ABOVE for level in LEVELS)
READS = {"live+batch": "batch", "live+forward": "forward"}  # the other ways to read what operations show on a device
OTHERS = ("detect_anomaly", "forward hooks", "anomaly and hooks", "hf debugger")
INSTRUMENTS = (UNWATCHED, CONTROL, *OTHERS, *LEVELS)
# The allocator gives nothing back. Else whether a step's tensors are mapped anew each time is chance, and differs
# between processes by more than what is measured (the control of the CNN was 1.13).
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
STEPS_PER_TURN = {"mlp": 40, "cnn": 10, "transformer": 10}
FOR_DEVICES = {"gpt124m": 5}


# The models.
class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, layers: int, width: int, vocabulary: int, heads: int, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=not tied)
        if tied:
            nn.init.normal_(self.embed.weight, std=0.02)
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


def make(name: str, device: str) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    if name == "mlp":
        layers = [part for _ in range(12) for part in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
        model = nn.Sequential(*layers, nn.Linear(64, 10))
        x, y = torch.randn(64, 64), torch.randint(10, (64,))
    elif name == "cnn":
        widths = (3, 16, 32, 64)
        convolutions = [
            part
            for before, after in zip(widths, widths[1:], strict=False)
            for part in (nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))
        ]
        model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * 16, 10))
        x, y = torch.randn(56, 3, 32, 32), torch.randint(10, (56,))
    elif name == "transformer":
        model = Transformer(layers=4, width=128, vocabulary=512, heads=4)
        x, y = torch.randint(512, (4, 64)), torch.randint(512, (4 * 64,))
    else:
        model = Transformer(layers=12, width=768, vocabulary=50257, heads=12, tied=True)
        x, y = torch.randint(50257, (8, 512)), torch.randint(50257, (8 * 512,))
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    kind, mixed = torch.device(device).type, name in FOR_DEVICES
    scaler = torch.amp.GradScaler(kind, init_scale=1024.0, enabled=mixed)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=torch.float16, enabled=mixed):
            loss = F.cross_entropy(model(x), y)
        if mixed:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()

    return model, step


# The instruments that are not ours.
def check_forward(module: nn.Module, args: Any, output: Any) -> None:
    for tensor in output if isinstance(output, tuple | list) else (output,):
        if isinstance(tensor, torch.Tensor) and not bool(torch.isfinite(tensor).all()):
            raise FloatingPointError(f"{type(module).__name__} gave out something that is not finite")


def put_on(instrument: str, model: nn.Module, kept: ExitStack) -> None:
    if instrument in ("detect_anomaly", "anomaly and hooks"):
        kept.enter_context(torch.autograd.detect_anomaly(check_nan=True))
    if instrument in ("forward hooks", "anomaly and hooks"):
        for module in model.modules():
            module.register_forward_hook(check_forward)
    if instrument == "hf debugger":
        from transformers.debug_utils import DebugUnderflowOverflow

        kept.callback(lambda debugger: None, DebugUnderflowOverflow(model))


class Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops += 1
        return func(*args, **(kwargs or {}))


def timed(step: Step, wanted: int) -> tuple[list[float], list[float]]:
    """Seconds that each step took, and those of the processor."""
    wall, cpu = [], []
    for _ in range(wanted):
        w, c = time.perf_counter(), time.thread_time()
        step()
        cpu.append(time.thread_time() - c)
        wall.append(time.perf_counter() - w)
    return wall, cpu


def timed_there(step: Step, wanted: int) -> tuple[list[float], list[float]]:
    """The same where a device does the work: from the end of one step there to the end of the next."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(wanted + 1)]
    cpu = []
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        c = time.thread_time()
        step()
        cpu.append(time.thread_time() - c)
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in zip(events, events[1:], strict=False)], cpu


def work(instrument: str, name: str, device: str, talk: Any) -> None:
    """The life of a worker: for each line with a number it does so many steps and says how long each took."""
    import warnings

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model, step = make(name, device)
    with ExitStack() as kept:
        put_on(instrument, model, kept)
        for _ in range(3):
            step()
        done = 3
        print(json.dumps({"ready": True}), file=talk, flush=True)
        for line in sys.stdin:
            wanted = int(line)
            if wanted == 0:
                break
            wall, cpu = timed_there(step, wanted) if device.startswith("cuda") else timed(step, wanted)
            print(json.dumps({"wall": wall, "cpu": cpu}), file=talk, flush=True)
            done += wanted
    ops = 0
    if instrument == UNWATCHED:
        with Count() as count:
            step()
        ops = count.ops
    print(json.dumps({"ops": ops}), file=talk, flush=True)


# The coordinator.
@dataclass
class Worker:
    instrument: str
    process: subprocess.Popen[str]
    talk: Any

    @staticmethod
    def start(instrument: str, model: str, device: str, folder: Path) -> Worker:
        # Findings and the talk of instruments go to stdout: figures come through a pipe of their own.
        reading, writing = os.pipe()
        command = [sys.executable, __file__, "--worker", instrument, "--models", model, "--device", device]
        command += ["--talk", str(writing)]
        level = "live" if instrument in READS else instrument.removesuffix(KERNELS).removesuffix(ABOVE)
        if level in LEVELS:
            nanhunt = Path(os.environ["NANHUNT_BIN_DIR"]) / "nanhunt"
            out = folder / f"{model}-{instrument}"
            options = [*OPTIONS[level], *(["--kernels"] if instrument.endswith(KERNELS) else [])]
            command = [str(nanhunt), "run", "--out", str(out), *options, "--", *command]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=None if os.environ.get("NANHUNT_DEBUG") else subprocess.DEVNULL,
            text=True,
            pass_fds=(writing,),
            env=dict(
                os.environ,
                OMP_NUM_THREADS="1",
                MKL_NUM_THREADS="1",
                NANHUNT_READS=READS.get(instrument, ""),
                NANHUNT_LISTEN="above_autograd" if instrument.endswith(ABOVE) else "",
                **KEEP_MEMORY,
            ),
        )
        os.close(writing)
        return Worker(instrument, process, os.fdopen(reading, encoding="utf-8"))

    def ask(self, steps: int) -> dict[str, Any]:
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        line = self.talk.readline()
        if not line:
            raise RuntimeError(f"the worker of '{self.instrument}' ended with {self.process.wait()}")
        return json.loads(line)

    def end(self) -> int:
        told = self.ask(0)
        self.process.stdin.close()
        self.talk.close()
        self.process.wait()
        return told["ops"]


def measure(
    model: str, device: str, instruments: list[str], turns: int, clock: str, seed: int, folder: Path, ends: float
) -> dict[str, Any]:
    shuffle = random.Random(seed)
    workers = {name: Worker.start(name, model, device, folder) for name in instruments}
    for worker in workers.values():
        worker.hear()  # ready
    steps = {**STEPS_PER_TURN, **FOR_DEVICES}[model]
    taken: dict[str, list[list[float]]] = {name: [] for name in instruments}
    for turn in range(turns):
        if turn > 0 and time.monotonic() > ends:
            turns = turn
            break
        order = list(instruments)
        shuffle.shuffle(order)
        for name in order:
            told = workers[name].ask(steps)
            taken[name].append(told[clock])
    ops = [worker.end() for worker in workers.values()][instruments.index(UNWATCHED)]
    alone = [statistics.fmean(turn) for turn in taken[UNWATCHED]]
    base = statistics.median(alone)
    figures = {}
    for name in instruments:
        ratios, more = paired(taken[name], alone)
        figures[name] = {
            "ratio": statistics.median(ratios),
            "quartiles": statistics.quantiles(ratios, n=4)[::2] if len(ratios) > 1 else ratios * 2,
            "more_ms_per_step": 1e3 * statistics.median(more),
            "more_us_per_op": 1e6 * statistics.median(more) / ops,
        }
    return {"model": model, "ops_per_step": ops, "unwatched_ms": 1e3 * base, "turns": turns, "figures": figures}


def paired(turns: list[list[float]], alone: list[float]) -> tuple[list[float], list[float]]:
    """Ratio and difference to the unwatched process in each turn."""
    more = [statistics.fmean(times) - base for times, base in zip(turns, alone, strict=True)]
    return [1 + longer / base for longer, base in zip(more, alone, strict=True)], more


def show(result: dict[str, Any]) -> None:
    head = f"{result['unwatched_ms']:.2f} ms a step, {result['ops_per_step']} ops, {result['turns']} turns"
    print(f"\n{result['model']}: {head}")
    for name, row in result["figures"].items():
        low, high = row["quartiles"]
        print(
            f"  {name:18} {row['ratio']:6.3f}  ({low:.3f} to {high:.3f})  {row['more_ms_per_step']:+9.3f} ms a step"
            f"  {row['more_us_per_op']:+7.2f} us an op"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(STEPS_PER_TURN), choices=[*STEPS_PER_TURN, *FOR_DEVICES])
    parser.add_argument("--device", default="cpu", help="where the models train: cpu, cuda, cuda:N")
    instruments = [*INSTRUMENTS, *WITH_KERNELS, *LISTENING_ABOVE, *READS]
    parser.add_argument("--instruments", nargs="+", default=list(INSTRUMENTS), choices=instruments)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--seconds", type=float, help="for each model: fewer turns where they would take longer")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--talk", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        with os.fdopen(args.talk, "w", encoding="utf-8") as talk:
            work(args.worker, args.models[0], args.device, talk)
        return
    instruments = [UNWATCHED, *(name for name in args.instruments if name != UNWATCHED)]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models:
            ends = time.monotonic() + args.seconds if args.seconds else float("inf")
            measured = measure(model, args.device, instruments, args.turns, args.clock, args.seed, Path(folder), ends)
            results.append(measured)
            show(results[-1])
    if args.json:
        machine = {"torch": torch.__version__, "clock": args.clock, "device": args.device, "load": os.getloadavg()}
        args.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
