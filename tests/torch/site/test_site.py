# SPDX-License-Identifier: Apache-2.0
"""The documentation site as tools/site builds it: no broken link, no request, every verb and option, ten faults."""

from __future__ import annotations

import html.parser
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hunting import cli, needs_cli, with_package

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.usefixtures("library"), needs_cli]
LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "link": "href",
    "video": "src",
    "audio": "src",
}
NO_LOAD = {"canonical", "prev", "next", "alternate"}  # kinds of <link> that are only named


@dataclass
class Facts(html.parser.HTMLParser):
    """Of one page: where it leads, what it loads, and which anchors it has."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self):
        super().__init__()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in LOADS and given.get(LOADS[tag]) and given.get("rel") not in NO_LOAD:
            self.loads.append(given[LOADS[tag]])


def read(path: Path) -> Facts:
    facts = Facts()
    facts.feed(path.read_text(encoding="utf-8"))
    return facts


def broken_links(site: Path) -> list[str]:
    pages = {path: read(path) for path in site.rglob("*.html") if path.name != "404.html"}
    wrong = []
    for path, facts in pages.items():
        for target in [*facts.links, *facts.loads]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages.get(place)
            if not place.is_file() or (parts.fragment and known is not None and parts.fragment not in known.anchors):
                wrong.append(f"{path.name}: {target}")
    return wrong


def requests(site: Path) -> list[str]:
    """What a page would fetch from elsewhere when it is opened."""
    wrong = [f"{path.name}: {load}" for path in site.rglob("*.html") for load in read(path).loads
             if urlsplit(load).scheme in ("http", "https") or load.startswith("//")]  # fmt: skip
    for path in site.rglob("*.css"):
        found = re.findall(
            r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)|@import\s+['\"](https?://[^'\"]+)",
            path.read_text(encoding="utf-8"),
        )
        wrong += [f"{path.name}: {one or other}" for one, other in found]
    return wrong


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: tools/fetch_torch")
    out = tmp_path_factory.mktemp("site") / "site"
    environment = {**with_package(), "NANHUNT_BIN_DIR": str(Path(cli()).parent), "NANHUNT_TORCH_PYTHON": sys.executable}
    done = subprocess.run([ROOT / "tools" / "site", "--out", out], env=environment, capture_output=True, text=True,
                          timeout=1800, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def test_no_link_leads_nowhere(site):
    assert broken_links(site) == []


def test_opening_a_page_asks_for_nothing_from_elsewhere(site):
    assert requests(site) == []


def test_a_planted_broken_link_and_a_planted_request_are_found(site, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(site, copy)
    page = copy / "nan_loss.html"
    planted = '<a href="nothing.html">x</a><a href="verbs.html#nothing">x</a><script src="https://cdn.example.org/x.js"></script>'
    page.write_text(page.read_text().replace("</body>", planted + "</body>"))
    (copy / "site.css").write_text("body { background: url(//fonts.example.org/x.woff) }")
    assert broken_links(copy) == ["nan_loss.html: nothing.html", "nan_loss.html: verbs.html#nothing"]
    assert sorted(requests(copy)) == [
        "nan_loss.html: https://cdn.example.org/x.js",
        "site.css: //fonts.example.org/x.woff",
    ]


def folders_shown(site: Path, folders: list[Path]) -> list[str]:
    """Files of the site that name a folder of the machine that built it."""
    return [f"{path.name}: {folder}" for path in sorted(site.rglob("*")) if path.is_file()
            for folder in folders if f"{folder}/".encode() in path.read_bytes()]  # fmt: skip


def test_no_page_shows_a_folder_of_the_machine_that_built_it(site, tmp_path):
    folders = [ROOT, site.parent, Path(sys.executable).parent, Path(sys.prefix), Path(cli()).parent]
    assert folders_shown(site, folders) == []
    (tmp_path / "planted.html").write_text(f"<code>{ROOT}/train.py</code>")
    assert folders_shown(tmp_path, folders) == [f"planted.html: {ROOT}"]
    shown = text_of(site / "gallery" / "log-of-zero.html")
    assert "log_zero.py:" in shown and f"{Path(sys.executable).name} log_zero.py" in shown


def site_script():
    loader = importlib.machinery.SourceFileLoader("nanhunt_site_script", str(ROOT / "tools" / "site"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module  # its dataclasses ask for it
    loader.exec_module(module)
    return module


def test_a_link_to_no_page_names_the_file_and_one_to_no_file_is_refused(tmp_path):
    script = site_script()
    pages = [page for page in script.read_pages() if page.source in ("README.md", "CONTRIBUTING.md")]
    assert len(pages) == 2, "CONTRIBUTING.md is a page"
    links, front = script.Links(pages, tmp_path), next(page for page in pages if page.source == "README.md")
    assert links.rewrite("[how](CONTRIBUTING.md#style)", front) == "[how](contributing.md#style)\n"
    assert links.rewrite("[headers](include/README.md)", front) == "headers (`include/README.md`)\n"
    assert links.rewrite("[`LICENSE`](LICENSE)", front) == "`LICENSE`\n"
    with pytest.raises(script.SiteError, match=r"README.md: \[x\]\(nothing.md\)"):
        links.rewrite("[x](nothing.md)", front)


def text_of(path: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", path.read_text(encoding="utf-8")))


def test_every_verb_and_option_is_on_it(site):
    shown = text_of(site / "options.html")
    whole = subprocess.run([cli(), "--help"], capture_output=True, text=True, timeout=600, check=True).stdout
    verbs = re.findall(r"^  ([a-z][a-z-]+) ", whole.partition("Verbs:")[2].partition("\n\n")[0], re.MULTILINE)
    headings = re.findall(r'<h2 id="([^"]+)"', (site / "options.html").read_text())
    assert headings == verbs
    assert len(verbs) > 15 and {"run", "report", "autopsy", "mcp"} <= set(verbs)
    for verb in verbs:
        one = subprocess.run([cli(), verb, "--help"], capture_output=True, text=True, timeout=600, check=True).stdout
        for option in set(re.findall(r"--[a-z][a-z-]+", one)):
            assert option in shown, f"{verb} {option}"


def test_every_class_and_exit_status_is_on_it(site):
    classes = re.findall(
        r'"(\w+)"',
        re.search(
            r'"class": \{\s*"enum": \[(.*?)\]',
            (ROOT / "reports/schema/nanhunt.report.schema.json").read_text(),
            re.DOTALL,
        ).group(1),
    )
    words = text_of(site / "reports.html")
    assert len(classes) > 15 and [one for one in classes if one not in words] == []
    assert "the command's own" in text_of(site / "verbs.html")


def test_ten_faults_have_their_report_pages(site):
    pages = sorted((site / "gallery").glob("*.html"))
    assert len(pages) == 10
    shown = text_of(site / "gallery.html")
    assert shown.count("FAULT") >= 8 and "CALIBRATING" in shown
    for page in pages:
        assert page.stat().st_size > 50_000 and f"gallery/{page.name}" in (site / "gallery.html").read_text()


def test_llms_txt_names_every_page_that_there_is(site):
    lines = (site / "llms.txt").read_text().splitlines()
    assert lines[0] == "# nanhunt" and any(line.startswith("> ") for line in lines)
    named = re.findall(r"\]\(([^)]+)\)", "\n".join(lines))
    assert named and all((site / name).is_file() for name in named)


@pytest.fixture(scope="module")
def opened():
    """What a real browser saw of some pages: `fits` of tests/reports/page/check_page.mjs."""
    packages = ROOT / "reports" / "html"
    node = shutil.which("node") or shutil.which("nodejs")
    chromium = os.environ.get("NANHUNT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if node is None or chromium is None or not (packages / "node_modules" / "playwright-core").is_dir():
        pytest.skip("node, chromium or playwright-core is not there (tools/setup): no page is opened in a browser")
    command = [node, ROOT / "tests" / "reports" / "page" / "check_page.mjs", chromium, packages]

    def opened(pages):
        asked = "".join(json.dumps(["fits", str(page)]) + "\n" for page in pages)
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=1800, check=False)
        seen = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(seen) == len(pages) and not [one for one in seen if "failed" in one], done.stdout + done.stderr
        return seen

    return opened


def test_a_browser_opens_every_page_from_the_disk_asks_for_nothing_and_needs_no_wider_screen(site, opened):
    pages = [page for page in sorted(site.glob("*.html")) if page.name != "404.html"]
    pages.append(next((site / "gallery").glob("*.html")))
    for page, seen in zip(pages, opened(pages), strict=True):
        assert [one for one in seen["requests"] if not one.startswith(("file:", "data:"))] == [], page.name
        assert max(seen["wider"].values()) <= 0, (page.name, seen["wider"])


def test_a_planted_wide_page_that_asks_for_a_script_is_found(site, opened, tmp_path):
    page = tmp_path / "planted.html"
    script = "document.head.append(Object.assign(document.createElement('script'), {src: 'https://example.invalid/x.js'}))"
    page.write_text(f"<body><div style='width: 600px'>x</div><script>{script}</script></body>")
    (seen,) = opened([page])
    assert "https://example.invalid/x.js" in seen["requests"] and seen["wider"]["390"] > 0 >= seen["wider"]["1280"]
