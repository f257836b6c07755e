# SPDX-License-Identifier: Apache-2.0
"""What autocast_script.cpp does, with torch.autocast("cpu"). Needs torch and nothing else."""

import sys
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode

F = torch.nn.functional
FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
NAMES = {dtype: name for name, dtype in FORMATS.items()}
PARAMETERS = "wvhu"


def number(value: float) -> str:
    return f"{value:g}"


def truth(value: bool) -> str:
    return "true" if value else "false"


class CastCounter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.casts = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default:
            self.casts += 1
        return func(*args, **(kwargs or {}))


def expect_one_format(tensors):
    """The engine's losses take a pair of one format alone, here as well as outside of a region."""
    on = torch.is_autocast_enabled("cpu")
    formats = {torch.float32 if on and tensor.dtype != torch.float64 else tensor.dtype for tensor in tensors}
    if len(formats) > 1:
        raise RuntimeError("formats differ")


def custom_product(cast: str, restores: bool, seen: list[str], told: list[str]):
    """The function, decorated as a user would."""

    def forward(context, left, right):
        seen.append(f"forward {truth(torch.is_autocast_enabled('cpu'))} {NAMES[left.dtype]} ")
        context.save_for_backward(left, right)
        return left @ right

    def backward(context, gradient):
        left, right = context.saved_tensors
        of_left, of_right = gradient @ right.t(), left.t() @ gradient
        told.append(f" backward {truth(torch.is_autocast_enabled('cpu'))} {NAMES[of_left.dtype]}")
        return of_left, of_right

    if cast in FORMATS:
        forward = torch.amp.custom_fwd(forward, device_type="cpu", cast_inputs=FORMATS[cast])
    elif restores:
        forward = torch.amp.custom_fwd(forward, device_type="cpu")
    if restores:
        backward = torch.amp.custom_bwd(backward, device_type="cpu")
    return type("Product", (torch.autograd.Function,),
                {"forward": staticmethod(forward), "backward": staticmethod(backward)})  # fmt: skip


class Script:
    def __init__(self):
        self.regions = []

    def run(self, line: str) -> str:
        call, *words = line.split()
        self.casts = 0
        try:
            outcome = getattr(self, call)(*words)
        except RuntimeError:
            outcome = "refused"
            for name in PARAMETERS:
                self.tensors[name].grad = None
        if call == "backward":
            torch.clear_autocast_cache()
        casts = f" casts {self.casts}" if call == "op" and outcome != "refused" else ""
        state = "on" if torch.is_autocast_enabled("cpu") else "off"
        cache = "cached" if torch.is_autocast_cache_enabled() else "uncached"
        return f"{outcome}{casts} | {state} {NAMES[torch.get_autocast_dtype('cpu')]} {cache}"

    def new(self) -> str:
        while self.regions:
            self.exit()
        torch.set_grad_enabled(True)
        self.results, self.told = [], []

        def of(dtype, value):
            return torch.full((2, 2), value, dtype=FORMATS[dtype])

        self.tensors = {"w": of("fp32", 1.0), "v": of("fp32", 2.0), "h": of("fp16", 1.0), "a": of("fp32", 1.0),
                        "b": of("bf16", 2.0), "c": of("fp16", 1.0), "d": of("fp64", 1.0)}  # fmt: skip
        self.tensors["u"] = torch.full((3, 2), 1.0)[:2]
        for name in PARAMETERS:
            self.tensors[name].requires_grad_(True)
        return "new"

    def region(self, enabled: str, dtype: str, cache: str) -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            region = torch.autocast("cpu", dtype=FORMATS.get(dtype), enabled=enabled == "1",
                                    cache_enabled=None if cache == "-" else cache == "1")  # fmt: skip
        region.__enter__()
        self.regions.append(region)
        return f"warned: {str(caught[0].message)[:50]}" if caught else "entered"

    def exit(self) -> str:
        self.regions.pop().__exit__(None, None, None)
        return "done"

    def no_grad(self) -> str:
        torch.set_grad_enabled(False)
        return "done"

    def grad(self) -> str:
        torch.set_grad_enabled(True)
        return "done"

    def clear(self) -> str:
        torch.clear_autocast_cache()
        return "done"

    def write(self, name: str, value: str) -> str:
        with torch.no_grad():
            self.tensors[name].fill_(float(value))
        return "done"

    def op(self, name: str, *names: str) -> str:
        inputs = [self.tensors[tensor] for tensor in names]
        if name.endswith(("_loss", "entropy")):
            expect_one_format(inputs)
        exact = name not in ("binary_cross_entropy", "softmax", "exp")
        calls = {
            "matmul": lambda: inputs[0] @ inputs[1],
            "linear": lambda: F.linear(inputs[0], inputs[1]),
            "mse_loss": lambda: F.mse_loss(inputs[0], inputs[1]),
            "l1_loss": lambda: F.l1_loss(inputs[0], inputs[1]),
            "binary_cross_entropy": lambda: F.binary_cross_entropy(inputs[0], inputs[1]),
            "prelu": lambda: F.prelu(inputs[0], inputs[1][0]),
            "cat": lambda: torch.cat(inputs),
            "add": lambda: inputs[0] + inputs[1],
            "softmax": lambda: inputs[0].softmax(1),
            "exp": lambda: inputs[0].exp(),
            "sum": lambda: inputs[0].sum(),
        }
        counter = CastCounter()
        try:
            with counter:
                result = calls[name]()
        finally:
            self.casts = counter.casts
        return self.kept(result, exact)

    def function(self, cast: str, restores: str, left: str, right: str) -> str:
        seen = []
        product = custom_product(cast, restores == "1", seen, self.told)
        result = product.apply(self.tensors[left], self.tensors[right])
        return seen[0] + self.kept(result)

    def backward(self) -> str:
        self.told.clear()
        torch.clear_autocast_cache()
        results, self.results = self.results, []
        if results:
            sum(result.double().sum() for result in results).backward()
        gradients = ""
        for name in PARAMETERS:
            gradient = self.tensors[name].grad
            gradients += f" {name} none" if gradient is None else (
                f" {name} {NAMES[gradient.dtype]} {number(gradient.double().sum().item())}")  # fmt: skip
            self.tensors[name].grad = None
        return "gradients" + gradients + "".join(self.told)

    def kept(self, result, exact: bool = True) -> str:
        if result.requires_grad and exact:
            self.results.append(result)
        total = f" {number(result.detach().double().sum().item())}" if exact else ""
        return f"{NAMES[result.dtype]}{total} {'tracked' if result.requires_grad else 'free'}"


if __name__ == "__main__":
    script = Script()
    for line in sys.stdin:
        print(script.run(line))
