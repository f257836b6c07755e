# SPDX-License-Identifier: Apache-2.0
"""The guide to reports and the report use the same words, and say the same about them."""

import html
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def words_of_the_page():
    page = (ROOT / "tests" / "golden" / "reports" / "fault.html").read_text()
    words = re.search(r'<dl class="words">(.*?)</dl>', page, re.DOTALL).group(1)
    return [tuple(map(html.unescape, pair)) for pair in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", words)]


def test_the_guide_explains_the_words_of_the_page_as_the_page_does():
    guide = (ROOT / "reports" / "GUIDE.md").read_text()
    table = guide.split("| word | meaning |", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^ *\| ([^|]+?) \| ([^|]+?) \|$", table, re.MULTILINE)[1:]
    assert len(rows) > 10
    assert rows == words_of_the_page()
