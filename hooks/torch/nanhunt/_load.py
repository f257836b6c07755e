# SPDX-License-Identifier: Apache-2.0
"""Saved runs: verdict, findings and records. Knows nothing of torch.

    run = nanhunt.load("run")
    run.verdict, run.headline            # "fault", "log of 0 ..."
    run.findings[0].module               # "encoder.layer.3"
    pyarrow.table(run.records("ops"))    # or polars.DataFrame(...), duckdb, pandas: by __arrow_c_stream__
"""
from __future__ import annotations

import ctypes as c
import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

from nanhunt import _library as lib
from nanhunt.store.remote import is_url

FORMATS = {"text": 3, "full": 0, "json": 1, "html": 2}  # as nanhunt/c_api.h numbers them
_CARD = 4
StrPath = Union[str, "os.PathLike[str]"]


class RunError(RuntimeError):
    """A run that cannot be read: what, where, what to do."""


def check_format(format: str) -> int:
    if format not in FORMATS:
        raise ValueError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
    return FORMATS[format]


def _raise(library: lib.Library, status: int) -> None:
    message = library.last_error()
    if status == lib.USAGE:
        raise ValueError(message)
    if status == lib.NOT_FOUND:
        raise FileNotFoundError(message)
    raise RunError(message)


def render(path: str, format: str) -> str:
    """The report of a run folder. Raises FileNotFoundError where nothing is recorded, RunError where it is no trace."""
    return _rendered(path, check_format(format))


def _rendered(path: str, number: int) -> str:
    library = lib.load_library()
    text, size = c.c_void_p(), c.c_size_t()
    status = library.slow.nanhunt_report(path.encode(), number, c.byref(text), c.byref(size))
    if status != lib.OK:
        _raise(library, status)
    try:
        return c.string_at(text, size.value).decode("utf-8", "replace")
    finally:
        library.fast.nanhunt_free(text)


def framed(page: str) -> str:
    """For a notebook: its own styles and the notebook's keep apart."""
    return (f'<iframe srcdoc="{html.escape(page, quote=True)}" sandbox="allow-scripts" '
            'style="width:100%;height:40em;border:0"></iframe>')


def card(path: str) -> str:
    """Headline, cure, code and the curve of the loss, as a piece of HTML for a notebook."""
    return _rendered(path, _CARD)


class Report(str):
    """The text of a report. A notebook shows a card instead."""

    path = ""

    def _repr_html_(self) -> str:
        return card(self.path)


class Page(str):
    """The page of a report, which a notebook shows whole."""

    def _repr_html_(self) -> str:
        return framed(self)


def shown(path: str, format: str) -> str:
    """The report in a format, for people: a notebook shows a card, or the page where that was asked for."""
    text = render(path, format)
    if format == "json":
        return text
    if format == "html":
        return Page(text)
    report = Report(text)
    report.path = path
    return report


# Findings: the words of report.json (reports/schema). Numbers that JSON cannot write are floats here.
@dataclass(frozen=True)
class Occurrences:
    count: int
    first_step: int
    last_step: int


@dataclass(frozen=True)
class BadSteps:
    count: int
    anew: int  # of these: it happened in them
    unwatched: int  # of these: their operations are not in the trace; the rest is aftermath
    first_step: int
    last_step: int


@dataclass(frozen=True)
class Tensor:
    role: str
    slot: str
    index: int
    name: str | None
    dtype: str
    shape: list[int]


@dataclass(frozen=True)
class Element:
    flat_index: int
    coords: list[int]
    value: float
    row: int | None  # along dimension 0
    row_is_sample: bool  # the trace shows that dimension 0 is the batch's
    sample_id: int | None


@dataclass(frozen=True)
class Advice:
    text: str
    why: str
    verified: bool | None  # True: seen to work on this run; False: tried in vain; None: not tried
    evidence: str
    # Computed again from the numbers that the operation read, with this change. True: finite; None: not tried
    on_these_numbers: bool | None = None


@dataclass(frozen=True, repr=False)
class Finding:
    """One conclusion with its evidence. `raw` is the finding as report.json has it."""

    id: str
    class_: str  # "overflow", "divide_by_zero", ...
    severity: str  # "info", "warning", "fault"
    benign: bool
    confidence: str  # "proved", "observed", "inferred"
    title: str
    explanation: str
    ignored: str | None  # why the user named it as harmless; severity is "info" then
    step: int
    micro_batch: int
    rank: int
    phase: str
    module: str | None
    op: str | None
    op_seq: int | None
    call_site: str | None
    lifecycle: str
    occurrences: Occurrences  # steps in which it was seen to happen
    bad_steps: BadSteps | None  # steps in which something was not finite because of it; None: none
    tensor: Tensor | None
    element: Element | None
    bad_elements: int
    evidence: list[str]
    sinks: list[str]
    also: list[str]
    also_at: list[str]  # other lines at which the same arose in that step
    samples: list[int]
    advice: list[Advice]
    raw: Mapping[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        """Three lines; `raw` has the rest."""
        where = ", ".join(part for part in (self.op, self.module and f"in {self.module}", self.call_site) if part)
        cure = f"\n  cure: {self.advice[0].text}" if self.advice else ""
        head = f"{self.id} {self.severity}, {self.class_}: {self.title}"
        return f"<{head}\n  step {self.step}, {self.phase}: {where}{cure}>"


def _number(value: Any) -> float:
    return float(value)  # also of "NaN", "Infinity", "-Infinity"


def finding_of(row: Mapping[str, Any]) -> Finding:
    tensor, element, seen, bad = row.get("tensor"), row.get("element"), row["occurrences"], row["bad_steps"]
    return Finding(
        id=row["id"], class_=row["class"], severity=row["severity"], benign=row["benign"],
        confidence=row["confidence"], title=row["title"], explanation=row["explanation"], ignored=row.get("ignored"),
        step=row["step"],
        micro_batch=row["micro_batch"], rank=row["rank"], phase=row["phase"], module=row["module"], op=row["op"],
        op_seq=row["op_seq"], call_site=row["call_site"], lifecycle=row["lifecycle"],
        occurrences=Occurrences(seen["count"], seen["first_step"], seen["last_step"]),
        bad_steps=None if bad is None else BadSteps(
            bad["count"], bad["anew"], bad["unwatched"], bad["first_step"], bad["last_step"]),
        tensor=None if tensor is None else Tensor(
            tensor["role"], tensor["slot"], tensor["index"], tensor["name"], tensor["dtype"],
            [int(n) for n in tensor["shape"]]),
        element=None if element is None else Element(
            int(element["flat_index"]), [int(n) for n in element["coords"]], _number(element["value"]),
            None if element["row"] is None else int(element["row"]), element["row_is_sample"],
            None if element["sample_id"] is None else int(element["sample_id"])),
        bad_elements=int(row["bad_elements"]), evidence=list(row["evidence"]), sinks=list(row["sinks"]),
        also=list(row["also"]), also_at=list(row.get("also_at", ())), samples=[int(n) for n in row["samples"]],
        advice=[Advice(a["text"], a["why"], a["verified"], a["evidence"], a.get("on_these_numbers"))
                for a in row["advice"]], raw=row)


# Records, by the Arrow PyCapsule interface.
class _Stream(c.Structure):
    """struct ArrowArrayStream."""

    _fields_ = [("get_schema", c.c_void_p), ("get_next", c.c_void_p), ("get_last_error", c.c_void_p),
                ("release", c.c_void_p), ("private_data", c.c_void_p)]


_CAPSULE = b"arrow_array_stream"
_RELEASE = c.CFUNCTYPE(None, c.c_void_p)  # lets go of the GIL: it waits for a thread
_capsule_new = c.PYFUNCTYPE(c.py_object, c.c_void_p, c.c_char_p, c.c_void_p)(("PyCapsule_New", c.pythonapi))
_capsule_pointer = c.PYFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p)(("PyCapsule_GetPointer", c.pythonapi))
_streams: dict[int, _Stream] = {}  # address -> what a capsule points to, as long as the capsule lives


def _release(stream: _Stream) -> None:
    if stream.release:  # whoever read it has not taken it over
        _RELEASE(stream.release)(c.addressof(stream))


@c.PYFUNCTYPE(None, c.c_void_p)  # type: ignore[untyped-decorator]
def _capsule_ends(capsule: int) -> None:
    # A capsule without references: it must not become a Python object again, so it stays an address.
    stream = _streams.pop(_capsule_pointer(capsule, _CAPSULE), None)
    if stream is not None:
        _release(stream)


# What is empty in most runs, and why.
_HINTS = {"samples": "which items of the data set a batch holds; PyTorch does not tell, so its runs have none"}


class Records:
    """The records of one kind, for whatever reads Arrow streams. Each reading begins anew."""

    def __init__(self, path: str, kind: str) -> None:
        self.path, self.kind = path, kind
        _release(self._open())  # a wrong kind or run is told here, not inside of a reader

    def _open(self) -> _Stream:
        library = lib.load_library()
        stream = _Stream()
        status = library.slow.nanhunt_records(self.path.encode(), self.kind.encode(), c.byref(stream))
        if status != lib.OK:
            _raise(library, status)
        return stream

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        stream = self._open()
        address = c.addressof(stream)
        _streams[address] = stream
        return _capsule_new(address, _CAPSULE, c.cast(_capsule_ends, c.c_void_p))

    def __repr__(self) -> str:
        hint = f": {_HINTS[self.kind]}" if self.kind in _HINTS else ""
        return f"<nanhunt records {self.kind!r} of {self.path!r}{hint}>"


class Run:
    """A saved run: the newest attempt of each rank. One behind a URL is copied here first."""

    def __init__(self, run: StrPath) -> None:
        self.path = os.fspath(run)
        if is_url(self.path):
            from nanhunt.store.fetch import fetch

            self.path = str(fetch(self.path).folder)
        if not Path(self.path).exists():
            raise FileNotFoundError(f"run: expected a run folder, an attempt folder or a .nht file, got {self.path!r}, "
                                    "which does not exist")
        self._report: dict[str, Any] | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The whole report as report.json has it. Read once; load the run again to see what was added."""
        if self._report is None:
            self._report = json.loads(render(self.path, "json"))
        return self._report

    @property
    def verdict(self) -> str:
        """ "clean", "calibrating", "warning", "fault" or "inconclusive"."""
        return str(self.data["verdict"]["status"])

    @property
    def headline(self) -> str:
        return str(self.data["verdict"]["headline"])

    @property
    def findings(self) -> list[Finding]:
        """The verdict's finding first."""
        return [finding_of(row) for row in self.data["findings"]]

    @property
    def unwatched(self) -> list[str]:
        """What was not watched."""
        return [str(line) for line in self.data["coverage"]["unwatched"]]

    def report(self, format: str = "text") -> str:
        """The report as "text" (ten lines), "full" (all of it), "json" or "html" (the page).
        A notebook shows a card."""
        return shown(self.path, format)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of records."""
        return tuple(lib.load_library().fast.nanhunt_record_kinds().decode().split())

    def records(self, kind: str = "ops") -> Records:
        """The records of one kind: an object with `__arrow_c_stream__`. Kind `samples` is empty for PyTorch, which does
        not tell which items of the data set a batch holds."""
        return Records(self.path, kind)

    def to_parquet(self, folder: StrPath, kinds: tuple[str, ...] | list[str] | None = None) -> list[str]:
        """Writes each kind that has records as FOLDER/KIND.parquet; names the files. Needs the extra `parquet`."""
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise ImportError("Parquet needs pyarrow: pip install 'nanhunt[parquet]'") from error
        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        made: list[str] = []
        for kind in kinds or self.kinds:
            reader = pa.RecordBatchReader.from_stream(self.records(kind))
            path = out / f"{kind}.parquet"
            writer = None
            for batch in reader:  # batch by batch: a trace may be larger than memory
                if writer is None:
                    writer = parquet.ParquetWriter(path, reader.schema)
                writer.write_batch(batch)
            if writer is not None:
                writer.close()
                made.append(str(path))
        return made

    def _repr_html_(self) -> str:
        return card(self.path)

    def __repr__(self) -> str:
        return f"<nanhunt run {self.path!r}>"
