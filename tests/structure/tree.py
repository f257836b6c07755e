# SPDX-License-Identifier: Apache-2.0
"""What files the project has, and how to read them without their comments."""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPP = {".h", ".hpp", ".cpp", ".cu", ".cuh"}
SOURCE = CPP | {".py", ".sh", ".cmake", ".ts", ".js", ".css"}
NOT_OURS = {".git", "build", "__pycache__", "node_modules", ".venv", ".cache", "nanhunt-quickstart"}


@cache
def project_files() -> tuple[str, ...]:
    """Every file that is or would be committed, relative to the root; a plain walk where git is not at hand."""
    listing = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listing is not None:
        names = [name for name in listing.split("\0") if name]
    else:
        names = []
        for folder, folders, files in os.walk(ROOT):
            folders[:] = [name for name in folders if name not in NOT_OURS]
            names += [(Path(folder) / name).relative_to(ROOT).as_posix() for name in files]
    return tuple(sorted(name for name in set(names) if (ROOT / name).is_file()))


def git_modes() -> dict[str, str] | None:
    """Path -> mode as committed or staged; None outside a git checkout."""
    listing = _git("ls-files", "-z", "--stage")
    if listing is None:
        return None
    rows = [row.split("\t", 1) for row in listing.split("\0") if row]
    return {path: meta.split()[0] for meta, path in rows}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.decode()


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def is_cmake(path: str) -> bool:
    return path.endswith(("CMakeLists.txt", ".cmake"))


def is_source(path: str) -> bool:
    if is_cmake(path) or Path(path).suffix in SOURCE:
        return True
    return Path(path).suffix == "" and (ROOT / path).read_bytes()[:2] == b"#!"


def cpp_files() -> list[str]:
    return [path for path in project_files() if Path(path).suffix in CPP]


def cmake_files() -> list[str]:
    return [path for path in project_files() if is_cmake(path)]


_CPP_TOKEN = re.compile(
    r'//(?:[^\n\\]|\\.)*|/\*.*?\*/|R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)


def without_cpp_comments(text: str) -> str:
    """The text with comments blanked and line numbers kept; raw strings are blanked too, plain strings stay."""

    def blank(match: re.Match[str]) -> str:
        token = match.group(0)
        if token.startswith(("//", "/*", 'R"')):
            return " " + "\n" * token.count("\n")
        return token

    return _CPP_TOKEN.sub(blank, text)


def without_hash_comments(text: str) -> str:
    """For CMake and shell: drops `# ...` outside double quotes."""
    return re.sub(r'("(?:\\.|[^"\\])*")|#[^\n]*', lambda match: match.group(1) or "", text)
