# SPDX-License-Identifier: Apache-2.0
"""One browser for the pages of reports and of fleets, through page/check_page.mjs; each case opens its page anew."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "reports" / "html"
SCRIPT = pathlib.Path(__file__).with_name("page") / "check_page.mjs"
BIN = pathlib.Path(os.environ.get("NANHUNT_BIN_DIR", ROOT / "build" / "dev" / "bin"))
SECONDS = 1800  # it ends what hangs, however slow the machine


def run(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Browser:
    """Started when first asked; ended, with all it started, when a case takes too long and after the last one."""

    def __init__(self, *command):
        self.command = list(map(str, command))
        self.process = None

    def ask(self, case, page):
        if self.process is None:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
        watchdog = threading.Timer(SECONDS, self.end)
        watchdog.start()
        try:
            self.process.stdin.write(json.dumps([case, str(page)]) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        if not answer:
            self.end()
            pytest.fail(f"{case}: no answer from the browser within {SECONDS} s")
        seen = json.loads(answer)
        assert "failed" not in seen, seen["failed"]
        return seen

    def end(self):
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="session")
def node():
    found = shutil.which("node") or shutil.which("nodejs")
    if not found:
        pytest.skip("there is no node: the page is not opened in a browser")
    if not (PACKAGES / "node_modules" / "playwright-core").is_dir():
        pytest.skip("reports/html/node_modules is not there (tools/setup): the page is not opened in a browser")
    return found


@pytest.fixture(scope="session")
def browser():
    found = os.environ.get("NANHUNT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.skip("there is no chromium: the page is not opened in a browser")
    return found


@pytest.fixture(scope="session")
def make_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")

    def make(kind):
        program = BIN / ("write_sample_fleet" if kind.startswith("fleet") else "write_sample_report")
        if not program.is_file():
            pytest.skip(f"{program} is not built: there is no page to open")
        path = folder / f"{kind}.html"
        if not path.exists():
            run([program, kind, path])
        if "<script>" not in path.read_text():
            pytest.skip("this build has a report page without charts")
        return path

    return make


@pytest.fixture(scope="session")
def see(node, browser, make_page):
    open_browser = Browser(node, SCRIPT, browser, PACKAGES)

    def see(case, page):
        path = page if isinstance(page, pathlib.Path) else make_page(page)
        return open_browser.ask(case, path)

    yield see
    open_browser.end()
