# SPDX-License-Identifier: Apache-2.0
"""What a training step costs under nanhunt and under what people use instead, against the same step unwatched.

Every instrument has a process of its own, with one thread, that trains the same models, one after the other, and waits
for its turn. In each turn all do the same few steps, in random order; a second unwatched process is the control. A
figure is the median over turns of the ratio to the unwatched process of the same turn; behind its quartiles stands the
ratio of the shortest steps of all, which other work on the machine disturbs least.

    NANHUNT_LIBRARY=build/ci/lib/libnanhunt.so python tests/torch/bench/overhead.py --turns 60 --json out.json

Run it on an idle machine. On a busy one `--clock cpu` says something, the wall clock nothing. With `--device cuda` the
steps of a turn follow each other without a wait, and the wall clock is CUDA events between them. The models of
`FOR_DEVICES` are for there: GPT-2 of 124 M parameters, 8 x 1024 tokens, and ResNet-50 (torchvision's), 128 images.
"""

from __future__ import annotations

import argparse
import gc
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
KERNELS = "+kernels"  # with --kernels, on a GPU
WITH_KERNELS = tuple(level + KERNELS for level in LEVELS)
ABOVE = "+above"  # the tap listens above autograd
LISTENING_ABOVE = tuple(level + ABOVE for level in LEVELS)
OTHERS = ("detect_anomaly", "forward hooks", "anomaly and hooks", "hf debugger", "debug mode")
INSTRUMENTS = (UNWATCHED, CONTROL, *OTHERS, *LEVELS)
# The allocator gives nothing back. Else whether a step's tensors are mapped anew each time is chance, and differs
# between processes by more than what is measured (the control of the CNN was 1.13).
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
STEPS_PER_TURN = {"mlp": 40, "cnn": 10, "transformer": 10, "cnn-compiled": 10, "transformer-compiled": 10}
FOR_DEVICES = {"gpt2-fp16": 4, "gpt2-bf16": 4, "gpt2-compiled": 4, "resnet50": 6}


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
    elif name.startswith("cnn"):
        widths = (3, 16, 32, 64)
        convolutions = [
            part
            for before, after in zip(widths, widths[1:], strict=False)
            for part in (nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))
        ]
        model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * 16, 10))
        x, y = torch.randn(56, 3, 32, 32), torch.randint(10, (56,))
    elif name.startswith("transformer"):
        model = Transformer(layers=4, width=128, vocabulary=512, heads=4)
        x, y = torch.randint(512, (4, 64)), torch.randint(512, (4 * 64,))
    elif name == "resnet50":
        from torchvision.models import resnet50

        model = resnet50().to(memory_format=torch.channels_last)
        x, y = torch.randn(128, 3, 224, 224).to(memory_format=torch.channels_last), torch.randint(1000, (128,))
    else:
        model = Transformer(layers=12, width=768, vocabulary=50257, heads=12, tied=True)
        x, y = torch.randint(50257, (8, 1024)), torch.randint(50257, (8 * 1024,))
    model, x, y = model.to(device), x.to(device), y.to(device)
    kind, mixed = torch.device(device).type, name in FOR_DEVICES
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **{"fused" if mixed else "foreach": True})
    dtype = torch.float16 if name in ("gpt2-fp16", "resnet50") else torch.bfloat16
    scaler = torch.amp.GradScaler(kind, init_scale=1024.0, enabled=mixed and dtype is torch.float16)
    forward = torch.compile(model) if name.endswith("compiled") else model

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=dtype, enabled=mixed):
            loss = F.cross_entropy(forward(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return model, step


# The instruments that are not ours.
def check_forward(module: nn.Module, args: Any, output: Any) -> None:
    for tensor in output if isinstance(output, tuple | list) else (output,):
        if isinstance(tensor, torch.Tensor) and not bool(torch.isfinite(tensor).all()):
            raise FloatingPointError(f"{type(module).__name__} gave out something that is not finite")


def put_on(instrument: str, model: nn.Module, step: Step, kept: ExitStack) -> Step:
    """The step as the instrument has it."""
    if instrument in ("detect_anomaly", "anomaly and hooks"):
        kept.enter_context(torch.autograd.detect_anomaly(check_nan=True))
    if instrument in ("forward hooks", "anomaly and hooks"):
        for module in model.modules():
            module.register_forward_hook(check_forward)
    if instrument == "hf debugger":
        from transformers.debug_utils import DebugUnderflowOverflow

        kept.callback(lambda debugger: None, DebugUnderflowOverflow(model))
    if instrument == "debug mode":
        from torch.utils._debug_mode import DebugMode

        def recorded() -> None:
            with DebugMode():
                step()

        return recorded
    return step


def level_of(instrument: str) -> str | None:
    level = instrument.removesuffix(KERNELS).removesuffix(ABOVE)
    return level if level in LEVELS else None


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


def train(instrument: str, name: str, device: str, out: Path, talk: Any) -> None:
    """One model: for each line with a number it does so many steps and says how long each took, until it reads 0."""
    level = level_of(instrument)
    with ExitStack() as kept:
        if level is not None:
            import nanhunt

            options = {"kernels": True} if instrument.endswith(KERNELS) else {}
            kept.callback(nanhunt.watch(out=out / f"{name}-{instrument}", level=level, quiet=True, **options).close)
        model, step = make(name, device)
        watched = put_on(instrument, model, step, kept)
        for _ in range(3):
            watched()
        print(json.dumps({"ready": True}), file=talk, flush=True)
        while wanted := int(sys.stdin.readline() or 0):
            wall, cpu = timed_there(watched, wanted) if device.startswith("cuda") else timed(watched, wanted)
            print(json.dumps({"wall": wall, "cpu": cpu}), file=talk, flush=True)
    ops = 0
    if instrument == UNWATCHED:
        with Count() as count:
            step()
        ops = count.ops
    print(json.dumps({"ops": ops}), file=talk, flush=True)


def work(instrument: str, device: str, out: Path, talk: Any) -> None:
    """The life of a worker: each line that is no number names the next model."""
    import warnings

    warnings.simplefilter("ignore")
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "hooks" / "torch"))
    torch.set_num_threads(1)
    while name := sys.stdin.readline().strip():
        try:
            train(instrument, name, device, out, talk)
        finally:
            gc.collect()
            if device.startswith("cuda"):
                torch.cuda.empty_cache()


# The coordinator.
@dataclass
class Worker:
    instrument: str
    process: subprocess.Popen[str]
    talk: Any

    @staticmethod
    def start(instrument: str, device: str, folder: Path) -> Worker:
        # Findings and the talk of instruments go to stdout: figures come through a pipe of their own.
        reading, writing = os.pipe()
        command = [sys.executable, __file__, "--worker", instrument, "--device", device, "--talk", str(writing),
                   "--out", str(folder)]  # fmt: skip
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
                NANHUNT_LISTEN="above_autograd" if instrument.endswith(ABOVE) else "",
                **KEEP_MEMORY,
            ),
        )
        os.close(writing)
        return Worker(instrument, process, os.fdopen(reading, encoding="utf-8"))

    def begin(self, model: str) -> None:
        self.process.stdin.write(f"{model}\n")
        self.process.stdin.flush()

    def ask(self, steps: int) -> dict[str, Any]:
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, Any]:
        line = self.talk.readline()
        if not line:
            raise RuntimeError(f"the worker of '{self.instrument}' ended with {self.process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        self.process.stdin.close()
        self.talk.close()
        self.process.wait()


def measure(
    model: str, workers: dict[str, Worker], turns: int, clock: str, seed: int, ends: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Figures of those that trained it, and of each other why not."""
    shuffle = random.Random(seed)
    gone: dict[str, str] = {}

    def asked(name: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except (RuntimeError, OSError) as error:
            gone[name] = str(error)
            return None

    for worker in workers.values():
        asked(worker.instrument, lambda worker=worker: worker.begin(model))
    for worker in workers.values():
        asked(worker.instrument, worker.hear)  # ready
    steps = {**STEPS_PER_TURN, **FOR_DEVICES}[model]
    taken: dict[str, list[list[float]]] = {name: [] for name in workers}
    host: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(turns):
        if turn > 0 and time.monotonic() > ends:
            turns = turn
            break
        order = [name for name in workers if name not in gone]
        shuffle.shuffle(order)
        for name in order:
            told = asked(name, lambda name=name: workers[name].ask(steps))
            if told is not None:
                taken[name].append(told[clock])
                host[name].append(statistics.fmean(told["cpu"]))
    ops = 1
    for name, worker in workers.items():
        told = None if name in gone else asked(name, lambda worker=worker: worker.ask(0))
        ops = told["ops"] if told is not None and name == UNWATCHED else ops
    if UNWATCHED in gone:
        raise RuntimeError(gone[UNWATCHED])
    alone = [statistics.fmean(turn) for turn in taken[UNWATCHED]]
    base = statistics.median(alone)
    shortest = {name: min(map(min, turns_of)) for name, turns_of in taken.items() if name not in gone}
    figures = {}
    for name in (name for name in workers if name not in gone):
        ratios, more = paired(taken[name], alone)
        figures[name] = {
            "ratio": statistics.median(ratios),
            "quartiles": statistics.quantiles(ratios, n=4)[::2] if len(ratios) > 1 else ratios * 2,
            "of_shortest": shortest[name] / shortest[UNWATCHED],
            "more_ms_per_step": 1e3 * statistics.median(more),
            "more_us_per_op": 1e6 * statistics.median(more) / ops,
            "host_ms_per_step": 1e3 * statistics.median(host[name]),
        }
    found = {"model": model, "ops_per_step": ops, "unwatched_ms": 1e3 * base, "turns": turns, "figures": figures}
    return found, gone


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
            f"  {name:18} {row['ratio']:6.3f}  ({low:.3f} to {high:.3f})  {row['of_shortest']:6.3f}"
            f"  {row['more_ms_per_step']:+9.3f} ms a step  {row['more_us_per_op']:+7.2f} us an op"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(STEPS_PER_TURN), choices=[*STEPS_PER_TURN, *FOR_DEVICES])
    parser.add_argument("--device", default="cpu", help="where the models train: cpu, cuda, cuda:N")
    instruments = [*INSTRUMENTS, *WITH_KERNELS, *LISTENING_ABOVE]
    parser.add_argument("--instruments", nargs="+", default=list(INSTRUMENTS), choices=instruments)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--seconds", type=float, help="for each model: fewer turns where they would take longer")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--talk", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        with os.fdopen(args.talk, "w", encoding="utf-8") as talk:
            work(args.worker, args.device, args.out, talk)
        return
    machine = {"torch": torch.__version__, "clock": args.clock, "device": args.device, "load": os.getloadavg()}
    results: list[dict[str, Any]] = []
    gone: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        names = [UNWATCHED, *(name for name in args.instruments if name != UNWATCHED)]
        workers = {name: Worker.start(name, args.device, Path(folder)) for name in names}
        for model in args.models:
            ends = time.monotonic() + args.seconds if args.seconds else float("inf")
            measured, lost = measure(model, workers, args.turns, args.clock, args.seed, ends)
            gone.update(lost)
            for name in lost:
                print(f"{name} is gone: {lost[name]}", flush=True)
                workers.pop(name).end()
            results.append(measured)
            show(results[-1])
            if args.json:  # whole after each model
                told = {"machine": machine, "results": results, "gone": gone}
                args.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        for worker in workers.values():
            worker.end()


if __name__ == "__main__":
    main()
