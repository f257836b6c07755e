# SPDX-License-Identifier: Apache-2.0
"""The data sets in the tree are the files whose checksums their README states. Builds embed these very files."""

import hashlib
import pathlib
import re

DATA = pathlib.Path(__file__).resolve().parents[3] / "src/engine/data"


def stated_checksums() -> set[str]:
    return set(re.findall(r"\b[0-9a-f]{64}\b", (DATA / "README.md").read_text()))


def test_every_data_file_has_a_stated_checksum():
    files = [path for path in DATA.iterdir() if path.suffix in (".csv", ".txt") and path.name != "CMakeLists.txt"]
    assert files
    stated = stated_checksums()
    for path in files:
        assert hashlib.sha256(path.read_bytes()).hexdigest() in stated, path.name
    assert len(stated) == len(files), "a checksum is stated of a file that is not there"
