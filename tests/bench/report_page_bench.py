#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Size of the page of a run of 100,000 steps and 1,000 layers, and how long a browser takes until it is ready.

Usage: report_page_bench.py [FOLDER of write_sample_report, default build/ci/bin]
"""

import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "reports" / "page" / "check_page.mjs"
ROUNDS = 4  # of five openings each


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "ci" / "bin"
    node, browser = shutil.which("node") or shutil.which("nodejs"), shutil.which("chromium")
    if not node or not browser:
        sys.exit("report_page_bench: needs node and chromium (tools/setup)")
    with tempfile.TemporaryDirectory() as scratch:
        page = pathlib.Path(scratch) / "long.html"
        subprocess.run([folder / "write_sample_report", "long", page], check=True)
        print(f"page: {page.stat().st_size:,} bytes")
        cases = (json.dumps(["time", str(page)]) + "\n") * ROUNDS
        done = subprocess.run(
            [node, SCRIPT, browser, ROOT / "reports" / "html"], input=cases, capture_output=True, text=True, check=True
        )
    times = sorted(ms for line in done.stdout.splitlines() for ms in json.loads(line)["ready_ms"])
    median = statistics.median(times)
    print(f"ready: median {median:.0f} ms, fastest {times[0]} ms, slowest {times[-1]} ms, of {len(times)}")


if __name__ == "__main__":
    main()
