# SPDX-License-Identifier: Apache-2.0
"""`python -m nanhunt` and the command `nanhunt` of a wheel: both become the program that stands in the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Not resolved: a build tree links to the sources.
_PACKAGE = Path(os.path.abspath(__file__)).parent  # noqa: PTH100


def program() -> Path | None:
    """In the package of a wheel, else above the folder `python` of a build tree or an installation."""
    folders = [_PACKAGE]
    if _PACKAGE.parent.name == "python":
        folders += list(_PACKAGE.parents)[1:4]
    for folder in folders:
        candidate = folder / "bin" / "nanhunt"
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    return None


def main() -> int:
    found = program()
    if found is None:
        print("nanhunt: the command line program is not in this package; install it again.", file=sys.stderr)
        return 3
    sys.stdout.flush()
    os.environ.setdefault("NANHUNT_PYTHON", sys.executable)  # that which the program asks for what is of this package
    try:
        os.execv(found, [str(found), *sys.argv[1:]])
    except FileNotFoundError:  # the file is there: what would load it is not
        print(f"nanhunt: {found} cannot be started: this system has no loader for it. This package is for Linux with "
              "glibc (Alpine and others with musl have none): build nanhunt from its sources there.", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"nanhunt: {found} cannot be started: {error.strerror}. Install the package again.", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
