# SPDX-License-Identifier: Apache-2.0
"""Model families, trained for three steps in each precision: is nanhunt silent when they are healthy, are their bits
the same, is one planted overflow named?

    build/venv/bin/python tests/torch/zoo/zoo.py --levels default ops     # all of them; prints the table
    build/venv/bin/python tests/torch/zoo/zoo.py --only llama gan         # some
    build/venv/bin/python tests/torch/zoo/zoo.py --compiled --precisions fp16 --levels default   # by torch.compile

The fault: in step 1 what one module gives out, drawn at random, is multiplied until it overflows its format. Compiled,
a family is compared with itself as written: what differs is printed.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[3]
    sys.path[:0] = [str(ROOT / "hooks" / "torch"), *(str(ROOT / "tests" / "torch" / f) for f in ("", "zoo", "neutral"))]

import hf_models
import own_models
import torch
import torch._functorch.config
from digest import digest
from torch import nn

FAMILIES: dict[str, Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]]] = {
    **hf_models.FAMILIES,
    **own_models.FAMILIES,
}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LEVELS = {"default": {}, "ops": {"level": "ops"}}
STEPS, BAD = 3, 1


class Plant:
    """Multiplies what a module gives out, in step BAD until it overflows: by numbers in tensors, so that a compiled
    model is compiled once."""

    def __init__(self, module: str, largest: float, dtype: torch.dtype) -> None:
        """`largest`: magnitude of what it gives out in that step, which is of that type."""
        self.module, self._largest, self._dtype = module, largest, dtype
        self._up, self._over = torch.ones(()), torch.ones(())

    def set_step(self, step: int) -> None:
        up, over = (16 / max(self._largest, 2**-10), torch.finfo(self._dtype).max / 2) if step == BAD else (1.0, 1.0)
        self._up.fill_(up)
        self._over.fill_(over)

    def __call__(self, module: nn.Module, given: Any, out: Any) -> Any:
        return out * self._up * self._over


@dataclass
class Run:
    bits: str
    losses: list[float] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)


@dataclass
class Met:
    """Modules that give out a tensor which takes part in backward: by path, how large it is in step BAD."""

    step: int = -1
    largest: dict[str, tuple[float, torch.dtype]] = field(default_factory=dict)

    def see(self, path: str, module: nn.Module, given: Any, out: Any) -> None:
        if self.step != BAD or path in self.largest or not isinstance(out, torch.Tensor):
            return
        if out.requires_grad and out.dtype in PRECISIONS.values():
            self.largest[path] = float(out.detach().abs().max()), out.dtype


def train(name: str, precision: str, plant: Plant | None = None, watch: dict[str, Any] | None = None,
          met: Met | None = None, compiled: bool = False) -> Run:  # fmt: skip
    torch.manual_seed(11)
    model, loss_of = FAMILIES[name]()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, enabled=precision == "fp16")
    mixed = torch.autocast("cpu", dtype=PRECISIONS[precision], enabled=precision != "fp32")
    run = Run("")
    with ExitStack() as kept:
        if plant is not None:
            model.get_submodule(plant.module).register_forward_hook(plant)
        if compiled:
            torch._dynamo.reset()
            for part in (model, *model.children()):  # whichever the loss calls
                part.compile()
        for path, module in model.named_modules() if met is not None else ():
            if not any(module.children()):
                module.register_forward_hook(functools.partial(met.see, path))
        if watch is not None:
            import nanhunt

            kept.enter_context(nanhunt.watch(model, optimizer, **watch))
        for step in range(STEPS):
            if plant is not None:
                plant.set_step(step)
            if met is not None:
                met.step = step
            optimizer.zero_grad()
            with mixed:
                loss = loss_of()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            run.losses.append(float(loss.detach()))
    run.bits = digest([[p.detach() for p in model.parameters()], list(model.buffers()), run.losses])
    return run


def watched(name: str, precision: str, level: str, plant: Plant | None = None, compiled: bool = False) -> Run:
    from saved import report_of

    with tempfile.TemporaryDirectory() as folder:
        run = train(name, precision, plant, {"out": folder, **LEVELS[level]}, compiled=compiled)
        run.report = report_of(folder)
    return run


def choose(name: str, precision: str, seed: int) -> Plant:
    met = Met()
    train(name, precision, met=met)
    module = random.Random(f"{name} {precision} {seed}").choice(sorted(met.largest))
    return Plant(module, *met.largest[module])


def is_named(report: dict[str, Any], module: str) -> bool:
    """Whether a finding has the multiplication, in that module."""
    return any(
        f["op"] == "aten::mul" and f["step"] == BAD and f["module"] == module and f["severity"] != "info"
        for f in report["findings"]
    )


def judge(name: str, precision: str, level: str, seed: int = 0, compiled: bool = False) -> dict[str, str]:
    """What is wrong, by question; nothing: all is well."""
    wrong = {}
    alone = train(name, precision, compiled=compiled)
    healthy = watched(name, precision, level, compiled=compiled)
    if healthy.bits != alone.bits:
        wrong["other bits"] = "healthy"
    if healthy.report["verdict"]["status"] != "clean":
        wrong["not silent"] = healthy.report["verdict"]["headline"]
    plant = choose(name, precision, seed)
    try:
        alone = train(name, precision, plant, compiled=compiled)
    except Exception:  # a check of its own stops it
        return wrong
    planted = watched(name, precision, level, plant, compiled=compiled)
    if planted.bits != alone.bits:
        wrong["other bits"] = "planted"
    if not is_named(planted.report, plant.module):
        told = f"{plant.module}: {planted.report['verdict']['headline']}"
        # The compiler keeps what it fuses in fp32.
        kept = compiled and all(map(math.isfinite, alone.losses)) and planted.report["verdict"]["status"] == "clean"
        wrong["stays finite" if kept else "not named"] = told
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES), default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--levels", nargs="+", choices=list(LEVELS), default=list(LEVELS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compiled", action="store_true", help="models are compiled")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.compiled:
        torch._functorch.config.enable_autograd_cache = False  # a graph out of it comes without operations
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read when it is first imported, by a family
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str, str]] = Counter()
    for name in args.only:
        for precision in args.precisions:
            try:
                for compiled in {args.compiled, False}:
                    train(name, precision, compiled=compiled)
            except Exception as error:
                print(f"{name} {precision}: does not train here: {type(error).__name__}: {str(error)[:80]}", flush=True)
                counts["does not train here", precision, ""] += 1
                continue
            for level in args.levels:
                wrong = judge(name, precision, level, args.seed, args.compiled)
                if args.compiled:
                    eager = judge(name, precision, level, args.seed)
                    wrong = {question: what for question, what in wrong.items() if eager.get(question) != what}
                counts["runs", precision, level] += 1
                for question, what in wrong.items():
                    counts[question, precision, level] += 1
                    print(f"{name} {precision} {level}: {question}: {what}", flush=True)
    for (what, precision, level), count in sorted(counts.items()):
        print(f"{what:22} {precision} {level:8} {count}")


if __name__ == "__main__":
    main()
