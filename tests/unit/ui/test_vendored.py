"""The files of others that the page serves are the released ones, byte for byte."""

from __future__ import annotations

from hashlib import sha256

from barnabas.ui.context import HERE


def test_vendored_files_are_those_of_the_checksums() -> None:
    lines = (HERE / "vendored.sha256").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split() for line in lines)}
    folder = HERE / "static" / "vendored"
    assert {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()} == sums
