# SPDX-License-Identifier: Apache-2.0
"""Level ops sees every op of a step, where it ran, what it read and what it wrote."""
from __future__ import annotations

import inspect

import pytest
import torch
from listening import is_above_autograd
from op_rows import recorded_ops, watched_ops
from saved import report_of
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.act = nn.ReLU()
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


def step(model, optimizer, loss=None, x=None):
    x = torch.ones(5, 4) if x is None else x
    y = torch.zeros(5, dtype=torch.long)
    optimizer.zero_grad()
    out = model(x)
    value = nn.functional.cross_entropy(out, y) if loss is None else loss(out, y)
    value.backward()
    optimizer.step()
    return value


def here(offset=0):
    """file:line of the caller, as call sites are written."""
    frame = inspect.currentframe().f_back
    return f"test_ops.py:{frame.f_lineno + offset}"


def test_a_step_shows_its_ops_in_their_phases():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with watched_ops() as watched:
        step(model, optimizer)
        told = [(op.phase, op.name) for op in watched.ops]
    forward = [name for phase, name in told if phase == "forward"]
    assert forward == ["addmm", "relu", "addmm"]
    assert [name for phase, name in told if phase == "loss"] == ["_log_softmax", "nll_loss_forward"]
    assert ("backward", "_log_softmax_backward_data") in told
    assert ("backward", "threshold_backward") in told
    assert [name for phase, name in told if phase == "optimizer"] == ["add_"] * 4


def test_lists_that_are_written_in_place_count_as_written():
    alone, watched = [torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(3)]
    torch._foreach_mul_(alone, 2.0)
    model = Net()
    with watched_ops():
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
        torch._foreach_mul_(watched, 2.0)
        with torch.inference_mode():
            torch._foreach_mul_([torch.ones(2)], 2.0)
    assert [t._version for t in watched] == [t._version for t in alone] == [1, 1]


def test_ops_know_their_module_in_forward_and_backward():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched_ops() as watched:
        step(model, optimizer)
        assert [op.module for op in watched.named("addmm")] == ["first", "last"]
        assert watched.named("relu")[0].module == "act"
        assert watched.named("threshold_backward")[0].module == "act"
        assert watched.named("nll_loss_backward")[0].module == "<loss>"
        assert {op.module for op in watched.named("mm", "backward")} == {"first", "last"}


def test_backward_ops_know_the_line_of_their_forward_op():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    site = []

    def loss(out, y):
        site.append(here(1))
        a = out.exp()
        b = torch.log(a)
        return b.sum()

    with watched_ops() as watched:
        step(model, optimizer, loss)
        exp = watched.named("exp")[0]
        assert exp.site == site[0]
        backward = [op for op in watched.named("mul", "backward") if op.module == "<loss>"]
        assert [op.site for op in backward] == [site[0]]
        assert watched.named("div", "backward")[0].site == watched.named("log")[0].site


@pytest.mark.parametrize("kind", ["loop", "foreach", "fused"])
def test_optimizer_ops_belong_to_their_parameters(kind):
    model = Net()
    options = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[kind]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    with watched_ops() as watched:
        for _ in range(2):
            step(model, optimizer)
            optimizing = [op for op in watched.ops if op.phase == "optimizer"]
            assert optimizing
    names = [name for name, _ in model.named_parameters()]
    ops = [op for op in optimizing if op.step == 1]
    assert {op.module for op in ops} == set(names)
    written = {use.slot for op in ops for use in op.outputs}
    if kind == "fused":
        assert {"self", "exp_avg", "exp_avg_sq"} <= written
        fused = [op for op in ops if op.name == "_fused_adamw_"]
        assert [op.module for op in fused] == names
        assert {op.scalars["step"] for op in fused} == {2.0}
        assert all(op.input("grad").role == "read" and op.outputs[0].slot == "self" for op in fused)


def test_a_write_makes_new_contents_that_have_the_old_among_their_inputs():
    with watched_ops() as watched, watched.mode():
        x = torch.ones(4)
        before = watched.contents(x)
        x.mul_(2)
        op = watched.named("mul_")[0]
        assert op.input("self").contents == before
        assert op.input("self").role == "overwritten" and op.input("self").data == 0
        assert op.outputs[0].contents == (before[0], before[1] + 1) == watched.contents(x)
        assert op.outputs[0].data == x.data_ptr()


def test_views_show_the_contents_of_their_storage():
    with watched_ops() as watched, watched.mode():
        x = torch.ones(4, 4)
        view = x[1:3].t()
        y = view * 2
        assert watched.contents(view) == watched.contents(x)
        use = watched.producer(y).input("self")
        assert use.offset == 4 and use.layout[1:] == ((4, 2), (1, 4))
        x[0].fill_(3)
        assert watched.contents(view)[1] == 1


def test_out_arguments_are_written_and_not_read():
    with watched_ops() as watched, watched.mode():
        x, out = torch.ones(4), torch.zeros(4)
        torch.add(x, x, out=out)
        op = watched.named("add")[0]
        assert [use.slot for use in op.inputs] == ["self", "other"]
        assert [(use.slot, use.contents) for use in op.outputs] == [("out", watched.contents(out))]
        assert watched.contents(out)[1] == 1


def test_an_out_argument_that_is_read_as_well_shows_no_old_contents():
    with watched_ops() as watched, watched.mode():
        x = torch.tensor([-1.0])
        torch.sqrt(x, out=x)
        op = watched.named("sqrt")[0]
        assert op.input("self").data == 0, "the NaN that is there now was not read"
        assert op.outputs[0].data == x.data_ptr()


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_that_is_read_and_written_shows_no_old_contents(kind):
    with watched_ops() as watched, watched.mode():
        a, b, c = (torch.ones(3) for _ in range(3))
        torch._foreach_mul_(kind([a, b]), kind([b, c]))
        torch._foreach_addcmul_([a], [a], [c], value=1.0)
        torch._foreach_addcmul_([a], [a], [c], scalars=[1.0])
        first, second, *adds = (op for op in watched.ops if op.name.startswith("_foreach"))
        assert first.input("other").data == 0, "the second row's product is there by now"
        assert second.input("other").data == c.data_ptr()
        assert [(op.input("tensor1").data, op.input("tensor2").data) for op in adds] == [(0, c.data_ptr())] * 2


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16])
def test_views_of_numbers_that_the_library_does_not_know_are_not_read(dtype):
    with watched_ops() as watched, watched.mode():
        x = torch.zeros(4, 6, dtype=dtype)
        x.t() + x.t()
        torch._foreach_add([x.t()], [x.t()])
        ops = [op for op in watched.ops if "add" in op.name]
        assert len(ops) == 2
        assert [use.data for op in ops for use in (*op.inputs, *op.outputs)] == [0] * 6


def test_views_of_complex_numbers_begin_where_they_do():
    with watched_ops() as watched, watched.mode():
        y = torch.ones(4, 6, dtype=torch.complex64).t()[1:]
        for _ in range(2):
            use = watched.producer(y * 2).input("self")
            assert use.offset == 2 and use.layout[1:] == ((5, 4, 2), (2, 12, 1))


def test_memory_that_nothing_wrote_has_no_contents():
    with watched_ops() as watched, watched.mode():
        x = torch.empty(4)
        y = torch.empty_like(x)
        torch.dropout(torch.ones(4), 0.5, True)
        rows = watched.named("empty") + watched.named("empty_like")
        assert len(rows) == 3 and all(op.outputs[0].data == 0 for op in rows)
        assert watched.named("empty")[0].outputs[0].contents == watched.contents(x)
        assert watched.contents(y) != watched.contents(x)


def test_buffers_that_batch_norm_renews_are_written():
    norm = nn.BatchNorm1d(3)
    with watched_ops() as watched:
        norm(torch.randn(4, 3)).sum().backward()
        op = watched.named("native_batch_norm")[0]
        assert {use.slot for use in op.outputs} >= {"running_mean", "running_var"}
        assert watched.contents(norm.running_var)[1] == 1


def test_batch_norm_in_eval_mode_writes_nothing():
    norm = nn.BatchNorm1d(3).eval()
    with watched_ops() as watched:
        norm(torch.randn(4, 3)).sum().backward()
        assert watched.contents(norm.running_var)[1] == 0


def test_a_number_read_out_of_a_tensor_leads_back_to_it():
    with watched_ops() as watched, watched.mode():
        x = torch.tensor([0.3, 0.4])
        norm = x.norm()
        y = x * (norm.item())
        z = x * 3.5
        assert watched.producer(y).reads(watched.contents(norm))
        assert [use.slot for use in watched.producer(z).inputs] == ["self"]


def test_a_loss_says_which_label_it_ignores():
    with watched_ops() as watched, watched.mode():
        nn.functional.nll_loss(torch.zeros(2, 3), torch.tensor([-7, -7]), ignore_index=-7)
        (loss,) = watched.named("nll_loss_forward")
        assert loss.scalars["ignore_index"] == -7


def test_names_of_storages_are_not_used_again():
    with watched_ops() as watched, watched.mode():
        seen = set()
        for _ in range(200):
            x = torch.ones(1000)
            x.mul_(2)
            assert watched.contents(x)[0] not in seen
            seen.add(watched.contents(x)[0])
        assert len(watched.recorder.released) > 100
        assert not set(watched.recorder.released) - seen


def test_the_report_names_the_op_and_its_line(tmp_path, library):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    site = []

    def loss(out, y):
        zero = out - out.detach()
        site.append(here(1))
        return (zero / zero.sum()).sum()

    with recorded_ops(tmp_path / "run"):
        step(model, optimizer)
        step(model, optimizer, loss)
    told = report_of(tmp_path / "run")
    assert told["verdict"]["status"] == "fault"
    finding = told["findings"][0]
    assert (finding["op"], finding["module"], finding["step"]) == ("aten::div", "<loss>", 1)
    assert finding["call_site"] == site[0]


def test_a_clean_run_gives_a_clean_report(tmp_path, library):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with recorded_ops(tmp_path / "run"):
        for _ in range(3):
            step(model, optimizer)
    told = report_of(tmp_path / "run")
    assert told["verdict"]["status"] == "clean"
    assert told["coverage"]["steps"] == 3


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.head = nn.Linear(4, 3)
        self.reentrant = reentrant

    def forward(self, x):
        return self.head(torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "plain"])
def test_a_checkpoint_runs_its_modules_again_in_backward_under_their_names(reentrant):
    model = Checkpointed(reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched_ops() as watched:
        step(model, optimizer, x=torch.ones(5, 4, requires_grad=True))
        again = [op for op in watched.ops if op.phase == "backward" and op.name in ("addmm", "tanh")]
        expected = [("addmm", "body.0"), ("tanh", "body.1")]
        if is_above_autograd() and not reentrant:  # the checkpoint stops inside of its last op, which does not return
            expected.pop()
        assert [(op.name, op.module) for op in again] == expected
        backward = watched.named("tanh_backward")[0]
        assert backward.module == "body.1"
        assert {op.module for op in watched.named("mm", "backward")} == {"body.0", "head"}
        assert watched.named("mm", "backward")[0].module == "head"


def test_gradients_are_accumulated_under_the_name_of_their_parameter():
    model = Net()
    with watched_ops() as watched:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
        added = [op for op in watched.ops if op.phase == "backward" and op.name in ("add_", "add")]
        assert {op.module for op in added} == {name for name, _ in model.named_parameters()}


def test_modules_of_several_roots_have_names_of_their_own():
    generator, critic = Net(), nn.Sequential(nn.Linear(3, 1))
    with watched_ops() as watched:
        critic(generator(torch.ones(2, 4))).sum().backward()
        assert [op.module for op in watched.named("addmm")] == ["first", "last", "Sequential.0"]
        assert {op.module for op in watched.named("mm", "backward")} == {"first", "last", "Sequential.0"}


def test_a_loss_against_what_another_model_gave_with_gradients_off_is_a_loss_and_a_metric_of_it_is_not():
    model, teacher = Net(), Net()
    with watched_ops() as watched:
        out = model(torch.ones(5, 4))
        with torch.no_grad():
            wanted = teacher(torch.ones(5, 4))
        metric = wanted.exp()
        loss = (out - wanted).square().mean()
        loss.backward()
        assert watched.producer(metric).phase == "validation"
        assert (watched.producer(loss).phase, watched.producer(loss).module) == ("loss", "<loss>")
        # and once the backward has come a number that could be differentiated is none
        with torch.no_grad():
            teacher(torch.ones(5, 4))
        penalty = model.last.weight.square().sum()
        assert watched.producer(penalty).phase == "validation"


def test_what_is_loaded_between_steps_is_data_and_what_changes_parameters_there_is_an_update():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched_ops() as watched:
        step(model, optimizer)
        model.load_state_dict({name: torch.ones(t.shape) for name, t in model.state_dict().items()})
        with torch.no_grad():
            model.last.bias.mul_(0.9)
        copies = watched.named("copy_")
        assert [op.phase for op in copies] == ["data"] * 4
        assert watched.named("mul_")[-1].phase == "update"
        assert watched.producer(model.last.bias).name == "mul_"


def test_clipping_and_scaling_have_their_phases():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watched_ops() as watched:
        loss = model(torch.ones(5, 4)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert [op.phase for op in watched.named("mul") if op.phase == "scale"] == ["scale"]
        unscaled = watched.named("_amp_foreach_non_finite_check_and_unscale_")
        assert {op.phase for op in unscaled} == {"unscale"}
        assert [op.module for op in unscaled] == [name for name, _ in model.named_parameters()]
        clipped = watched.named("_foreach_mul_", "clip")
        assert [op.module for op in clipped] == [name for name, _ in model.named_parameters()]
        assert watched.named("linalg_vector_norm", "clip")[0].module == ""
        assert watched.named("_amp_update_scale_")[0].phase == "update"
