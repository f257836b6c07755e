# SPDX-License-Identifier: Apache-2.0
"""`tools/gpu_check`: what it says without a GPU, and what it makes of the results of its parts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROBE = '{"device": "Made-up GPU", "compute": "9.0", "driver": 13000, "runtime": 13000}'


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def carried(tmp_path) -> Path:
    """The folder as it arrives on another machine, with a stand-in for the programs."""
    at = tmp_path / "gpu_check"
    (at / "bin").mkdir(parents=True)
    shutil.copytree(ROOT / "tests" / "gpu" / "parts", at / "parts")
    shutil.copy2(ROOT / "tools" / "gpu_check", at / "gpu_check")
    (at / "about.json").write_text('{"commit": "abc"}')
    return at


def stand_in(at: Path, body: str) -> None:
    """gpu_kernels: $1 is what to do, $3 the file of rows."""
    probe = f"if [ \"$1\" = probe ]; then echo '{PROBE}'; exit 0; fi\n"
    executable(at / "bin" / "gpu_kernels", "#!/bin/sh\n" + probe + body)


def gpu_check(at: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(at / "gpu_check"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


ROW = '{"check": "%s", "status": "%s", "detail": "d"}'


def test_it_lists_the_parts_that_there_are(carried):
    listed = gpu_check(carried, "--list")
    assert listed.returncode == 0
    numbers = [line.split()[0] for line in listed.stdout.splitlines()]
    assert numbers == [str(n) for n in range(1, len(list((carried / "parts").iterdir())) + 1)]


def test_a_part_is_added_by_adding_a_file(carried):
    executable(carried / "parts" / "77-more", "#!/bin/sh\n# part: something more\n")
    assert "77  something more" in gpu_check(carried, "--list").stdout


def test_without_a_gpu_it_says_so_and_ends_with_5(carried):
    binaries = os.environ.get("NANHUNT_BIN_DIR")
    if not binaries or not Path(binaries, "gpu_kernels").is_file():
        pytest.skip("gpu_kernels is not built: tools/test builds it and names NANHUNT_BIN_DIR")
    shutil.copy2(Path(binaries, "gpu_kernels"), carried / "bin" / "gpu_kernels")
    if subprocess.run([carried / "bin" / "gpu_kernels", "probe"], capture_output=True).returncode == 0:
        pytest.skip("there is a GPU here")

    for arguments in (["--run-part", "1"], []):
        done = gpu_check(carried, *arguments)
        assert done.returncode == 5, done.stderr
        assert "no GPU here to check: " in done.stderr and "Carry" in done.stderr
        assert done.stdout == ""
    assert not (carried / "results").exists()


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
    for part in list((carried / "parts").iterdir()):
        if part.name[0] not in "12":
            part.unlink()
    stand_in(carried, f"echo '{ROW % ('$1', 'passed')}' | sed \"s/[$]1/$1/\" >>\"$3\"\n")
    done = gpu_check(carried)

    assert done.returncode == 0, done.stderr
    table = json.loads((carried / "table.json").read_text())
    assert [(row["part"], row["check"]) for row in table["rows"]] == [(1, "kernels"), (2, "large")]
    assert table["machine"]["device"] == "Made-up GPU"
    assert table["counts"] == {"passed": 2, "failed": 0, "skipped": 0}
    assert "2 passed, 0 failed, 0 skipped" in (carried / "table.txt").read_text()


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
        ("kill -SEGV $$\n", "ended with status"),
        ("printf '{\"check\": \"cut' >>\"$3\"\n", "a row was cut short"),
    ],
)
def test_what_fails_or_dies_is_in_the_table(carried, body, told):
    stand_in(carried, body)
    done = gpu_check(carried, "--run-part", "1")
    assert done.returncode == 1
    assert told in done.stdout


def test_parts_of_different_machines_do_not_make_a_table(carried):
    stand_in(carried, f"echo '{ROW % ('one', 'passed')}' >>\"$3\"\n")
    for number in range(1, 6):
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
    part = next(path for path in (carried / "parts").iterdir() if path.name.endswith("-sanitizer"))
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "GPU_CHECK_BIN": str(carried / "bin"),
                   "GPU_CHECK_ROWS": str(rows)}  # fmt: skip
    done = subprocess.run([str(part)], env=environment, timeout=60)
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert done.returncode == 0
    assert len(found) == 4 and {row["status"] for row in found} == {"skipped"}
    assert all("refused by this host (status 3)" in row["detail"] for row in found)

    executable(tools / "compute-sanitizer", "#!/bin/sh\necho '========= Invalid __global__ read'\nexit 86\n")
    rows.unlink()
    assert subprocess.run([str(part)], env=environment, timeout=60).returncode == 1
    assert {json.loads(line)["status"] for line in rows.read_text().splitlines()} == {"failed"}
