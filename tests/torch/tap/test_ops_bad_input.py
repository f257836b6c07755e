# SPDX-License-Identifier: Apache-2.0
"""Whatever a run does, level ops neither stops nor changes it; what it cannot watch it counts and names."""
from __future__ import annotations

import threading
from contextlib import suppress

import pytest
import torch
from listening import needs_python_heard
from op_rows import watched_ops
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


def same_with_and_without(run, notes=()):
    """`run` gives the same under the mode; returns what was told. `notes`: parts of what must be noted."""
    torch.manual_seed(0)
    expected = run()
    torch.manual_seed(0)
    with watched_ops() as watched, watched.mode():
        got = run()
    if isinstance(expected, torch.Tensor) and not expected.is_sparse:
        assert torch.equal(expected, got)
    else:
        assert str(expected) == str(got)
    told = " / ".join(watched.session.notes)
    for note in notes:
        assert note in told, (note, told)
    return watched


def test_sparse_tensors_are_noted():
    def run():
        a = torch.eye(3).to_sparse()
        return torch.sparse.mm(a, torch.ones(3, 3)) + (a * 2).to_dense()

    same_with_and_without(run, ["sparse tensors"])


def test_sparse_gradients_are_noted():
    def run():
        emb = nn.Embedding(5, 3, sparse=True)
        optimizer = torch.optim.SGD(emb.parameters(), lr=0.1)
        emb(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
        return emb.weight.detach()

    same_with_and_without(run, ["sparse tensors"])


def test_nested_tensors_are_noted():
    def run():
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
        return (nested * 2).to_padded_tensor(0.0)

    same_with_and_without(run, ["nested tensors"])


@needs_python_heard
def test_jagged_tensors_are_seen_through():
    def run():
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
        return (nested * 2).values()

    watched = same_with_and_without(run)
    assert watched.named("mul")


def test_quantised_tensors_are_noted():
    def run():
        q = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.1, 0, torch.qint8)
        return q.dequantize() * 2

    same_with_and_without(run, ["quantised tensors"])


def test_complex_tensors_are_pairs_of_numbers():
    def run():
        x = torch.tensor([1 + 2j, 3 - 1j])
        return torch.view_as_real((x * x).conj().resolve_conj())

    watched = same_with_and_without(run)
    assert watched.named("mul")[0].outputs[0].layout[1] == (2, 2)


def test_numbers_of_other_kinds_pass():
    def run():
        x = torch.tensor([1, 2], dtype=torch.int16)
        return (x * 2).to(torch.float32) + torch.tensor([1, 2], dtype=torch.int8)

    same_with_and_without(run)


def test_meta_tensors_have_no_contents():
    def run():
        x = torch.ones(3, device="meta")
        return str((x + 1).shape)

    watched = same_with_and_without(run)
    assert all(use.data == 0 for op in watched.named("add") for use in op.outputs)


def test_fake_tensors_pass():
    from torch._subclasses.fake_tensor import FakeTensorMode

    def run():
        with FakeTensorMode() as mode:
            x = mode.from_tensor(torch.ones(3))
            return str((x + 1).shape)

    same_with_and_without(run)


def test_empty_tensors_pass():
    def run():
        x = torch.ones(0, 3)
        return (x * 2).sum() + torch.cat([x, torch.ones(1, 3)]).sum()

    same_with_and_without(run)


class Tagged(torch.Tensor):
    """A subclass with a __torch_function__ of its own that counts what it is asked."""

    asked = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.asked += 1
        return super().__torch_function__(func, types, args, kwargs)


def test_a_users_subclass_is_asked_nothing_more():
    def run():
        Tagged.asked = 0
        x = torch.ones(3).as_subclass(Tagged)
        y = (x * 2).exp()
        y.add_(x)
        return f"{Tagged.asked} {y.tolist()}"

    watched = same_with_and_without(run)
    assert watched.named("exp") and watched.named("add_")


class Wrapper(torch.Tensor):
    """A subclass with a __torch_dispatch__ of its own around another tensor."""

    calls = 0

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return "Wrapper"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        unwrapped = [a.inner if isinstance(a, Wrapper) else a for a in args]
        return cls(func(*unwrapped, **(kwargs or {})))


@needs_python_heard
def test_ops_inside_of_a_users_wrapper_are_seen():
    def run():
        Wrapper.calls = 0
        y = (Wrapper(torch.ones(3)) * 2).exp()
        return f"{Wrapper.calls} {y.inner.tolist()}"

    watched = same_with_and_without(run)
    assert [op.name for op in watched.ops if op.name in ("mul", "exp")] == ["mul", "exp"]


@needs_python_heard
def test_a_sharded_tensor_is_seen_through(tmp_path):
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))

        def run():
            x = distribute_tensor(torch.ones(3, 3), mesh, [Replicate()])
            return (x @ x).to_local()

        watched = same_with_and_without(run)
        assert watched.named("mm")
    finally:
        dist.destroy_process_group()


def test_function_transforms_are_seen_inside():
    def run():
        def f(x):
            return (x.sin() ** 2).sum()

        x = torch.linspace(0, 1, 6).reshape(2, 3)
        return torch.func.vmap(torch.func.grad(f))(x)

    watched = same_with_and_without(run)
    assert watched.named("sin") and watched.named("cos")


def test_inference_tensors_pass():
    def run():
        with torch.inference_mode():
            x = torch.ones(3)
            x.mul_(2)
            return (x + 1).clone()

    watched = same_with_and_without(run)
    assert watched.named("add")


def test_storages_that_are_resized_set_or_freed_pass():
    def run():
        x = torch.ones(4)
        x.resize_(8).fill_(2)
        y = torch.ones(2)
        y.set_(x.untyped_storage(), 2, (3,), (1,))
        z = y * 2
        x.untyped_storage().resize_(0)
        w = torch.zeros_like(x)
        x.untyped_storage().resize_(64)
        x.fill_(1)
        return z + w[:3] + x[:3]

    watched = same_with_and_without(run)
    assert watched.named("mul")[0].input("self").offset == 2


def test_a_freed_parameter_is_marked_without_a_look_at_its_memory():
    model = nn.Linear(3, 3)
    with watched_ops() as watched:
        model(torch.ones(1, 3)).sum().backward()
        part, size = model.weight.detach()[1:], model.weight.untyped_storage().nbytes()
        model.weight.untyped_storage().resize_(0)
        data = watched.values.describe(part)[0]
        model.weight.untyped_storage().resize_(size)
        assert data == 0


class Doubling(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


def test_a_users_mode_keeps_its_place():
    with watched_ops() as watched:
        model = nn.Linear(2, 2)
        with Doubling() as mode:
            model(torch.ones(1, 2))  # the watch begins here, under the user's mode
            seen = mode.seen
        torch.ones(2) + 1
        assert mode.seen == seen > 0
        model(torch.ones(1, 2))
        with Doubling() as mode:
            model(torch.ones(1, 2))
            assert mode.seen > 0
        assert len(watched.named("addmm")) == 3  # under it as well


def test_a_mode_that_ends_after_the_watch_is_left_alone():
    with watched_ops() as watched, watched.mode():
        with Doubling() as mode:
            torch.ones(2) + 1
            watched.session.close()
            torch.ones(2) + 1
        assert mode.seen == 4
        told = len(watched.ops)
        torch.ones(2) + 1
        assert len(watched.ops) == told


def test_the_users_hooks_on_saved_tensors_run_as_before():
    def run():
        packed = []

        def pack(t):
            packed.append(tuple(t.shape))
            return t.clone()

        x = torch.ones(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t * 1):
            y = (x.exp() * x).sum()
        y.backward()
        return f"{packed} {x.grad.tolist()}"

    same_with_and_without(run)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_compile_as_often_as_before(backend):
    def run():
        torch._dynamo.reset()
        from torch._dynamo.utils import counters

        counters.clear()
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        compiled = torch.compile(model, backend=backend)

        def broken(x):
            y = x * 2
            torch._dynamo.graph_break()
            return y + 1

        also = torch.compile(broken, backend=backend)
        total = 0.0
        for _ in range(3):
            out = also(compiled(torch.ones(2, 3))).sum()
            out.backward()
            total += float(out)
        return f"{total} {dict(counters['graph_break'])} {dict(counters['stats'])}"

    watched = same_with_and_without(run)
    assert watched.named("addmm") and watched.named("tanh")


def test_scripted_functions_are_seen():
    @torch.jit.script
    def f(x):
        return x.exp().log()

    def run():
        return torch.stack([f(torch.ones(3)) for _ in range(3)])

    watched = same_with_and_without(run)
    assert watched.named("exp")


def test_what_runs_inside_of_higher_order_ops_is_seen():
    from torch._higher_order_ops.cond import cond

    def run():
        return cond(torch.tensor(True), lambda x: x * 2, lambda x: x + 1, (torch.ones(3),))

    same_with_and_without(run, [])
    with watched_ops() as watched, watched.mode():
        out = run()
        assert watched.producer(out).name == "mul"


def test_what_an_op_raises_reaches_the_run():
    with watched_ops() as watched, watched.mode():
        x = torch.ones(2, 3)
        with pytest.raises(RuntimeError, match="shapes"):
            x @ x
        with pytest.raises(IndexError):
            x[5]
        assert torch.equal(x + 1, torch.full((2, 3), 2.0))


def test_an_exception_inside_a_module_leaves_the_paths_right():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.outer = nn.Linear(2, 2)

        def forward(self, x, fail):
            h = self.inner(x)
            if fail:
                raise ValueError("no")
            return self.outer(h)

    model = Sometimes()
    with watched_ops() as watched:
        for fail in (True, False):
            with suppress(ValueError):
                model(torch.ones(1, 2), fail)
        assert [op.module for op in watched.named("addmm")] == ["inner", "inner", "outer"]


def test_other_threads_run_unwatched():
    results = []
    with watched_ops() as watched, watched.mode():
        thread = threading.Thread(target=lambda: results.append(torch.ones(3).exp().sum()))
        thread.start()
        thread.join()
        assert not watched.named("exp")
    assert len(results) == 1


def test_recursion_of_backward_passes():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                (inner,) = torch.autograd.grad((y * 2).sum(), y)
            return g * inner

    def run():
        x = torch.ones(3, requires_grad=True)
        Twice.apply(x).exp().sum().backward()
        return x.grad

    same_with_and_without(run)


def test_gradients_of_gradients_pass():
    def run():
        x = torch.linspace(0.1, 1, 4, requires_grad=True)
        (g,) = torch.autograd.grad(x.log().sum(), x, create_graph=True)
        g.pow(2).sum().backward()
        return x.grad

    same_with_and_without(run)


def test_huge_and_odd_numbers_as_arguments_pass():
    def run():
        x = torch.ones(3)
        return x * 10**18 + x.masked_fill(x > 0, float("-inf")) * 0 + torch.where(x > 0, x, float("nan"))

    watched = same_with_and_without(lambda: torch.nan_to_num(run()))
    assert watched.named("masked_fill")[0].scalars["value"] == float("-inf")


def test_lists_of_other_lengths_do_not_confuse_a_call():
    def run():
        return torch.cat([torch.ones(1)] * 2).sum() + torch.cat([torch.ones(1)] * 5).sum()

    watched = same_with_and_without(run)
    assert [len(op.inputs) for op in watched.named("cat")] == [2, 5]


def test_of_custom_ops_written_in_python_what_they_call_is_heard():
    @torch.library.custom_op("nanhunt_test::double", mutates_args=(), schema="(Tensor x) -> Tensor")
    def double(x):
        return x * 2

    watched = same_with_and_without(lambda: double(torch.ones(3)))
    assert [op.op for op in watched.ops] == ["aten::ones", "aten::mul"]


def test_a_custom_op_whose_result_comes_from_elsewhere_is_one_op():
    @torch.library.custom_op("nanhunt_test::by_numpy", mutates_args=(), schema="(Tensor x) -> Tensor")
    def by_numpy(x):
        return torch.from_numpy((x * 2).numpy() + 1)

    watched = same_with_and_without(lambda: by_numpy(torch.ones(3)))
    assert [op.op for op in watched.ops] == ["aten::ones", "aten::mul", "nanhunt_test::by_numpy"]


def test_an_op_with_a_schema_that_nobody_foresaw_runs_and_has_a_row():
    def made(named, how="plus"):
        return torch.from_numpy(named["x"].numpy() + 1), 3

    with torch.library._scoped_library("nanhunt_tests", "FRAGMENT") as ops:
        ops.define("strange(Dict(str, Tensor) named, *, str how='plus') -> (Tensor, int)")
        ops.impl("strange", made, "CompositeExplicitAutograd")
        with watched_ops() as watched, watched.mode():
            out, number = torch.ops.nanhunt_tests.strange({"x": torch.ones(2)})
            assert torch.equal(out, torch.full((2,), 2.0)) and number == 3
            assert watched.producer(out).op == "nanhunt_tests::strange"
