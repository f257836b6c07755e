# SPDX-License-Identifier: Apache-2.0
"""Finds libnanhunt.so and the command line tool, and declares the C interface (c_api.h, c_adapter.h) to ctypes.

Knows nothing of torch.
"""
from __future__ import annotations

import ctypes as c
import os
from pathlib import Path

PACKAGE = Path(__file__).absolute().parent  # not resolved: a build tree links to the sources
API_VERSION = 14

OK, USAGE, NOT_FOUND = 0, 1, 2
F16, BF16, F32, F64, E4M3FN, E5M2, I64, I32, U8, BOOL = range(10)
DATA, FORWARD, LOSS, SCALE, BACKWARD, COMM, UNSCALE, CLIP, OPTIMIZER, UPDATE, VALIDATION = range(11)
BY_OPTIMIZER, BY_NEXT_FORWARD, BY_EXCEPTION, BY_EXIT, ENDED, BY_FORWARD = range(6)  # how a step ended
UNKNOWN, FORWARDS, FORWARDS_WITH_GRADIENTS, TRAINS = range(4)  # `Course` of tap/recording.h: what the program does
INFERS = (FORWARDS, FORWARDS_WITH_GRADIENTS)
READ, SAVED, OVERWRITTEN, MASK, INDEX = range(5)
MARK_LOSS, MARK_GRADIENT, MARK_PARAMETER, MARK_STATE, MARK_BUFFER, MARK_BATCH, MARK_LABEL, MARK_OUTPUT = range(8)
CREATE, SCALED, UNSCALED, CLIPPED, STEPPED, SKIPPED, UPDATED, SET, REFUSED = range(9)
ROW_OP, ROW_MARK, ROW_RELEASE, ROW_CHECK = 1, 2, 3, 4
(ALLREDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER, ALLTOALL, REDUCE, SCATTER, GATHER, SEND, RECV, BARRIER) = range(11)
NO_REDUCTION, SUM, AVG, MIN, MAX, PRODUCT = range(6)
NO_SEQ = (1 << 64) - 1
READ_NORM, READ_CHECKSUM = 1, 2
HOLD, KEEP, DROP, LATER = range(4)
(MODULE, AUTOCAST, BACKWARD_IN_AUTOCAST, NARROW_PARAMETERS, FOREIGN_PARAMETERS, WIDE_COLUMN, COORDINATE, ACCELERATOR,
 REPLICAS) = range(9)
HAS_NAN, HAS_POS_INF, HAS_NEG_INF = 1, 2, 4

_size, _ptr, _text = c.c_size_t, c.c_void_p, c.c_char_p
_u32, _i32, _u64, _i64, _f64 = c.c_uint32, c.c_int32, c.c_uint64, c.c_int64, c.c_double


class LibraryMissing(RuntimeError):
    """The shared library is not there, or is older than this package."""


class Sized(c.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **fields: object) -> None:
        super().__init__(struct_size=c.sizeof(type(self)), **fields)


class RecorderOptions(Sized):
    _fields_ = [("struct_size", _u32), ("run_dir", _text), ("framework", _text), ("device", _text), ("rank", _u32),
                ("world_size", _u32), ("drop_on_full", _i32), ("flush_ms", _i32), ("queue_bytes", _size),
                ("level", _text), ("trust_inputs", _i32), ("max_trace_bytes", _u64), ("details", _text)]


class Call(Sized):
    _fields_ = [("struct_size", _u32), ("compute_dtype", _i32), ("op", _text), ("input_slots", c.POINTER(_text)),
                ("input_roles", c.POINTER(_i32)), ("input_count", _size), ("output_slots", c.POINTER(_text)),
                ("output_count", _size), ("scalar_names", c.POINTER(_text)), ("scalar_count", _size)]


class ScalerEvent(Sized):
    _fields_ = [("struct_size", _u32), ("step", _u32), ("micro_batch", _u32), ("action", _i32), ("optimizer", _u32),
                ("found_inf", _i32), ("scale", _f64), ("growth_tracker", _i64), ("total_norm", _f64),
                ("max_norm", _f64), ("dynamic", _i32), ("growth_factor", _f64), ("backoff_factor", _f64),
                ("growth_interval", _i64), ("text", _text)]


class Step(Sized):
    _fields_ = [("struct_size", _u32), ("step", _u32), ("skipped", _i32), ("loss", _f64), ("lr", _f64), ("scale", _f64),
                ("ending", _i32), ("message", _text), ("watch_ns", _i64)]


class Counters(Sized):
    _fields_ = [("struct_size", _u32), ("ops", _u64), ("values", _u64), ("marks", _u64), ("dropped_ops", _u64),
                ("dropped_values", _u64), ("dropped_other", _u64), ("write_errors", _u64)]


class Probe(Sized):
    _fields_ = [("struct_size", _u32), ("step", _u32), ("seq", _u64), ("mode", _i32), ("dtype", _i32), ("ops", _u32),
                ("ran", _i32), ("nan", _i64), ("pos_inf", _i64), ("neg_inf", _i64), ("flat_index", _i64),
                ("number", _f64), ("text", _text)]


class Collective(Sized):
    _fields_ = [("struct_size", _u32), ("step", _u32), ("seq", _u64), ("group", _text), ("call", _u64), ("kind", _i32),
                ("reduction", _i32), ("peer", _i32), ("ranks", c.POINTER(_u32)), ("rank_count", _size),
                ("shares", c.POINTER(_i64)), ("share_count", _size)]


class KernelOptions(Sized):
    _fields_ = [("struct_size", _u32), ("flush_ms", _i32), ("library", _text), ("driver", _text)]


class DeviceCounts(Sized):
    _fields_ = [("struct_size", _u32), ("streams", _u32), ("asked", _u64), ("told", _u64), ("lost", _u64),
                ("captured", _u64), ("launches", _u64), ("copies", _u64), ("waits", _u64)]


class Stats(c.Structure):
    """`nanhunt_stats`."""

    _fields_ = [("struct_size", _u32), *((name, _i64) for name in ("numel", "nan", "pos_inf", "neg_inf", "zero",
                                                                   "subnormal", "first_bad")),
                *((name, _f64) for name in ("min", "max", "amax", "amin_nonzero", "sum", "sum_sq"))]


class Reading(c.Structure):
    _fields_ = [("norm", _f64), ("amax", _f64), ("checksum", _u64), ("bad", _u32), ("reserved", _u32)]


class Value(c.Structure):
    _fields_ = [("data", _ptr), ("dtype", _i32), ("ndim", _i32), ("sizes", c.POINTER(_i64)),
                ("strides", c.POINTER(_i64)), ("storage", _u64), ("version", _u32), ("offset", _i64)]


class Frame(Sized):
    _fields_ = [("struct_size", _u32), ("depth", _u32), ("site", _text), ("file", _text), ("function", _text),
                ("code", _text), ("line", _u32), ("first_line", _u32)]


class Setup(Sized):
    _fields_ = [("struct_size", _u32), ("step", _u32), ("fact", _i32), ("dtype", _i32), ("path", _text),
                ("site", _text), ("text", _text), ("number", _f64)]


class State(c.Structure):
    """`State` of tap/recording.h: where the run is. Read by the tap at each op."""

    _fields_ = [("step", _i64), ("micro_batch", _i64), ("phase", _i64), ("kernels", _i64), ("bad_number", _i64),
                ("left_bad", _i64), ("looked", _i64), ("wrote", _i64), ("wrote_weights", _i64), ("held", _i64),
                ("stepped", _i64), ("wanted", _i64), ("compiling", _i64), ("reads", _i64), ("course", _i64),
                ("spent_ns", _i64)]


class Recording(c.Structure):
    """`Recording` of tap/recording.h: whom the tap tells."""

    _fields_ = [("self", _ptr), ("rows", _ptr), ("text", _ptr), ("layout", _ptr), ("call", _ptr), ("collective", _ptr),
                ("next_seq", _ptr), ("origins", _ptr), ("read", _ptr), ("changed", _ptr), ("kernels_push", _ptr),
                ("kernels_pop", _ptr), ("kernels_push_own", _ptr), ("kernels_pop_own", _ptr), ("stream", _ptr),
                ("group", _ptr), ("file", _ptr), ("source", _ptr), ("frame", _ptr), ("setup", _ptr), ("hold", _ptr),
                ("look", _ptr), ("end_looks", _ptr), ("looked", _ptr), ("forget_look", _ptr)]


_PROTOTYPES = {
    "nanhunt_c_api_version": (_u32, []),
    "nanhunt_version": (_text, []),
    "nanhunt_last_error": (_text, []),
    "nanhunt_recorder_open": (_i32, [_ptr, _ptr]),
    "nanhunt_record_batch": (_i32, [_ptr, _u32, _u32, _ptr, _size]),
    "nanhunt_record_scaler": (_i32, [_ptr, _ptr]),
    "nanhunt_record_step": (_i32, [_ptr, _ptr]),
    "nanhunt_recorder_counters": (_i32, [_ptr, _ptr]),
    "nanhunt_recorder_flush": (_i32, [_ptr]),
    "nanhunt_recorder_flush_at_signals": (_i32, [_ptr]),
    "nanhunt_recorder_judge_at_signals": (_i32, [_ptr, _ptr, _i32]),
    "nanhunt_recorder_close": (_i32, [_ptr]),
    "nanhunt_report": (_i32, [_text, _i32, _ptr, _ptr]),
    "nanhunt_free": (None, [_ptr]),
    "nanhunt_intern_text": (_i64, [_ptr, _text]),
    "nanhunt_intern_layout": (_i64, [_ptr, _i32, _i32, _ptr, _ptr]),
    "nanhunt_intern_call": (_i64, [_ptr, _ptr]),
    "nanhunt_record_rows": (_i32, [_ptr, _text, _size]),  # words as bytes: no copy is made
    "nanhunt_recorder_folder": (_text, [_ptr]),
    "nanhunt_recorder_origins": (_u64, [_ptr]),
    "nanhunt_recorder_origins_that_last": (_u64, [_ptr]),
    "nanhunt_recorder_next_seq": (_u64, [_ptr]),
    "nanhunt_recorder_bad_since": (_u64, [_ptr, _u64]),
    "nanhunt_recorder_hold": (_i32, [_ptr, _i32]),
    "nanhunt_recorder_hold_is_due": (_i32, [_ptr]),
    "nanhunt_recorder_add_to_hold": (_i32, [_ptr, _i32]),
    "nanhunt_recorder_decide_hold": (_i32, [_ptr, _i32]),
    "nanhunt_record_norm": (_i32, [_ptr, _u32, _i32, _text, _f64, _f64]),
    "nanhunt_record_not_heard": (_i32, [_ptr, _u32, _text]),
    "nanhunt_record_changed": (_i32, [_ptr, _u32, _text, _u64, _u32, _i32]),
    "nanhunt_record_probe": (_i32, [_ptr, _ptr]),
    "nanhunt_record_capture": (_i32, [_ptr, _u64, _u32, _text, _u64]),
    "nanhunt_record_collective": (_i32, [_ptr, _ptr]),
    "nanhunt_record_note": (_i32, [_ptr, _u32, _text, _u64]),
    "nanhunt_record_frame": (_i32, [_ptr, _ptr]),
    "nanhunt_record_setup": (_i32, [_ptr, _ptr]),
    "nanhunt_recorder_write_digest": (_i32, [_ptr]),
    "nanhunt_start_detached": (_i32, [_ptr, _ptr, _text, _size]),
    "nanhunt_kernels_attach": (_i32, [_ptr, _ptr]),
    "nanhunt_kernels_push": (_u64, [_ptr]),
    "nanhunt_kernels_pop": (None, [_ptr, _u64, _u64, _u32]),
    "nanhunt_kernels_push_own": (None, [_ptr]),
    "nanhunt_kernels_pop_own": (None, [_ptr]),
    "nanhunt_kernels_place": (None, [_ptr, _u32, _i32]),
    "nanhunt_kernels_drain": (_i32, [_ptr]),
    "nanhunt_kernels_detach": (_i32, [_ptr]),
    "nanhunt_device_stream": (_i64, [_ptr, _i32, _u64]),
    "nanhunt_device_read_elements": (_i32, [_ptr, _i32]),
    "nanhunt_device_settle": (_i32, [_ptr]),
    "nanhunt_device_counters": (_i32, [_ptr, _ptr]),
    "nanhunt_read": (_i32, [_ptr, _text, _size, _i32, _ptr, _ptr]),
    "nanhunt_step_judge_new": (_ptr, [_u32, _u32]),
    "nanhunt_step_judge_free": (None, [_ptr]),
    "nanhunt_step_is_open": (_i32, [_ptr]),
    "nanhunt_step_pass": (_i32, [_ptr, _i32]),
    "nanhunt_step_restart": (_i32, [_ptr]),
    "nanhunt_step_facts": (_i32, [_ptr]),
    "nanhunt_step_reads_gradients": (_i32, [_ptr, _u32, _i32, _i32]),
    "nanhunt_step_gives_up": (_i32, [_ptr]),
    "nanhunt_step_note": (_i32, [_ptr, _u32, _i32, _i32, _text]),
    "nanhunt_step_note_kept": (_i32, [_ptr, _u32]),
    "nanhunt_step_bad": (_i32, [_ptr, _u32]),
    "nanhunt_step_boundary": (_i32, [_ptr, _u32]),
    "nanhunt_step_judge_bad": (_i32, [_ptr, _u32, _i32]),
    "nanhunt_step_judge_harm": (_i32, [_ptr, _u32]),
    "nanhunt_step_keeps": (_i32, [_ptr, _u32, _i32, _i32]),
    "nanhunt_step_end_held": (_i32, [_ptr, _u32, _i32, _i32]),
    "nanhunt_step_shows": (_i32, [_ptr, _u32, _i32]),
    "nanhunt_step_was_left_out": (_i32, [_ptr]),
    "nanhunt_step_end": (_i32, [_ptr, _i32, _i32]),
    "nanhunt_step_carry_over": (_i32, [_ptr, _u32]),
    "nanhunt_step_record": (_i32, [_ptr, _ptr, _u32, _i32, _i32, _f64, _u64]),
    "nanhunt_device_look": (_u64, [_ptr, _ptr, _size, _size]),
    "nanhunt_device_end_looks": (_i32, [_ptr]),
    "nanhunt_device_looked": (_i32, [_ptr, _u64, _ptr, _size]),
    "nanhunt_device_look_stats": (_i32, [_ptr, _u64, _ptr, _size]),
    "nanhunt_device_forget_look": (_i32, [_ptr, _u64]),
    "nanhunt_records": (_i32, [_text, _text, _ptr]),
    "nanhunt_record_kinds": (_text, []),
    "nanhunt_read_records": (_i32, [_text, _text, _ptr, _ptr]),
}


def library_path() -> Path:
    """Where libnanhunt.so is: beside the package (wheel), in the build tree, or where NANHUNT_LIBRARY says."""
    given = os.environ.get("NANHUNT_LIBRARY")
    candidates = [Path(given)] if given else [
        PACKAGE / "lib" / "libnanhunt.so", PACKAGE.parent.parent / "lib" / "libnanhunt.so"]
    for path in candidates:
        if path.is_file():
            return path
    looked = ", ".join(str(path) for path in candidates)
    raise LibraryMissing(f"libnanhunt.so is not there; looked at {looked}. Install the package again, or set "
                         "NANHUNT_LIBRARY to the file.")


class Library:
    """The C interface. Attributes are its functions: `fast` keeps the GIL (short calls), `slow` lets go of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.fast: c.CDLL = c.PyDLL(str(path))
            self.slow = c.CDLL(str(path))
        except OSError as error:
            raise LibraryMissing(f"{path} cannot be loaded: {error}") from error
        for library in (self.fast, self.slow):
            for name, (result, arguments) in _PROTOTYPES.items():
                function = getattr(library, name, None)
                if function is not None:  # a missing one is told below, or by whoever calls it
                    function.restype, function.argtypes = result, arguments
        if self.fast.nanhunt_c_api_version() < API_VERSION:
            raise LibraryMissing(f"{path} is older than this package: install both from one version")

    def last_error(self) -> str:
        return str(self.fast.nanhunt_last_error().decode("utf-8", "replace"))


_loaded: Library | None = None


def load_library() -> Library:
    """The library, loaded once. Raises LibraryMissing with what to do."""
    global _loaded
    if _loaded is None:
        _loaded = Library(library_path())
    return _loaded
