# SPDX-License-Identifier: Apache-2.0
"""The C recorder in Python's words. Knows nothing of torch; raises only when it cannot be opened."""
from __future__ import annotations

import ctypes as c
import json
import os
import shutil
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct

from nanhunt import _library as lib

_WORDS = [Struct(f"={n}q").pack for n in range(64)]


def pack(words: Sequence[int]) -> bytes:
    """64-bit words as nanhunt_record_rows reads them."""
    if isinstance(words, array):
        return words.tobytes()
    n = len(words)
    return _WORDS[n](*words) if n < 64 else Struct(f"={n}q").pack(*words)


def _texts(items: Sequence[str]) -> object:
    return (c.c_char_p * len(items))(*[item.encode() for item in items]) if items else None


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "replace").replace(b"\0", b"?")


class RecorderError(RuntimeError):
    """The recorder could not be opened: what, where, what to do."""


class Recorder:
    """One open trace. Numbers of texts, layouts and calls are kept here, so that each is told to the library once."""

    def __init__(self, *, run_dir: str, level: str, framework: str, device: str, rank: int, world_size: int,
                 drop: bool, trust_inputs: bool, max_trace_bytes: int, details: dict[str, object],
                 writes_digests: bool) -> None:
        self.library = lib.load_library()
        self.fast, self.slow = self.library.fast, self.library.slow
        options = lib.RecorderOptions(
            run_dir=run_dir.encode(), framework=framework.encode(), device=device.encode(), rank=rank,
            world_size=world_size, drop_on_full=int(drop), level=level.encode(), trust_inputs=int(trust_inputs),
            max_trace_bytes=max_trace_bytes, details=json.dumps(details).encode())
        handle = c.c_void_p()
        if self.slow.nanhunt_recorder_open(c.byref(options), c.byref(handle)) != lib.OK:
            raise RecorderError(self.library.last_error())
        self.handle = handle
        self._writes_digests = writes_digests
        # The program may leave the folder that it began in.
        self._folder = str(Path(os.fsdecode(self.fast.nanhunt_recorder_folder(handle))).absolute())
        self._texts: dict[str, int] = {}
        self._layouts: dict[object, int] = {}
        self.refused = 0  # calls that the library refused
        self._record_rows = self.fast.nanhunt_record_rows
        self.next_seq: Callable[[], int] = partial(self.fast.nanhunt_recorder_next_seq, handle)
        self._step = lib.Step()  # filled in anew for each row
        self._at_step = c.byref(self._step)

    def write_digest(self) -> None:
        """In the background, for whoever reads many ranks together, or reads one elsewhere."""
        if self._writes_digests:
            self._did(self.fast.nanhunt_recorder_write_digest(self.handle))

    def recording(self) -> lib.Recording:
        """For the tap: the functions of the library that it calls itself."""
        names = {"rows": "record_rows", "text": "intern_text", "layout": "intern_layout", "call": "intern_call",
                 "collective": "record_collective", "next_seq": "recorder_next_seq", "origins": "recorder_origins",
                 "read": "read",
                 "changed": "record_changed", "kernels_push": "kernels_push",
                 "kernels_pop": "kernels_pop", "kernels_push_own": "kernels_push_own",
                 "kernels_pop_own": "kernels_pop_own", "frame": "record_frame", "setup": "record_setup",
                 "hold": "recorder_hold", "look": "device_look", "end_looks": "device_end_looks",
                 "looked": "device_looked", "forget_look": "device_forget_look"}
        recording = lib.Recording(self=self.handle.value)
        for field, name in names.items():
            setattr(recording, field, c.cast(getattr(self.fast, f"nanhunt_{name}"), c.c_void_p).value)
        return recording

    # Numbers.
    def text(self, text: str) -> int:
        number = self._texts.get(text)
        if number is None:
            number = self._texts[text] = max(0, self.fast.nanhunt_intern_text(self.handle, _raw(text)))
        return number

    def layout(self, dtype: int, sizes: Sequence[int], strides: Sequence[int]) -> int:
        key = (dtype, tuple(sizes), tuple(strides))
        number = self._layouts.get(key)
        if number is None:
            n = len(key[1])
            dims = c.c_int64 * max(n, 1)
            number = self._layouts[key] = self.fast.nanhunt_intern_layout(
                self.handle, dtype, n, dims(*key[1]), dims(*key[2]))
        return number

    def call(self, op: str, compute_dtype: int, inputs: Sequence[tuple[str, int]], outputs: Sequence[str],
             scalars: Sequence[str]) -> int:
        roles = (c.c_int32 * max(len(inputs), 1))(*[role for _, role in inputs])
        call = lib.Call(compute_dtype=compute_dtype, op=op.encode(), input_slots=_texts([s for s, _ in inputs]),
                        input_roles=roles, input_count=len(inputs), output_slots=_texts(outputs),
                        output_count=len(outputs), scalar_names=_texts(scalars), scalar_count=len(scalars))
        return int(self.fast.nanhunt_intern_call(self.handle, c.byref(call)))

    # Rows.
    def rows(self, words: Sequence[int]) -> None:
        if self._record_rows(self.handle, pack(words), len(words)) != lib.OK:
            self.refused += 1

    def _did(self, status: int) -> None:
        if status != lib.OK:
            self.refused += 1

    def scaler(self, **fields: object) -> None:
        text = fields.pop("text", None)
        event = lib.ScalerEvent(**fields)
        if text is not None:
            event.text = str(text).encode()
        self._did(self.fast.nanhunt_record_scaler(self.handle, c.byref(event)))

    def step(self, step: int, skipped: bool, loss: float, lr: float, scale: float, ending: int = lib.BY_OPTIMIZER,
             message: str = "", watch_ns: int = 0) -> None:
        row = self._step
        row.watch_ns = watch_ns
        row.step, row.skipped, row.loss, row.lr, row.scale, row.ending = step, skipped, loss, lr, scale, ending
        row.message = _raw(message) if message else b""
        if self.fast.nanhunt_record_step(self.handle, self._at_step) != lib.OK:
            self.refused += 1

    def batch(self, step: int, micro_batch: int, samples: Iterable[int]) -> None:
        ids = list(samples)
        array = (c.c_int64 * max(len(ids), 1))(*ids)
        self._did(self.fast.nanhunt_record_batch(self.handle, step, micro_batch, array, len(ids)))

    def norm(self, step: int, kind: int, path: str, norm: float, amax: float) -> None:
        self._did(self.fast.nanhunt_record_norm(self.handle, step, kind, path.encode(), norm, amax))

    def not_heard(self, step: int, why: str) -> None:
        """A bad step of which no operation is known."""
        self._did(self.fast.nanhunt_record_not_heard(self.handle, step, why.encode()))

    def changed(self, step: int, value: Sequence[int], since_step: int, opaque: bool = False) -> None:
        unknown = (1 << 64) - 1
        self._did(self.fast.nanhunt_record_changed(self.handle, step, pack(value), unknown, since_step, int(opaque)))

    def probe(self, **fields: object) -> None:
        text = str(fields.pop("text", ""))
        row = lib.Probe(**fields)
        row.text = text.encode()
        self._did(self.fast.nanhunt_record_probe(self.handle, c.byref(row)))

    def capture(self, seq: int, step: int, file: str, size: int) -> None:
        self._did(self.fast.nanhunt_record_capture(self.handle, seq, step, file.encode(), size))

    def collective(self, step: int, seq: int, group: str, call: int, kind: int, reduction: int, peer: int,
                   ranks: Sequence[int], shares: Sequence[int] = ()) -> None:
        """`shares`: four words each. `seq`: of the op's row; NO_SEQ: it has none yet, but shares are read."""
        members = (c.c_uint32 * max(len(ranks), 1))(*ranks)
        row = lib.Collective(step=step, seq=seq, group=group.encode(), call=call, kind=kind, reduction=reduction,
                             peer=peer, ranks=members, rank_count=len(ranks),
                             shares=(c.c_int64 * max(len(shares), 1))(*shares), share_count=len(shares) // 4)
        self._did(self.fast.nanhunt_record_collective(self.handle, c.byref(row)))

    def note(self, step: int, text: str, count: int) -> None:
        self._did(self.fast.nanhunt_record_note(self.handle, step, text.encode(), count))

    def frame(self, site: str, depth: int, file: str, line: int, function: str, first_line: int, code: str) -> None:
        row = lib.Frame(depth=depth, site=_raw(site), file=_raw(file), function=_raw(function), code=_raw(code),
                        line=line, first_line=first_line)
        self._did(self.fast.nanhunt_record_frame(self.handle, c.byref(row)))

    def setup(self, step: int, fact: int, path: str = "", site: str = "", dtype: int = lib.F32, number: float = 0,
              text: str = "") -> None:
        row = lib.Setup(step=step, fact=fact, dtype=dtype, path=_raw(path), site=_raw(site), text=_raw(text),
                        number=number)
        self._did(self.fast.nanhunt_record_setup(self.handle, c.byref(row)))

    # Kernels.
    def attach_kernels(self, cupti: str = "") -> str:
        """Why they are not watched, in one line; "": they are. `cupti`: a path; "": the library finds one."""
        options = lib.KernelOptions(library=os.fsencode(cupti) if cupti else None)
        if self.fast.nanhunt_kernels_attach(self.handle, c.byref(options)) == lib.OK:
            return ""
        return self.library.last_error()

    def drain_kernels(self) -> None:
        self._did(self.fast.nanhunt_kernels_drain(self.handle))

    def detach_kernels(self, elsewhere: bool = False) -> None:
        """`elsewhere`: in another thread than the one that records, which may not go on meanwhile."""
        library = self.fast if elsewhere else self.slow
        self._did(library.nanhunt_kernels_detach(self.handle))

    # Reading.
    def device_stream(self, device: int, stream: int) -> tuple[int, str]:
        """The number by which rows name it; or -1, and why nothing can be read there. The first time may wait."""
        number = int(self.slow.nanhunt_device_stream(self.handle, device, stream))
        return number, "" if number > 0 else self.library.last_error()

    def read_elements(self, on: bool) -> None:
        """Whether single elements of what operations make on a device are looked at, by launches of their own."""
        self._did(self.fast.nanhunt_device_read_elements(self.handle, int(on)))

    def settle(self) -> None:
        """Waits for what is being read on devices: then `origins` and `bad_since` know all ops so far."""
        self._did(self.slow.nanhunt_device_settle(self.handle))

    def device_counts(self) -> lib.DeviceCounts:
        counts = lib.DeviceCounts()
        self._did(self.fast.nanhunt_device_counters(self.handle, c.byref(counts)))
        return counts

    def look(self, quads: array[int]) -> int:
        """Begins to take statistics of tensors of one stream of a device, four words each. A number; 0: it does not."""
        at, words = quads.buffer_info()
        count = words // 4
        number = int(self.fast.nanhunt_device_look(self.handle, at, 0, count))
        if number:
            self._did(self.fast.nanhunt_device_end_looks(self.handle))
        return number

    def has_come(self, look: int) -> bool:
        """Raises where it will not."""
        state = int(self.fast.nanhunt_device_looked(self.handle, look, None, 0))
        if state < 0:
            raise RuntimeError("a device was not read")
        return state > 0

    def forget_look(self, look: int) -> None:
        self._did(self.fast.nanhunt_device_forget_look(self.handle, look))

    def look_stats(self, look: int, count: int) -> c.Array[lib.Stats]:
        found = (lib.Stats * max(count, 1))()
        for one in found:
            one.struct_size = c.sizeof(lib.Stats)
        self._did(self.fast.nanhunt_device_look_stats(self.handle, look, found, count))
        return found

    def read(self, values: Sequence[int], what: int = lib.READ_NORM) -> tuple[c.Array[lib.Reading], int]:
        """Reads tensors given as (address, layout number) pairs: their readings, and how many are not finite."""
        n = len(values) // 2
        readings = (lib.Reading * max(n, 1))()
        bad = c.c_size_t()
        words = values.tobytes() if isinstance(values, array) else pack(values)
        if self.slow.nanhunt_read(self.handle, words, n, what, readings, c.byref(bad)) != lib.OK:
            self.refused += 1
        return readings, bad.value

    # A step whose operations are held, and of which a device has not told all.
    def hold_is_due(self) -> bool:
        """Whether all of the oldest one has come. Never waits."""
        return bool(self.fast.nanhunt_recorder_hold_is_due(self.handle))

    def add_to_hold(self, on: bool) -> None:
        """Rows that are told while this is on are that one's."""
        self._did(self.fast.nanhunt_recorder_add_to_hold(self.handle, int(on)))

    def decide_hold(self, action: int) -> None:
        """What becomes of it: lib.KEEP or lib.DROP."""
        self._did(self.fast.nanhunt_recorder_decide_hold(self.handle, action))

    def origins_that_last(self) -> int:
        """Of those that have come: in an optimizer, or in an update by the program."""
        return int(self.fast.nanhunt_recorder_origins_that_last(self.handle))

    def origins(self) -> int:
        """Ops at which badness began so far."""
        return int(self.fast.nanhunt_recorder_origins(self.handle))

    def bad_since(self, seq: int) -> int:
        """Ops from this one on whose results are known to be bad."""
        return int(self.fast.nanhunt_recorder_bad_since(self.handle, seq))

    def folder(self) -> str:
        return self._folder

    def counters(self) -> lib.Counters:
        counters = lib.Counters()
        self._did(self.fast.nanhunt_recorder_counters(self.handle, c.byref(counters)))
        return counters

    def flush(self) -> None:
        self._did(self.slow.nanhunt_recorder_flush(self.handle))

    def flush_at_signals(self) -> None:
        """Also when a signal ends the process for which it has no handler."""
        self._did(self.slow.nanhunt_recorder_flush_at_signals(self.handle))

    def judge_at_signals(self, judge: object, ends_between: bool) -> None:
        """Before a step of this judge has begun such a signal leaves nothing. `ends_between`: one that comes between
        steps is how this process ends."""
        self._did(self.slow.nanhunt_recorder_judge_at_signals(self.handle, judge, int(ends_between)))

    def close(self, unused_in: str = "") -> None:
        """`unused_in`: the run folder of an attempt that nobody needs. Folders above it go where they are empty."""
        if self.handle:
            folder = self.folder()
            handle, self.handle = self.handle, c.c_void_p()
            self.next_seq = partial(self.fast.nanhunt_recorder_next_seq, None)
            self._did(self.slow.nanhunt_recorder_close(handle))
            if unused_in:
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):
                    for above in Path(folder).resolve().parents:
                        above.rmdir()
                        if above == Path(unused_in).resolve():
                            break
