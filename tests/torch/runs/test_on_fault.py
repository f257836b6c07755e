# SPDX-License-Identifier: Apache-2.0
"""`on_fault` with a webhook or a command: it is handed each fault, and the run does not notice."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ready_python
from hunting import cli, needs_cli

torch = pytest.importorskip("torch")
import nanhunt  # noqa: E402

pytestmark = pytest.mark.usefixtures("library", "no_watch_left")

PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    optimizer.zero_grad()
    loss = (model(torch.randn(16, 4)) ** 2).mean()
    torch.log(-loss if {bad} and i >= 2 else loss + 1).backward()
    optimizer.step()
"""


@pytest.fixture
def webhook():
    """A server on loopback. It answers once `may_answer` is set; `posted` is what came."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.server.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.server.came.set()
            self.server.may_answer.wait(600)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.posted, server.came, server.may_answer = [], threading.Event(), threading.Event()
        server.may_answer.set()
        server.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.may_answer.set()
        server.shutdown()
        thread.join()


def train(bad, steps=6):
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(steps):
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 4)) ** 2).mean()
        torch.log(-loss if bad and i >= 2 else loss + 1).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def wait_for(path: Path) -> str:
    end = time.monotonic() + 600
    while not path.exists():
        assert time.monotonic() < end, f"{path} was never made"
        time.sleep(0.01)
    return path.read_text()


def ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        status = Path(f"/proc/{process}/status").read_text()
        process = int(status.split("PPid:")[1].split()[0])
        found.append(process)
    return found


def test_a_webhook_is_posted_the_fault_and_nothing_of_a_healthy_twin(tmp_path, webhook, capfd):
    with nanhunt.watch(out=tmp_path / "twin", on_fault=webhook.url, quiet=True):
        train(False)
    with nanhunt.watch(out=tmp_path / "run", on_fault=webhook.url, quiet=True) as watch:
        train(True)
        assert webhook.came.wait(600)
    (fault,) = webhook.posted  # had the twin started one, it would have come before
    assert fault["schema"] == "nanhunt.fault"
    assert (fault["op"], fault["step"], fault["rank"]) == ("aten::log", 2, 0)
    assert fault["run"] == str(tmp_path / "run") and fault["report"] == f"nanhunt report {tmp_path / 'run'}"
    assert "log" in fault["headline"] and "test_on_fault.py" in fault["call_site"]
    assert not any("on_fault" in note for note in watch.notes)
    assert capfd.readouterr() == ("", "")


def test_a_webhook_that_does_not_answer_holds_up_nothing(tmp_path, webhook):
    webhook.may_answer.clear()  # until the run has ended
    with nanhunt.watch(out=tmp_path / "run", on_fault=webhook.url, quiet=True):
        train(True)
    webhook.may_answer.set()
    assert webhook.came.wait(600)


def test_what_is_started_is_no_child_and_changes_no_number(tmp_path):
    marker = tmp_path / "marker"
    heard = []
    before = signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))
    try:
        with nanhunt.watch(out=tmp_path / "run", on_fault=f"sleep 1000 & echo $! > '{marker}'; wait", quiet=True):
            watched = train(True)
        sleeper = int(wait_for(marker) or wait_for(marker))
        assert os.getpid() not in ancestors(sleeper)
        os.kill(sleeper, signal.SIGKILL)
        assert heard == []
    finally:
        signal.signal(signal.SIGCHLD, before)
    for one, other in zip(watched, train(True), strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


def test_a_command_is_given_the_fault_and_is_not_watched_itself(tmp_path, monkeypatch):
    made = tmp_path / "made"
    monkeypatch.setenv("NANHUNT_QUIET", "1")
    command = f"(cat; echo; echo $NANHUNT_FAULT_STEP $NANHUNT_QUIET) > '{made}.part'; mv '{made}.part' '{made}'"
    with nanhunt.watch(out=tmp_path / "run", on_fault=command, quiet=True):
        train(True)
    text, values = wait_for(made).splitlines()
    assert json.loads(text)["class"] and values == "2"


def test_what_cannot_be_started_stands_in_the_report_and_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with nanhunt.watch(out=tmp_path / "run", on_fault="true", quiet=True) as watch:
        train(True)
        assert any(note.startswith("on_fault: it was not started: OSError") for note in watch.notes)
    with pytest.raises(ValueError, match="on_fault: expected a URL or a command"):
        nanhunt.watch(out=tmp_path / "other", on_fault="")


@needs_cli
@pytest.mark.parametrize("bad", [True, False])
def test_nanhunt_run_hands_faults_over_too(tmp_path, bad):
    script, made = tmp_path / "train.py", tmp_path / "made"
    script.write_text(PROGRAM.format(bad=bad))
    boot = Path(nanhunt.__file__).parent / "boot"
    command = [cli(), "run", "--quiet", "--on-fault", f"cat > '{made}.part'; mv '{made}.part' '{made}'"]
    command += ["--out", "run", "--", *ready_python.command(), str(script)]
    environment = {**os.environ, "NANHUNT_BOOT_DIR": str(boot)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    if bad:
        assert json.loads(wait_for(made))["op"] == "aten::log"
    else:
        assert not made.exists()
