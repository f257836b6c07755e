# SPDX-License-Identifier: Apache-2.0
"""Collectives are ops of their own phase: what a rank gave goes in, what it got comes out."""
from __future__ import annotations

import pytest
import torch
from listening import needs_python_heard
from op_rows import lib, watched_ops
from torch import nn

dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def group(tmp_path):
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def communicated(watched):
    return [op for op in watched.ops if op.phase == "comm"]


def test_a_reduction_in_place_has_share_and_result(group):
    with watched_ops() as watched, watched.mode():
        x = torch.ones(3)
        before = watched.contents(x)
        dist.all_reduce(x)
        y = x * 2
        op = communicated(watched)[0]
        assert op.op == "c10d::allreduce_"
        assert op.input("tensors").contents == before
        assert op.outputs[0].contents == watched.contents(x) != before
        assert watched.producer(y).reads(watched.contents(x))
        assert op.site.startswith("test_ops_ranks.py")


def test_an_asynchronous_gather_is_told_once_it_has_ended(group):
    with watched_ops() as watched, watched.mode():
        x, out = torch.ones(3), [torch.zeros(3)]
        work = dist.all_gather(out, x, async_op=True)
        work.wait()
        total = out[0] + 1
        op = communicated(watched)[0]
        assert op.op == "c10d::allgather_"
        assert op.reads(watched.contents(x))
        assert watched.producer(total).reads(op.outputs[-1].contents)
        assert watched.values.tap.settle(False) == 0


def test_gradients_reduced_in_backward_are_followed(group):
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    with watched_ops() as watched:
        for _ in range(2):
            model(torch.ones(4, 3)).sum().backward()
        reduced = [op for op in communicated(watched) if op.op == "c10d::allreduce_"]
        assert reduced and all(op.module in ("weight", "bias") for op in reduced)
        assert watched.named("addmm")[0].module == "Linear"


@pytest.mark.parametrize("read_it", [True, False], ids=["read", "left alone"])
def test_a_scattered_reduction_is_told_with_what_was_brought(group, read_it):
    # Given a backend that copies the result where the work is waited for,
    with watched_ops() as watched, watched.mode():
        x, out = torch.full((3,), float("nan")), torch.zeros(3)
        dist.reduce_scatter_tensor(out, x)
        total = out + 1 if read_it else None
        watched.values.tap.settle(False)
        # then its row has that result, no copy stands beside it, and what was in the memory before was not read.
        op = communicated(watched)[0]
        assert op.op == "c10d::_reduce_scatter_base_" and op.outputs[-1].contents == watched.contents(out)
        assert [one.name for one in watched.ops if one.name == "copy_"] == []
        assert op.reads(watched.contents(x)) and [i.slot for i in op.inputs] == ["input_tensor"]
        assert total is None or watched.producer(total).reads(op.outputs[-1].contents)


@needs_python_heard
def test_functional_collectives_are_told_when_they_are_waited_for(group):
    from torch.distributed import _functional_collectives as functional

    with watched_ops() as watched, watched.mode():
        x = torch.ones(3)
        y = functional.all_reduce(x, "sum", dist.group.WORLD)
        z = y * 2
        assert torch.equal(z, torch.full((3,), 2.0))
        op = communicated(watched)[0]
        assert op.name == "all_reduce" and op.reads(watched.contents(x))
        assert watched.producer(z).reads(op.outputs[0].contents)


def test_what_is_given_is_told_before_the_call_and_its_op_after_it(group):
    with watched_ops() as watched, watched.mode():
        for operation in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            x = torch.ones(3)
            dist.all_reduce(x, op=operation)
        dist.broadcast(x, 0)
        torch.ones(1) + 1
        rows = watched.recorder.collectives
        assert [row[2] for row in rows] == [0, 0, 1, 1, 2, 2]
        assert [row[3] for row in rows[::2]] == [lib.ALLREDUCE, lib.ALLREDUCE, lib.BROADCAST]
        assert [row[4] for row in rows[::2]] == [lib.SUM, lib.MAX, lib.NO_REDUCTION]
        assert all(row[0] == lib.NO_SEQ and len(row[6]) == 4 for row in rows[::2])
        names = [watched.ops[row[0]].op for row in rows[1::2]]
        assert names == ["c10d::allreduce_", "c10d::allreduce_", "c10d::broadcast_"]
