# SPDX-License-Identifier: Apache-2.0
"""`python -m nanhunt.on_fault`: a fault on stdin goes to a webhook or a command, and what is wrong there is said."""

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "hooks" / "torch"
FAULT = {"schema": "nanhunt.fault", "run": "/runs/a b", "rank": 3, "step": 7, "headline": "log of 0", "op": None}


@pytest.fixture
def webhook():
    """A server on loopback: `posted` is what came, `answers` the statuses that it gives in turn, then 200."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.posted.append((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
            self.end_headers()

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.posted, server.answers = [], []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def hand(target: str, text: str | None = None, *words: str) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()} | {"PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-m", "nanhunt.on_fault", target, *words]
    text = json.dumps(FAULT) if text is None else text
    return subprocess.run(command, env=environment, input=text, capture_output=True, text=True, timeout=600)


def test_a_webhook_is_posted_the_fault_as_json(webhook):
    done = hand(webhook.url + "/hook?x=1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert webhook.posted == [("/hook?x=1", "application/json", FAULT)]


def test_a_webhook_that_is_busy_is_tried_three_times(webhook):
    webhook.answers = [503, 429]
    assert hand(webhook.url).returncode == 0
    assert len(webhook.posted) == 3
    webhook.posted.clear()
    webhook.answers = [500, 500, 500]
    done = hand(webhook.url)
    assert done.returncode == 1 and "did not take the fault: status 500" in done.stderr
    assert len(webhook.posted) == 3


def test_a_webhook_that_denies_is_not_asked_again(webhook):
    webhook.answers = [403]
    done = hand(webhook.url)
    assert done.returncode == 1 and "status 403" in done.stderr and len(webhook.posted) == 1


def test_what_is_no_server_is_said_in_one_line():
    done = hand("http://127.0.0.1:1/none")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_a_command_gets_the_fault_on_stdin_and_in_its_environment():
    done = hand('cat; echo " $NANHUNT_FAULT_STEP $NANHUNT_FAULT_HEADLINE [$NANHUNT_FAULT_OP]"; exit 9')
    assert done.returncode == 9
    assert done.stdout == json.dumps(FAULT) + " 7 log of 0 []\n"


def test_a_command_that_reads_nothing_is_no_error():
    assert hand("exit 0", json.dumps({**FAULT, "headline": "x" * 100_000})).returncode == 0


def test_what_is_no_fault_is_refused(webhook):
    for text in ("", "[]", "{"):
        done = hand(webhook.url, text)
        assert done.returncode == 2 and "expected a JSON object" in done.stderr
    assert hand("a", None, "b").returncode == 2
    assert webhook.posted == []


def test_the_helper_imports_neither_torch_nor_this_package_when_it_is_run_as_a_file(tmp_path):
    program = PACKAGE / "nanhunt" / "on_fault" / "__main__.py"
    script = f"import runpy, sys\nsys.argv = ['x']\ntry:\n    runpy.run_path({str(program)!r}, run_name='__main__')\n"
    script += "except SystemExit as end:\n    print(end.code, [n for n in sys.modules if n in ('torch', 'nanhunt')])\n"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, timeout=600)
    assert done.stdout == "2 []\n"
