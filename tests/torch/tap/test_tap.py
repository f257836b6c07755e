# SPDX-License-Identifier: Apache-2.0
"""The tap: whom it hears, and that it leaves nothing behind."""
from __future__ import annotations

import os
import threading

import pytest
import torch
from op_rows import watched_ops
from torch.multiprocessing.reductions import StorageWeakRef


def test_taken_off_it_leaves_nothing():
    def included():
        return repr(torch._C._dispatch_tls_local_include_set())

    def keys_of_ops():  # in words: sets of keys compare by identity in some releases
        return {name: repr(op.non_fallthrough_keys) for name, op in torch._ops._higher_order_ops.items()}

    keys, alone = keys_of_ops(), included()
    with watched_ops() as watched, watched.mode():
        torch.ones(2) + 1
        assert included() != alone
    assert included() == alone
    assert keys == keys_of_ops()
    seen = len(watched.ops)
    torch.ones(2) + 1
    assert len(watched.ops) == seen


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_not_heard():
    with watched_ops() as watched, watched.mode():
        torch.ones(2) + 1
        child = os.fork()
        if child == 0:
            before = len(watched.ops)
            torch.ones(2) + 1
            os._exit(0 if len(watched.ops) == before else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_watch_that_an_op_closes_is_closed_and_the_op_goes_on():
    # Given an op of the user's whose kernel closes the watch over it, and opens another,
    watches = [watched_ops(), watched_ops()]
    first = watches[0].__enter__()

    @torch.library.custom_op("nanhunt_tests::closes", mutates_args=(), schema="(Tensor x) -> Tensor")
    def closes(x):
        y = x * 2
        mode.__exit__(None, None, None)
        watches[0].__exit__(None, None, None)
        second.append(watches[1].__enter__())
        return y + 1

    second: list = []
    mode = first.mode()
    mode.__enter__()
    # when it runs,
    result = closes(torch.ones(3))
    # then it has its result, and the second watch hears what comes after, not the end of what began before it.
    assert result.tolist() == [3.0] * 3
    try:
        assert second[0].ops == []
        with second[0].mode():
            torch.ones(3) * 5
        assert [op.name for op in second[0].ops] == ["ones", "mul"]
    finally:
        watches[1].__exit__(None, None, None)


def test_another_thread_is_not_heard():
    with watched_ops() as watched, watched.mode():
        before = len(watched.ops)
        other = threading.Thread(target=lambda: torch.ones(3) * 2)
        other.start()
        other.join()
        assert len(watched.ops) == before
        torch.ones(3) * 2
        assert len(watched.ops) > before


def test_a_storage_that_is_known_is_not_kept_alive():
    with watched_ops() as watched, watched.mode():
        x = torch.ones(1000)
        y = x * 2
        assert watched.producer(y).reads(watched.contents(x))
        storage = StorageWeakRef(x.untyped_storage())
        del x
        assert storage.expired()


def test_numbers_read_out_of_tensors_are_tied_to_them():
    with watched_ops() as watched, watched.mode():
        x = torch.tensor([0.3])
        y = torch.ones(2) * x.item()
        assert watched.producer(y).reads(watched.contents(x))


def test_an_op_that_could_be_decomposed_but_has_a_kernel_has_a_row():
    with watched_ops() as watched, watched.mode():
        x = torch.ones(3, requires_grad=True)
        torch.nn.functional.silu(x).sum().backward()
        assert watched.producer(x.grad).name == "silu_backward"


def test_in_inference_mode_what_runs_inside_of_an_op_is_seen():
    with watched_ops() as watched, watched.mode(), torch.inference_mode():
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
        assert watched.named("addmm") or watched.named("linear")
