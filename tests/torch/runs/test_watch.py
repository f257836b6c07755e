# SPDX-License-Identifier: Apache-2.0
"""nanhunt.watch: one line in a training program."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import nanhunt  # noqa: E402
from mistakes import plant_failing_flush, repair_flush  # noqa: E402

pytestmark = pytest.mark.usefixtures("library", "no_watch_left")


class Net(torch.nn.Module):
    """log(relu(x)) in the middle: the logarithm of 0, unless `floor` keeps it away."""

    def __init__(self, floor: float = 0.0) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(8, 16)
        self.fc2 = torch.nn.Linear(16, 1)
        self.floor = floor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.log(torch.relu(self.fc1(x)) + self.floor))


def batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, 8, generator=generator) for _ in range(count)]


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for x in batches(steps):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def made(floor: float = 0.0, seed: int = 1) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    net = Net(floor)
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


@pytest.fixture(params=["ops", "live"])
def level(request) -> str:
    return request.param


# The main job.
def test_a_planted_fault_is_named_and_its_twin_is_silent(tmp_path, level):
    net, optimizer = made()
    with nanhunt.watch(net, optimizer, out=tmp_path / "bad", level=level) as watch:
        train(net, optimizer)
        assert watch.verdict == "fault"
        (first, *_) = watch.findings
        assert (first.op, first.phase, first.class_) == ("aten::log", "forward", "divide_by_zero")
        assert "log" in watch.report()

    net, optimizer = made(floor=0.1)
    with nanhunt.watch(net, optimizer, out=tmp_path / "good", level=level) as watch:
        train(net, optimizer)
    assert watch.verdict == "clean" and watch.findings == []


def test_watching_changes_no_bit(tmp_path, level):
    net, optimizer = made(floor=0.1)
    train(net, optimizer, 5)
    watched, its_optimizer = made(floor=0.1)
    with nanhunt.watch(watched, its_optimizer, out=tmp_path / "run", level=level):
        train(watched, its_optimizer, 5)
    for a, b in zip(net.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_the_report_can_be_had_while_training_and_after_it_as_text_json_and_html(tmp_path):
    net, optimizer = made()
    watch = nanhunt.watch(net, optimizer, out=tmp_path / "run", level="ops")
    assert "nothing is recorded yet" in watch.report()
    assert json.loads(watch.report("json"))["verdict"]["status"] == "inconclusive"
    assert "nothing is recorded yet" in watch.report("html")
    train(net, optimizer, 1)
    during = watch.report()
    assert "The run is still going" in during
    assert "killed" not in during + watch.report("html")
    assert "log" in during
    train(net, optimizer, 1)
    watch.close()
    assert json.loads(watch.report("json"))["coverage"]["steps"] == 2
    assert watch.report("html").lstrip().startswith("<!")


def test_a_cell_that_runs_again_with_a_new_model_begins_a_new_attempt(tmp_path):
    verdicts = []
    for floor in (0.0, 0.1):  # the second time it is mended
        net, optimizer = made(floor=floor)
        watch = nanhunt.watch(net, optimizer, out=tmp_path / "run", quiet=True)
        train(net, optimizer, 3)
        verdicts.append(watch.verdict)
    watch.close()
    assert verdicts == ["fault", "clean"]
    assert nanhunt.load(tmp_path / "run").verdict == "clean", "the newest attempt is what counts"


def test_a_second_watch_of_the_same_model_or_before_the_first_step_joins(tmp_path):
    net, optimizer = made(floor=0.1)
    other, its_optimizer = made(floor=0.1)
    first = nanhunt.watch(net, optimizer, out=tmp_path / "run", quiet=True)
    second = nanhunt.watch(other, its_optimizer)
    train(net, optimizer, 2)
    third = nanhunt.watch(torch.nn.Sequential(net))  # wrapped anew
    train(net, optimizer, 1)
    assert [watch.step_number for watch in (first, second, third)] == [3, 3, 3]
    for watch in (first, second, third):
        watch.close()
    assert nanhunt.load(tmp_path / "run").data["coverage"]["steps"] == 3, "one attempt has all of them"


# Arguments.
@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((3,), {}, TypeError, ["model", "torch.nn.Module", "got int"]),
        (([torch.nn.Linear(1, 1), "net"],), {}, TypeError, ["model", "got str"]),
        ((torch.nn.Linear(1, 1), "adam"), {}, TypeError, ["optimizer", "torch.optim.Optimizer", "got str"]),
        ((torch.nn.Linear(1, 1), None, 1.5), {}, TypeError, ["scaler", "GradScaler", "got float"]),
        ((), {"level": "all"}, ValueError, ["level", "live, ops, steps", "'all'"]),
        ((), {"budget": 101}, ValueError, ["budget", "from 0 to 100", "got 101"]),
        ((), {"keep": 2.5}, ValueError, ["keep", "whole number", "2.5"]),
        ((), {"max_trace_mb": 1}, ValueError, ["max_trace_mb", "at least 5", "got 1"]),
        ((), {"captures": "no"}, TypeError, ["captures", "True or False", "'no'"]),
        ((), {"out": ""}, ValueError, ["out", "a folder"]),
        ((), {"out": 3}, TypeError, ["out", "a path", "got 3"]),
        ((), {"out": b"run"}, TypeError, ["out", "a path", "got b'run'"]),
        ((), {"config": 3}, TypeError, ["config", "a path", "got 3"]),
        ((), {"config": "/no/such"}, FileNotFoundError, ["config", "/no/such is not there"]),
        ((), {"config": __file__}, ValueError, ["config", "test_watch.py"]),
        ((), {"out": __file__}, NotADirectoryError, ["out", "no folder"]),
        ((), {"out": __file__ + "/run"}, NotADirectoryError, ["out", "no folder"]),
    ],
)
def test_a_wrong_argument_raises_at_once_and_says_what_was_expected_and_given(arguments, options, error, words):
    with pytest.raises(error) as raised:
        nanhunt.watch(*arguments, **options)
    for word in words:
        assert word in str(raised.value)


def test_a_wrong_format_raises_before_anything_is_read(tmp_path):
    with nanhunt.watch(out=tmp_path / "run", level="ops") as watch, pytest.raises(ValueError, match="'pdf'"):
        watch.report("pdf")


def test_a_process_that_does_not_train_leaves_no_trace(tmp_path):
    net, optimizer = made()
    with nanhunt.watch(net, optimizer, out=tmp_path / "run", level="ops"), torch.no_grad():
        net(torch.ones(1, 8))
    assert not (tmp_path / "run").exists()


# Several watches.
def test_a_second_watch_joins_the_one_that_is_on_and_the_last_one_ends_it(tmp_path):
    net, optimizer = made()
    first = nanhunt.watch(net, optimizer, out=tmp_path / "run", level="ops")
    second = nanhunt.watch(net)
    third = nanhunt.watch(level="ops", out=str(tmp_path / "run"))
    first.close()
    first.close()
    second.close()
    train(net, optimizer, 1)
    third.close()
    train(net, optimizer, 1)
    assert third.path == str(tmp_path / "run")
    assert nanhunt.load(tmp_path / "run").data["coverage"]["steps"] == 1


def test_joining_with_other_options_is_refused_with_both(tmp_path):
    with nanhunt.watch(out=tmp_path / "run", level="ops"):
        with pytest.raises(ValueError, match="level: expected 'ops'.*got 'live'"):
            nanhunt.watch(level="live")
        with pytest.raises(ValueError, match="out: expected"):
            nanhunt.watch(out=tmp_path / "other")


def test_a_watch_after_a_watch_is_an_attempt_of_its_own(tmp_path):
    for seed in (1, 2):
        net, optimizer = made(seed=seed)
        with nanhunt.watch(net, optimizer, out=tmp_path / "run", level="ops"):
            train(net, optimizer, 2)
    attempts = sorted(path.name for path in (tmp_path / "run" / "rank-00000").iterdir())
    assert attempts == ["attempt-0", "attempt-1"]
    assert nanhunt.load(tmp_path / "run").data["coverage"]["steps"] == 2


def test_a_watch_that_nobody_keeps_goes_on(tmp_path):
    net, optimizer = made()
    nanhunt.watch(net, optimizer, out=tmp_path / "run", level="ops")
    train(net, optimizer, 2)
    joined = nanhunt.watch()
    assert joined.findings[0].op == "aten::log"


# Names.
def modules_of(run: Path) -> set[str | None]:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    return set(polars.DataFrame(nanhunt.load(run).records("ops"))["module"].to_list())


def test_a_model_gives_its_paths_and_a_dict_puts_names_before_them(tmp_path):
    net, optimizer = made(floor=0.1)
    with nanhunt.watch(net, optimizer, out=tmp_path / "one", level="ops"):
        train(net, optimizer, 1)
    assert {"fc1", "fc2", "fc1.weight"} <= modules_of(tmp_path / "one")

    (one, first), (two, second) = made(0.1), made(0.1, seed=2)
    with nanhunt.watch({"g": one, "d": two}, [first, second], out=tmp_path / "two", level="ops"):
        for x in batches(2):
            (one(x).mean() + two(x).mean()).backward()
            first.step()
            second.step()
    assert {"g.fc1", "d.fc1", "g.fc1.weight", "d.fc2.bias"} <= modules_of(tmp_path / "two")


def test_a_part_of_a_model_that_is_called_alone_keeps_its_path(tmp_path):
    net, optimizer = made(floor=0.1)
    with nanhunt.watch(net, optimizer, out=tmp_path / "run", level="ops"):
        for x in batches(2):
            net.fc2(torch.relu(net.fc1(x))).mean().backward()
            optimizer.step()
    assert {"fc1", "fc2", "fc1.weight"} <= modules_of(tmp_path / "run")


# Steps.
def test_step_returns_what_the_function_returns_and_hands_on_what_it_raises(tmp_path):
    with nanhunt.watch(out=tmp_path / "run", level="ops") as watch:
        assert watch.step(lambda a, b=0: a + b, 1, b=2) == 3
        with pytest.raises(ZeroDivisionError):
            watch.step(lambda: 1 / 0)
        assert watch.step_number == 2


def test_bare_functions_are_watched_step_by_step(tmp_path):
    def step(w: torch.Tensor, x: torch.Tensor) -> None:
        loss = torch.sqrt((w * x).sum() - 1.0)
        loss.backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad = None

    w = torch.full((4,), 0.5, requires_grad=True)
    with nanhunt.watch(out=tmp_path / "run", level="ops") as watch:
        for x in (torch.ones(4), torch.ones(4), torch.zeros(4)):
            watch.step(step, w, x)
        (first, *_) = watch.findings
    assert (first.op, first.class_, first.step) == ("aten::sqrt", "invalid", 2)


def test_a_step_that_is_marked_ends_there_and_nowhere_else(tmp_path):
    net, optimizer = made(floor=0.1)

    def step(x: torch.Tensor) -> None:
        for _ in range(3):  # three updates in one step
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    with nanhunt.watch(net, optimizer, out=tmp_path / "run", level="ops") as watch:
        for x in batches(2):
            watch.step(step, x)
        assert watch.step_number == 2
    assert nanhunt.load(tmp_path / "run").data["coverage"]["steps"] == 2


def test_gradients_that_a_closure_makes_are_seen_at_the_boundary(tmp_path):
    net, optimizer = made()

    def gradients(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    with nanhunt.watch(net, optimizer, out=tmp_path / "run", level="ops") as watch:
        for x in batches(3):
            optimizer.step(lambda x=x: gradients(x))
        assert watch.step_number == 3
        (first, *_) = watch.findings
    assert (first.op, first.step) == ("aten::log", 0)
    assert any("fc2.weight" in sink for sink in first.sinks)


@pytest.mark.parametrize("level", ["live", "steps"])
def test_bad_gradients_that_an_optimizer_makes_and_drops_itself_are_seen(level, tmp_path):
    class Spoilt(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g * float("nan")

    class Own(torch.optim.SGD):
        """Asks no closure: it has a loss of its own."""

        def step(self, closure=None):
            y = net(torch.ones(2, 4))
            (Spoilt.apply(y) if watch.step_number == 3 else y).sum().backward()
            with torch.no_grad():
                for p in net.parameters():
                    p.sub_(torch.nan_to_num(p.grad) * 0.1)
                    p.grad = None

    net = torch.nn.Linear(4, 4)
    optimizer = Own(net.parameters(), lr=0.1)
    with nanhunt.watch(net, optimizer, out=tmp_path / "run", level=level, quiet=True) as watch:
        for _ in range(6):
            optimizer.step()
    (first, *_) = nanhunt.load(tmp_path / "run").findings
    assert first.step == 3 and nanhunt.load(tmp_path / "run").verdict == "fault"


@pytest.mark.parametrize("level", ["live", "ops", "steps"])
def test_a_subclass_that_a_module_is_given_is_asked_nothing_more(level, tmp_path):
    asked = []

    class Asked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append(getattr(func, "__name__", ""))
            return super().__torch_function__(func, types, args, kwargs or {})

    net, optimizer = made()

    def run():
        asked.clear()
        net(batches(1)[0].as_subclass(Asked))
        return list(asked)

    alone = run()
    with nanhunt.watch(net, optimizer, out=tmp_path / "run", level=level, quiet=True):
        assert run() == alone


def test_lbfgs_which_calls_its_closure_many_times_is_watched_and_not_changed(tmp_path):
    def fit(watched: bool) -> torch.Tensor:
        torch.manual_seed(0)
        net = torch.nn.Linear(8, 1)
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5)
        x = batches(1)[0]

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (net(x) - 1).square().mean()
            loss.backward()
            return loss

        if watched:
            with nanhunt.watch(net, optimizer, out=tmp_path / "run", level="ops") as watch:
                for _ in range(3):
                    optimizer.step(closure)
                assert watch.step_number == 3 and watch.verdict == "clean"
        else:
            for _ in range(3):
                optimizer.step(closure)
        return net.weight.detach()

    assert torch.equal(fit(True), fit(False))


@pytest.mark.parametrize("level", ["live", "ops"])
def test_a_closure_that_is_nan_in_some_of_its_calls_is_part_of_one_step(level, tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5)
    x, calls = batches(1)[0], 0

    def closure() -> torch.Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = (net(x) - 1).square().mean() * (float("inf") * 0 if calls in (7, 8) else 1.0)
        loss.backward()
        return loss

    with nanhunt.watch(net, optimizer, out=tmp_path / "run", level=level, quiet=True) as watch:
        for _ in range(4):
            optimizer.step(closure)
        assert calls > 8 and watch.step_number == 4
    report = json.loads(watch.report("json"))
    assert report["verdict"]["status"] == "fault" and report["coverage"]["steps"] == 4
    assert report["findings"][0]["step"] == 1 and "skipped" not in report["findings"][0]["explanation"]


class Skip(Exception):
    pass


def test_a_closure_that_raises_leaves_the_steps_after_it_to_themselves(tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)

    def closure(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(x) - 1).square().mean()
        loss.backward()
        if not math.isfinite(loss.item()):
            raise Skip
        return loss

    with nanhunt.watch(net, optimizer, out=tmp_path / "run", quiet=True) as watch:
        for i, x in enumerate(batches(6)):
            with contextlib.suppress(Skip):
                optimizer.step(lambda x=x * (math.inf if i == 2 else 1.0): closure(x))
    report = json.loads(watch.report("json"))
    assert report["coverage"]["steps"] == 6, report["coverage"]
    assert report["findings"][0]["step"] == 2 and not [n for n in watch.notes if n.startswith("errors inside")]


@pytest.mark.parametrize("level", ["live", "ops"])
def test_a_model_with_a_scripted_part_is_watched(level, tmp_path):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.jit.script(torch.nn.Linear(4, 1)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    with nanhunt.watch(net, optimizer, out=tmp_path / "run", level=level, quiet=True) as watch:
        for x in batches(12):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        assert watch.step_number == 12 and watch.verdict == "clean"
    assert not [note for note in watch.notes if note.startswith("errors inside")], watch.notes


# What cannot be watched.
def test_what_cannot_be_watched_is_said_at_attach(tmp_path):
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    with nanhunt.watch(frozen, out=tmp_path / "run", level="ops") as watch:
        assert any("no parameter that is trained" in note for note in watch.notes)
    net, _ = made()
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    with nanhunt.watch({"net": net, "meta": torch.nn.Linear(2, 2, device="meta")}, other, out=tmp_path / "run",
                       level="ops") as watch:
        assert any("meta device" in note for note in watch.notes)
        assert any("no watched model holds" in note for note in watch.notes)


def test_notes_stand_under_coverage(tmp_path):
    net, optimizer = made(floor=0.1)
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    with nanhunt.watch(net, [optimizer, other], out=tmp_path / "run", level="ops"):
        train(net, optimizer, 1)
    assert any("no watched model holds" in line for line in nanhunt.load(tmp_path / "run").unwatched)


# Nothing that goes wrong in us reaches the run.
def test_a_mistake_of_ours_stays_inside(tmp_path):
    net, optimizer = made(floor=0.1)
    with nanhunt.watch(net, optimizer, out=tmp_path / "run", level="ops") as watch:
        train(net, optimizer, 1)
        plant_failing_flush(watch)
        watch.flush()
        train(net, optimizer, 1)
        repair_flush(watch)
        assert any("errors inside nanhunt" in note for note in watch.notes)
        assert watch.verdict == "inconclusive"  # what it kept from being seen was not judged


def test_steps_of_another_thread_run_unwatched(tmp_path):
    net, optimizer = made(floor=0.1)
    with nanhunt.watch(net, optimizer, out=tmp_path / "run", level="ops") as watch:
        train(net, optimizer, 1)
        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(watch.step(lambda: 7)))
        thread.start()
        thread.join()
    assert results == [7]
    (line,) = (line for line in nanhunt.load(tmp_path / "run").unwatched if "other threads" in line)
    assert "Train in one thread" in line


def test_importing_nanhunt_imports_no_torch():
    script = "import sys, nanhunt; assert 'torch' not in sys.modules; nanhunt.load"
    package = Path(nanhunt.__file__).parents[1]
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": str(package)}, timeout=1800)


def test_the_help_of_watch_tells_of_each_of_its_options():
    help_of_watch = inspect.getdoc(nanhunt.watch) or ""
    names = list(inspect.signature(nanhunt.watch).parameters)
    assert names[:2] == ["model", "optimizer"] and len(names) > 10
    assert [name for name in names if not re.search(rf"^{name}\s", help_of_watch, re.MULTILINE)] == []
    assert "harmless" in (inspect.getdoc(nanhunt.ignore) or "")


def test_a_name_that_nanhunt_does_not_have_is_told_as_any_module_does():
    with pytest.raises(AttributeError, match="module 'nanhunt' has no attribute 'wach'"):
        nanhunt.wach  # noqa: B018
    assert {"watch", "load", "ignore"} <= set(dir(nanhunt))


class Unready(torch.optim.SGD):
    """Its groups are there once it is prepared, as a wrapper's may be."""

    @property
    def param_groups(self):
        raise RuntimeError("not prepared yet")

    @param_groups.setter
    def param_groups(self, groups):
        pass


def test_optimizers_that_were_not_made_to_the_end_are_no_ones_concern(tmp_path):
    model, kept = torch.nn.Linear(4, 1), []
    for make in (lambda: torch.optim.SGD(model.parameters(), lr=-1), lambda: Unready(model.parameters(), lr=0.1)):
        try:
            kept.append(make())
        except Exception as error:
            kept.append(error)  # its traceback holds the optimizer
    with nanhunt.watch(model, out=tmp_path / "run", quiet=True) as watch:
        model(torch.ones(2, 4)).sum().backward()
    assert watch.verdict == "clean" and len(kept) == 2


def test_a_second_model_that_is_watched_later_joins_what_is_watched(tmp_path):
    torch.manual_seed(0)
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in (first, second)]
    told = []

    def step(loss):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    x = torch.randn(8, 4)
    with nanhunt.watch(first, optimizers[0], out=tmp_path / "run", quiet=True, on_fault=told.append) as watch:
        for _ in range(3):
            step(first(x).pow(2).mean())
        with nanhunt.watch(second, optimizers[1]):
            for i in range(4):
                step(second(torch.log(first(x) * 0) if i == 2 else first(x)).mean())
    assert [(f.op, f.step) for f in told] == [("aten::log", 5)], told
    assert sorted(p.name for p in (tmp_path / "run" / "rank-00000").glob("attempt-*")) == ["attempt-0"]
    assert "closed" in repr(watch)
