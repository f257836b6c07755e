# SPDX-License-Identifier: Apache-2.0
"""`nanhunt run`: the command behaves as without it, and what was found or why nothing was is said afterwards."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FAULT = 'nanhunt train log-zero --out "$NANHUNT_RUN_DIR" >/dev/null'
CLEAN = 'nanhunt train log-zero-fixed --steps 3 --out "$NANHUNT_RUN_DIR" >/dev/null'


@pytest.fixture
def environment(binaries) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NANHUNT"))}
    return kept | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def run(environment, tmp_path):
    def run_nanhunt(*words: str, options: tuple[str, ...] = (), **changes: str) -> subprocess.CompletedProcess:
        command = ["nanhunt", "run", *options, "--", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment | changes, capture_output=True, text=True, timeout=1800
        )

    return run_nanhunt


def wait_for(path: Path) -> None:
    end = time.monotonic() + 1800
    while not path.exists():
        assert time.monotonic() < end, f"{path} was never made"
        time.sleep(0.01)


def test_a_command_that_is_not_python_keeps_output_and_status(run, tmp_path):
    done = run("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr.startswith("err\nnanhunt: nothing was recorded: no Python started here")
    assert list(tmp_path.iterdir()) == []  # the run folder that was made for it is gone


def test_words_and_input_reach_the_command_as_they_are(environment, tmp_path):
    words = ["", "[1,2]", "--out", "report", "--", "a b", "\udcff", "'\"$x"]
    script = "import os, sys; print([os.fsencode(w) for w in sys.argv[1:]], sys.stdin.read())"
    command = ["nanhunt", "run", "--", sys.executable, "-c", script, *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, input=b"typed", capture_output=True, timeout=1800)
    assert done.stdout.decode() == f"{[os.fsencode(word) for word in words]} typed\n"


def test_a_command_that_a_signal_ends_gives_128_and_its_number(run):
    done = run("sh", "-c", "kill -SEGV $$")
    assert done.returncode == 128 + signal.SIGSEGV
    assert "ended by SIGSEGV" in done.stderr


def test_a_command_that_cannot_start_gives_127_and_says_why(run, tmp_path):
    assert run("no-such-command").returncode == 127
    assert "'no-such-command' could not be started: No such file" in run("no-such-command").stderr
    (tmp_path / "script").write_text("#!/bin/sh\n")
    done = run("./script")
    assert done.returncode == 127 and "Permission denied" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script"]


def test_a_python_that_does_not_import_torch_is_told_so(run):
    done = run(sys.executable, "-c", "print('done')")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == "nanhunt: nothing was recorded: the Python that ran did not import torch.\n"
    both = f"{sys.executable} -c ''; {sys.executable} -c ''"
    assert "none of the 2 Pythons that ran imported torch" in run("sh", "-c", both).stderr


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-BI", "-W ignore -E"])
def test_an_isolated_python_is_named(run, option):
    done = run(sys.executable, *option.split(), "-c", "pass", "-I")
    assert f"Python's -{option[-1]} keeps it from reading" in done.stderr
    assert f"Run it without -{option[-1]}." in done.stderr


def test_what_looks_like_such_an_option_but_is_the_programs_own_is_not(run, tmp_path):
    (tmp_path / "train.sh").write_text("exit 0\n")
    assert "sudo" in run("sh", "train.sh", "-I").stderr
    done = run("env", "-u", "PYTHONPATH", sys.executable, "-c", "pass", "-I")
    assert "no Python started here read nanhunt's start-up file" in done.stderr


def test_training_without_a_step_and_a_failure_to_attach_are_told_apart(run, tmp_path):
    boot = tmp_path / "env" / "nanhunt" / "boot"
    boot.mkdir(parents=True)
    source = Path(__file__).resolve().parents[2] / "hooks" / "torch" / "nanhunt" / "boot" / "sitecustomize.py"
    (boot / "sitecustomize.py").write_text(source.read_text())
    (boot.parent / "__init__.py").touch()
    (tmp_path / "torch.py").touch()
    there = {"NANHUNT_BOOT_DIR": str(boot), "PYTHONPATH": str(tmp_path)}
    (boot.parent / "_attach.py").write_text("def attach_from_environment(): pass")
    said = run(sys.executable, "-c", "import torch", **there).stderr
    assert "torch was imported, but no model was called" in said
    (boot.parent / "_attach.py").write_text("raise RuntimeError('no library\\x1b[31m')")
    said = run(sys.executable, "-c", "import torch", **there).stderr
    assert "could not attach: RuntimeError: no library\\x1b[31m" in said
    assert "the run itself was not disturbed" in said


def test_a_fault_is_told_shortly_and_the_report_stands_beside_the_trace(run, tmp_path):
    done = run("sh", "-c", FAULT)
    assert done.returncode == 0
    assert "nanhunt: fault: divide_by_zero: log" in done.stderr
    assert "nanhunt-run/report.html" in done.stderr and "`nanhunt report nanhunt-run`" in done.stderr
    assert len(done.stderr.splitlines()) < 12
    assert json.loads((tmp_path / "nanhunt-run/report.json").read_text())["verdict"]["status"] == "fault"
    assert (tmp_path / "nanhunt-run/report.html").exists()


def test_a_clean_run_is_told_clean(run):
    done = run("sh", "-c", CLEAN + "; exit 3", options=("--error-exitcode", "9"))
    assert done.returncode == 3
    assert "nanhunt: clean: " in done.stderr


def test_error_exitcode_replaces_the_status_only_when_a_fault_was_found(run):
    assert run("sh", "-c", FAULT, options=("--error-exitcode", "9")).returncode == 9
    assert run("sh", "-c", FAULT + "; kill -TERM $$", options=("--error-exitcode", "9")).returncode == 9
    assert run("true", options=("--error-exitcode", "9")).returncode == 0


def test_strict_makes_what_nothing_can_be_said_of_an_error(run):
    assert run("true", options=("--strict",)).returncode == 5
    assert run("true").returncode == 0
    assert run("sh", "-c", CLEAN, options=("--strict",)).returncode == 0
    assert run("sh", "-c", "exit 3", options=("--strict",)).returncode == 3  # the program's own comes first
    assert run("sh", "-c", FAULT, options=("--strict",)).returncode == run("sh", "-c", FAULT).returncode


def test_the_default_folder_is_a_new_one_each_time_and_a_named_one_is_used_again(run, tmp_path):
    (tmp_path / "nanhunt-run").write_text("a file of that name")
    assert "nanhunt-run-2/report.html" in run("sh", "-c", CLEAN).stderr
    assert "nanhunt-run-3/report.html" in run("sh", "-c", CLEAN).stderr
    for attempt in range(2):
        run("sh", "-c", CLEAN, options=("--out", "deep/mine"))
        assert (tmp_path / f"deep/mine/rank-00000/attempt-{attempt}/run.json").exists()
    # then an older attempt is not taken for what this command did
    assert "nothing was recorded" in run("true", options=("--out", "deep/mine")).stderr
    assert (tmp_path / "deep/mine").exists()


def test_a_folder_that_cannot_be_written_keeps_nobody_from_training(run, tmp_path):
    (tmp_path / "file").write_text("")
    done = run("sh", "-c", "echo trained; echo [$NANHUNT_RUN_DIR]; exit 4", options=("--out", "file/run"))
    assert (done.returncode, done.stdout) == (4, "trained\n[]\n")
    assert "The run goes unwatched; name another folder with --out." in done.stderr
    refused = run("echo", "trained", options=("--out", "file"))
    assert (refused.returncode, refused.stdout) == (6, "")
    assert "'file' is a file. Name a folder" in refused.stderr


def test_a_program_without_its_package_says_so_and_runs(run, tmp_path):
    done = run("echo", "trained", NANHUNT_BOOT_DIR=f"{tmp_path}/a:b")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "PYTHONPATH cannot hold" in done.stderr and "unwatched" in done.stderr


def test_the_environment_of_the_command_is_as_documented(run, tmp_path, binaries):
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    options = ("--level", "steps", "--budget", "7%", "--keep", "3", "--max-trace-mb", "50", "--out", "r")
    seen = json.loads(run(sys.executable, "-c", script, "--api-key", "xyz", options=options, PYTHONPATH="mine").stdout)
    boot, *rest = seen["PYTHONPATH"].split(":")
    assert rest == ["mine"] and (Path(boot) / "sitecustomize.py").exists()
    assert Path(boot).parent.name == "nanhunt" and Path(boot).is_absolute()
    assert json.loads(seen["NANHUNT_COMMAND"])[-2:] == ["--api-key", "<redacted>"]
    assert seen.pop("NANHUNT_RUN_ID")
    assert {name: value for name, value in seen.items() if name.startswith("NANHUNT") and "BOOT" not in name} == {
        "NANHUNT_RUN_DIR": str(tmp_path / "r"),
        "NANHUNT_LEVEL": "steps",
        "NANHUNT_BUDGET": "7%",
        "NANHUNT_KEEP": "3",
        "NANHUNT_MAX_TRACE_MB": "50",
        "NANHUNT_COMMAND": seen["NANHUNT_COMMAND"],
    }
    plain = json.loads(run(sys.executable, "-c", script, PYTHONPATH="", NANHUNT_BUDGET="5").stdout)
    assert plain["PYTHONPATH"] == boot  # an empty entry after it would be the working directory
    assert plain["NANHUNT_LEVEL"] == "live" and "NANHUNT_BUDGET" not in plain
    assert "TORCH_COMPILE_DISABLE" not in plain
    eager = json.loads(run(sys.executable, "-c", script, options=("--eager",)).stdout)
    assert eager["TORCH_COMPILE_DISABLE"] == "1"


def test_wrong_usage_is_told_with_the_right_one(environment, tmp_path):
    for words, said in [
        ([], "say what to run, after `--`"),
        (["--"], "say what to run, after `--`"),
        (["python", "train.py", "--lr", "3"], "put `--` before the command 'python train.py --lr 3'"),
        (["--frobnicate", "--", "true"], "no option '--frobnicate'"),
        (["--level", "all", "--", "true"], "--level"),
        (["--level", "sentinel", "--", "true"], "--level"),
        (["--no-replay", "--", "true"], "no option '--no-replay'"),
        (["--budget", "much", "--", "true"], "expected percent of the time, from 0 to 100, got 'much': `--budget 3%`"),
        (["--budget", "101%", "--", "true"], "got '101%'"),
        (["--error-exitcode", "256", "--", "true"], "--error-exitcode"),
        (["--config", "/no/such", "--", "touch", "started"], "--config: there is no file '/no/such'"),
    ]:
        done = subprocess.run(["nanhunt", "run", *words], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr and "nanhunt run --help" in done.stderr, words
    assert list(tmp_path.iterdir()) == []


def test_the_dispositions_of_signals_are_those_of_a_plain_start(environment, tmp_path):
    script = "grep ^Sig /proc/self/status"

    def dispositions(*start: str) -> str:
        command = [*start, "sh", "-c", script]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        return done.stdout

    assert dispositions("nanhunt", "run", "--") == dispositions()


STUBBORN = """
import signal, sys, time
def told(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit(5)
for name in ("INT", "TERM", "HUP", "USR1"): signal.signal(getattr(signal, "SIG" + name), told)
open("ready", "w").close()
time.sleep(86400)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_a_signal_sent_to_us_is_passed_on(environment, tmp_path, name):
    command = ["nanhunt", "run", "--", sys.executable, "-c", STUBBORN]
    started = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(tmp_path / "ready")
    started.send_signal(getattr(signal, name))
    out, err = started.communicate(timeout=1800)
    assert (started.returncode, out.decode()) == (5, f"{name}\n")
    assert b"did not import torch" in err  # the report came all the same


def test_ctrl_c_on_a_terminal_reaches_the_command_once_and_the_report_comes(environment, tmp_path):
    try:
        child, terminal = pty.fork()
    except OSError:
        pytest.skip("there are no pseudo-terminals here (/dev/pts is not mounted)")
    if child == 0:
        os.chdir(tmp_path)
        # what would be told twice is seen in the file, for it stays open a little longer
        script = STUBBORN.replace("    sys.exit(5)", "    open('told', 'a').write('x'); time.sleep(0.2); sys.exit(5)")
        shell = f'{FAULT}; exec {sys.executable} -c "$0"'
        os.execvpe("nanhunt", ["nanhunt", "run", "--", "sh", "-c", shell, script], environment)
    wait_for(tmp_path / "ready")
    os.write(terminal, b"\x03")
    said = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 5, said
    assert (tmp_path / "told").read_text() == "x"
    assert b"nanhunt: fault: divide_by_zero: log" in said and b"report.html" in said
