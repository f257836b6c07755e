# SPDX-License-Identifier: Apache-2.0
"""Parts of `tools/gpu_check` against programs that were made up: what they make of answers, of silence and of death."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from carried_parts import ROOT, Carried, by_check

# 6: the tests that need a GPU.

GTEST = """
report = next(word.split(":", 1)[1] for word in words if word.startswith("--gtest_output=json:"))
tests = TESTS
json.dump({"testsuites": [{"name": "OnGpu", "testsuite": tests}]}, open(report, "w"))
print("[ RUN      ] OnGpu.c\\nthere.cpp:5: Skipped\\nno cuBLAS was found\\n[  SKIPPED ] OnGpu.c (0 ms)")
sys.exit(STATUS)
"""
PASSED = {"name": "a", "status": "RUN", "result": "COMPLETED", "time": "0.1s"}
BAD = {"name": "b", "status": "RUN", "result": "COMPLETED", "failures": [{"failure": "x.cpp:3\nExpected equality"}]}
SKIPPED = {"name": "c", "status": "RUN", "result": "SKIPPED"}


def gtest(tests: list[dict], status: int) -> str:
    return GTEST.replace("TESTS", repr(tests)).replace("STATUS", str(status))


def test_tests_on_the_device_become_rows(carried):
    carried.program("one_tests", gtest([PASSED, BAD, SKIPPED], 1))
    carried.program("two_tests", gtest([PASSED], 0))
    status, rows = carried.run(6)
    found = by_check(rows)
    assert status == 1
    assert found["one_tests: OnGpu.a"][0] == "passed" and found["two_tests: OnGpu.a"][0] == "passed"
    assert found["one_tests: OnGpu.b"] == ("failed", "1 failures, the first: x.cpp:3 Expected equality")
    assert found["one_tests: OnGpu.c"] == ("skipped", "no cuBLAS was found")
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("print('cannot open libopenblas.so.0', file=sys.stderr); sys.exit(127)", "cannot open libopenblas.so.0"),
        ("time.sleep(math.inf)", "did not end within"),
        ("print('nonsense')", "told of no test"),
        (gtest([], 0), "told of no test"),
        (gtest([PASSED], 1), "though no test failed"),
    ],
)
def test_a_program_of_tests_that_breaks_is_a_row_and_keeps_no_other_from_running(carried, body, told):
    carried.environment["GPU_CHECK_SECONDS"] = "4"
    carried.program("one_tests", body)
    carried.program("two_tests", gtest([PASSED], 0))
    status, rows = carried.run(6)
    found = by_check(rows)
    assert status == 1
    assert found["one_tests"][0] == "failed" and told in found["one_tests"][1]
    assert found["two_tests: OnGpu.a"][0] == "passed"


def test_what_a_program_of_tests_said_before_it_was_ended_is_kept(carried):
    carried.environment["GPU_CHECK_SECONDS"] = "3"
    said = ["[ RUN      ] OnGpu.a", "[       OK ] OnGpu.a (12 ms)", "[ RUN      ] OnGpu.b", "x.cpp:1: Failure",
            "[  FAILED  ] OnGpu.b, where GetParam() = 3 (7 ms)", "[ RUN      ] OnGpu.c"]  # fmt: skip
    carried.program("one_tests", f"print({chr(10).join(said)!r}, flush=True)\ntime.sleep(math.inf)")
    status, rows = carried.run(6)
    found = {row["check"]: row["status"] for row in rows}
    assert status == 1
    assert found == {"one_tests: OnGpu.a": "passed", "one_tests: OnGpu.b": "failed", "one_tests": "failed"}


# 7 and 8: scenarios.

SCENARIOS = """
refusal = "[conv2d] expected tensors on cpu (this op has no kernel for another device)"
known = ["same", "other", "refused", "broken"]
device = words[words.index("--device") + 1] if "--device" in words else ""
if "--list" in words:
    print(json.dumps([{"name": name} for name in known]))
elif "--prove-neutral" in words:
    if words[1] == "refused":
        sys.exit(print(refusal, file=sys.stderr) or 2)
    if words[1] == "broken":
        os.kill(os.getpid(), signal.SIGABRT)
    bad = {"level": "ops", "differing_bytes": 3, "first_difference": "fc.weight", "first_differing_step": None}
    good = {"level": "off", "differing_bytes": 0, "first_difference": None, "first_differing_step": None}
    good["way"] = " ".join(words[3:-3])
    print(json.dumps({"steps": 4, "bytes": 99, "levels": [good] + ([bad] if words[1] == "other" else [])}))
    sys.exit(1 if words[1] == "other" else 0)
elif words[0] == "train":
    out = words[words.index("--out") + 1]
    if device == "cuda:0" and words[1] == "refused":
        sys.exit(print(refusal, file=sys.stderr) or 2)
    if device == "cuda:0" and words[1] == "broken":
        sys.exit(print("cuda:0 cannot be used: no cuBLAS", file=sys.stderr) or 2)
    os.mkdir(out)
    open(out + "/told", "w").write("conv" if (device, words[1]) == ("cuda:0", "other") else "mm")
elif words[0] == "report":
    op = open(words[1] + "/told").read()
    finding = {"id": "F1", "class": "overflow", "op": op, "module": "fc", "phase": "forward", "step": 3}
    findings = [{"id": "F0", "op": "not this"}, finding]
    print(json.dumps({"verdict": {"status": "fault", "origin": "F1"}, "findings": findings}))
"""


def test_verdicts_of_both_devices_are_set_against_each_other(carried):
    carried.program("nanhunt", SCENARIOS)
    status, rows = carried.run(7)
    found = by_check(rows)
    assert status == 1
    assert found["scenario same"] == ("passed", "fault, overflow, mm, fc, forward, 3")
    assert found["scenario other"] == ("failed", "op: mm on cpu, conv on cuda")
    assert found["scenario refused"][0] == "failed" and "conv2d" in found["scenario refused"][1]
    assert found["scenario broken"][0] == "failed" and "no cuBLAS" in found["scenario broken"][1]


def test_scenarios_run_side_by_side_where_there_are_cores_for_it(carried):
    meet = "meet = threading.Barrier(4, timeout=1800); part.side_by_side(lambda name: meet.wait(), ['one'] * 8)"
    script = f"import os, threading; os.cpu_count = lambda: 16; import part; {meet}; print('met')"
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], cwd=carried.at, capture_output=True, text=True, timeout=1800
    )
    assert done.stdout.strip() == "met", done.stderr


def test_what_there_was_no_time_to_begin_is_skipped_and_not_called_a_failure(carried):
    carried.environment["GPU_CHECK_SECONDS"] = "0"
    late = "rows.check('one', False, part.run(['true'], 9).told())"
    script = f"import part; rows = part.Rows(); {late}; print(rows.failed)"
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], cwd=carried.at, capture_output=True, text=True, timeout=1800,
        env={**os.environ, **carried.environment, "GPU_CHECK_ROWS": str(carried.rows_file)},
    )  # fmt: skip
    assert done.stdout.strip() == "False", done.stderr
    assert json.loads(carried.rows_file.read_text())["status"] == "skipped"


def test_what_watching_changed_on_the_device_is_told(carried):
    carried.program("nanhunt", SCENARIOS)
    status, rows = carried.run(8)
    found = by_check(rows)
    assert status == 1
    assert found["neutral: same"] == ("passed", "4 steps, 99 bytes at off")
    assert found["neutral: other"][0] == "failed" and "other bits at ops (fc.weight)" in found["neutral: other"][1]
    assert found["neutral: refused"][0] == "failed"
    assert found["neutral: broken"][0] == "failed" and "SIGABRT" in found["neutral: broken"][1]


@pytest.mark.parametrize("number", [7, 8, 9])
def test_a_command_line_that_does_not_start_is_a_row(carried, number):
    carried.program("nanhunt", "print('version GLIBC_2.34 not found', file=sys.stderr); sys.exit(1)")
    carried.program("gpu_engine", "sys.exit(0)")
    status, rows = carried.run(number)
    assert status == 1
    assert any(row["status"] == "failed" and "GLIBC_2.34" in row["detail"] for row in rows)
    (carried.at / "bin" / "nanhunt").unlink()
    assert carried.run(number)[0] == 1


# 9: CUPTI.

KERNELS = """
if words[0] == "doctor":
    print('{"cupti": {"path": "/there"}}')
elif words[0] == "dump":
    kind = words[words.index("--kind") + 1]
    rows = {"ops": [{"seq": 1, "op": "mm"}, {"seq": 2, "op": "mul"}],
            "kernels": [{"seq": 1, "name": "gemm_kernel", "own": False}, {"seq": 2, "name": "map_kernel", "own": False},
                        {"seq": 2, "name": "stats", "own": True}, {"seq": None, "name": "fill", "own": False}]}
    print("\\n".join(json.dumps(row) for row in rows.get(kind, [])))
"""
WRITES = """
with open(words[words.index("--rows") + 1], "a") as file:
    file.write(json.dumps({"check": words[0], "status": STATUS, "detail": "d"}) + "\\n")
"""


def test_kernels_are_told_by_op(carried):
    carried.program("nanhunt", KERNELS)
    carried.program("gpu_engine", WRITES.replace("STATUS", "'passed'"))
    status, rows = carried.run(9)
    found = by_check(rows)
    assert status == 0, rows
    assert found["kernels of ops: mm"] == ("passed", "gemm_kernel")
    assert found["kernels of ops: mul"] == ("passed", "map_kernel")
    assert {"cupti", "competitor", "syncs"} <= set(found)


def test_a_check_that_dies_is_a_row_and_the_others_are_run(carried):
    carried.program("nanhunt", KERNELS)
    dies = "if words[0] == 'cupti': os.kill(os.getpid(), signal.SIGSEGV)\n"
    carried.program("gpu_engine", dies + WRITES.replace("STATUS", "'passed'"))
    status, rows = carried.run(9)
    found = by_check(rows)
    assert status == 1
    assert found["gpu_engine cupti"] == ("failed", "died of SIGSEGV")
    assert found["competitor"][0] == "passed"


def test_without_cupti_the_reason_is_told_and_nothing_fails(carried):
    carried.program("nanhunt", """print('{"cupti": {"path": null, "why_not": "no libcupti.so.13 was found"}}')""")
    status, rows = carried.run(9)
    assert status == 0
    assert {row["status"] for row in rows} == {"skipped"} and all("no libcupti.so.13" in row["detail"] for row in rows)


# 10 and 11: times.

STEPS = """
watch = words[2]
if watch in ("cupti", "detached", "ops+cupti") and os.environ.get("NO_CUPTI"):
    sys.exit(print("gpu_engine: CUPTI: none", file=sys.stderr) or 1)
if os.environ.get("BREAKS") == watch:
    print("ready 10 1.5", flush=True)
    sys.stdin.readline()
    exec(os.environ["BREAKS_HOW"])
times = {"off": 10, "ops": 20, "ops+sync": 31, "detached": 10, "cupti": 10.4}
times["ops+cupti"] = 21
print("ready 10 1.5", flush=True)
step = 1
for line in sys.stdin:
    out = [str(step)]
    for _ in range(int(line)):
        out.append(str(times[watch]))
        step += 1
    print(*out, flush=True)
"""


def test_what_watching_costs_is_held_to_its_limits(carried):
    carried.environment["GPU_CHECK_SECONDS"] = "10"
    carried.program("gpu_engine", STEPS)
    status, rows = carried.run(10)
    rows = {row["check"].split(" over ")[0]: row for row in rows if " over " in row["check"]}
    assert status == 1
    assert rows["unwatched again"]["ratio"] == 1 and rows["unwatched again"]["status"] == "measured"
    assert rows["ops"]["ratio"] == 2 and rows["ops"]["status"] == "failed"
    assert rows["cupti"]["ratio"] == pytest.approx(1.04) and rows["cupti"]["status"] == "passed"
    assert rows["detached"]["status"] == "passed"
    assert all(int(row["detail"].split()[0]) >= 30 for row in rows.values())


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("print('out of memory', file=sys.stderr); sys.exit(1)", "out of memory"),
        ("print('1 garbage', flush=True)", "no times but"),
        ("print('1 -5', flush=True)", "no times but"),
    ],
)
def test_a_worker_that_breaks_takes_no_other_with_it(carried, how, told):
    carried.environment.update(GPU_CHECK_SECONDS="10", BREAKS="ops", BREAKS_HOW=how)
    carried.program("gpu_engine", STEPS)
    _, rows = carried.run(10)
    rows = {row["check"].split(" over ")[0]: row for row in rows if " over " in row["check"]}
    assert rows["ops"]["status"] == "failed" and told in rows["ops"]["detail"]
    assert rows["cupti"]["status"] == "passed" and rows["detached"]["status"] == "passed"


def test_ways_that_need_cupti_are_skipped_where_there_is_none(carried):
    carried.environment.update(GPU_CHECK_SECONDS="10", NO_CUPTI="1")
    carried.program("nanhunt", """print('{"cupti": {"path": null, "why_not": "not found"}}')""")
    carried.program("gpu_engine", STEPS)
    _, rows = carried.run(10)
    assert {row["check"].split(" over ")[0] for row in rows if row["status"] == "skipped"} == {
        "cupti", "ops+cupti", "detached"}  # fmt: skip


def test_fewer_pairs_than_asked_for_are_held_to_no_limit(carried):
    carried.environment["GPU_CHECK_SECONDS"] = "8"
    carried.environment["GPU_CHECK_SIZES"] = "gpt1m"
    slow = STEPS.replace("    out = [str(step)]", "    time.sleep(0.1)\n    out = [str(step)]")
    carried.program("gpu_engine", slow)
    _, rows = carried.run(10)
    ratios = [row for row in rows if " over " in row["check"] and "ratio" in row]
    assert ratios
    assert all("too few pairs" in row["detail"] and "at_most" not in row for row in ratios)


def test_a_size_that_does_not_fit_gives_way_to_a_smaller_one(carried):
    carried.environment["GPU_CHECK_SECONDS"] = "10"
    refuses = "if words[1].startswith('gpt124m'): sys.exit(print('out of memory', file=sys.stderr) or 1)\n"
    slow = "times['off'] = 900 if words[1].endswith('small') else 10\nstep = 1\n"
    carried.program("gpu_engine", refuses + STEPS.replace("step = 1\n", slow))
    carried.environment["GPU_CHECK_SIZES"] = "gpt124m small gpt10m"
    _, rows = carried.run(10)
    found = by_check(rows)
    for size, why in {"gpt124m": "out of memory", "small": "a step takes 900 ms"}.items():
        status, detail = found[f"overhead of the engine: size {size}"]
        assert status == "skipped" and why in detail
    assert "ops over unwatched, engine, gpt10m" in found


TORCH = """
if words[0] == "-c":
    if "ctypes" in words[1]:
        print("loaded" if not os.environ.get("NO_LIBRARY") else "")
        sys.exit(1 if os.environ.get("NO_LIBRARY") else 0)
    print(json.dumps({"torch": "2.13.0", "cuda": "13.0", "python": "3.11", "usable": not os.environ.get("NO_GPU")}))
else:
    print("ready 10 1.5 2.13.0", flush=True)
    for line in sys.stdin:
        print(1, *["8" if words[2] == "plain" else "4"] * int(line), flush=True)
"""


def with_torch(carried: Carried) -> None:
    carried.program("torch_python", TORCH)
    carried.environment["NANHUNT_TORCH_PYTHON"] = str(carried.at / "bin" / "torch_python")


def test_the_engine_is_set_against_the_pytorch_that_is_there(carried):
    carried.environment["GPU_CHECK_SECONDS"] = "10"
    carried.program("gpu_engine", STEPS)
    with_torch(carried)
    status, rows = carried.run(11)
    found = {row["check"]: row for row in rows}
    plain = found["engine over eager PyTorch, plain attention, gpt124m"]
    assert status == 0 and plain["ratio"] == 1.25 and plain["status"] == "passed" and plain["at_most"] == 1.5
    assert "PyTorch 2.13.0 (CUDA 13.0)" in plain["detail"]
    fused = found["engine over eager PyTorch, fused attention, gpt124m"]
    assert fused["ratio"] == 2.5 and fused["status"] == "measured"


@pytest.mark.parametrize("number", [11, 12, 3])
def test_a_pytorch_that_cannot_use_the_device_is_skipped_with_its_version(carried, number):
    with_torch(carried)
    carried.environment["NO_GPU"] = "1"
    carried.program("gpu_engine", STEPS)
    status, rows = carried.run(number)
    if any("PyTorch" in row["check"] and row["status"] != "skipped" for row in rows):
        pytest.skip("there is a PyTorch with a GPU here")
    assert status == 0
    assert "PyTorch 2.13.0 (CUDA 13.0) on Python 3.11 cannot use a GPU here" in rows[0]["detail"]


def test_a_library_that_does_not_load_beside_pytorch_is_told(carried):
    with_torch(carried)
    carried.environment["NO_LIBRARY"] = "1"
    _, rows = carried.run(12)
    if rows[0]["status"] != "skipped":
        pytest.skip("there is another PyTorch with a GPU here")
    assert "libnanhunt.so does not load" in rows[0]["detail"]


# 13: compute-sanitizer over the engine.

OURS = (
    "========= Invalid __global__ read of size 4\\n=========     at void nanhunt::kernels::run_each<X>+0x10 in a.cu:5"
)
THEIRS = "========= Uninitialized read\\n=========     at cutlass_gemm_kernel+0x10"


@pytest.mark.parametrize(
    ("printed", "status", "expected", "told"),
    [
        ("[  PASSED  ] 2 tests.", 0, "passed", "ERROR SUMMARY"),
        ("[  PASSED  ] 0 tests.", 0, "skipped", "no test ran under it"),
        (OURS, 86, "failed", "1 errors, the first: Invalid __global__ read"),
        (THEIRS, 86, "skipped", "not nanhunt's"),
        (THEIRS + "\\n=========\\n" + OURS, 86, "failed", "nanhunt::kernels"),
        ("not permitted", 3, "skipped", "refused by this host (status 3)"),
    ],
)
def test_what_the_sanitizer_finds_is_told_by_whose_kernel_it_is(carried, tmp_path, printed, status, expected, told):
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "compute-sanitizer"
    program.write_text(f"#!{sys.executable}\nprint('========= COMPUTE-SANITIZER\\n=========\\n{printed}\\n=========\\n"
                       f"========= ERROR SUMMARY: some')\nraise SystemExit({status})\n")  # fmt: skip
    program.chmod(0o755)
    carried.environment["PATH"] = f"{tools}:{os.environ['PATH']}"
    _, rows = carried.run(13)
    assert [row["status"] for row in rows] == [expected] * 4
    assert all(told in row["detail"] for row in rows), rows


# 3: waits of a step of PyTorch.

WAITS = """
if words[0].endswith("waits.py"):
    scaling, watch = words[2:4]
    found = json.loads(os.environ["WAITS"]).get(watch, {"cudaStreamSynchronize": 40})
    trouble = os.environ.get("TROUBLE", "") if watch == "ops" else ""
    print(json.dumps({"heard": int(os.environ.get("HEARD", "9")), "waits": found, "trouble": trouble}))
    sys.exit()
"""


def with_waits(carried: Carried, waits: dict, **environment: str) -> None:
    with_torch(carried)
    carried.program("torch_python", WAITS + TORCH)
    (carried.at / "torch").mkdir()
    shutil.copy2(ROOT / "tests" / "gpu" / "torch" / "waits.py", carried.at / "torch" / "waits.py")
    carried.environment.update(WAITS=json.dumps(waits), **environment)


def test_waits_that_a_watch_adds_to_steps_of_pytorch_fail(carried):
    with_waits(carried, {"ops": {"cudaStreamSynchronize": 40, "cudaEventSynchronize": 1}})
    status, rows = carried.run(3)
    found = by_check(rows)
    assert status == 1 and len(found) == 6
    for scaling in ("fp16", "fp32"):
        for watch in ("live", "steps"):
            assert found[f"PyTorch waits: added by {watch}, {scaling}"][0] == "passed"
        status, told = found[f"PyTorch waits: added by ops, {scaling}"]
        assert status == "failed"
        assert "1 in 40 steps: cudaEventSynchronize 0 -> 1, cudaStreamSynchronize 40 -> 40" in told


def test_a_profiler_that_heard_no_launch_proves_nothing(carried):
    with_waits(carried, {}, HEARD="0")
    status, rows = carried.run(3)
    assert status == 1
    assert {row["status"] for row in rows} == {"failed"} and "told of no launch" in rows[0]["detail"]


def test_a_watch_that_ended_early_proves_nothing(carried):
    with_waits(carried, {}, TROUBLE="the watch failed: it ended early")
    status, rows = carried.run(3)
    failed = [row for row in rows if row["status"] == "failed"]
    assert status == 1 and len(failed) == 2
    assert all("ops" in row["check"] and "ended early" in row["detail"] for row in failed)


def test_calls_that_wait_are_told_from_calls_that_do_not(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests" / "gpu" / "torch")
    from waits import told_of

    waiting = ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cuEventSynchronize", "cuStreamSynchronize_ptsz",
               "cudaMemcpy", "cuMemcpyDtoH_v2", "cudaFree"]  # fmt: skip
    others = ["cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaFreeAsync", "cudaMemcpyDtoD",
              "cudaEventQuery", "cudaStreamWaitEvent", "aten::mm", "Memcpy DtoH (Device -> Pinned)"]  # fmt: skip
    assert told_of([*waiting, *others, "cudaMemcpy"]) == {
        "heard": 2, "waits": {**dict.fromkeys(waiting, 1), "cudaMemcpy": 2}}  # fmt: skip
