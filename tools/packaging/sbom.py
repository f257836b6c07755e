# SPDX-License-Identifier: Apache-2.0
"""Writes what a wheel holds beside its own code, as CycloneDX JSON (PEP 770: .dist-info/sboms).

Usage: sbom.py VERSION COMPONENTS TAPS OUT

COMPONENTS: what the build wrote of itself, a row for each component: name, version, as CMake found it; and `commit`.
TAPS: a folder with taps, or none. The same input gives the same bytes.
"""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

_LOCK = Path(__file__).resolve().parents[2] / "reports" / "html" / "package-lock.json"


class Known(NamedTuple):
    licence: str
    purl: str
    what: str


KNOWN = {
    "fmt": Known("MIT", "pkg:github/fmtlib/fmt", "formats text; compiled into program and library"),
    "nlohmann_json": Known("MIT", "pkg:github/nlohmann/json", "reads and writes JSON; compiled in"),
    "CLI11": Known("BSD-3-Clause", "pkg:github/CLIUtils/CLI11", "reads the command line; compiled into the program"),
    "zstd": Known("BSD-3-Clause", "pkg:github/facebook/zstd", "compresses traces; linked in"),
    "uplot": Known("MIT", "pkg:npm/uplot", "draws the charts of the report page"),
    "dagre": Known("MIT", "pkg:npm/%40dagrejs/dagre", "lays the graphs of the report page out"),
    "graphlib": Known("MIT", "pkg:npm/%40dagrejs/graphlib", "used by dagre"),
    "digits": Known("CC-BY-4.0", "pkg:generic/optdigits", "handwritten digits, data of bundled scenarios"),
    "torch": Known("BSD-3-Clause", "pkg:pypi/torch", "headers that a tap was compiled from; nothing of its libraries"),
}
_SCRIPTS = {"uplot": "node_modules/uplot", "dagre": "node_modules/@dagrejs/dagre",
            "graphlib": "node_modules/@dagrejs/graphlib"}


def component(name: str, version: str, kind: str = "library", **more: Any) -> dict[str, Any]:
    known = KNOWN[name]
    purl = f"{known.purl}@{version}"
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "description": known.what,
            "licenses": [{"license": {"id": known.licence}}], "purl": purl, **more}


def releases(taps: Path) -> dict[str, list[dict[str, str]]]:
    """For each release, its taps: file and checksum."""
    try:
        index = json.loads((taps / "taps.json").read_text())
    except OSError:
        return {}
    found: dict[str, list[dict[str, str]]] = {}
    for file, tap in sorted(index.items()):
        for release in tap["releases"]:
            found.setdefault(release.split()[0], []).append({"name": file, "value": tap["sha256"]})
    return found


def sbom(version: str, facts: dict[str, str], taps: Path) -> dict[str, Any]:
    """`facts`: name and version of each component of the build, and its commit."""
    inside = [component(name, found) for name, found in sorted(facts.items()) if name in KNOWN]
    if facts.get("charts") == "yes":
        lock = json.loads(_LOCK.read_text())["packages"]
        inside += [component(name, lock[place]["version"]) for name, place in sorted(_SCRIPTS.items())]
    inside.append(component("digits", "1998", kind="data"))
    inside += [component("torch", release, properties=found) for release, found in sorted(releases(taps).items())]
    own = f"pkg:pypi/nanhunt@{version}"
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {
            "type": "application", "bom-ref": own, "name": "nanhunt", "version": version, "purl": own,
            "licenses": [{"license": {"id": "Apache-2.0"}}],
            "properties": [{"name": "commit", "value": facts.get("commit", "unknown")},
                           {"name": "matrix products", "value": facts.get("products", "unknown")}],
        }},
        "components": inside,
        "dependencies": [{"ref": own, "dependsOn": [one["bom-ref"] for one in inside]}],
    }  # fmt: skip


def read_facts(path: Path) -> dict[str, str]:
    rows = [line.split(None, 1) for line in path.read_text().splitlines() if line.strip()]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def main(words: list[str]) -> int:
    if len(words) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    version, components, taps, out = words[0], *map(Path, words[1:])
    out.write_text(json.dumps(sbom(version, read_facts(components), taps), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
