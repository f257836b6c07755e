# SPDX-License-Identifier: Apache-2.0
"""Training that has no ordinary step, and what could not be read or judged: harm in it is a fault, and what nanhunt
did not understand is inconclusive and says why. Neither is ever clean."""
from __future__ import annotations

import json
import subprocess

import nanhunt
import numpy as np
import pytest
import ready_python
import torch
from hunting import cli, needs_cli, with_package
from mistakes import plant_failing_part
from saved import records_of
from torch import nn

NAN = float("nan")
pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(params=["live", "ops"])
def level(request):
    return request.param


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def batch(bad):
    return torch.full((3, 4), NAN if bad else 1.0)


def judged(tmp_path, level, train, takes_watch=False):
    with nanhunt.watch(out=tmp_path / "run", level=level, quiet=True) as watch:
        train(watch) if takes_watch else train()
    return json.loads(watch.report("json"))["verdict"]


# Steps of other kinds. Each is given whether it goes wrong.
def parameters_that_are_nan(bad):
    model, optimizer = made()
    if bad:
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(NAN)
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()


def parameters_that_become_nan_late(bad):
    model, optimizer = made()
    for i in range(13):
        if bad and i == 12:  # past the first steps, of which weights are read anyway
            model[0].weight.detach().numpy()[:] = NAN
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()


def gradients_by_hand(bad):
    model, optimizer = made()
    for i in range(3):
        for p in model.parameters():
            p.grad = torch.full_like(p, NAN if bad and i == 2 else 0.01)
        optimizer.step()


def gradients_of_numpy(bad):
    model, optimizer = made()
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.from_numpy(np.full(tuple(p.shape), NAN if bad else 0.1, np.float32))
        optimizer.step()


def functional_steps(bad):
    model, _ = made()
    now = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).pow(2).mean()

    for i in range(4):
        gradients = torch.func.grad(loss)(now, batch(bad and i == 3))
        now = {name: p - 0.1 * gradients[name] for name, p in now.items()}


def functional_steps_without_an_optimizer(bad, transform=lambda of: of):
    """Of a model that the program calls by its parameters alone."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    now = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).pow(2).mean()

    for i in range(4):
        gradients = transform(torch.func.grad(loss))(now, batch(bad and i == 3))
        now = {name: p - 0.1 * gradients[name].view(-1, *p.shape).mean(0) for name, p in now.items()}


def functional_steps_by_sample(bad):
    functional_steps_without_an_optimizer(bad, lambda of: torch.vmap(of, (None, 0)))


def functional_gradients_for_an_optimizer(bad):
    model, optimizer = made()
    for i in range(3):
        x = batch(bad and i == 2)
        now = {name: p.detach() for name, p in model.named_parameters()}
        gradients = torch.func.grad(lambda q, x=x: torch.func.functional_call(model, q, (x,)).pow(2).mean())(now)
        for name, p in model.named_parameters():
            p.grad = gradients[name]
        optimizer.step()


def a_model_that_is_met_under_transforms(bad):
    """Its buffers are wrapped then, and what it is given."""
    model = nn.Sequential(nn.BatchNorm1d(4).eval(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def adapted(parameters, x):
        slopes = torch.func.grad(lambda q: torch.func.functional_call(model, q, (x,)).pow(2).mean())(parameters)
        now = {name: p - 0.1 * slopes[name] for name, p in parameters.items()}
        return torch.func.functional_call(model, now, (x,)).pow(2).mean()

    for i in range(3):
        given = torch.stack([batch(False), batch(bad and i == 1)])
        losses = torch.vmap(adapted, (None, 0))(dict(model.named_parameters()), given)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()


def a_model_that_is_met_under_forward_derivatives(bad):
    model = nn.Sequential(nn.BatchNorm1d(4).eval(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(3):
        x = batch(bad and i == 1)
        out, slope = torch.func.jvp(model, (x,), (torch.ones_like(x),))
        optimizer.zero_grad()
        (out.pow(2).mean() + slope.pow(2).mean()).backward()
        optimizer.step()


def a_loss_of_vmap_and_where(bad):
    model, optimizer = made()
    for i in range(3):
        optimizer.zero_grad()
        rows = model(batch(bad and i == 1))
        torch.vmap(lambda r: torch.where(r > 0, r.abs().sqrt(), r.square()).sum())(rows).mean().backward()
        optimizer.step()


def updates_by_hand(bad, last=2, rate=0.1):
    model, _ = made()
    for i in range(4):
        model(batch(bad and i == last)).pow(2).mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= rate * p.grad
                p.grad = None


def updates_by_hand_in_the_last_step(bad):
    updates_by_hand(bad, last=3)


def updates_by_hand_that_multiply_by_nan(bad):
    updates_by_hand(False, rate=NAN if bad else 0.1)


def updates_of_autograd_grad(bad):
    model, _ = made()
    parameters = list(model.parameters())
    for i in range(4):
        gradients = torch.autograd.grad(model(batch(bad and i == 2)).pow(2).mean(), parameters)
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=False):
                p -= 0.1 * g


def sparse_gradients(bad):
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), 0.1)
    for i in range(3):
        optimizer.zero_grad()
        table(torch.tensor([1, 2])).sum().backward()
        if bad and i == 2:  # in the gradient alone, and no loss follows
            table.weight.grad._values().numpy()[:] = NAN
        optimizer.step()


def a_last_step_without_an_optimizer(bad):
    model, optimizer = made()
    for i in range(3):
        model(batch(bad and i == 2)).mean().backward()
        if i < 2:
            optimizer.step()
            optimizer.zero_grad()


def tensors_without_modules(bad, write=lambda w: None):
    w, b = torch.ones(4, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    for i in range(4):
        (batch(bad and i == 2) @ w + b).pow(2).mean().backward()
        with torch.no_grad():
            for p in (w, b):
                p -= 0.1 * p.grad
                p.grad = None
    write(w)
    KEPT.append(w)


KEPT = []  # what is gone when the watch ends cannot be read


def write_nan(t):
    t.detach().numpy()[0] = NAN


def tensors_without_modules_that_numpy_ruins_at_the_end(bad):
    tensors_without_modules(False, write_nan if bad else lambda w: None)


def weights_without_an_optimizer_that_numpy_ruins_at_the_end(bad):
    model, _ = made()
    KEPT.append(model)
    for _ in range(3):
        model(batch(False)).pow(2).mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    if bad:
        write_nan(model[0].weight)


def updates_of_functional_gradients(bad):
    w = torch.ones(4)
    for i in range(3):
        x = batch(bad and i == 1)
        w = w - 0.1 * torch.func.grad(lambda w, x=x: (x @ w).pow(2).mean())(w)


def updates_of_gradients_that_are_given(bad):
    w = torch.ones(4, requires_grad=True)
    for i in range(3):
        gradient, = torch.autograd.grad((batch(bad and i == 1) @ w).pow(2).mean(), w)
        with torch.no_grad():
            w -= 0.1 * gradient


KINDS = [functional_steps_without_an_optimizer, functional_steps_by_sample, tensors_without_modules,
         updates_of_functional_gradients, updates_of_gradients_that_are_given,
         tensors_without_modules_that_numpy_ruins_at_the_end,
         weights_without_an_optimizer_that_numpy_ruins_at_the_end,
         parameters_that_are_nan, gradients_by_hand, gradients_of_numpy, functional_steps,
         a_model_that_is_met_under_transforms, a_model_that_is_met_under_forward_derivatives,
         functional_gradients_for_an_optimizer, a_loss_of_vmap_and_where, updates_by_hand,
         updates_by_hand_in_the_last_step, updates_by_hand_that_multiply_by_nan, updates_of_autograd_grad,
         sparse_gradients, a_last_step_without_an_optimizer, parameters_that_become_nan_late]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_harm_in_steps_of_other_kinds_is_a_fault_and_its_twin_is_clean(tmp_path, level, kind):
    assert judged(tmp_path / "bad", level, lambda: kind(True))["status"] == "fault"
    verdict = judged(tmp_path / "good", level, lambda: kind(False))
    assert verdict["status"] == "clean", verdict


@pytest.mark.parametrize("bad", [True, False])
def test_updates_of_tensors_outside_of_modules_and_optimizers_are_not_clean(tmp_path, level, bad):
    def train():
        w = torch.ones(4)
        for i in range(3):
            x = batch(bad and i == 1)
            w = w - 0.1 * x.T @ (x @ w) / len(x)  # its derivatives are its own

    # Given steps in which nothing says that they are training, then none was seen,
    verdict = judged(tmp_path, level, train)
    assert verdict["status"] == "inconclusive" and "no step of training was seen" in verdict["headline"]


class Elsewhere(torch.Tensor):
    """Keeps its numbers in another tensor, as quantised and sharded ones do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain, wrapped = (lambda t: t.inner if isinstance(t, Elsewhere) else t), torch.Tensor
        out = function(*torch.utils._pytree.tree_map(plain, args),
                       **torch.utils._pytree.tree_map(plain, kwargs or {}))
        if function.overloadpacket.__name__.endswith("_"):
            return args[0]
        return torch.utils._pytree.tree_map(lambda t: Elsewhere(t) if isinstance(t, wrapped) else t, out)


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
def test_gradients_that_cannot_be_read_are_not_clean_and_a_frozen_table_does_not_matter(tmp_path, level, trained):
    def train():
        model, _ = made()
        if trained:
            model[0].weight = nn.Parameter(Elsewhere(torch.ones(8, 4)))
        else:
            model.table = nn.Parameter(Elsewhere(torch.ones(8, 4)), requires_grad=False)
            model.forward = lambda x: model[2](model[1](model[0](x)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
        for i in range(3):
            optimizer.zero_grad()
            model(batch(False)).pow(2).mean().backward()
            if trained and i == 2:  # which no loss comes to show
                model[0].weight.grad.inner.numpy()[:] = NAN
            optimizer.step()

    verdict = judged(tmp_path, level, train)
    assert verdict["status"] == ("inconclusive" if trained else "clean"), verdict
    assert not trained or "of a kind that is not read" in verdict["headline"]


@pytest.mark.parametrize("fails", [True, False])
def test_an_error_inside_nanhunt_is_not_clean(tmp_path, level, fails):
    def train(watch):
        model, optimizer = made()
        for i in range(3):
            if fails and i == 1:
                plant_failing_part(watch)
            optimizer.zero_grad()
            model(batch(False)).mean().backward()
            optimizer.step()

    verdict = judged(tmp_path, level, train, takes_watch=True)
    assert verdict["status"] == ("inconclusive" if fails else "clean"), verdict
    assert not fails or "errors inside nanhunt" in verdict["headline"]


@pytest.mark.parametrize("judges", [True, False])
def test_a_step_that_could_not_be_judged_is_not_clean(tmp_path, judges):
    def train():
        model, optimizer = made()
        for i in range(3):
            optimizer.zero_grad()
            model(batch(False)).mean().backward()
            if not judges and i == 0:  # once, as a class that keeps its numbers elsewhere
                model[0].bias.grad = Elsewhere(model[0].bias.grad)
            optimizer.step()

    verdict = judged(tmp_path, "live", train)
    assert verdict["status"] == ("clean" if judges else "inconclusive"), verdict
    assert [row["step"] for row in records_of(tmp_path / "run", "health")] == [0, 1, 2][not judges:]


PROGRAM = """
import torch
from torch import nn
model = nn.Linear(4, 1)
if {skips}:
    import threading
    def train(model, bad):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for i in range(6):
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4)).square().mean()
            if bad and i == 2: loss = loss + torch.log(-loss)
            if torch.isfinite(loss): loss.backward(), optimizer.step()
    train(model, True)
    there = threading.Thread(target=train, args=(nn.Linear(4, 1), False))
    if {none}: there.start(), there.join()
elif {none}:
    w = torch.ones(4)
    for _ in range(3): w = w - 0.2 * w
else:
    for i in range(3):
        model(torch.ones(3, 4) * (float("nan") if {bad} and i == 1 else 1)).mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
"""


@needs_cli
@pytest.mark.parametrize(("none", "bad", "skips", "words", "code"),
                         [(True, False, False, "no model was called", 5),
                          (False, False, False, "No harmful NaN or Inf", 0), (False, True, False, "is given NaN", 0),
                          (True, False, True, "what trained in other threads was not watched", 5),
                          (False, False, True, "warning: invalid: aten::log", 0)],
                         ids=["not seen", "clean", "fault", "warning, and a thread not seen", "warning"])
def test_strict_gives_what_was_not_understood_a_status_of_its_own(tmp_path, level, none, bad, skips, words, code):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(none=none, bad=bad, skips=skips))
    command = [cli(), "run", "--strict", "--level", level, "--out", tmp_path / "run", "--",
               *ready_python.command(), script]
    environment = with_package()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == code, done.stderr
    assert words in done.stderr, done.stderr
