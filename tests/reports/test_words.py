# SPDX-License-Identifier: Apache-2.0
"""The guide to reports and the report use the same words, and say the same about them."""

import html
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def words_of(page):
    text = (ROOT / "tests" / "golden" / "reports" / page).read_text()
    words = re.search(r'<dl class="words">(.*?)</dl>', text, re.DOTALL)
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", words.group(1)) if words else []
    return [tuple(map(html.unescape, pair)) for pair in pairs]


def test_the_guide_explains_the_words_of_the_pages_as_they_do():
    guide = (ROOT / "reports" / "GUIDE.md").read_text()
    table = guide.split("| word | meaning |", 1)[1].split("\n\n", 1)[0]
    rows = re.findall(r"^ *\| ([^|]+?) \| ([^|]+?) \|$", table, re.MULTILINE)[1:]
    assert len(rows) > 10
    shown = [words_of(page) for page in ("fault.html", "overflow.html", "clean.html")]
    assert len({row for words in shown for row in words}) > 8
    for words in shown:
        assert words == [row for row in rows if row in words], "the same words in the same order"
    source = (ROOT / "reports" / "views" / "wording.cpp").read_text()
    listed = source[source.index("std::span<const Word> words()") : source.index("return kWords;")]
    literal = re.findall(r'^ *\{"([^"]+)",\s*"([^"]+)"\}', listed, re.MULTILINE)
    assert len(literal) > 6 and set(literal) <= set(rows), "also of those that no page here shows"
