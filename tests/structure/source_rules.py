# SPDX-License-Identifier: Apache-2.0
"""Rules about single files. Each takes text and returns what is wrong, so that tests can hand it planted mistakes."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

MAX_LINES = 600
MAX_LINES_OF_THE_FRONT_PAGE = 150
MAX_LINES_OF_A_FOLDERS_README = 40
MAX_FILES = 30
MAX_OPS_NAMED = 5
# Columns, statistics and settings that happen to be called like an op.
WORDS_OF_OTHER_THINGS = set("amax gather index max mean min mode norm numel scatter sum to weight_norm zero".split())
CROWDING = {".h", ".cpp", ".cu", ".cuh", ".c", ".py", ".ts", ".js", ".mjs"}

_FAST_MATH = re.compile(
    r"-?-(?:ffast-math|Ofast|funsafe-math-optimizations|ffinite-math-only|fassociative-math|freciprocal-math|"
    r"fno-signed-zeros|ffp-contract=(?:fast|on)|use_fast_math|ftz=true|prec-div=false|prec-sqrt=false|"
    r"fp-model[ =]fast)\b"
)
_FAST_MATH_IN_CODE = re.compile(r"fast-math|\bSTDC\s+FP_CONTRACT\s+ON\b|float_control\s*\(\s*precise\s*,\s*off")
_GLOB_OR_DOWNLOAD = re.compile(
    r"\bfile\s*\(\s*(GLOB(?:_RECURSE)?|DOWNLOAD)\b|\b(FetchContent_\w+|ExternalProject_Add|aux_source_directory)\b",
    re.I,
)
# The folders of people and machines: written from parts so that this file passes its own test.
_MACHINE_FOLDERS = ("home", "root", "work", "Users", "workspace")
_MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:" + "|".join(_MACHINE_FOLDERS) + r")/[\w.]")
_BUILD_OPTION = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b(?!.*\b__cplusplus\b).*$", re.MULTILINE)
# Sections and rule numbers of documents that are not in the tree: a reader cannot look them up.
_ABSENT_SECTION = re.compile(r"\bdesign(?:'s)? (?:section|rule)s? [\dA-Z]|\bdesign \u00a7", re.I)
_ABSENT_RULE = re.compile(r"\((?:rules? )?[NOGP]\d{1,2}(?: ?(?:-|to|,) ?[NOGP]?\d{1,2})*\)|\brules? [NOGP]\d{1,2}\b")
_LAUNCH_WITHOUT_STATUS = re.compile(r"<<<|\b(?:check|status_of)\s*\(\s*cuda(?:GetLast|PeekAtLast)Error\b")


def missing_spdx(text: str) -> bool:
    return not any("SPDX-License-Identifier: Apache-2.0" in line for line in text.splitlines()[:3])


def too_long(text: str) -> bool:
    return text.count("\n") > MAX_LINES


def crowded_folders(paths: Iterable[str]) -> list[str]:
    """Folders with more source files of their own than one looks through."""
    files = Counter(PurePosixPath(p).parent.as_posix() for p in paths if PurePosixPath(p).suffix in CROWDING)
    return sorted(folder for folder, count in files.items() if count > MAX_FILES)


def op_names(rows: str) -> set[str]:
    """Of the rows of the op table."""
    return set(re.findall(r'\bop\("([\w:]+)"', rows))


def ops_named(code: str, ops: set[str]) -> set[str]:
    """Ops of the table that C++ names as string literals, its comments already removed, in any form of their names."""
    found = set()
    for literal in re.findall(r'"(?:aten::)?([\w:]+)"', code):
        plain = literal.removesuffix("_")
        found |= ops & {plain if plain in ops else plain.removesuffix("_backward")}
    return found - WORDS_OF_OTHER_THINGS


def fast_math_flags(build_text: str) -> list[str]:
    """In a build file, its comments already removed."""
    return [match.group(0) for match in _FAST_MATH.finditer(build_text)]


def fast_math_in_code(code: str) -> list[str]:
    """Pragmas and attributes, in C++ with its comments already removed."""
    return [match.group(0) for match in _FAST_MATH_IN_CODE.finditer(code)]


def launches_without_status(code: str) -> list[str]:
    """Kernels launched so that only the thread's last error tells, which may be an earlier one of the run."""
    return [match.group(0) for match in _LAUNCH_WITHOUT_STATUS.finditer(code)]


def globs_or_downloads(cmake_text: str) -> list[str]:
    return [match.group(1) or match.group(2) for match in _GLOB_OR_DOWNLOAD.finditer(cmake_text)]


def kinds_spelled(code: str, kinds: list[str]) -> list[str]:
    """What only a file that knows single kinds of records needs: their types, and their lists in a batch."""
    types = re.findall(r"\b[A-Z]\w*Record\b", code)
    return types + [kind for kind in kinds if re.search(rf"(?:\.|::|->|{{\"){kind}\b", code)]


def machine_paths(text: str) -> list[str]:
    return [match.group(0) for match in _MACHINE_PATH.finditer(text)]


def preprocessor_conditions(header: str) -> list[str]:
    return [match.group(0).strip() for match in _BUILD_OPTION.finditer(header)]


def absent_citations(text: str) -> list[str]:
    """Comment marks and line ends are spaces, so that a citation may be broken over two lines of a comment."""
    flat = re.sub(r"\s*\n\s*(?://|#|\*)?\s*", " ", text)
    return [match.group(0) for rule in (_ABSENT_SECTION, _ABSENT_RULE) for match in rule.finditer(flat)]


def readme_too_long(path: str, text: str) -> bool:
    limit = MAX_LINES_OF_A_FOLDERS_README if "/" in path else MAX_LINES_OF_THE_FRONT_PAGE
    return text.count("\n") > limit


def unmapped_folders(sources: list[str], readmes: dict[str, str]) -> list[str]:
    """Folders with sources that have no README and no row of a table in the nearest README above them."""
    unmapped = []
    for folder in sorted({path.rpartition("/")[0] for path in sources} - {""}):
        if f"{folder}/README.md" in readmes:
            continue
        above = folder
        while above and f"{above}/README.md" not in readmes:
            above = above.rpartition("/")[0]
        text = readmes.get(f"{above}/README.md" if above else "README.md", "")
        name = folder[len(above) + 1 :] if above else folder
        rows = [line for line in text.splitlines() if line.startswith("|")]
        if not any(re.search(rf"`{re.escape(name)}/", row) for row in rows):
            unmapped.append(folder)
    return unmapped


def orphans(documents: dict[str, str]) -> list[str]:
    """Documents to which no way leads from the front page: no link, and no row that names their folder."""
    found, ahead = set(), ["README.md"]
    while ahead:
        path = ahead.pop()
        if path in found or path not in documents:
            continue
        found.add(path)
        folder = path.rpartition("/")[0]
        links = re.findall(r"\]\(([^)#\s]+)", documents[path])
        rows = [line for line in documents[path].splitlines() if line.startswith("|")]
        links += [f"{name}/README.md" for row in rows for name in re.findall(r"`([\w./-]+)/`", row)]
        ahead += [os.path.normpath(f"{folder}/{link}".lstrip("/")) for link in links]
    return sorted(set(documents) - found)
