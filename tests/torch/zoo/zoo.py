# SPDX-License-Identifier: Apache-2.0
"""Model families, trained for three steps in each precision: is nanhunt silent when they are healthy, are their bits
the same, is one planted overflow named?

    build/venv/bin/python tests/torch/zoo/zoo.py --levels default ops     # all of them; prints the table
    build/venv/bin/python tests/torch/zoo/zoo.py --only llama gan         # some

The fault: in step 1 what one module gives out, drawn at random, is multiplied until it overflows its format.
"""

from __future__ import annotations

import argparse
import functools
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
from digest import digest
from torch import nn

FAMILIES: dict[str, Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]]] = {
    **hf_models.FAMILIES,
    **own_models.FAMILIES,
}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LEVELS = {"default": {}, "ops": {"level": "ops"}}
STEPS, BAD = 3, 1


@dataclass
class Plant:
    """Multiplies what a module gives out in step BAD."""

    module: str
    step: int = -1
    done: bool = False

    def __call__(self, module: nn.Module, given: Any, out: Any) -> Any:
        if self.step != BAD or self.done:
            return out
        self.done = True
        largest = float(out.detach().abs().max())
        return out * (16 / max(largest, 2**-10)) * (torch.finfo(out.dtype).max / 2)


@dataclass
class Run:
    bits: str
    losses: list[float] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)


def _meet(met: list[str], path: str, module: nn.Module, given: Any, out: Any) -> None:
    if isinstance(out, torch.Tensor) and out.requires_grad and out.dtype in PRECISIONS.values():
        met.append(path)


def train(name: str, precision: str, plant: Plant | None = None, watch: dict[str, Any] | None = None,
          met: list[str] | None = None) -> Run:  # fmt: skip
    """`met`: gets the paths of modules that give out a tensor which takes part in backward."""
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
        for path, module in model.named_modules() if met is not None else ():
            if not any(module.children()):
                module.register_forward_hook(functools.partial(_meet, met, path))
        if watch is not None:
            import nanhunt

            kept.enter_context(nanhunt.watch(model, optimizer, **watch))
        for step in range(STEPS):
            if plant is not None:
                plant.step = step
            optimizer.zero_grad()
            with mixed:
                loss = loss_of()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            run.losses.append(float(loss.detach()))
    run.bits = digest([[p.detach() for p in model.parameters()], list(model.buffers()), run.losses])
    return run


def watched(name: str, precision: str, level: str, plant: Plant | None = None) -> Run:
    from saved import report_of

    with tempfile.TemporaryDirectory() as folder:
        run = train(name, precision, plant, {"out": folder, **LEVELS[level]})
        run.report = report_of(folder)
    return run


def choose(name: str, precision: str, seed: int) -> str:
    met: list[str] = []
    train(name, precision, met=met)
    return random.Random(f"{name} {precision} {seed}").choice(sorted(set(met)))


def is_named(report: dict[str, Any], module: str) -> bool:
    """Whether a finding has the multiplication, in that module."""
    return any(
        f["op"] == "aten::mul" and f["step"] == BAD and f["module"] == module and f["severity"] != "info"
        for f in report["findings"]
    )


def judge(name: str, precision: str, level: str, seed: int = 0) -> dict[str, str]:
    """What is wrong, by question; nothing: all is well."""
    wrong = {}
    alone, healthy = train(name, precision), watched(name, precision, level)
    if healthy.bits != alone.bits:
        wrong["other bits"] = "healthy"
    if healthy.report["verdict"]["status"] != "clean":
        wrong["not silent"] = healthy.report["verdict"]["headline"]
    module = choose(name, precision, seed)
    try:
        alone = train(name, precision, Plant(module))
    except Exception:  # a check of its own stops it
        return wrong
    planted = watched(name, precision, level, Plant(module))
    if planted.bits != alone.bits:
        wrong["other bits"] = "planted"
    if not is_named(planted.report, module):
        wrong["not named"] = f"{module}: {planted.report['verdict']['headline']}"
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES), default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--levels", nargs="+", choices=list(LEVELS), default=list(LEVELS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read when it is first imported, by a family
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str, str]] = Counter()
    for name in args.only:
        for precision in args.precisions:
            try:
                train(name, precision)
            except Exception as error:
                print(f"{name} {precision}: does not train here: {type(error).__name__}: {str(error)[:80]}", flush=True)
                counts["does not train here", precision, ""] += 1
                continue
            for level in args.levels:
                wrong = judge(name, precision, level, args.seed)
                counts["runs", precision, level] += 1
                for question, what in wrong.items():
                    counts[question, precision, level] += 1
                    print(f"{name} {precision} {level}: {question}: {what}", flush=True)
    for (what, precision, level), count in sorted(counts.items()):
        print(f"{what:22} {precision} {level:8} {count}")


if __name__ == "__main__":
    main()
