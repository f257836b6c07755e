# SPDX-License-Identifier: Apache-2.0
"""What a program computes of its outputs with gradients off, losses and metrics, is judged as the outputs are: at any
level, whether the step is watched or not. A mask, a best loss that begins at infinity, and NaN that nobody selects are
no harm."""

from __future__ import annotations

import math

import pytest
import torch
from own_programs import LEVELS, Net, assert_silent, classifier, data, loop, told
from step_runs import watched
from torch.nn import functional as F

STEPS = 14
HOW = ("live", "ops")


def training(validate, every=True):
    """`validate(outputs, labels)` is what the program computes after each step, or after the 12th alone."""

    def after(i, net, x, y):
        if every or i == STEPS - 2:
            with torch.no_grad():
                validate(net(x), y)

    return classifier(after=after)


def run(validate, folder, how, **options):
    return watched(training(validate, **options), folder, STEPS, level=how).report


def loss_of_infinite_logits(out, y):
    return F.cross_entropy(out * 1e39, y)


def loss_of_log_0(out, y):
    return -torch.log(out * 0).mean()


def accuracy_of_nothing(out, y):
    return (out.argmax(1) == y)[:0].float().mean()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "validate", [loss_of_infinite_logits, loss_of_log_0, accuracy_of_nothing], ids=lambda f: f.__name__
)
def test_a_validation_loss_or_metric_that_is_not_finite_is_a_fault(validate, how, tmp_path):
    for every in (True, False):
        report = run(validate, tmp_path / str(every), how, every=every)
        assert report["verdict"]["status"] == "fault", report["verdict"]
        found = [f for f in report["findings"] if f["severity"] == "fault"]
        assert len(found) == 1 and found[0]["phase"] == "validation", found
        place = found[0]["call_site"] or found[0]["title"]
        assert "test_validation.py:" in place, found


@pytest.mark.parametrize("how", HOW)
def test_the_op_of_a_first_bad_validation_is_named(how, tmp_path):
    report = run(loss_of_log_0, tmp_path, how, every=False)
    found = report["findings"][0]
    assert (found["class"], found["op"], found["phase"]) == ("divide_by_zero", "aten::log", "validation"), found


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("form", ["bad", "sound"])
def test_a_metric_between_a_forward_and_its_backward_is_judged_as_one_after_the_step(form, how, tmp_path):
    # Given another model, called with gradients off, whose outputs a metric and the loss read
    def build():
        model, other = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)

        def step(i):
            x = torch.ones(8, 6)
            opt.zero_grad()
            out = model(x)
            with torch.no_grad():
                wanted = other(x)
                torch.log(wanted.abs() * (0.0 if form == "bad" and i == STEPS - 2 else 1.0)).mean()
            F.mse_loss(out, wanted).backward()
            opt.step()

        return step, model, opt

    report = watched(build, tmp_path, STEPS, level=how).report
    # then the metric is told where it is bad, and the loss is not
    assert report["verdict"]["status"] == ("fault" if form == "bad" else "clean"), report["findings"]
    assert {f["phase"] for f in report["findings"]} == ({"validation"} if form == "bad" else set())


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("of_model", "phase"), [(False, "loss"), (True, "forward")])
def test_a_target_that_is_computed_with_gradients_off_is_no_validation(of_model, phase, how, tmp_path):
    # Given a loss against what another model gives, whose logarithm or whose own is taken of what is negative,
    class Logs(torch.nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return torch.log(-y.abs() - 1) if of_model and self.bad else y

    def build():
        model, other = torch.nn.Linear(6, 3), Logs(6, 3)
        opt = torch.optim.SGD(model.parameters(), lr=1e-2)

        def step(i):
            x, other.bad = torch.ones(8, 6), i == STEPS - 2
            with torch.no_grad():
                wanted = other(x)
                if not of_model:
                    wanted = torch.log(wanted.abs() * (-1.0 if other.bad else 1.0))
            opt.zero_grad()
            F.mse_loss(model(x), wanted).backward()
            opt.step()

        return step, model, opt

    # then it is told as what the loss is made of.
    found = watched(build, tmp_path, STEPS, level=how).report["findings"][0]
    assert (found["op"], found["phase"], found["severity"]) == ("aten::log", phase, "fault"), found


def finite(out, y):
    loss = F.cross_entropy(out, y)
    best = torch.tensor(math.inf)
    best = torch.minimum(best, loss)
    return best.item(), (best * 2).item()


def best_that_begins_at_infinity(out, y):
    best = torch.tensor(math.inf)
    assert best.item() > 1 and (best * 2 + 1).item() > 1
    return torch.where(out.sum() > 1e9, best, out.sum()).item()


def masked_scores(out, y):
    scores = out.masked_fill(torch.ones_like(out, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1).sum().item(), scores.min().item(), scores[0, 1].item(), torch.cat([scores, out]).max()


def nan_that_nobody_selects(out, y):
    padded = torch.cat([out, torch.full_like(out[:1], math.nan)])
    return padded[:-1].mean().item(), padded.nanmean().item(), padded.nan_to_num().sum().item()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "validate", [finite, best_that_begins_at_infinity, masked_scores, nan_that_nobody_selects], ids=lambda f: f.__name__
)
def test_masks_and_what_nobody_selects_are_clean(validate, how, tmp_path):
    report = run(validate, tmp_path, how)
    assert report["verdict"]["status"] == "clean", [report["verdict"], report["findings"]]
    assert not [f for f in report["findings"] if f["severity"] != "info"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("bad", [True, False])
def test_a_validation_that_the_program_ends_is_judged(bad, how, tmp_path):
    def validate(out, y):
        loss = F.cross_entropy(out * (1e39 if bad else 1), y)
        if not torch.isfinite(loss):
            raise SystemExit("the validation loss is not finite")

    import json

    import nanhunt

    step, _, _ = training(validate, every=False)()
    with nanhunt.watch(out=tmp_path / "run", level=how, quiet=True) as watch:
        try:
            for i in range(STEPS):
                step(i)
        except SystemExit:
            pass
    report = json.loads(watch.report("json"))
    assert report["verdict"]["status"] == ("fault" if bad else "clean"), report["verdict"]


class Scored(Net):
    """Its score overflows for inputs that training never sees."""

    def __init__(self):
        super().__init__()
        self.score = Exponent()

    def forward(self, x):
        return super().forward(x) * self.score(x)


class Exponent(torch.nn.Module):
    def forward(self, x):
        return x.exp().mean(1, keepdim=True)


def evaluated(bad, often=1):
    """In evaluation now and then, with other inputs."""

    def build():
        torch.manual_seed(0)
        net = Scored()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            net.train()
            x, y = data()
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
            if i % 3 == 2:
                net.eval()
                with torch.no_grad():
                    for _ in range(often):
                        x, y = data()
                        F.cross_entropy(net(x * 200 if i in bad else x), y).item()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
def test_in_evaluation_the_layer_is_named_as_in_training(level, tmp_path):
    said = told(evaluated(bad=(14,), often=3), tmp_path, level, steps=18)
    assert said.what == ("overflow", "aten::exp", "validation", "score"), said.show()
    assert said.first["step"] == 15, said.show()  # after step 14, which its optimizer ended
    assert_silent(evaluated(bad=()), tmp_path, level, steps=18)


class Teacher(torch.nn.Module):
    """It is never trained."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Net() for _ in range(3))
        self.score = Exponent()

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x).sum(1, keepdim=True)
        return x + self.score(x)


def taught(bad, frozen):
    """Against what a teacher gives, whose score overflows; it is called before each forward."""

    def build():
        torch.manual_seed(0)
        net, teacher = Net(), Teacher().requires_grad_(not frozen)
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            x, _ = data()
            with torch.no_grad():
                wanted = teacher(x * 1000 if i in bad else x)[:, :3]
            opt.zero_grad()
            F.mse_loss(net(x), wanted).backward()
            opt.step()

        return step, net, opt

    return build


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("frozen", [True, False])
def test_the_layer_of_a_model_that_is_never_trained_is_named(frozen, level, tmp_path):
    said = told(taught(bad=(5,), frozen=frozen), tmp_path, level, steps=8)
    assert said.what[1] == "aten::exp" and said.what[3] == "Teacher.score", said.show()
    assert_silent(taught(bad=(), frozen=frozen), tmp_path, level, steps=8)


@pytest.mark.parametrize("level", LEVELS)
def test_a_module_without_parameters_is_no_layer_whenever_it_is_called(level, tmp_path):
    # Given one that is called with gradients off and overflows, once for the first time and once for the fourth,
    def build(bad):
        torch.manual_seed(0)
        net, score = Net(), Exponent()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)

        def step(i):
            x, _ = data()
            opt.zero_grad()
            out = net(x)
            with torch.no_grad():
                wanted = score(x * 1000 if i == bad else x)
            F.mse_loss(out, wanted.expand_as(out)).backward()
            opt.step()

        return step, net, opt

    for bad in (0, 3):
        said = told(lambda bad=bad: build(bad), tmp_path / str(bad), level, steps=5)
        assert said.what[1:] == ("aten::exp", "loss", "<loss>"), (bad, said.show())


@pytest.mark.parametrize("level", LEVELS)
def test_a_model_that_is_called_before_it_is_trained_has_its_own_names_then(level, tmp_path):
    # Given a validation before the first step,
    def build():
        torch.manual_seed(0)
        net = Scored()
        opt = torch.optim.SGD(net.parameters(), lr=1e-2)
        with torch.no_grad():
            net(data()[0])

        def step(i):
            x, y = data()
            opt.zero_grad()
            F.cross_entropy(net(x * 200 if i == 5 else x), y).backward()
            opt.step()

        return step, None, None

    said = told(build, tmp_path, level, steps=8)
    assert said.what[1] == "aten::exp" and said.what[3] == "score", said.show()


@pytest.mark.parametrize("level", LEVELS)
def test_a_validation_that_is_bad_again_is_no_second_fault(level, tmp_path):
    said = told(evaluated(bad=(11, 14, 17, 20)), tmp_path, level, steps=24)
    assert len(said.loud) == 1 and said.first["step"] == 12, said.show()


@pytest.mark.parametrize("level", LEVELS)
def test_a_validation_after_the_last_step_adds_no_bad_step(level, tmp_path):
    def step(i, net, opt):
        x, y = data()
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        (loss / torch.zeros(()) if i == 4 else loss).backward()
        opt.step()
        if i % 4 == 3:
            with torch.no_grad():
                F.cross_entropy(net(data()[0]), y).item()

    said = told(loop(step), tmp_path, level, steps=8)
    steps = said.first["bad_steps"]
    assert said.what[1] == "aten::div" and len(said.loud) == 1, said.show()
    assert (steps["first_step"], steps["last_step"], steps["count"]) == (4, 7, 4), steps


def averaged(bad):
    """The average of the weights is evaluated, which is 0/0 in steps `bad`."""

    average = Net()

    def validate(i, net, x, y):
        if i % 3 == 2:
            with torch.no_grad():
                for p, q in zip(average.parameters(), net.parameters(), strict=True):
                    p.copy_((q * 0 if i in bad else q) / (0 if i in bad else 1))
                F.cross_entropy(average(x), y).item()

    return classifier(after=validate)


@pytest.mark.parametrize("level", LEVELS)
def test_a_sound_validation_after_one_whose_model_gave_nan_is_no_fault(level, tmp_path):
    said = told(averaged(bad=(5,)), tmp_path, level, steps=12)
    assert [cls for cls, _ in said.loud] == ["divide_by_zero"], said.show()
    assert_silent(averaged(bad=()), tmp_path, level, steps=12)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("left_out", [True, False])
def test_a_class_without_samples_that_a_mean_leaves_out_is_no_fault(left_out, trains, level, tmp_path):
    """The mean over classes of intersection over union: of a class that does not occur 0/0."""

    def build():
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=1e-3) if trains else None

        @torch.no_grad()
        def evaluate():
            found, there = net(data()[0]).argmax(1).clamp_max(1), torch.randint(0, 2, (8,))
            shares = [((found == c) & (there == c)).sum().float() / ((found == c) | (there == c)).sum().float()
                      for c in (0, 1, 3)]
            return torch.stack(shares).nanmean() if left_out else torch.stack(shares).mean()

        def step(i):
            if opt is not None:
                opt.zero_grad()
                net(data()[0]).pow(2).mean().backward()
                opt.step()
            evaluate()

        return step, net

    said = told(build, tmp_path, level, 4)
    assert said.status == ("clean" if left_out else "fault"), said.show()


def precision_of_a_class(out, y):
    right, found = torch.sum((out.argmax(1) == 7) & (y == 7)), torch.sum(out.argmax(1) == 7)
    return (right / found).item()


def recall_of_a_class(out, y):
    return (((out.argmax(1) == 7) & (y == 7)).float().sum() / (y == 7).float().sum()).item()


def perplexity(out, y):
    return torch.exp(F.cross_entropy(out * 1e4, y)).item()


def ratio_of_equal_signals(out, y):
    return (10 * torch.log10(1 / (out - out).square().mean())).item()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("figure", "op"), [
    (precision_of_a_class, "div"), (recall_of_a_class, "div"), (perplexity, "exp"),
    (ratio_of_equal_signals, "reciprocal")])
def test_a_figure_that_a_validation_makes_of_finite_numbers_is_a_warning(figure, op, how, tmp_path):
    # Given what is shown of a validation, made of single numbers, when it is not finite,
    report = run(figure, tmp_path, how)
    # then its operation is named, and fails nobody's run.
    assert report["verdict"]["status"] == "warning", report["verdict"]
    found = report["findings"][0]
    assert (found["op"], found["phase"], found["severity"]) == (f"aten::{op}", "validation", "warning"), found


@pytest.mark.parametrize("how", HOW)
def test_such_a_figure_that_a_mean_over_samples_is_made_of_is_a_fault(how, tmp_path):
    def validate(out, y):
        return (out.mean(1) + (out * 0).sum() / (out * 0).sum()).mean()

    assert run(validate, tmp_path, how)["verdict"]["status"] == "fault"


class Features(Net):
    """Logarithms of what is positive, of a log of all."""

    guards = True

    def forward(self, x):
        logs = torch.log(x)
        return super().forward(torch.where(x > 0, logs, torch.zeros_like(x)) if self.guards else logs)


def shown_at_the_end(guards, gradients):
    """The last forward is of no step: what the model has learnt is shown."""

    def step(i, net, opt):
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        if i == 5:
            net.guards = guards
            with torch.set_grad_enabled(gradients):
                return net(x).argmax(-1)
        F.cross_entropy(net(x), y).backward()
        opt.step()
        opt.zero_grad()

    return loop(step, Features)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("guards", [True, False])
def test_a_last_forward_is_bad_where_nothing_finite_was_made_of_it(guards, gradients, level, tmp_path):
    said = told(shown_at_the_end(guards, gradients), tmp_path, level)
    if guards:
        assert said.status == "clean" and not said.loud, said.show()
    else:
        assert said.status == "fault" and said.what[1] == "aten::log", said.show()


class Masked(Net):
    """Scores are masked by minus infinity; what a temperature is divided by is a number."""

    temperature = 1.0

    def forward(self, x):
        h = torch.tanh(self.first(x)) / self.temperature
        bias = torch.where(torch.ones(8, 8, dtype=torch.bool).tril(), 0.0, torch.scalar_tensor(-math.inf))
        return self.last((h @ h.t() + bias).softmax(-1) @ h)


def perplexed(uses):
    """A metric overflows, and is written down; or the program goes on with it."""

    def step(i, net, opt):
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        metric = torch.exp(loss.detach() * 1e4).item()
        if uses and i == 3:
            net.temperature = 1 / metric if math.isfinite(metric) else metric - metric

    return loop(step, Masked)


@pytest.mark.parametrize("level", LEVELS)
def test_a_metric_that_was_infinite_is_none_of_the_numbers_that_scores_are_masked_with(level, tmp_path):
    said = told(perplexed(uses=False), tmp_path, level)
    assert said.status == "clean" and not said.loud, said.show()


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_program_makes_of_such_a_metric_is_a_fault(level, tmp_path):
    assert told(perplexed(uses=True), tmp_path, level).status == "fault"


def tabled(note):
    """After each validation `note(row, metric)` writes a row of a table of results."""
    table = torch.zeros(STEPS, 3)

    def after(i, net, x, y):
        with torch.no_grad():
            metric = F.cross_entropy(net(x), y)
        note(table[i], metric)

    return classifier(after=after)


def an_element(row, metric):
    row[1] = math.nan


def a_copy(row, metric):
    row[1].copy_(torch.tensor(math.nan))


def an_element_that_is_asked_about(row, metric):
    row[1] = math.nan
    torch.isfinite(row[1])


def a_number_of_its_own(row, metric):
    torch.full((), math.nan)


def a_mean_with_it(row, metric):
    row[1] = math.nan
    row.mean()


def a_product_with_it(row, metric):
    metric * torch.tensor(math.nan)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "note", [an_element, a_copy, an_element_that_is_asked_about, a_number_of_its_own], ids=lambda f: f.__name__
)
def test_nan_that_the_program_writes_for_a_metric_it_lacks_is_no_fault(note, how, tmp_path):
    assert_silent(tabled(note), tmp_path, how)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("note", [a_mean_with_it, a_product_with_it], ids=lambda f: f.__name__)
def test_a_metric_that_is_made_of_such_nan_is_a_fault(note, how, tmp_path):
    assert told(tabled(note), tmp_path, how).status == "fault"
