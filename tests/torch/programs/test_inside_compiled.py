# SPDX-License-Identifier: Apache-2.0
"""What goes bad inside of compiled code is told as in the program as it is written: operation, module and line."""

from __future__ import annotations

import pytest
import torch
from compiled_programs import (
    BAD,
    MARKS,
    PARTS,
    STEPS,
    Bfloat16,
    Broken,
    Classifier,
    Deep,
    Eager,
    Exponential,
    Float16,
    Late,
    Logarithm,
    Normalised,
    NormAtZero,
    OwnFunction,
    Quiet,
    Reach,
    Resumed,
    RootAtZero,
    Row,
    Squared,
    Tail,
    as_a_whole,
    compiled_loss,
    compiled_update,
    in_place,
    line_of,
    of_optimizer,
    sum_of_parts,
    training,
    with_all_in_it,
    with_own_step,
    with_scaler,
)
from own_programs import Told, assert_silent, told
from torch import nn

pytestmark = MARKS


def assert_named(said: Told, op, module, line, phase):
    at = f"compiled_programs.py:{line}"
    assert said.status == "fault" and said.first["op"] == op and said.first["module"] == module, said.show()
    assert said.first["step"] == BAD and said.first["phase"] == phase, said.show()
    assert said.first["call_site"].endswith(at) and len(said.loud) == 1, (said.show(), said.first["call_site"], at)


@pytest.mark.parametrize("kind", PARTS)
def test_an_operation_of_a_compiled_module_is_named_as_it_is_written(kind, tmp_path):
    said = told(sum_of_parts(kind), tmp_path, "live", STEPS)
    inner = Exponential if kind is Deep else kind
    module = kind.__name__.lower() + (".inner.0" if kind is Deep else "")
    assert_named(said, kind.op, module, line_of(inner), getattr(kind, "phase", "forward"))


def test_a_softmax_that_is_taken_apart_is_told_as_one(tmp_path):
    said = told(sum_of_parts(Row), tmp_path, "live", STEPS)
    assert said.first["title"] == "aten::sub in row meets a row of only -Inf", said.show()
    assert [one["id"] for one in said.first["advice"]] == ["keep-one-key"], said.first["advice"]


@pytest.mark.parametrize("kind", [RootAtZero, NormAtZero])
def test_of_a_formula_of_autograd_s_in_a_graph_the_function_is_named_whose_derivative_it_is(kind, tmp_path):
    said = told(sum_of_parts(kind), tmp_path, "live", STEPS)
    assert said.first["part_of"] == "the derivative of sqrt", said.first["part_of"]
    assert said.first["title"].endswith(": the derivative of sqrt is infinite at 0"), said.show()
    heard = {row["op"] for row in said.run.records("ops")}  # nonzero is of our own reads
    assert "aten::sqrt" in heard and "aten::nonzero" not in heard, heard


@pytest.mark.parametrize("level", ["live", "ops"])
def test_a_compiled_module_that_goes_on_is_silent(level, tmp_path):
    assert_silent(sum_of_parts(), tmp_path, level, STEPS)


def test_level_ops_names_the_same_operation(tmp_path):
    assert_named(told(sum_of_parts(Logarithm), tmp_path, "ops", STEPS), "aten::log", "logarithm", line_of(Logarithm),
                 "forward")


# Programs of their own: how they compile, and what.


PROGRAMS = {
    "a model": (training(Classifier), Classifier, "aten::exp", "", "forward"),
    "a model with dropout": (training(lambda: Classifier(nn.Dropout)), Classifier, "aten::exp", "", "forward"),
    "a model that writes buffers": (training(lambda: Classifier(Normalised)), Classifier, "aten::exp", "", "forward"),
    "batches of many sizes": (training(Classifier, lambda n: torch.compile(n, dynamic=True), rows=lambda i: 5 + i),
                              Classifier, "aten::exp", "", "forward"),
    "a graph that breaks": (training(Broken), Broken, "aten::exp", "", "forward"),
    "a module behind a break": (training(Resumed), Late, "aten::exp", "late", "forward"),
    "fp16": (training(Float16, spoil=lambda x: x * 1e6), Float16, "aten::_to_copy", "first", "forward"),
    "bf16": (training(Bfloat16), Bfloat16, "aten::exp", "", "forward"),
    "a function of its own": (training(OwnFunction, spoil=torch.zeros_like), Squared, "aten::div", None, "backward"),
    "one module of many": (training(lambda: Eager(Quiet(Tail)), lambda n: n), Tail, "aten::exp", "model.tail",
                           "forward"),
    "a loss": (compiled_loss, compiled_loss, "aten::log", None, None),
    "a buffer": (training(Reach, spoil=lambda x: x - 99), Reach, "aten::log", "", "forward"),
    "what an optimizer is given": (compiled_update, compiled_update, "aten::div", None, None),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_compiles_is_told_as_it_is_written(name, tmp_path):
    program, where, op, module, phase = PROGRAMS[name]
    said = told(program(BAD), tmp_path / "bad", "live", STEPS)
    assert said.first["op"] == op and said.first["step"] == BAD and len(said.loud) == 1, said.show()
    assert module is None or (said.first["module"] or "").removeprefix(where.__name__) == module, said.show()
    assert phase in (None, said.first["phase"]), said.show()
    assert said.first["call_site"].endswith(f"compiled_programs.py:{line_of(where)}"), said.first["call_site"]
    if where is Late:
        assert said.first["frames"][0]["function"] == "Late.forward", said.first["frames"]
    torch.compiler.reset()
    assert_silent(program(None), tmp_path / "twin", "live", STEPS)


@pytest.mark.parametrize("level", ["live", "ops"])
@pytest.mark.parametrize("how", [with_own_step, with_scaler, as_a_whole])
def test_an_optimizer_that_is_compiled_ends_steps_and_its_operation_is_named(how, level, tmp_path):
    said = told(of_optimizer(how)(BAD), tmp_path / "bad", level, STEPS)
    assert said.first["op"] == "aten::div" and len(said.loud) == 1, said.show()
    assert (said.first["step"], said.first["phase"]) == (BAD, "optimizer"), said.show()
    assert f'parameter {said.first["module"]}' in said.first["sinks"], said.show()
    assert said.first["call_site"].endswith(f"compiled_programs.py:{line_of(how)}"), said.first["call_site"]
    torch.compiler.reset()
    twin = told(of_optimizer(how)(None), tmp_path / "twin", level, STEPS)
    assert twin.status == "clean" and not twin.loud, twin.show()
    assert f"in {STEPS} steps" in twin.run.report["verdict"]["headline"]


@pytest.mark.parametrize("how", [with_own_step, with_scaler, as_a_whole])
def test_steps_of_a_compiled_optimizer_are_counted_where_no_operation_is_heard(how, tmp_path):
    said = told(of_optimizer(how)(None), tmp_path, "steps", STEPS)
    assert said.status == "clean" and f"in {STEPS} steps" in said.run.report["verdict"]["headline"], said.show()


def test_a_whole_step_in_one_compiled_function_is_told_as_it_is_written(tmp_path):
    said = told(with_all_in_it(BAD), tmp_path / "bad", "live", STEPS)
    assert said.what == ("overflow", "aten::_to_copy", "forward", "net.first"), said.show()
    assert said.first["step"] == BAD and len(said.loud) == 1, said.show()
    torch.compiler.reset()
    assert_silent(with_all_in_it(None), tmp_path / "twin", "live", STEPS)


def test_parameters_that_a_compiled_function_writes_end_a_step(tmp_path):
    said = told(in_place(BAD), tmp_path / "bad", "live", STEPS)
    assert said.first["op"] == "aten::div" and said.first["step"] == BAD and len(said.loud) == 1, said.show()
    assert said.first["call_site"].endswith(f":{line_of(in_place)}"), said.first["call_site"]
    torch.compiler.reset()
    assert_silent(in_place(None), tmp_path / "twin", "live", STEPS)
