# SPDX-License-Identifier: Apache-2.0
"""nanhunt.load: saved runs, their findings, and their records for whatever reads Arrow streams."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import nanhunt  # noqa: E402

pytestmark = pytest.mark.usefixtures("library")
STEPS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three steps of a linear layer, whose loss is the logarithm of 0 in the last one."""
    out = tmp_path_factory.mktemp("load") / "run"
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with nanhunt.watch(net, optimizer, out=out, level="ops"):
        for step in range(STEPS):
            optimizer.zero_grad()
            floor = 0.0 if step == STEPS - 1 else 1.0
            torch.log(torch.relu(net(torch.ones(2, 4)).abs() * floor) + floor).mean().backward()
            optimizer.step()
    return nanhunt.load(out)


# Findings.
def test_verdict_headline_and_findings_are_those_of_the_report(run):
    assert run.verdict == "fault" and "log" in run.headline
    first = run.findings[0]
    assert (first.class_, first.op, first.step, first.severity) == ("divide_by_zero", "aten::log", 2, "fault")
    assert first.occurrences.first_step == 2 and first.occurrences.count >= 1
    assert first.element is not None and first.element.value == float("-inf")
    assert first.tensor is not None and first.tensor.dtype == "fp32"
    assert first.advice == [] or isinstance(first.advice[0].text, str)
    assert first.raw["id"] == first.id
    assert run.report().startswith("FAULT") and "log" in run.report()
    assert run.report("html").lstrip().startswith("<!")


def test_what_is_no_run_is_told_in_words(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a run folder.*does not exist"):
        nanhunt.load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="no trace"):
        _ = nanhunt.load(tmp_path).verdict
    (tmp_path / "000000.nht").write_text("this is a text and no trace at all, however long it may be")
    with pytest.raises(RuntimeError, match="not a nanhunt trace"):
        _ = nanhunt.load(tmp_path / "000000.nht").verdict
    with pytest.raises(ValueError, match="format: expected one of text, full, json, html, got 'pdf'"):
        nanhunt.load(tmp_path).report("pdf")


def run_python(script: str) -> None:
    package, library = Path(nanhunt.__file__).parents[1], os.environ["NANHUNT_LIBRARY"]
    subprocess.run([sys.executable, "-c", script], check=True, timeout=1800,
                   env={"PYTHONPATH": str(package), "NANHUNT_LIBRARY": library})  # fmt: skip


def test_loading_needs_no_torch(run):
    run_python(f"import sys, nanhunt; run = nanhunt.load({run.path!r})\n"
               "assert run.verdict == 'fault' and 'torch' not in sys.modules")  # fmt: skip


# Records, by hand: the C side without any library that reads it.
class _Stream(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in
                ("get_schema", "get_next", "get_last_error", "release", "private_data")]  # fmt: skip


class _Schema(ctypes.Structure):
    pass


_Schema._fields_ = [("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p),
                    ("flags", ctypes.c_int64), ("n_children", ctypes.c_int64),
                    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))), ("dictionary", ctypes.c_void_p),
                    ("release", ctypes.c_void_p), ("private_data", ctypes.c_void_p)]  # fmt: skip


class _Array(ctypes.Structure):
    pass


_Array._fields_ = [("length", ctypes.c_int64), ("null_count", ctypes.c_int64), ("offset", ctypes.c_int64),
                   ("n_buffers", ctypes.c_int64), ("n_children", ctypes.c_int64),
                   ("buffers", ctypes.POINTER(ctypes.c_void_p)),
                   ("children", ctypes.POINTER(ctypes.POINTER(_Array))), ("dictionary", ctypes.c_void_p),
                   ("release", ctypes.c_void_p), ("private_data", ctypes.c_void_p)]  # fmt: skip
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def call(address: int, *arguments: object) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * len(arguments))(address)(*arguments)


def stream_of(capsule: object) -> _Stream:
    return _Stream.from_address(_pointer_of(capsule, b"arrow_array_stream"))


def test_a_consumer_of_a_few_lines_reads_the_stream(run):
    capsule = run.records("steps").__arrow_c_stream__()
    stream = stream_of(capsule)
    schema, array = _Schema(), _Array()
    assert call(stream.get_schema, ctypes.addressof(stream), ctypes.addressof(schema)) == 0
    names = [schema.children[i].contents.name.decode() for i in range(schema.n_children)]
    assert names[:5] == ["rank", "attempt", "step", "skipped", "loss"]
    call(schema.release, ctypes.addressof(schema))
    assert call(stream.get_next, ctypes.addressof(stream), ctypes.addressof(array)) == 0
    assert array.length == STEPS
    steps = array.children[2].contents
    assert list((ctypes.c_uint32 * STEPS).from_address(steps.buffers[1])) == [0, 1, 2]
    call(array.release, ctypes.addressof(array))
    assert call(stream.get_next, ctypes.addressof(stream), ctypes.addressof(array)) == 0
    assert not array.release  # the end
    call(stream.release, ctypes.addressof(stream))
    assert not stream.release


def test_a_capsule_that_nobody_reads_is_released_with_it(run):
    released = []
    capsules = [run.records("ops").__arrow_c_stream__() for _ in range(20)]
    streams = [stream_of(capsule) for capsule in capsules]

    def noting(stream):
        own = stream.release

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def release(address):
            released.append(address)
            stream.release = own
            call(own, address)

        return release

    kept = [noting(stream) for stream in streams]
    for stream, release in zip(streams, kept, strict=True):
        stream.release = ctypes.cast(release, ctypes.c_void_p).value
    array = _Array()  # one of them is read in part
    assert call(streams[3].get_next, ctypes.addressof(streams[3]), ctypes.addressof(array)) == 0
    assert not released
    expected = sorted(ctypes.addressof(stream) for stream in streams)
    del capsules
    gc.collect()
    assert sorted(released) == expected
    call(array.release, ctypes.addressof(array))  # it outlives its stream


def test_a_capsule_at_the_end_of_the_process_does_no_harm(run):
    run_python(f"import nanhunt; run = nanhunt.load({run.path!r})\n"
               "kept = [run.records(kind).__arrow_c_stream__() for kind in ('ops', 'steps')]")  # fmt: skip


def test_a_wrong_kind_is_told_with_the_right_ones(run):
    with pytest.raises(ValueError, match="ops values marks.*got 'opps'"):
        run.records("opps")
    assert {"ops", "values", "steps", "health"} <= set(run.kinds)


# Records, by those who use them.
def test_pyarrow_reads_records_as_a_table(run):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pa.table(run.records("ops"))
    table.validate(full=True)
    rows = [row for row in table.to_pylist() if row["op"] == "aten::log"]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[2]["outputs"][0]["neg_inf"] == 2 and rows[0]["outputs"][0]["neg_inf"] == 0
    assert rows[0]["inputs"][0]["slot"] == "self" and rows[0]["inputs"][0]["shape"] == [2, 1]
    # ... and again: each reading begins anew
    assert pa.table(run.records("ops")).equals(table)


def test_every_kind_is_a_valid_table(run):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    for kind in run.kinds:
        table = pa.table(run.records(kind))
        table.validate(full=True)
        assert table.column_names[:2] == ["rank", "attempt"], kind
    assert pa.table(run.records("steps")).num_rows == STEPS


def test_polars_reads_records_as_a_frame(run):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.DataFrame(run.records("steps"))
    assert frame["step"].to_list() == [0, 1, 2]
    assert frame["loss"].to_list()[2] == float("-inf")
    values = polars.DataFrame(run.records("values"))
    assert values.filter(polars.col("neg_inf") > 0).height > 0


def test_parquet_is_written_kind_by_kind(run, tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    made = run.to_parquet(tmp_path / "tables")
    assert {"ops.parquet", "steps.parquet", "values.parquet"} <= {Path(path).name for path in made}
    assert parquet.read_table(tmp_path / "tables" / "steps.parquet").num_rows == STEPS


def test_parquet_without_pyarrow_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"nanhunt\[parquet\]"):
        run.to_parquet(tmp_path)


def test_a_kind_that_is_empty_says_why(run):
    assert "PyTorch does not tell" in repr(run.records("samples")) and "tell" not in repr(run.records("ops"))
