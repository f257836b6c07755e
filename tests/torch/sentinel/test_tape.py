# SPDX-License-Identifier: Apache-2.0
"""What a step computes outside of its modules is kept by the tape, and is computed again as it was."""
from __future__ import annotations

import pytest
import torch
from sentinel_runs import batch, net, run_once, watched
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture(autouse=True)
def nothing_compiled():
    """A process that has compiled anything is one of which ops may be unheard."""
    import torch._dynamo.utils as dynamo

    dynamo.counters.clear()


def training(loss, bad=(), model=net):
    """Outputs of steps `bad` are below 0, of others above."""

    def build():
        trained = model()
        opt = torch.optim.SGD(trained.parameters(), lr=1e-2)

        def step(i):
            x, y = batch()
            opt.zero_grad()
            out = trained(x).abs() + 0.1
            loss(out - 1e3 if i in bad else out, y).backward()
            opt.step()

        return step, trained, opt

    return build


def assert_kept(loss, tmp_path):
    """A healthy step comes out the same, and so does the step whose loss takes a logarithm of numbers below 0."""
    run = watched(training(loss), tmp_path / "healthy", steps=4, wanted={1, 3})
    assert run.results == [(1, "reproduced"), (3, "reproduced")], run.texts
    assert run.report["verdict"]["status"] == "clean", (run.report["verdict"], run.notes)
    run = watched(training(loss, bad={2}), tmp_path / "bad", steps=3)
    assert run.results == [(2, "reproduced")], run.texts
    found = run.headline
    assert (found["op"], found["phase"], found["step"]) == ("aten::log", "loss", 2), found


def log_loss(out, y):
    return F.nll_loss(out.log(), y)


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


def under_a_mode(out, y):
    with Counting() as mode:
        loss = log_loss(out, y)
    assert torch.ops.aten.log.default in mode.ops
    return loss


def with_a_higher_order_op(out, y):
    from torch._higher_order_ops.cond import cond

    with torch.no_grad():
        factor = cond(torch.tensor(True), lambda x: x * 2, lambda x: x + 1, (out.detach(),)).abs().mean()
    return log_loss(out * factor, y)


def with_draws(out, y):
    mixed = torch.rand(len(out), 1).clamp(min=0.1)
    return log_loss(F.dropout(out, 0.1) * mixed + torch.empty_like(out).uniform_(0.0, 1e-3), y)


def with_draws_of_a_generator(out, y):
    chance = torch.Generator().manual_seed(len(y))
    return log_loss(out * torch.rand(out.shape, generator=chance).clamp(min=0.1), y)


def with_views(out, y):
    first, second = out.chunk(2)
    return log_loss(torch.cat([second.t().t(), first.view_as(first)]), y.flip(0).flip(0))


def into_memory_of_its_own(out, y):
    probabilities = torch.empty_like(out)
    probabilities.copy_(out)
    probabilities[0].mul_(0.5)
    return log_loss(probabilities, y)


def beside_what_is_detached(out, y):
    """The same contents, and their gradients end there: what is infinite of them is not of the model."""
    apart = out.detach().requires_grad_()
    penalty = torch.autograd.grad(apart.square().sum(), apart, create_graph=True)[0].norm()
    return log_loss(out, y) + 0.1 * penalty


def with_a_penalty_on_a_mixture(out, y):
    mixed = (0.5 * out.detach() + 0.5).requires_grad_(True)
    slope = torch.autograd.grad(mixed.pow(3).sum(), mixed, create_graph=True)[0]
    return log_loss(out, y) + (slope.norm() - 1).square() * 1e-3


def with_memory_that_is_trained(out, y):
    noise = torch.zeros(out.shape, requires_grad=True)
    return log_loss(out + noise, y)


def written_in_parts(out, y):
    parts = torch.zeros_like(out)
    parts[:, :1] = out[:, :1]
    parts[:, 1:] = out[:, 1:]
    return log_loss(parts, y)


LOSSES = [under_a_mode, with_a_higher_order_op, with_draws, with_draws_of_a_generator, with_views,
          into_memory_of_its_own, beside_what_is_detached, with_a_penalty_on_a_mixture, with_memory_that_is_trained,
          written_in_parts]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_computed_again(loss, tmp_path, library):
    assert_kept(loss, tmp_path)


@pytest.mark.parametrize("teacher", ["frozen", "as it was copied"])
def test_a_loss_against_what_a_teacher_gave_without_gradients_is_computed_again(teacher, tmp_path, library):
    other = net()
    if teacher == "frozen":
        other.requires_grad_(False)

    def loss(out, y):
        with torch.no_grad():
            wanted = other(torch.ones(len(y), 6))
        return log_loss(out, y) + F.mse_loss(out, wanted) * 0.1

    assert_kept(loss, tmp_path)


@pytest.mark.parametrize("options", [{"wanted": {1, 3}}, {"budget": 100.0}, {"level": "ops"}],
                         ids=["computed again", "watched", "ops"])
def test_a_loss_that_is_traced_with_sizes_that_are_not_fixed_is_judged(options, tmp_path, library):
    torch._dynamo.reset()
    with torch.no_grad():
        for rows in (5, 6):  # the second size makes torch.compile trace with symbols for sizes
            with_a_higher_order_op(torch.rand(rows, 3) + 0.1, torch.zeros(rows, dtype=torch.long))
    nothing_compiled.__wrapped__()
    run = watched(training(with_a_higher_order_op), tmp_path, steps=4, **options)
    assert run.report["verdict"]["status"] == "clean", (run.report["verdict"], run.notes)
    assert not [text for text in run.notes if "errors" in text]


def test_a_custom_function_of_a_higher_order_op_is_refused_by_name(tmp_path, library):
    from torch._higher_order_ops.cond import cond

    def loss(out, y):
        return log_loss(cond(torch.tensor(True), lambda x: x * 2, lambda x: x + 1, (out,)), y)

    run = watched(training(loss), tmp_path, steps=2, wanted={1})
    assert run.results == [(1, "refused")] and "CondAutogradOp" in run.texts[0], run.texts


@pytest.mark.parametrize("level", ["sentinel", "ops"])
@pytest.mark.parametrize("teacher", ["frozen", "as it was copied"])
def test_a_step_given_up_over_a_loss_against_a_teacher_is_a_fault_of_the_loss(teacher, level, tmp_path, library):
    def build():
        model, other = net(), net().requires_grad_(teacher != "frozen")
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)

        def step(i):
            x, y = batch()
            opt.zero_grad()
            out = model(x).abs() + 0.1
            with torch.no_grad():
                wanted = other(x)
            loss = log_loss(out - 1e3 * (i == 2), y) + F.mse_loss(out, wanted) * 0.1
            if torch.isfinite(loss):
                loss.backward()
                opt.step()

        return step, model, opt

    run = watched(build, tmp_path, steps=4, level=level)
    assert run.headline is not None, run.report["verdict"]
    assert (run.headline["op"], run.headline["phase"], run.headline["step"]) == ("aten::log", "loss", 2), run.headline


def test_what_a_loss_writes_into_tensors_that_last_is_computed_again_from_what_they_were(tmp_path, library):
    def build():
        seen, mean = torch.zeros(3), torch.ones(3)

        def loss(out, y):
            seen.add_(out.detach().clamp(min=0).sum(0))
            mean.mul_(0.9)
            return log_loss(out * mean, y) + 1e-3 * seen.sum()

        return *training(loss)(), seen, mean

    run = watched(build, tmp_path, steps=4, wanted={1, 3})
    assert run.results == [(1, "reproduced"), (3, "reproduced")], run.texts


def test_a_large_tensor_that_a_loss_writes_in_place_makes_its_step_refused(tmp_path, library):
    def build():
        history = torch.zeros(2 << 20)

        def loss(out, y):
            history.add_(out.detach().sum())
            return log_loss(out, y) + history.mean() * 1e-6

        return training(loss)()

    run = watched(build, tmp_path, steps=2, wanted={1})
    assert run.results == [(1, "refused")] and "from outside of the step was written in place" in run.texts[0]


def test_what_was_written_after_a_loss_had_read_it_makes_its_step_refused(tmp_path, library):
    def build():
        weights = torch.ones(8, 3)

        def loss(out, y):
            made = log_loss(out + weights, y)
            weights.mul_(1.5)
            return made

        return training(loss)()

    run = watched(build, tmp_path, steps=2, wanted={1})
    assert run.results == [(1, "refused")] and "after the operation had read it" in run.texts[0], run.texts


@pytest.mark.parametrize("ops", [100, 5000])
def test_a_loss_of_many_ops_is_computed_again_up_to_a_bound_and_the_next_step_is_again(ops, tmp_path, library):
    calls = []

    def loss(out, y):
        calls.append(1)
        total = log_loss(out, y)
        for _ in range(ops if len(calls) % 3 == 2 else 10):
            total = total * 1.0001
        return total

    run = watched(training(loss), tmp_path, steps=3, wanted={1, 2})
    results = [(1, "reproduced" if ops < 4000 else "refused"), (2, "reproduced")]
    assert run.results == results, run.texts
    assert ops < 4000 or "more than 4000 operations" in run.texts[0]


@pytest.mark.parametrize("of", [torch.float16, torch.bfloat16, torch.int64])
def test_numbers_of_python_decide_no_format_when_a_loss_is_computed_again(of, tmp_path, library):
    kinds = []

    def loss(out, y):
        made = log_loss(out, y)
        number = y.sum() if of == torch.int64 else made.to(of)
        scaled = number * 0.1 + 1
        kinds.append(scaled.dtype)
        return made + scaled

    run = watched(training(loss), tmp_path, steps=3, wanted={1})
    assert set(kinds) == {torch.float32 if of == torch.int64 else of}
    assert run.results == [(1, "reproduced")], run.texts


def test_the_numbers_of_a_loss_that_is_read_on_the_way_lead_no_other_way(tmp_path, library):
    def loss(out, y):
        made = log_loss(out, y)
        return made * (1 / max(made.item(), 1.0)) if bool(torch.isfinite(made)) else made

    assert_kept(loss, tmp_path)


def test_a_module_without_parameters_in_the_loss_is_part_of_it(tmp_path, library):
    assert_kept(lambda out, y: nn.NLLLoss()(nn.Identity()(out).log(), y), tmp_path)


def test_a_loss_over_sparse_tensors_is_no_error_of_ours(tmp_path, library):
    pairs = torch.eye(8).to_sparse()
    run = watched(training(lambda out, y: log_loss(torch.sparse.mm(pairs, out), y)), tmp_path, steps=12)
    assert run.report["verdict"]["status"] == "clean", (run.report["verdict"], run.notes)


def test_a_step_with_an_op_that_is_gone_when_it_is_bad_is_refused_and_a_fault(tmp_path, library):
    # Given a loss that uses an op of a library that lives no longer than the loss
    def loss(out, y):
        with torch.library._scoped_library("nanhunt_gone", "DEF") as mine:
            mine.define("halved_for_a_while(Tensor x) -> Tensor")
            mine.impl("halved_for_a_while", lambda x: x / 2, "CompositeExplicitAutograd")
            with torch.no_grad():
                half = torch.ops.nanhunt_gone.halved_for_a_while(out.detach())
        return log_loss(out + 0 * half, y)

    # then its step, which is bad, is refused by that name, and a fault.
    run = watched(training(loss, bad={2}), tmp_path, steps=3)
    assert run.results == [(2, "refused")] and "nanhunt_gone::halved_for_a_while" in run.texts[0], run.texts
    assert run.report["verdict"]["status"] == "fault"


class Drawing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        torch.rand(())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Counting, Drawing])
def test_modes_of_the_program_around_all_of_a_step_see_nothing_of_ours(mode, tmp_path, library):
    # Given a program that counts, or draws at, each op
    def build():
        model = net(nn.BatchNorm1d(8))
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)
        scale, seen = torch.tensor(1.5), []

        def step(i):
            x, y = batch()
            with mode() as on:
                opt.zero_grad()
                F.cross_entropy(model(x) * scale, y).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
            seen.append(torch.tensor([float(len(getattr(on, "ops", ()))), *torch.get_rng_state()[:64].float()]))
            with torch.no_grad():
                model[-1].bias.add_(1e-3 * seen[-1].sum() / 1e4)

        return step, model, opt, seen

    # then a watched step shows it what an unwatched one does.
    alone = run_once(build, 4)
    for options in ({}, {"budget": 0.0}, {"level": "ops"}):
        assert run_once(build, 4, tmp_path / str(len(str(options))), **options).digest == alone.digest, options
