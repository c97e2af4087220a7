"""Damage of any file of a log dir, by hypothesis: `dump` and `verify` report it, and never fail on it."""

import io
import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.protocol.ids import TopicId, TopicPartition
from tests.support.defaults import log_config
from tests.support.gaps import emptied, follow, keeping, stamped
from tests.support.logs import append_batches, get_or_create, open_dirs, produced

INDEXES = (".index", ".timeindex")
"""A change of any byte of these is found; an index without its last entries only makes lookups slower."""


class Said(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: str) -> Said:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["log", *arguments])
    return Said(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def sound() -> Iterator[Path]:
    """The dir of a broker after a clean stop: a log, and one that was cleaned."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sound"
        manager = open_dirs(path, config=log_config(segment_bytes=500, index_interval_bytes=0))
        whole = get_or_create(manager, TopicPartition("t", 0), TopicId(uuid.UUID(int=5)), 0)
        cleaned = get_or_create(manager, TopicPartition("t", 1), TopicId(uuid.UUID(int=5)), 0)
        for number in range(12):
            time_ms = 1_000 + number
            append_batches(whole, produced(3 * number, 3, timestamp_ms=time_ms), number // 5)
            batch = stamped(produced(3 * number, 3, timestamp_ms=time_ms), 3 * number, number // 5)
            follow(cleaned, [keeping(batch, {3 * number + 1}) if number % 3 else emptied(batch)])
        manager.checkpoint_high_watermarks({log.topic_partition: 36 for log in manager.all_logs()})
        manager.close(0)
        assert run("verify", str(path)).code == exit_codes.OK
        yield path


def damaged(data: bytes, kind: str, at: int, length: int) -> bytes:
    """The bytes of a file after a fault of a disk or a mistake of a person."""
    at %= len(data) or 1
    end = min(at + length, len(data))
    part = data[at:end]
    return {
        "flip": data[:at] + bytes([data[at] ^ (1 << length % 8)]) + data[at + 1 :] if data else b"",
        "cut": data[:at],
        "zero": data[:at] + bytes(end - at) + data[end:],
        "duplicate": data[:end] + part + data[end:],
        "reorder": data[end:] + data[:end],
        "foreign": b"foreign " * (length % 5),
        "longer": data + b"\xff" * length,
    }[kind]


KINDS = ("flip", "cut", "zero", "duplicate", "reorder", "foreign", "longer")


@settings(max_examples=50)
@given(
    number=st.integers(0, 1 << 16),
    kind=st.sampled_from(KINDS),
    at=st.integers(0, 1 << 16),
    length=st.integers(1, 200),
)
def test_damage_of_any_file_is_reported_and_never_raises(
    sound: Path, number: int, kind: str, at: int, length: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dir"
        shutil.copytree(sound, path)
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != "meta.properties")
        file = files[number % len(files)]
        before = file.read_bytes()
        file.write_bytes(damaged(before, kind, at, length))
        after = file.read_bytes()
        dumped = run("dump", str(file), "--deep", "--json")
        assert dumped.code in (exit_codes.OK, exit_codes.FAILED, exit_codes.USAGE), dumped.err
        assert all(json.loads(line) for line in dumped.out.splitlines())
        verified = run("verify", str(path), "--json", "--compare", str(sound))
        assert verified.code in (exit_codes.OK, exit_codes.FAILED), verified.err
        findings = json.loads(verified.out)["findings"]
        if after == before:
            assert findings == []
        elif file.suffix == ".log":
            assert verified.code == exit_codes.FAILED, findings
        elif file.suffix in INDEXES and not before.startswith(after):
            assert findings, f"{kind} of {file.name} was not found"


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_of_damage_change_a_file(kind: str) -> None:
    data = bytes(range(100))
    assert damaged(data, kind, 10, 20) != data
