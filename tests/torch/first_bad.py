# SPDX-License-Identifier: Apache-2.0
"""Says which ops of a PyTorch script make non-finite numbers, by a plain dispatch mode: the truth for the cases.

Nothing of nanhunt is used, nothing is clever, and everything is slow: each tensor of each op is read whole.

    python first_bad.py case.py [options of the case]

One JSON line per op that made something bad of clean inputs ("appear"), NaN of infinities ("transform") or lost it
("disappear").
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from bisect import bisect_right
from pathlib import Path

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

UNWRITTEN = ("aten::empty", "aten::new_empty")
OVERWRITE = tuple(f"aten::{op}" for op in ("normal_", "uniform_", "bernoulli_", "zero_", "fill_", "copy_", "ones_like"))
MAX_LINES = 400


def tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if type(value) in (list, tuple):
        return [t for item in value for t in tensors(item)]
    return []


def badness(value) -> str:
    """'', 'inf', 'nan' or 'inf+nan' over all tensors of an argument list."""
    found = set()
    for tensor in tensors(value):
        if tensor.is_complex() and tensor.layout == torch.strided:
            tensor = torch.view_as_real(tensor.detach().resolve_conj().resolve_neg())
        if tensor.is_floating_point() and tensor.numel():
            wide = tensor.detach().double()
            found |= {"nan"} if bool(wide.isnan().any()) else set()
            found |= {"inf"} if bool(wide.isinf().any()) else set()
    return "+".join(sorted(found))


class Steps:
    """Steps done so far: calls of GradScaler.update where there is a scaler, else the fewest steps of any optimizer."""

    def __init__(self) -> None:
        self.updates = 0
        self.scaled = False
        self.inside = 0
        self.passes: dict[int, int] = {}
        steps = self
        init, scaler_init = torch.optim.Optimizer.__init__, torch.amp.GradScaler.__init__
        update = torch.amp.GradScaler.update

        def new_init(optimizer, *args, **kwargs):
            steps.passes[id(optimizer)] = 0
            init(optimizer, *args, **kwargs)

        def new_scaler_init(scaler, *args, **kwargs):
            scaler_init(scaler, *args, **kwargs)
            steps.scaled = steps.scaled or scaler.is_enabled()

        def new_update(scaler, *args, **kwargs):
            update(scaler, *args, **kwargs)
            steps.updates += 1

        torch.optim.Optimizer.__init__, torch.amp.GradScaler.update = new_init, new_update
        torch.amp.GradScaler.__init__ = new_scaler_init
        from torch.optim import optimizer as hooks

        hooks.register_optimizer_step_pre_hook(self._enter)
        hooks.register_optimizer_step_post_hook(self._leave)

    def _enter(self, optimizer, args, kwargs) -> None:
        self.inside += 1

    def _leave(self, optimizer, args, kwargs) -> None:
        self.inside -= 1
        self.passes[id(optimizer)] = self.passes.get(id(optimizer), 0) + 1

    def done(self) -> int:
        return self.updates if self.scaled else min(self.passes.values(), default=0)


class Modules:
    """The path of the module whose forward is running, and of the one that made an autograd node."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.names: dict[int, str] = {}
        self.starts: list[int] = [0]
        self.owners: list[str] = ["<loss>"]
        self._hooks = (
            nn.modules.module.register_module_forward_pre_hook(self._enter),
            nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
        )

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _claim(self) -> None:
        self.starts.append(torch._C._autograd._get_sequence_nr())
        self.owners.append(self.path())

    def _enter(self, module, args) -> None:
        if not self.stack:
            whole = next(module.parameters(), None) is not None  # else a loss written as a module
            for name, child in module.named_modules():
                self.names[id(child)] = name if whole else "<loss>"
        self.stack.append(self.names.get(id(module), self.stack[-1] if self.stack else "?"))
        self._claim()

    def _leave(self, module, args, output) -> None:
        self.stack.pop()
        self._claim()

    def path(self) -> str:
        return self.stack[-1] if self.stack else "<loss>"

    def of_node(self, node) -> str:
        number = node._sequence_nr()
        if number >= 2**63:
            return "<accumulate>"
        return self.owners[bisect_right(self.starts, number) - 1]


class FirstBad(TorchDispatchMode):
    def __init__(self, steps: Steps, modules: Modules, write) -> None:
        super().__init__()
        self.steps, self.modules, self.write = steps, modules, write
        self.lines = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name
        if name.startswith("profiler::"):
            return func(*args, **kwargs)
        given = [list(args), list(kwargs.values())]
        inputs = badness(given)
        result = func(*args, **kwargs)
        if name.startswith(UNWRITTEN):
            return result
        # Running statistics are written although no schema says so.
        writes = func._schema.is_mutable or badness(given) != inputs
        outputs = badness([result, given] if writes else result)
        if name in OVERWRITE and not outputs:
            return result
        if (outputs and not inputs) or ("nan" in outputs and "nan" not in inputs) or (inputs and not outputs):
            self._tell(name, inputs, outputs, result)
        return result

    def _tell(self, name: str, inputs: str, outputs: str, result) -> None:
        if self.lines >= MAX_LINES:
            return
        self.lines += 1
        node = torch._C._current_autograd_node()
        module = self.modules.path()
        backward = torch._C._current_graph_task_id() >= 0
        if backward and not self.modules.stack and node is not None:
            module = self.modules.of_node(node)
        if backward:
            phase = "backward"
        elif self.steps.inside:
            phase = "optimizer"
        else:
            phase = "loss" if module == "<loss>" else "forward"
        first = tensors(result)
        self.write({
            "step": self.steps.done(),
            "op": name,
            "phase": phase,
            "module": module,
            "node": node.name() if backward and node is not None else None,
            "lifecycle": "appear" if not inputs else "transform" if outputs else "disappear",
            "inputs": inputs,
            "outputs": outputs,
            "dtype": str(first[0].dtype).removeprefix("torch.") if first else None,
        })


def main() -> None:
    target = os.environ.get("FIRST_BAD_OUT")
    stream = Path(target).open("w", encoding="utf-8") if target else sys.stderr  # noqa: SIM115 - open as long as the script
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))

    def write(record: dict) -> None:
        print(json.dumps(record), file=stream, flush=True)

    with FirstBad(Steps(), Modules(), write):
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
