"""Damage to any file of a log dir: a start repairs it or reports it, and no reader gets a wrong record.

The images are taken once: after a kill, after a clean stop, and within a swap. Hypothesis damages one file of
an image; then `verify` reads it, and a broker starts on it twice. Damage in a part that a
start does not read must be found by the CRC of a batch or by `verify`.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.broker.log.log import Log
from barnabas.broker.log.log_dir import LogDir
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.segment_swap import paths_of
from barnabas.broker.log.storage_errors import CheckpointDamaged
from barnabas.cli.log_verify import verify_all
from barnabas.logtools.verification import scan_to_verify, verify_checkpoints
from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.record_batch import check_batch, iter_batches, parse_header
from tests.support.cleaning import Built, batches_of, build, clean
from tests.support.defaults import log_config
from tests.support.logs import (
    OpenLog,
    append_batches,
    batch,
    crash,
    get_or_create,
    online,
    open_dirs,
    produced,
)

KEY, OTHER = TopicPartition("some-topic", 3), TopicPartition("other", 0)
CONFIG = log_config(
    segment_bytes=600, index_interval_bytes=0, retention_ms=-1, message_timestamp_before_max_ms=1 << 62
)


def open_dir(root: Path) -> LogManager:
    return open_dirs(root, config=CONFIG, now_ms=1_000)


class Image:
    """A log dir, and the batches of its log."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.written: set[bytes] = set()
        """All batches that the log held at any time."""
        self.safe: set[bytes] = set()
        """The batches below the recovery point, which the next start must keep."""

    def write(self, root: Path) -> None:
        for name, data in self.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)


def read(log: Log) -> list[bytes]:
    """All batches; raises every error that a consumer gets, also that of a wrong CRC."""
    batches: list[bytes] = []
    offset = int(log.log_start_offset)
    while offset < log.log_end_offset:
        result = log.read(offset, 700)
        for at, header in iter_batches(result.records):
            check_batch(result.records, at)
            batches.append(bytes(result.records[at : at + header.size_bytes]))
        assert result.next_offset > offset
        offset = result.next_offset
    return batches


def below(batches: Iterable[bytes], end: int) -> set[bytes]:
    return {data for data in batches if parse_header(data).last_offset < end}


def third(offset: int) -> bool:
    return offset % 3 == 0


def fill(manager: LogManager) -> Log:
    """Two logs with several epochs and a producer, the second one cleaned, all on disk."""
    for key in (OTHER, KEY):
        log = get_or_create(manager, key, TopicId(uuid.UUID(int=5)), 0)
        for number in range(20):
            plain, sequence = batch(2, 30, 100 + number), number // 3
            data = plain if number % 3 else produced(sequence, timestamp_ms=100 + number)
            append_batches(log, data, number // 8)
    assert clean(log, third, 0, 2)
    log.bounds.raise_first_dirty(log.segments[1].base_offset, log.bounds.cuts)
    log.increment_log_start_offset(2)
    log.flush(0)
    manager.checkpoint_pass(0)
    manager.checkpoint_high_watermarks({KEY: int(log.log_end_offset), OTHER: 3})
    return log


def make_image(root: Path, kind: str) -> Image:
    image = Image()
    manager = open_dir(root)
    log = fill(manager)
    safe_end = log.log_end_offset
    built: Built | None = None
    if kind == "swap":
        built = build(log, third, 1, 2)
        image.written |= set(batches_of(built.cleaned.segment))
    for number in range(3):
        append_batches(log, produced(3 * number, 3, producer_id=9, timestamp_ms=120 + number), 3)
    image.written |= {data for segment in log.segments for data in batches_of(segment)}
    if built is not None:
        for part, path in paths_of(built.cleaned.segment, ".swap"):
            part.move_to(path)
        built.old[0].remove()
    if kind == "clean":
        safe_end = log.log_end_offset
        manager.close(0)
    else:
        crash(manager)
    image.files = {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }
    manager = open_dir(root)
    image.safe = below(read(online(manager, KEY)), safe_end)
    crash(manager)
    return image


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, Image]]:
    with tempfile.TemporaryDirectory() as folder:
        yield {kind: make_image(Path(folder) / kind / "logs", kind) for kind in ("kill", "clean", "swap")}


EXAMPLES = 25 * int(os.environ.get("BARNABAS_CRASH_SEEDS", "2"))
"""For each image."""
KINDS = ("flip", "cut", "zero", "duplicate", "extend", "reorder", "remove")
PLACES = st.integers(0, 9_999)


def damaged(data: bytes, how: str, first: int, second: int) -> bytes:
    """The bytes with damage between two places, each given in ten-thousandths of the file's length."""
    start, end = sorted((first * len(data) // 10_000, second * len(data) // 10_000))
    if how == "flip":
        return data[:start] + bytes([data[start] ^ (1 << second % 8)]) + data[start + 1 :] if data else b"x"
    if how == "cut":
        return data[:start]
    if how == "zero":
        return data[:start] + bytes(end - start) + data[end:]
    if how == "duplicate":
        return data[:end] + data[start:end] + data[end:]
    if how == "extend":
        return data + data[start:end]
    # Two parts of equal length change places.
    half = (end - start) // 2
    parts = data[start : start + half], data[start + half : start + 2 * half]
    return data[:start] + parts[1] + parts[0] + data[start + 2 * half :]


@pytest.mark.parametrize("kind", ["kill", "clean", "swap"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=st.integers(0, 1_000), how=st.sampled_from(KINDS), first=PLACES, second=PLACES)
def test_a_damaged_file_is_repaired_or_reported(
    images: dict[str, Image],
    fast_folder: Path,
    kind: str,
    file: int,
    how: str,
    first: int,
    second: int,
) -> None:
    image = images[kind]
    name = sorted(image.files)[file % len(image.files)]
    root = fast_folder / "logs"
    image.write(root)
    try:
        if how == "remove":
            (root / name).unlink()
        else:
            (root / name).write_bytes(damaged(image.files[name], how, first, second))
        judge(image, root, name)
    finally:
        shutil.rmtree(root)


def judge(image: Image, root: Path, name: str) -> None:
    """Start twice; the second start is after a kill."""
    is_reported = is_damage_reported(root)
    written = set(image.written)
    for _ in range(2):
        try:
            manager = open_dir(root)
        except InvalidConfiguration:
            assert name == "meta.properties"
            return
        try:
            if name.startswith(str(KEY)):
                assert len(read(online(manager, OTHER))) == 20
            log = manager.get(KEY)
            if log is None:
                reason = manager.offline_partitions[KEY]
                assert isinstance(reason, ApiError | CheckpointDamaged), repr(reason)
                continue
            # No CRC protects the offsets in a log dir's checkpoints.
            safe = image.safe if name.startswith(str(KEY)) and not is_reported else set()
            check(log, None if is_reported else written, safe)
            append_batches(log, batch(), 9)
            written.add(bytes(log.read(log.log_end_offset - 1, 1).records))
        finally:
            crash(manager)


def check(log: Log, written: set[bytes] | None, safe: set[bytes]) -> None:
    """Read the whole log; an error to the reader reports the damage."""
    try:
        found = read(log)
        log.max_timestamp_offset()
    except ApiError as error:
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        return
    wrong = [parse_header(data) for data in found if written is not None and data not in written]
    assert not wrong, f"{wrong} were never written"
    missing = [parse_header(data) for data in safe - set(found)]
    missing = [header for header in missing if header.last_offset >= log.log_start_offset]
    assert not missing, f"{missing} are missing"


def is_damage_reported(root: Path) -> bool:
    """Whether `verify` finds damage; it must not fail."""
    log_dir = LogDir.acquire(root)
    try:
        scan = scan_to_verify(log_dir)
        findings = verify_checkpoints(log_dir, scan)
        verdicts = verify_all(log_dir, scan.logs, jobs=1)
        findings += [finding for verdict in verdicts for finding in verdict.findings]
    finally:
        log_dir.release()
    return any(finding.is_damage for finding in findings)


@pytest.mark.parametrize(("count", "max_bytes"), [(12, 1), (400, 40_000)])
@pytest.mark.parametrize("byte", range(8))
def test_a_damaged_entry_of_an_offset_index_is_found_when_it_is_used(
    open_log: OpenLog, count: int, max_bytes: int, byte: int
) -> None:
    config = log_config(index_interval_bytes=0 if count < 100 else 4_000)
    before = open_log(config)
    for number in range(count):
        append_batches(before, batch(2, 90, number))
    before.roll(0)
    before.close(0)
    path = before.segments[0].offset_index.path
    whole = path.read_bytes()
    # The last entry is checked at the first lookup.
    for entry in range(0, len(whole) - 8, 8):
        for mask in (1, 4, 0x80):
            damaged = bytearray(whole)
            damaged[entry + byte] ^= mask
            path.write_bytes(damaged)
            log = open_log(config, is_clean=True)
            for offset in range(0, 2 * count, 1 if count < 100 else 97):
                result = log.read(offset, max_bytes)
                assert result.start_offset == offset - offset % 2
                headers = [header for _, header in iter_batches(result.records)]
                assert [header.base_offset for header in headers] == [
                    result.start_offset + 2 * index for index in range(len(headers))
                ]
                assert result.next_offset == headers[-1].next_offset
            log.abandon()
