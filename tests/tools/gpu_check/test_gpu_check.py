# SPDX-License-Identifier: Apache-2.0
"""`tools/gpu_check`: what it says without a GPU, and what it makes of the results of its parts."""

import ast
import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROBE = '{"device": "Made-up GPU", "compute": "9.0", "driver": 13000, "runtime": 13000}'
FACTS = {
    "driver": {"name": "libcuda.so.1", "version": "580.1"},
    "libraries": [{"name": "libcublas.so", "version": None}],
    "cupti": {"version": "13.0", "path": "/there"},
    "findings": [{"level": "problem", "what": "There is no cuBLAS here."}],
}


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def carried(tmp_path) -> Path:
    """The folder as it arrives on another machine, with stand-ins for the programs."""
    at = tmp_path / "gpu_check"
    (at / "bin").mkdir(parents=True)
    shutil.copytree(ROOT / "tests" / "gpu" / "parts", at / "parts")
    shutil.copy2(ROOT / "tools" / "gpu_check", at / "gpu_check")
    for helper in (ROOT / "tests" / "gpu").glob("*.py"):
        shutil.copy2(helper, at / helper.name)
    executable(at / "bin" / "nanhunt", f"#!/bin/sh\n[ \"$1\" = doctor ] && echo '{json.dumps(FACTS)}'\nexit 0\n")
    (at / "about.json").write_text('{"commit": "abc"}')
    return at


def only(at: Path, *numbers: int) -> None:
    for part in list((at / "parts").iterdir()):
        if int(part.name.split("-")[0]) not in numbers:
            part.unlink()


def stand_in(at: Path, body: str) -> None:
    """gpu_kernels: $1 is what to do, $3 the file of rows."""
    probe = f"if [ \"$1\" = probe ]; then echo '{PROBE}'; exit 0; fi\n"
    executable(at / "bin" / "gpu_kernels", "#!/bin/sh\n" + probe + body)


# What a stand-in does that hangs (made_up_time.py): its limit is over at once, and not before.
HANGS = "echo \"hang $(cut -d' ' -f5 /proc/$$/stat)\" >>$MADE_UP_TIME\n"


def in_made_up_time(at: Path) -> dict[str, str]:
    """The environment of a gpu_check whose parts have all the time that they need, unless they hang."""
    folder = at.parent / "made_up_time"
    folder.mkdir(exist_ok=True)
    shutil.copy2(Path(__file__).with_name("made_up_time.py"), folder / "sitecustomize.py")
    (folder / "time").unlink(missing_ok=True)
    return {**os.environ, "PYTHONPATH": str(folder), "MADE_UP_TIME": str(folder / "time")}


def gpu_check(at: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(at / "gpu_check"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, env=in_made_up_time(at))


def assert_ended(process: Path) -> None:
    """The process whose number is in the file is gone, or nobody's but a number: a kill takes a while to arrive."""
    stat = Path("/proc", process.read_text().strip(), "stat")
    for _ in range(6000):
        try:
            if stat.read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.05)
    pytest.fail("it still runs")


def rows_of(at: Path, number: int) -> list[dict]:
    return [json.loads(line) for line in (at / "results" / f"part-{number}.jsonl").read_text().splitlines()[1:] if line]


@pytest.fixture
def tool():
    """tools/gpu_check as a module."""
    loader = importlib.machinery.SourceFileLoader("gpu_check_tool", str(ROOT / "tools" / "gpu_check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check_tool", loader))
    loader.exec_module(module)
    return module


ROW = '{"check": "%s", "status": "%s", "detail": "d"}'


def test_it_lists_the_parts_that_there_are(carried):
    listed = gpu_check(carried, "--list")
    assert listed.returncode == 0
    numbers = [line.split()[0] for line in listed.stdout.splitlines()]
    assert numbers == [str(n) for n in range(1, len(list((carried / "parts").iterdir())) + 1)]
    assert len(numbers) >= 13


def test_what_runs_on_the_other_machine_is_python_3_8(carried):
    for path in [carried / "gpu_check", *carried.glob("*.py"), *(carried / "parts").iterdir()]:
        if "python3" in path.read_text().splitlines()[0] or path.suffix == ".py":
            ast.parse(path.read_text(), feature_version=(3, 8))


def test_a_part_is_added_by_adding_a_file(carried):
    executable(carried / "parts" / "77-more", "#!/bin/sh\n# part: something more\n")
    assert "77  something more" in gpu_check(carried, "--list").stdout


def test_without_a_gpu_it_says_so_and_ends_with_5(carried):
    shutil.copy2(real_gpu_kernels(), carried / "bin" / "gpu_kernels")
    if subprocess.run([carried / "bin" / "gpu_kernels", "probe"], capture_output=True).returncode == 0:
        pytest.skip("there is a GPU here")

    for arguments in (["--run-part", "1"], []):
        done = gpu_check(carried, *arguments)
        assert done.returncode == 5, done.stderr
        assert "no GPU here to check: " in done.stderr and "Carry" in done.stderr
        assert done.stdout == ""
    assert not (carried / "results").exists()


def test_parts_are_tried_on_the_cpu_where_that_is_asked_for_and_the_table_says_so(carried, monkeypatch):
    only(carried, 6)
    row = ROW % ("a", "passed")
    executable(carried / "bin" / "gpu_kernels", "#!/bin/sh\nexit 5\n")
    executable(carried / "parts" / "6-conformance", f"#!/bin/sh\n# part: a try\necho '{row}' >>$GPU_CHECK_ROWS\n")
    monkeypatch.setenv("GPU_CHECK_DEVICE", "cpu")
    tried = gpu_check(carried, "--run", "6")
    assert tried.returncode == 0, tried.stderr
    assert gpu_check(carried, "--merge").returncode == 0
    assert "parts tried on the CPU, whose rows say nothing of one" in (carried / "table.txt").read_text()


def test_wrong_usage_is_told(carried):
    stand_in(carried, "exit 0\n")
    assert gpu_check(carried, "--run-part", "1000").returncode == 2
    assert gpu_check(carried, "--nonsense").returncode == 2
    assert gpu_check(carried, "--build").returncode == 2
    assert gpu_check(carried, "--merge").returncode == 2
    (carried / "bin" / "gpu_kernels").unlink()
    done = gpu_check(carried, "--run-part", "1")
    assert done.returncode == 2 and "--build" in done.stderr


def test_the_parts_become_one_table(carried):
    only(carried, 1, 2)
    stand_in(carried, f"echo '{ROW % ('$1', 'passed')}' | sed \"s/[$]1/$1/\" >>\"$3\"\n")
    done = gpu_check(carried)

    assert done.returncode == 0, done.stderr
    table = json.loads((carried / "table.json").read_text())
    assert [(row["part"], row["check"]) for row in table["rows"]] == [(1, "kernels"), (2, "large")]
    assert table["machine"]["device"] == "Made-up GPU"
    assert table["counts"] == {"passed": 2, "failed": 0, "skipped": 0, "measured": 0}
    assert "2 passed, 0 failed, 0 skipped" in (carried / "table.txt").read_text()


def test_the_table_says_what_the_machine_is(carried):
    only(carried, 1)
    stand_in(carried, f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    assert gpu_check(carried).returncode == 0
    table = json.loads((carried / "table.json").read_text())
    assert table["environment"] == FACTS and table["about"] == {"commit": "abc"} and len(table["dates"]) == 1
    text = (carried / "table.txt").read_text()
    for said in ("Made-up GPU", "compute capability 9.0", "driver for CUDA 13.0", "commit abc", "libcuda.so.1 580.1",
                 "libcublas.so not found", "problem: There is no cuBLAS here."):  # fmt: skip
        assert said in text and said in (carried / "table.md").read_text(), said


def test_a_program_that_does_not_start_is_told_in_the_facts(carried):
    only(carried, 1)
    missing = "nanhunt: error while loading shared libraries: libopenblas.so.0: cannot open shared object file"
    executable(carried / "bin" / "nanhunt", f"#!/bin/sh\necho '{missing}' >&2\nexit 127\n")
    stand_in(carried, f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    assert gpu_check(carried).returncode == 0
    assert missing in (carried / "table.txt").read_text()


def test_the_table_can_be_pasted_into_a_readme(carried):
    only(carried, 1, 2)
    rows = [
        {"check": "speed | of one", "status": "passed", "detail": "d", "ratio": 0.95, "required": 0.9},
        {"check": "cost of two", "status": "failed", "detail": "d", "ratio": 1.2, "at_most": 1.01},
        {"check": "three", "status": "passed", "detail": "d"},
        {"check": "four", "status": "skipped", "detail": "there is none"},
    ]
    lines = "".join(f"echo '{json.dumps(row)}' >>\"$3\"\n" for row in rows)
    stand_in(carried, lines)
    gpu_check(carried, "--run-part", "1")
    gpu_check(carried, "--merge")
    text = (carried / "table.md").read_text()
    assert "### On a GPU: Made-up GPU" in text
    assert "| 1 | speed \\| of one | passed | 0.950 of 0.90 | d |" in text
    assert "| 1 | cost of two | failed | 1.200, at most 1.01 | d |" in text
    assert "| 1 | four | skipped |  | there is none |" in text
    assert "| three |" not in text and "| 1 more passed |" in text
    assert "Part 2 was not run. (tensors of more than 2^32 elements)" in text
    assert "2 passed, 1 failed, 1 skipped, 0 measured" in text


def test_a_missing_part_is_no_success(carried):
    stand_in(carried, f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    assert gpu_check(carried, "--run-part", "1").returncode == 0
    done = gpu_check(carried, "--merge")
    assert done.returncode == 1
    assert "Part 2 was not run." in done.stdout


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (f"echo '{ROW % ('one', 'failed')}' >>\"$3\"; exit 1\n", "failed    one"),
        ("kill -SEGV $$\n", "died of SIGSEGV"),
        (f"echo '{ROW % ('one', 'passed')}' >>\"$3\"; kill -KILL $$\n", "died of SIGKILL"),
        (f"echo '{ROW % ('one', 'passed')}' >>\"$3\"; echo 'cuda: it broke' >&2; exit 1\n", "1: cuda: it broke"),
        ("exit 0\n", "found nothing"),
        ('head -c 300 /dev/urandom >>"$3"\n', "a row was cut short"),
        ("echo '[1, 2]' >>\"$3\"\n", "a row was cut short"),
        (f"echo '{ROW % ('one', 'wonderful')}' >>\"$3\"\n", "a row was cut short"),
        ('echo \'{"check": "c", "status": "passed", "detail": "d", "ratio": "x"}\' >>"$3"\n', "cut short"),
        ('printf \'{"check": "cut\' >>"$3"\n', "a row was cut short"),
    ],
)
def test_what_fails_or_dies_is_in_the_table(carried, body, told):
    stand_in(carried, body)
    done = gpu_check(carried, "--run-part", "1")
    assert done.returncode == 1
    assert told in done.stdout


def test_a_part_that_hangs_is_ended_with_all_that_it_started(carried, tmp_path):
    only(carried, 1, 2)
    child = tmp_path / "child"
    stand_in(carried, f"[ $1 = large ] && exit 0\nsleep 86400 &\necho $! >{child}\n{HANGS}wait\n")
    done = gpu_check(carried)
    assert done.returncode == 1
    assert "did not end within 470 s" in rows_of(carried, 1)[0]["detail"]
    assert "found nothing" in rows_of(carried, 2)[0]["detail"]  # the next one was run all the same
    assert_ended(child)


def test_parts_run_though_their_permissions_were_lost(carried):
    only(carried, 1, 6)
    for part in (carried / "parts").iterdir():
        part.chmod(0o644)
    stand_in(carried, f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    assert gpu_check(carried, "--run-part", "1").returncode == 0
    gpu_check(carried, "--run-part", "6")
    assert "no program of tests was carried" in rows_of(carried, 6)[0]["detail"]


def test_results_that_cannot_be_written_end_it_with_6(carried):
    stand_in(carried, "exit 0\n")
    (carried / "results").write_text("in the way")
    done = gpu_check(carried, "--run-part", "1")
    assert done.returncode == 6 and "cannot be written" in done.stderr
    (carried / "results").unlink()
    gpu_check(carried, "--run-part", "1")
    (carried / "table.json").mkdir()
    done = gpu_check(carried, "--merge")
    assert done.returncode == 6 and "the table cannot be written" in done.stderr


def test_results_that_cannot_be_read_are_failures_of_the_table(carried):
    only(carried, 1, 2)
    stand_in(carried, f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    gpu_check(carried, "--run-part", "1")
    (carried / "results" / "part-2.jsonl").write_bytes(b"\xff\xfe nonsense\n")
    done = gpu_check(carried, "--merge")
    assert done.returncode == 1
    assert "its head cannot be read" in done.stdout and "Part 2 was not run." in done.stdout


@pytest.mark.parametrize("printed", ["", "not JSON", "[1]"])
def test_a_probe_that_prints_no_machine_is_told(carried, printed):
    executable(carried / "bin" / "gpu_kernels", f"#!/bin/sh\necho '{printed}'\n")
    done = gpu_check(carried, "--run-part", "1")
    assert done.returncode == 1 and "printed no machine" in done.stderr


def real_gpu_kernels() -> Path:
    binaries = os.environ.get("NANHUNT_BIN_DIR")
    if not binaries or not Path(binaries, "gpu_kernels").is_file():
        pytest.skip("gpu_kernels is not built: tools/test builds it and names NANHUNT_BIN_DIR")
    return Path(binaries, "gpu_kernels")


def test_a_driver_that_is_too_old_is_told(carried, tmp_path):
    shutil.copy2(real_gpu_kernels(), carried / "bin" / "gpu_kernels")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here to make a driver with")
    source = tmp_path / "driver.c"
    source.write_text(
        "int cuInit(unsigned f) { return 0; }\nint cuDriverGetVersion(int* v) { *v = 11000; return 0; }\n"
    )
    library = tmp_path / "driver" / "libcuda.so.1"
    library.parent.mkdir()
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    command = [sys.executable, str(carried / "gpu_check"), "--run-part", "1"]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment)
    assert done.returncode == 5, done.stderr
    assert "no GPU here to check: " in done.stderr and "driver" in done.stderr


PROGRAMS = ("gpu_kernels", "nanhunt", "some_tests")


def test_every_program_of_tests_that_need_a_gpu_is_carried(tool):
    binaries = real_gpu_kernels().parent
    carried = (binaries.parent / tool.LISTED).read_text().split()
    assert {"gpu_kernels", "gpu_engine", "nanhunt"} <= set(carried)
    for program in sorted(binaries.glob("*_tests")):
        words = [str(program), "--gtest_filter=*OnGpu*", "--gtest_list_tests"]
        listed = subprocess.run(words, capture_output=True, text=True, timeout=1800).stdout
        assert ("OnGpu" in listed) == (program.name in carried), program.name


def packed(tool, tmp_path) -> Path:
    """A small repository and build, packed."""
    root, built, to = tmp_path / "root", tmp_path / "built", tmp_path / "carried"
    for source, _ in tool.CARRIED:
        if (ROOT / source).is_dir():
            (root / source).mkdir(parents=True)
            (root / source / "one").write_text("1")
        else:
            (root / source).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / source, root / source)
    (built / "bin").mkdir(parents=True)
    for name in PROGRAMS:
        executable(built / "bin" / name, "#!/bin/sh\nexit 0\n")
    (built / tool.LISTED).write_text("\n".join(PROGRAMS))
    shutil.copy2(shutil.which("true"), built / "bin" / "nanhunt")
    wheel = tmp_path / "nanhunt-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nanhunt/bin/nanhunt", "a program")
        archive.writestr("nanhunt/lib/libnanhunt.so", "a library")
    tool.pack(root, built, wheel, to)
    return to


def test_programs_are_packed_and_unpacked_where_they_are_run(tool, tmp_path):
    at = packed(tool, tmp_path)
    assert not (at / "bin").exists()  # they lie there once, small
    (at / "parts" / "1-one").write_text("#!/bin/sh\n# part: one\n")
    done = gpu_check(at, "--run-part", "1")
    assert "printed no machine" in done.stderr, done.stderr
    assert {path.name for path in (at / "bin").iterdir()} == set(PROGRAMS)
    assert all(os.access(path, os.X_OK) for path in (at / "bin").iterdir())
    assert (at / "hooks" / "torch" / "nanhunt" / "lib" / "libnanhunt.so").is_file()
    assert os.access(at / "hooks" / "torch" / "nanhunt" / "bin" / "nanhunt", os.X_OK)
    assert not list(at.glob("unpacked-*"))


@pytest.mark.parametrize("damaged", ["programs.tar.xz", "*.whl"])
def test_a_damaged_archive_is_told(tool, tmp_path, damaged):
    at = packed(tool, tmp_path)
    archive = next(at.glob(damaged))
    archive.write_bytes(archive.read_bytes()[:-200])
    (at / "parts" / "1-one").write_text("#!/bin/sh\n# part: one\n")
    done = gpu_check(at, "--run-part", "1")
    assert done.returncode == 1 and "is damaged" in done.stderr and "Carry them again" in done.stderr
    assert not (at / "bin").exists()


def test_more_than_can_be_carried_is_refused(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "MOST_BYTES", 1000)
    with pytest.raises(tool.Stop, match="too many to carry"):
        packed(tool, tmp_path)


def test_a_folder_that_is_packed_again_holds_nothing_old(tool, tmp_path):
    at = packed(tool, tmp_path)
    (at / "bin").mkdir()
    (at / "parts" / "99-old").write_text("#!/bin/sh\n# part: old\n")
    (at / "results").mkdir()
    shutil.rmtree(tmp_path / "root")
    shutil.rmtree(tmp_path / "built")
    assert packed(tool, tmp_path) == at
    assert not (at / "bin").exists() and not (at / "parts" / "99-old").exists() and (at / "results").is_dir()


def test_parts_of_different_machines_do_not_make_a_table(carried):
    stand_in(carried, f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    only(carried, 1, 2, 5)
    for number in (1, 2, 5):
        gpu_check(carried, "--run-part", str(number))
    rows = carried / "results" / "part-2.jsonl"
    rows.write_text(rows.read_text().replace("Made-up", "Another"))
    done = gpu_check(carried, "--merge")
    assert done.returncode == 1
    assert "different machines" in done.stdout


def test_a_sanitizer_that_is_refused_is_reported_as_such(carried, tmp_path):
    stand_in(carried, "exit 0\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    executable(tools / "compute-sanitizer", "#!/bin/sh\necho '========= Error: not permitted here'\nexit 3\n")
    rows = tmp_path / "rows"
    part = next(path for path in (carried / "parts").iterdir() if path.name == "4-sanitizer")
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "GPU_CHECK_BIN": str(carried / "bin"),
                   "GPU_CHECK_ROWS": str(rows)}  # fmt: skip
    done = subprocess.run([str(part)], env=environment, timeout=1800)
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert done.returncode == 0
    assert len(found) == 4 and {row["status"] for row in found} == {"skipped"}
    assert all("refused by this host (status 3)" in row["detail"] for row in found)

    executable(tools / "compute-sanitizer", "#!/bin/sh\necho '========= Invalid __global__ read'\nexit 86\n")
    rows.unlink()
    assert subprocess.run([str(part)], env=environment, timeout=1800).returncode == 1
    assert {json.loads(line)["status"] for line in rows.read_text().splitlines()} == {"failed"}

    executable(tools / "compute-sanitizer", "#!/bin/sh\nexec sleep 86400\n")
    rows.unlink()
    assert subprocess.run([str(part)], env={**environment, "GPU_CHECK_SECONDS": "4"}, timeout=1800).returncode == 0
    assert all("did not end within 1 s" in line for line in rows.read_text().splitlines())


# Several parts in a limited time, and what is kept of them.


def test_named_parts_run_in_the_order_asked_for_and_are_kept_in_one_file(carried, tmp_path):
    only(carried, 1, 2, 5)
    order = tmp_path / "order"
    stand_in(carried, f"echo $1 >>{order}\necho '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    kept = tmp_path / "out" / "kept.tar.gz"
    done = gpu_check(carried, "--run", "5,1:60", "--seconds", "100", "--keep", str(kept))
    assert done.returncode == 0, done.stderr
    assert order.read_text().split() == ["bench", "kernels"]
    assert done.stdout.count("passed    1 more") == 2

    shutil.rmtree(carried / "results")  # another machine, or the same one carried anew
    gpu_check(carried, "--run", "2", "--keep", str(tmp_path / "second.tar.gz"))
    shutil.rmtree(carried / "results")
    merged = gpu_check(carried, "--merge", str(kept), str(tmp_path / "second.tar.gz"))
    assert merged.returncode == 0, merged.stdout
    table = json.loads((carried / "table.json").read_text())
    assert sorted(table["parts"]) == ["1", "2", "5"] and all(took >= 0 for took in table["seconds"].values())


def test_what_does_not_fit_into_the_time_is_ended_or_not_begun(carried, tmp_path):
    only(carried, 1, 2)
    stand_in(carried, f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n{HANGS}sleep 86400\n")
    kept = tmp_path / "kept.tar.gz"
    done = gpu_check(carried, "--run", "1,2", "--seconds", "14", "--keep", str(kept))
    assert done.returncode == 1
    assert "part 2 was not begun: the time is over" in done.stderr
    assert "passed    1 more" in done.stdout and "did not end within" in done.stdout
    merged = gpu_check(carried, "--merge", str(kept))
    assert merged.returncode == 1 and "Part 2 was not run." in merged.stdout


def test_a_part_is_told_how_long_it_may_take(carried, tmp_path):
    only(carried, 1)
    seen = tmp_path / "seen"
    stand_in(carried, f"echo $GPU_CHECK_SECONDS >{seen}\n")
    gpu_check(carried, "--run", "1:80")
    assert seen.read_text().strip() == "70"
    gpu_check(carried, "--run-part", "1")
    assert seen.read_text().strip() == "440"


def test_parts_run_side_by_side(carried, tmp_path):
    only(carried, 1, 2)
    other = {"kernels": "large", "large": "kernels"}
    waits = "".join(
        f"if [ $1 = {a} ]; then touch {tmp_path}/{a}; while [ ! -e {tmp_path}/{b} ]; do sleep 0.1; done; fi\n"
        for a, b in other.items()
    )
    stand_in(carried, waits + f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    assert gpu_check(carried, "--run", "1+2:60").returncode == 0


def test_several_parts_tell_what_failed_or_was_measured_and_count_the_rest(carried):
    only(carried, 1)
    rows = [ROW % ("well", "passed"), ROW % ("badly", "failed"), *(ROW % (name, "skipped") for name in "ab")]
    rows.append('{"check": "fast", "status": "passed", "detail": "e", "ratio": 0.95, "required": 0.9}')
    stand_in(carried, "".join(f"echo '{row}' >>\"$3\"\n" for row in rows) + "exit 1\n")
    lines = gpu_check(carried, "--run", "1").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["failed", "badly"], ["passed", "fast"], ["skipped", "2:"], ["passed", "1"]]  # fmt: skip


def test_whoever_is_told_to_end_leaves_a_whole_file_of_results(carried, tmp_path):
    only(carried, 1, 2)
    child, kept = tmp_path / "child", tmp_path / "kept.tar.gz"
    body = f"[ $1 = large ] && {{ setsid sleep 86400 & echo $! >{child}; wait; }}\n"
    stand_in(carried, body + f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    command = [sys.executable, str(carried / "gpu_check"), "--run", "1,2", "--keep", str(kept)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=in_made_up_time(carried)) as process:  # fmt: skip
        while process.poll() is None and (not child.exists() or not child.read_text().strip()):
            time.sleep(0.05)
        process.terminate()
        _, said = process.communicate(timeout=1800)
        assert process.returncode == 1 and b"told to end" in said
    assert_ended(child)
    merged = gpu_check(carried, "--merge", str(kept))
    assert "passed    one" in merged.stdout and merged.returncode == 1


def test_a_part_that_was_cut_off_with_its_gpu_check_is_no_success(carried):
    only(carried, 1)
    stand_in(carried, f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    gpu_check(carried, "--run-part", "1")
    rows = carried / "results" / "part-1.jsonl"
    rows.write_text("\n".join(line for line in rows.read_text().splitlines() if "part_took" not in line) + "\n")
    done = gpu_check(carried, "--merge")
    assert done.returncode == 1 and "it was cut off" in done.stdout


def test_what_a_part_leaves_running_in_a_session_of_its_own_is_ended(carried, tmp_path):
    only(carried, 1)
    child = tmp_path / "child"
    stays = f"setsid sh -c 'echo $$ >{child}; exec sleep 86400' &\nwhile [ ! -s {child} ]; do sleep 0.01; done\n"
    stand_in(carried, stays + f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    assert gpu_check(carried, "--run", "1").returncode == 0
    assert_ended(child)


@pytest.mark.parametrize("plan", ["", "x", "1:", "1,,2", "1000", "1+1000"])
def test_a_plan_that_names_no_parts_is_wrong_usage(carried, plan):
    stand_in(carried, "exit 0\n")
    assert gpu_check(carried, "--run", plan).returncode == 2


def test_files_that_hold_no_results_are_refused(carried, tmp_path):
    (tmp_path / "nonsense").write_text("nonsense")
    for name in ("nonsense", "absent"):
        done = gpu_check(carried, "--merge", str(tmp_path / name))
        assert done.returncode == 2 and name in done.stderr
    with tarfile.open(tmp_path / "foreign", "w") as tar:
        tar.add(tmp_path / "nonsense", arcname="gpu_check")
    done = gpu_check(carried, "--merge", str(tmp_path / "foreign"))
    assert done.returncode == 2 and "holds gpu_check, which is not of" in done.stderr


def test_cuda_that_only_pip_brought_is_found(carried, tmp_path):
    only(carried, 1)
    place = tmp_path / "site" / "nvidia" / "cu13" / "lib"
    place.mkdir(parents=True)
    (place / "libcublas.so.13").touch()
    seen = tmp_path / "seen"
    stand_in(carried, f"echo $LD_LIBRARY_PATH >{seen}\n")
    command = [sys.executable, str(carried / "gpu_check"), "--run-part", "1"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "LD_LIBRARY_PATH": "/before"}
    subprocess.run(command, capture_output=True, timeout=1800, env=environment)
    assert seen.read_text().strip() == "/before"  # the machine has its own
    lacking = {**FACTS, "libraries": [{"name": "libcublas.so", "found": False}]}
    says = f"[ \"$1\" = doctor ] && echo '{json.dumps(lacking)}'"
    executable(carried / "bin" / "nanhunt", f"#!/bin/sh\n{says}\nexit 0\n")
    subprocess.run(command, capture_output=True, timeout=1800, env=environment)
    before, *more = seen.read_text().strip().split(":")
    assert before == "/before" and str(place) in more
