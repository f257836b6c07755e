# SPDX-License-Identifier: Apache-2.0
"""The policy of report.html allows exactly the style and the charts that are in it, by their hashes."""

import base64
import hashlib
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("NANHUNT_BIN_DIR", ROOT / "build" / "dev" / "bin")) / "write_sample_report"


def source_of(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def stated_policy(page):
    return re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]


def policy_it_needs(page):
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)  # the data, of another type, is never run
    assert len(scripts) <= 1
    allowed = "".join(f"script-src {source_of(script)}; " for script in scripts)
    return f"default-src 'none'; {allowed}style-src {source_of(style)}; base-uri 'none'; form-action 'none'"


@pytest.mark.parametrize("kind", ["fault", "hostile", "clean"])
def test_the_policy_allows_exactly_the_style_and_the_charts_of_the_page(kind, tmp_path):
    if not PROGRAM.is_file():
        pytest.skip(f"{PROGRAM} is not built: there is no page to read")
    subprocess.run([PROGRAM, kind, tmp_path / "page.html"], check=True)
    page = (tmp_path / "page.html").read_bytes().decode()

    assert stated_policy(page) == policy_it_needs(page)
    # and a page with another style, or another script, needs another policy
    for tag in ("</style>", "</script>"):
        head, found, tail = page.rpartition(tag)
        if found:
            assert stated_policy(page) != policy_it_needs(f"{head} {tag}{tail}")
