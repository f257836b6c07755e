# SPDX-License-Identifier: Apache-2.0
"""What a report says to change fits the fault, or nothing is said. Each fault has a repaired twin that is clean."""

from __future__ import annotations

import subprocess

import pytest
from hunting import cli

torch = pytest.importorskip("torch")
import nanhunt  # noqa: E402

pytestmark = pytest.mark.usefixtures("library", "no_watch_left")
LEVELS = pytest.mark.parametrize("level", ["ops", "live"])


class Own(torch.optim.Optimizer):
    """Of the user's own: divides by the root of squares, which is 0 where it is bad."""

    def __init__(self, parameters, bad) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.bad = bad

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p)

    def update(self, p):
        squares = self.state[p].setdefault("squares", torch.zeros_like(p))
        squares.copy_(p.grad.square())
        p.sub_(0.1 * p.grad / ((squares * 0).sqrt() if self.bad else squares.sqrt() + 1e-8))


class Newton(Own):
    """Divides by a curvature, which is 0 where it is bad: beside a small constant the update would be huge."""

    def update(self, p):
        curvature = torch.zeros_like(p) if self.bad else torch.ones_like(p)
        p.sub_(0.1 * (p.grad / curvature.mul_(2)))


def log_of_zero(y, bad):
    return torch.log(torch.relu(y) * (0 if bad else 1) + (0 if bad else 1)).mean()


def summed_masks(y, bad):
    mask = torch.zeros(3, 4)
    mask[0, :] = torch.finfo(torch.float32).min
    return torch.softmax(y + mask + mask if bad else y + mask, -1).square().mean()


def angle(y, bad):
    return torch.acos(y / y.detach() * (1 if bad else 0.5)).mean()


def equal_eigenvalues(y, bad):
    apart = torch.eye(4) if bad else torch.diag(torch.arange(1.0, 5.0))
    values, vectors = torch.linalg.eigh(apart * (1 + y.nan_to_num(0, 0, 0).square().mean()))
    return (vectors.pow(3) * torch.arange(16.0).view(4, 4)).sum() + values.sum()


def equal_singular_values(y, bad):
    apart = torch.eye(4) if bad else torch.diag(torch.arange(1.0, 5.0))
    u, values, v = torch.linalg.svd(apart * (1 + y.nan_to_num(0, 0, 0).square().mean()))
    return ((u @ v).pow(3) + u.pow(2) * torch.arange(16.0).view(4, 4)).sum() + values.sum()


def equal_eigenvalues_without_symmetry(y, bad):
    apart = torch.eye(4) if bad else torch.diag(torch.arange(1.0, 5.0))
    values, vectors = torch.linalg.eig(apart * (1 + y.nan_to_num(0, 0, 0).square().mean()))
    return (vectors.abs().pow(3) * torch.arange(16.0).view(4, 4)).sum() + values.abs().sum()


def gap_of_ones_own(y, bad):
    """Divides by a difference of eigenvalues in forward: there the program can guard the denominator."""
    apart = torch.eye(4) if bad else torch.diag(torch.arange(1.0, 5.0))
    values = torch.linalg.eigvalsh(apart * (1 + y.nan_to_num(0, 0, 0).square().mean()))
    return (1 / (values[1:] - values[:-1])).mean()


class Unit(torch.autograd.Function):
    """Divides by a norm in a backward of its own."""

    @staticmethod
    def forward(ctx, x, guard):
        ctx.guard, size = guard, x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(size)
        return x / (size + 1e-3)

    @staticmethod
    def backward(ctx, gradient):
        (size,) = ctx.saved_tensors
        return gradient / (size + ctx.guard), None


def unit_by_hand(y, bad):
    return Unit.apply(y * torch.tensor([[0.0], [1.0], [1.0]]), 0 if bad else 1e-3).square().mean()


def root_of_each(y, bad):
    return (torch.sqrt(y.square() * torch.tensor([0.0, 1, 1, 1]) + (0 if bad else 1e-6)) * y).mean()


def root_of_sums(y, bad):
    squares = (y * torch.tensor([[0.0], [1.0], [1.0]])).square().sum(-1)
    return (torch.sqrt(squares + (0 if bad else 1e-6)) * y[:, 0]).mean()


def entropy(y, bad):
    return torch.special.entr(torch.relu(y) * torch.tensor([0.0, 1, 1, 1]) + (0 if bad else 1)).mean()


def ranks_of_none(y, bad):
    return y.square().mean() / (0 if bad else 1)


def plain(y, bad):
    return y.square().mean()


# What makes the loss, what makes the optimizer, words of the right advice, words of wrong ones.
CASES = {
    "log of 0": (log_of_zero, None, "Clamp the argument", ("softmax", "learning rate")),
    "summed masks": (summed_masks, None, "Combine masks before they are filled in", ("learning rate",)),
    "acos at 1": (angle, None, "strictly inside of the domain", ("denominator",)),
    "eigenvectors of equal eigenvalues": (equal_eigenvalues, None, "does not depend on the vectors", ("denominator",)),
    "equal singular values": (equal_singular_values, None, "does not depend on the vectors", ("denominator",)),
    "eigenvectors without symmetry": (
        equal_eigenvalues_without_symmetry, None, "does not depend on the vectors", ("denominator",)),
    "a gap of one's own": (gap_of_ones_own, None, "Add a small constant to the denominator", ("vectors",)),
    "a division in a backward of one's own": (
        unit_by_hand, None, "Add a small constant to the denominator", ("root", "norm")),
    "the root of each number at 0": (root_of_each, None, "inside the root", ("norm", "denominator")),
    "the root of a sum of squares at 0": (root_of_sums, None, "vector_norm", ("denominator",)),
    "the entropy of 0": (entropy, None, "Keep the argument above 0", ("less than 1", "softmax")),
    "a number of ranks that is 0": (ranks_of_none, None, "Look at where the number", ("Add a small constant",)),
    "an optimizer of one's own": (plain, Own, "Give the optimizer an eps", ("checkpoint",)),
    "an update that divides by a curvature": (plain, Newton, "Write 0 where the divisor is 0", ("small constant",)),
    "a learning rate that is NaN": (plain, "NaN", "Check the learning rate", ("checkpoint", "Clamp")),
}


def run(folder, level, make_loss, kind, bad):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    if kind in (Own, Newton):
        optimizer = kind(model.parameters(), bad)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=float("nan") if kind == "NaN" and bad else 0.01)
    with nanhunt.watch(model, optimizer, out=folder, level=level, quiet=True) as watch:
        for _ in range(2):
            optimizer.zero_grad()
            make_loss(model(torch.randn(3, 4)), bad).backward()
            optimizer.step()
    return watch


@LEVELS
@pytest.mark.parametrize("name", CASES)
def test_the_advice_is_about_the_fault(tmp_path, level, name):
    make_loss, kind, right, wrong = CASES[name]
    watch = run(tmp_path / "bad", level, make_loss, kind, True)
    assert watch.verdict == "fault"
    advice = [line.text for line in watch.findings[0].advice]
    assert right in advice[0]
    assert not [text for text in advice for words in wrong if words in text]

    twin = run(tmp_path / "twin", level, make_loss, kind, False)
    assert (twin.verdict, twin.findings) == ("clean", [])


@LEVELS
def test_a_program_that_skips_its_nan_is_not_told_that_nothing_has_to_be_changed(tmp_path, level):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with nanhunt.watch(model, optimizer, out=tmp_path / "run", level=level, quiet=True) as watch:
        for i in range(6):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss = torch.log(-loss if i == 3 else loss + 1)
            if torch.isfinite(loss):
                loss.backward()
                optimizer.step()
    assert watch.verdict == "warning"
    program = cli()
    said = subprocess.run([program, "advise", watch.path], capture_output=True, text=True, timeout=1800).stdout
    assert said and "Nothing has to be changed" not in said


@pytest.mark.parametrize("bad", [True, False])
def test_over_nan_that_does_no_harm_nothing_is_promised(tmp_path, bad):
    program = cli()

    def selected(y, bad):
        return (
            torch.where(torch.ones(4, dtype=torch.bool), y, torch.log(y.detach() * 0 - (1 if bad else -1)))
            .square()
            .mean()
        )

    watch = run(tmp_path / "run", "ops", selected, None, bad)
    assert watch.verdict == "clean"
    said = subprocess.run([program, "advise", watch.path], capture_output=True, text=True, timeout=1800).stdout
    assert ("Nothing has to be changed" in said) == (not bad) and ("holds NaN" in said) == bad
