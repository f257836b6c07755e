# SPDX-License-Identifier: Apache-2.0
"""Rules about single files. Each takes text and returns what is wrong, so that tests can hand it planted mistakes."""

import re

MAX_LINES = 600

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


_LAUNCH_WITHOUT_STATUS = re.compile(r"<<<|\b(?:check|status_of)\s*\(\s*cuda(?:GetLast|PeekAtLast)Error\b")


def missing_spdx(text: str) -> bool:
    return not any("SPDX-License-Identifier: Apache-2.0" in line for line in text.splitlines()[:3])


def too_long(text: str) -> bool:
    return text.count("\n") > MAX_LINES


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


def machine_paths(text: str) -> list[str]:
    return [match.group(0) for match in _MACHINE_PATH.finditer(text)]


def preprocessor_conditions(header: str) -> list[str]:
    return [match.group(0).strip() for match in _BUILD_OPTION.finditer(header)]
