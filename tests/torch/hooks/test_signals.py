# SPDX-License-Identifier: Apache-2.0
"""A run that a signal ends: it ends as it would have alone, and the step in which it came is judged all the same. Each
has a twin that is sound."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
import ready_python
from hunting import alone, cli, needs_cli, with_package

pytestmark = needs_cli
LEVELS = ("ops", "live")
SIGNALS = ("SIGTERM", "SIGHUP", "SIGINT")

# BAD makes the loss NaN in step 3: {mid} comes before its backward, {late} after its optimizer.
PROGRAM = """
import os, signal, sys, time, torch
BAD = {bad}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
def end(number):
    os.kill(os.getpid(), number)
    time.sleep(30)
    print("never")
for i in range(6):
    optimizer.zero_grad()
    loss = (model(torch.randn(16, 4)) ** 2).mean()
    loss = torch.log(-loss if BAD and i == 3 else loss + 1)
    if i == 3: {mid}
    loss.backward()
    optimizer.step()
    if i == 3: {late}
"""


def text(bad, mid="pass", late="pass", before="pass"):
    return PROGRAM.format(bad=bad, mid=mid, late=late, before=before)


def program(tmp_path, bad, **parts):
    script = tmp_path / "train.py"
    script.write_text(text(bad, **parts))
    return script


def environment():
    return with_package()


def watched(tmp_path, level, script, *options):
    return [cli(), "run", "--level", level, *options, "--out", tmp_path / "run", "--",
            *ready_python.command(), script]


def run(tmp_path, level, program):
    """The report. The program ends as it does alone."""
    script, unwatched = alone(program)
    seen = subprocess.run(watched(tmp_path, level, script), capture_output=True, text=True, timeout=600,
                          env=environment())
    status = unwatched.returncode if unwatched.returncode >= 0 else 128 - unwatched.returncode  # as a shell has it
    told = "".join(line for line in seen.stderr.splitlines(keepends=True) if not line.startswith("nanhunt:"))
    assert (seen.returncode, seen.stdout, told) == (status, unwatched.stdout, unwatched.stderr)
    return json.loads((tmp_path / "run" / "report.json").read_text())


def expect(report, bad):
    assert report["verdict"]["status"] == ("fault" if bad else "clean"), report["verdict"]
    if bad:
        finding = report["findings"][0]
        assert (finding["op"], finding["step"], finding["phase"]) == ("aten::log", 3, "loss")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("where", ["mid", "late"])
@pytest.mark.parametrize("bad", [True, False])
def test_a_signal_ends_the_run_as_it_would_alone_and_leaves_a_judged_step(tmp_path, library, level, name, where, bad):
    expect(run(tmp_path, level, text(bad, **{where: f"end(signal.{name})"})), bad)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("handled", ["before", "after", "ignored"])
def test_a_handler_of_the_program_s_own_stays(tmp_path, library, level, handled):
    what = {"before": "signal.signal(signal.SIGTERM, lambda *_: (print('handled'), sys.exit(5)))",
            "after": "pass", "ignored": "signal.signal(signal.SIGTERM, signal.SIG_IGN)"}[handled]
    late = "assert signal.getsignal(signal.SIGTERM) is not None; os.kill(os.getpid(), signal.SIGTERM); print('on')"
    if handled == "after":  # the default, as far as the program can see
        late = ("print(signal.signal(signal.SIGTERM, lambda *_: (print('handled'), sys.exit(5)))); "
                "os.kill(os.getpid(), signal.SIGTERM)")
    expect(run(tmp_path, level, text(False, late=late, before=what)), False)


def wait_for(found, what):
    """Not a matter of speed: it comes, or the test fails."""
    until = time.monotonic() + 300
    while not found():
        assert time.monotonic() < until, what
        time.sleep(0.1)


@pytest.mark.parametrize("level,options", [("ops", ()), ("live", ())])
def test_a_step_that_hangs_once_it_is_bad_reaches_the_trace_so_that_a_kill_does_not_lose_it(
        tmp_path, library, level, options):
    # Given a step that has made a NaN and goes on, whoever held it back,
    script = program(tmp_path, True, mid="print(os.getpid(), flush=True); time.sleep(600)")
    process = subprocess.Popen(watched(tmp_path, level, script, *options), stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.PIPE, env=environment())
    child = int(process.stdout.readline())

    def is_there():
        done = subprocess.run([cli(), "check", tmp_path / "run"], capture_output=True, text=True)
        return done.returncode == 1

    wait_for(is_there, "the bad step never reached the trace")
    # when it is killed,
    os.kill(child, signal.SIGKILL)
    process.communicate(timeout=600)
    # then its origin is known.
    assert process.returncode == 128 + signal.SIGKILL
    expect(json.loads((tmp_path / "run" / "report.json").read_text()), True)


@pytest.mark.parametrize("level", LEVELS)
def test_a_forked_child_dies_of_a_signal_as_it_would_alone(tmp_path, library, level):
    late = """
        child = os.fork()
        if child == 0: end(signal.SIGTERM)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"""
    expect(run(tmp_path, level, text(False, late=late)), False)


@pytest.mark.parametrize("ends", [True, False])
def test_a_step_that_a_signal_ends_and_that_was_not_watched_is_named_under_coverage(tmp_path, ends):
    script = program(tmp_path, ends, mid="end(signal.SIGTERM)" if ends else "pass")
    subprocess.run(watched(tmp_path, "live", script, "--budget", "0"), capture_output=True, timeout=600,
                   env=environment(), check=False)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    told = [line for line in report["coverage"]["unwatched"] if "The step that was under way" in line]
    assert bool(told) == ends
