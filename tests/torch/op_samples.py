# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own database of operators and modules as an examiner: each sample, salted with finite extremes, trains one
step alone, under a plain dispatch mode that says what went bad first, and watched at level ops.

    python tests/torch/op_samples.py [--dtypes float32 float16 bfloat16] [--modules] [--samples 3] [--every 1]

prints the table of tests/bench/README.md: samples, those not finite, origins named rightly, unexplained ones by op.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "hooks" / "torch"), str(Path(__file__).parent)]

from first_bad import FirstBad, badness
from op_rows import recorded_ops
from saved import report_of

SHARE = 0.3  # of the elements that are salted
# What is no operator, starts processes, or takes whole seconds for one sample.
UNWRITTEN = ("empty", "new_empty")  # memory as it was found
LEFT_OUT = ("nn.functional.scaled_dot_product_attention", "linalg.lstsq", "svd_lowrank", "pca_lowrank")


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [t for item in value for t in tensors(item)]
    return []


def remade(value: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return make(value)
    if isinstance(value, dict):
        return {key: remade(item, make) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(remade(item, make) for item in value)
    return value


def salted(t: torch.Tensor, dice: random.Random) -> torch.Tensor:
    """The same tensor with some numbers replaced by extremes that are finite."""
    if t.layout != torch.strided or badness(t):
        raise ValueError("the truth cannot look into it, or it is not finite before anything runs")
    copy = t.detach().clone()
    if copy.is_floating_point() and copy.layout == torch.strided and copy.numel():
        limits = torch.finfo(copy.dtype)
        extremes = [0.0, -1.0, 1.0, 0.88 * limits.max, -0.88 * limits.max, limits.tiny / 100, limits.eps, 40.0]
        flat = copy.view(-1) if copy.is_contiguous() else copy.reshape(-1)
        for i in range(flat.numel() if flat.numel() < 400 else 400):
            if dice.random() < SHARE:
                flat[i] = dice.choice(extremes)
        copy = flat.view(copy.shape) if copy.is_contiguous() else flat.reshape(copy.shape)
    return copy.detach().requires_grad_(t.requires_grad)


@dataclass
class Case:
    """One call of an operator or a module, which can be made again and again from the same bits."""

    name: str
    make: Callable[[], tuple[Callable[..., Any], list[torch.Tensor]]]  # a call without arguments, and what it trains

    left: list[torch.Tensor] = field(default_factory=list)  # by the last step: loss, gradients, what was trained

    def run(self, made: tuple[Callable[..., Any], list[torch.Tensor]]) -> tuple[str, str]:
        """One step of training. The digest of all that came of it, and what it raised."""
        torch.manual_seed(3)
        call, trained = made
        weight = torch.ones((), requires_grad=True)
        optimizer = torch.optim.SGD([weight, *[t for t in trained if t.requires_grad and t.is_leaf]], lr=0.01)
        raised, kept, self.left = "", [], []
        try:
            outs = [
                o for o in tensors(call()) if o.is_floating_point() and o.layout == torch.strided and not o.is_quantized
            ]
            kept += outs
            loss = weight * sum((o.float().sum() if o.dtype != torch.float64 else o.sum()) for o in outs)
            if isinstance(loss, torch.Tensor):
                self.left.append(loss.detach())
                loss.backward()
                optimizer.step()
        except Exception as error:
            raised = f"{type(error).__name__}"
        self.left += [*[t.grad for t in trained if t.grad is not None], *[t.detach() for t in trained]]
        return digest_of([*kept, *self.left]), raised


def digest_of(kept: list[torch.Tensor]) -> str:
    h = hashlib.sha256()
    for t in kept:
        if t.layout == torch.strided and t.numel() and not t.is_complex():
            h.update(t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


class Truth(FirstBad):
    """Which ops made what is not finite."""

    def __init__(self) -> None:
        super().__init__(None, None, None)
        self.made: list[str] = []

    def _tell(self, name: str, inputs: str, outputs: str, result: Any) -> None:
        if outputs:
            self.made.append(name)


@dataclass
class Table:
    samples: int = 0
    bad: int = 0  # of them not finite
    hidden: int = 0  # ... and finite again in all that was left
    changed: list[str] = field(default_factory=list)
    right: int = 0
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)

    @property
    def found(self) -> int:
        return self.right + len(self.wrong)

    def lines(self) -> list[str]:
        return [
            f"samples {self.samples}, not finite {self.bad}, changed {len(self.changed)}",
            f"hidden again without harm {self.hidden}, op right {self.right} of {self.found}, "
            f"missed {len(self.missed)}, unexplained {len(self.unexplained)}",
            f"classes {dict(self.classes.most_common())}",
            *[f"changed: {text}" for text in self.changed],
            *[f"wrong: {text}" for text in self.wrong],
            *[f"missed: {text}" for text in self.missed],
            *[f"unexplained: {text} x{n}" for text, n in Counter(self.unexplained).most_common()],
        ]


def examine(case: Case, folder: Path, table: Table) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plain, raised = case.run(case.make())
            harmed = bool(badness(case.left))
            again, _ = case.run(case.make())
            truth, made = Truth(), case.make()
            with truth:
                case.run(made)
            made = case.make()
        except Exception:  # tensors that cannot be copied
            return
        with recorded_ops(folder) as session:
            session.begin_exact_step(case.run, (), {})
            watched, raised_watched = case.run(made)
            session.end_exact_step()
    table.samples += 1
    if raised != raised_watched or (plain == again and plain != watched):
        table.changed.append(f"{case.name} ({raised or 'bits'}; {raised_watched})")
    if raised or session.recorder is None:
        return
    judge(case, truth.made, harmed, report_of(folder), table)


def judge(case: Case, made: list[str], harmed: bool, said: dict[str, Any], table: Table) -> None:
    findings = [f for f in said["findings"] if f["severity"] == "fault"]
    if made and not findings:  # something hid it again
        findings = [f for f in said["findings"] if f["severity"] == "warning"]
    if not made and not harmed:
        if findings:
            table.wrong.append(f"{case.name}: nothing is bad, said {findings[0]['class']} {findings[0]['op']}")
        return
    table.bad += 1
    if not findings:
        table.hidden += not harmed
        table.missed += [f"{case.name}: {said['verdict']['headline']}"] if harmed else []
        return
    first = next((f for f in findings if f["id"] == said["verdict"]["origin"]), findings[0])
    table.classes[first["class"]] += 1
    if first["class"] == "unexplained":
        table.unexplained.append(f"{case.name} ({first['op']})")
    if first["op"] in made or first["op"] in ("<state>", "<batch>"):
        table.right += 1
    else:
        table.wrong.append(f"{case.name}: {first['class']} {first['op']}, made by {made[:4]}")


def op_cases(dtype: torch.dtype, samples: int, every: int = 1, first: int = 0) -> Iterator[Case]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db[first::every]:
        if op.name in LEFT_OUT or op.name.startswith(UNWRITTEN) or dtype not in op.dtypes:
            continue
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        learns = op.supports_autograd and dtype in op.dtypes
        try:
            torch.manual_seed(1)
            drawn = [
                s for s, _ in zip(op.sample_inputs("cpu", dtype, requires_grad=learns), range(samples), strict=False)
            ]
        except Exception:
            continue
        for number, sample in enumerate(drawn):
            yield Case(f"{name} {number}", call_of(op, sample, f"{name}{number}"))


def call_of(op: Any, sample: Any, seed: str) -> Callable[[], tuple[Callable[..., Any], list[torch.Tensor]]]:
    def make() -> tuple[Callable[..., Any], list[torch.Tensor]]:
        dice = random.Random(seed)
        given = remade((sample.input, sample.args, sample.kwargs), lambda t: salted(t, dice))
        return lambda: op(given[0], *given[1], **given[2]), [t for t in tensors(given) if t.requires_grad]

    return make


def module_cases(dtype: torch.dtype, samples: int, every: int = 1, first: int = 0) -> Iterator[Case]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db[first::every]:
        if dtype not in info.dtypes:
            continue
        try:
            torch.manual_seed(1)
            drawn = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=True)[
                :samples
            ]
        except Exception:
            continue
        for number, sample in enumerate(drawn):
            if sample.forward_input is not None:
                yield Case(f"{info.name} {number}", module_of(info, sample, dtype, f"{info.name}{number}"))


class Model(torch.nn.Module):
    """What trains: one of PyTorch's modules and a parameter, for a module may have none."""

    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part = part
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.part(*args, **kwargs)


def module_of(
    info: Any, sample: Any, dtype: torch.dtype, seed: str
) -> Callable[[], tuple[Callable[..., Any], list[torch.Tensor]]]:
    def make() -> tuple[Callable[..., Any], list[torch.Tensor]]:
        dice = random.Random(seed)
        built, given = sample.constructor_input, sample.forward_input
        torch.manual_seed(1)  # of the weights
        module = Model(info.module_cls(*built.args, **built.kwargs).to(dtype))
        args, kwargs = remade((given.args, given.kwargs), lambda t: salted(t, dice))
        return lambda: module(*args, **kwargs), [
            *module.parameters(),
            *module.buffers(),
            *[t for t in tensors((args, kwargs)) if t.requires_grad],
        ]

    return make


def examined(cases: Iterator[Case], say: Callable[[str], None] | None = None) -> Table:
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(cases):
            if say is not None:
                say(case.name)
            examine(case, Path(folder) / str(number), table)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16", "bfloat16"])
    parser.add_argument("--modules", action="store_true")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for dtype in options.dtypes:
        cases = (module_cases if options.modules else op_cases)(
            getattr(torch, dtype), options.samples, options.every, options.first
        )
        table = examined(cases, (lambda name: print(name, file=sys.stderr, flush=True)) if options.verbose else None)
        print(f"{dtype}:")
        for line in table.lines():
            print("  " + line)


if __name__ == "__main__":
    main()
