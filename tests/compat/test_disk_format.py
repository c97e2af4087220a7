"""Kafka's own dump tool reads every file that a log writes, and says the same of it as `barnabas log dump`.

`LOGS` has a builder of each kind of log. Their files are dumped by one run of the tool for each of its modes,
because each run starts a JVM.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.compaction.cleaning import clean
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.coordinators.group_records import (
    GroupMetadataMember,
    GroupMetadataValue,
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    to_bytes,
)
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_config import COMPACT, LogConfig
from barnabas.broker.log.log_dir import ScannedLog
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.segment_check import check_segment
from barnabas.broker.log.verification import segment_tasks, verify_log
from barnabas.cli.log_entries import Damage, DumpedBatch, base_offset_of, read_batches, read_entries
from barnabas.deploy.process import DeployError
from barnabas.deploy.zookeeper import find_java
from barnabas.protocol.batch_builder import RecordBatchBuilder, build_batch
from barnabas.protocol.compression import Compression
from barnabas.protocol.consumer_protocol import Subscription, encode_assignment, encode_subscription
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import DELETE_HORIZON_MASK, TimestampType, stamp
from barnabas.protocol.records import MarkerType, Record, decode_marker, decode_records
from benchmarks.peers.apache_kafka import archives
from benchmarks.peers.processes import PeerError
from tests.support.defaults import log_config
from tests.support.gaps import follow as follow_gaps
from tests.support.gaps import kept_of, stamped
from tests.support.logs import append_batches, log_files, marker, produced

Tool = Callable[..., dict[Path, list[str]]]

SMALL = log_config(segment_bytes=2_000, index_interval_bytes=100)
TIMESTAMP_MS = 1_700_000_000_000


def opened(folder: Path, config: LogConfig = SMALL, **options: Any) -> Log:
    return Log.open(TopicPartition("t", 0), LogLoader(folder, config, now_ms=0, **options))


def follow(log: Log, batches: Iterable[bytearray], leader_epoch: int = 5) -> None:
    """Append batches, also those that no producer may send, as a follower does."""
    for data in batches:
        stamp(data, 0, log.log_end_offset, leader_epoch)
        log.append_as_follower(data, 0)


# -- the logs ------------------------------------------------------------------------------------------------


def idempotent(folder: Path) -> Log:
    log = opened(folder)
    for sequence in range(0, 60, 2):
        append_batches(log, produced(sequence, 2, producer_id=4711, epoch=3, timestamp_ms=1_000), 5)
    append_batches(log, produced(2**31 - 2, 4, producer_id=4712, timestamp_ms=1_001), 5)
    return log


def of_one_batch(folder: Path) -> Log:
    log = opened(folder)
    append_batches(log, build_batch([(b"k", b"v")], timestamp_ms=TIMESTAMP_MS))
    return log


def empty(folder: Path) -> Log:
    return opened(folder, log_start_offset=7)


def without_index_entries(folder: Path) -> Log:
    log = opened(folder, replace(SMALL, index_interval_bytes=4_096))
    for number in range(40):
        append_batches(log, build_batch([(b"k", b"v" * 100)], timestamp_ms=TIMESTAMP_MS + number))
    return log


def compressed_with_headers(folder: Path) -> Log:
    log = opened(folder)
    for number, compression in enumerate(list(Compression) * 4):
        builder = RecordBatchBuilder(compression=compression)
        for index in range(20):
            key = None if index % 5 == 0 else b"key%d" % index
            value = None if index % 7 == 0 else b"value" * index
            headers = [("a", b"1"), ("b", None)][: index % 3]
            builder.append(key, value, headers, TIMESTAMP_MS + number * 10 - index)
        append_batches(log, builder.build())
    return log


def stamped_by_the_broker(folder: Path) -> Log:
    log = opened(folder, replace(SMALL, message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    for number in range(30):
        batch = build_batch([(b"k", b"v" * 50)] * 3, timestamp_ms=number)
        append_batches(log, batch, now_ms=TIMESTAMP_MS + number // 3)
    return log


def with_times_in_any_order(folder: Path) -> Log:
    log = opened(folder)
    for number in range(60):
        time = -1 if number % 9 == 0 else TIMESTAMP_MS + number * 7 % 50
        append_batches(log, build_batch([(b"k", b"v" * 30)] * 2, timestamp_ms=time))
    return log


def transactional(folder: Path) -> Log:
    log = opened(folder)
    for number in range(24):
        producer_id = 7 + number % 2
        kind = MarkerType.COMMIT if number % 3 else MarkerType.ABORT
        data = produced(number // 2 * 3, 3, producer_id=producer_id, is_transactional=True)
        follow(log, [data, marker(kind, producer_id=producer_id, coordinator_epoch=number)])
    return log


def truncated(folder: Path) -> Log:
    log = idempotent(folder)
    log.truncate_to(41)
    log.roll(0)
    log.truncate_to(37)
    for sequence in range(36, 60, 2):
        append_batches(log, produced(sequence, 2, producer_id=4711, epoch=3, timestamp_ms=2_000), 6)
    return log


def recovered(folder: Path) -> Log:
    """Opened again after a stop that tore the last batch."""
    idempotent(folder).abandon()
    newest = sorted(folder.glob("*.log"))[-1]
    newest.write_bytes(newest.read_bytes().rstrip(b"\0")[:-3])
    log = opened(folder)
    append_batches(log, build_batch([(b"after", b"recovery")], timestamp_ms=TIMESTAMP_MS), 6)
    return log


def rolled_by_time(folder: Path) -> Log:
    log = opened(folder, replace(SMALL, segment_ms=10))
    for number in range(6):
        batch = build_batch([(b"k", b"v" * 30)], timestamp_ms=TIMESTAMP_MS + 8 * number)
        append_batches(log, batch, now_ms=TIMESTAMP_MS + 8 * number)
    assert len(log_files(log)) > 2
    return log


def rolled_by_a_full_index(folder: Path) -> Log:
    log = opened(
        folder, replace(SMALL, segment_bytes=1 << 20, segment_index_bytes=40, index_interval_bytes=0)
    )
    for number in range(30):
        append_batches(log, build_batch([(b"k", b"v" * 30)], timestamp_ms=TIMESTAMP_MS + number))
    assert len(log_files(log)) > 2
    return log


def of_which_records_were_deleted(folder: Path) -> Log:
    log = idempotent(folder)
    log.increment_log_start_offset(41)
    assert log.delete_old_segments(0, 60)
    return log


def of_high_offsets(folder: Path) -> Log:
    log = opened(folder, log_start_offset=1 << 40)
    for number in range(60):
        append_batches(log, build_batch([(b"k", b"v" * 30)], timestamp_ms=TIMESTAMP_MS + number), 1 << 20)
    return log


def consumer_offsets(folder: Path) -> Log:
    log = opened(folder)
    member = GroupMetadataMember(
        member_id="m-1",
        client_id="c",
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        subscription=encode_subscription(Subscription(("t",))),
        assignment=encode_assignment([TopicPartition("t", 3)]),
    )
    generation = GroupMetadataValue(
        protocol_type="consumer", generation=2, protocol="range", leader="m-1", members=[member]
    )
    for number in range(30):
        commit = OffsetAndMetadata(number, TIMESTAMP_MS, 5, "note")
        timed = replace(commit, expire_timestamp_ms=TIMESTAMP_MS + 1)
        key = TopicPartition("t", number)
        records: list[Any] = [
            OffsetRecord("g", key, commit),
            OffsetRecord("g", key, timed),
            OffsetRecord("g", key, None),
            GroupRecord(f"g{number}", generation),
            GroupRecord(f"g{number}", None),
        ]
        append_batches(log, build_batch(map(to_bytes, records), timestamp_ms=TIMESTAMP_MS))
    return log


def with_gaps(folder: Path) -> Log:
    """A log as its leader's cleaner left it, fetched by a follower."""
    log = opened(folder, replace(SMALL, index_interval_bytes=0))
    for number in range(60):
        compression = list(Compression)[number % 5]
        builder = RecordBatchBuilder(compression=compression)
        for index in range(6):
            value = None if index == 3 else b"value" * 9
            builder.append(b"k%d" % index, value, None, TIMESTAMP_MS + number * 10 - index)
        first = 6 * number
        batch = stamped(builder.build(producer_id=7, producer_epoch=0, base_sequence=first), first, 5)
        kept = ((0, 2, 3), (), (3,), (), (1, 5))[number // 5 % 5]
        horizon_ms = TIMESTAMP_MS + 86_400_000 if 3 in kept else None
        if number % 7:
            keeps = partial(is_at, offsets={first + delta for delta in kept})
            follow_gaps(log, [kept_of(batch, keeps, delete_horizon_ms=horizon_ms)])
    return log


def is_at(record: Record, offsets: set[int]) -> bool:
    return record.offset in offsets


def cleaned(folder: Path) -> Log:
    """Cleaned twice by the cleaner's own run, with a map too small for one pass."""
    log = opened(folder, replace(SMALL, cleanup_policy=(COMPACT,), index_interval_bytes=0))
    for half in (range(40), range(40, 80)):
        for number in half:
            builder = RecordBatchBuilder(compression=list(Compression)[number // 5 % 5])
            for index in range(6):
                key = b"%d" % (number * index % 37)
                headers = [("a", b"1")] if index == 2 else None
                value = None if (number + index) % 11 == 0 else b"value %d" % number
                builder.append(key, value, headers, TIMESTAMP_MS + number)
            producer_id = number % 5
            batch = builder.build(
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=number // 5 * 6,
                is_transactional=producer_id == 3,
            )
            kind = MarkerType.ABORT if number % 3 else MarkerType.COMMIT
            follow(log, [batch, marker(kind, producer_id=3)] if producer_id == 3 else [batch])
        log.roll(0)
        stats = clean(
            log,
            log.log_end_offset,
            offset_map=OffsetMap(4_000),
            now_ms=TIMESTAMP_MS + 1_000,
            pause=lambda size: None,
            high_watermark=log.log_end_offset,
        )
        assert stats.records_kept < stats.records_read
        assert stats.delete_horizon_ms is not None
    assert stats.passes > 1
    return log


LOGS = (
    idempotent,
    of_one_batch,
    empty,
    without_index_entries,
    compressed_with_headers,
    stamped_by_the_broker,
    with_times_in_any_order,
    transactional,
    truncated,
    recovered,
    rolled_by_time,
    rolled_by_a_full_index,
    of_which_records_were_deleted,
    of_high_offsets,
    consumer_offsets,
    with_gaps,
    cleaned,
)
WITH_GAPS = {f"{build.__name__}-0" for build in (with_gaps, cleaned)}
"""The tool mentions gaps between records, but not as a fault."""


# -- what Kafka's tool prints --------------------------------------------------------------------------------


def kafka_lines(path: Path) -> Iterator[str]:
    """The lines that Kafka's tool prints of a file, if it reads the same from it as we do."""
    if path.suffix == ".log":
        yield f"Log starting offset: {base_offset_of(path)}"
        for batch in read_batches(path):
            assert not isinstance(batch, Damage), batch
            yield batch_line(batch)
            yield from record_lines(batch)
        return
    entries = [entry for entry in read_entries(path) if not isinstance(entry, Damage)]
    if path.suffix == ".index" and not entries:
        yield f"{path} is empty."
    for entry in entries:
        if path.suffix == ".index":
            yield f"offset: {entry['offset']} position: {entry['position']}"
        elif path.suffix == ".timeindex":
            yield f"timestamp: {entry['timestamp_ms']} offset: {entry['offset']}"
        else:
            yield from producer_lines(entry)


def batch_line(batch: DumpedBatch) -> str:
    header = batch.header
    last_sequence = header.base_sequence
    if header.base_sequence >= 0:
        last_sequence = (header.base_sequence + header.last_offset_delta) % 2**31
    horizon = f"[{header.base_timestamp}]" if header.attributes & DELETE_HORIZON_MASK else ".empty"
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count} "
        f"baseSequence: {header.base_sequence} lastSequence: {last_sequence} "
        f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
        f"partitionLeaderEpoch: {header.partition_leader_epoch} "
        f"isTransactional: {str(header.is_transactional).lower()} "
        f"isControl: {str(header.is_control).lower()} deleteHorizonMs: OptionalLong{horizon} "
        f"position: {batch.position} {time_type(batch)}: {header.max_timestamp} size: {header.size_bytes} "
        f"magic: 2 compresscodec: {header.compression.name.lower()} crc: {header.crc} isvalid: true"
    )


def time_type(batch: DumpedBatch) -> str:
    is_appended = batch.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return "LogAppendTime" if is_appended else "CreateTime"


def record_lines(batch: DumpedBatch) -> Iterator[str]:
    header = batch.header
    for record in decode_records(batch.data):
        sequence = -1
        if header.base_sequence >= 0:
            sequence = (header.base_sequence + record.offset - header.base_offset) % 2**31
        size = {name: -1 if data is None else len(data) for name, data in zip("kv", record[2:4], strict=True)}
        names = ",".join(name for name, _ in record.headers)
        line = (
            f"| offset: {record.offset} {time_type(batch)}: {record.timestamp_ms} keySize: {size['k']} "
            f"valueSize: {size['v']} sequence: {sequence} headerKeys: [{names}]"
        )
        if header.is_control:
            ended = decode_marker(record.key, record.value)
            assert ended is not None
            line += f" endTxnMarker: {ended.type.name} coordinatorEpoch: {ended.coordinator_epoch}"
        yield line


def producer_lines(entry: dict[str, Any]) -> Iterator[str]:
    """One line for each batch that a snapshot has of a producer."""
    head = (
        f"producerId: {entry['producer_id']} producerEpoch: {entry['producer_epoch']} "
        f"coordinatorEpoch: {entry['coordinator_epoch']} currentTxnFirstOffset: OptionalLong.empty"
    )
    for batch in entry["batches"]:
        yield (
            f"{head} lastTimestamp: {batch['timestamp_ms']} firstSequence: {batch['base_sequence']} "
            f"lastSequence: {batch['last_sequence']} lastOffset: {batch['last_offset']} "
            f"offsetDelta: {batch['last_offset'] - batch['base_offset']} timestamp: {batch['timestamp_ms']}"
        )


# -- the tests -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dump() -> Tool:
    """Kafka's DumpLogSegments: the lines that it prints of each file. It may report nothing on stderr."""
    try:
        command = [str(find_java()), "-cp", f"{archives()}/*", "kafka.tools.DumpLogSegments"]
    except (PeerError, DeployError) as error:
        pytest.skip(str(error))

    def run(mode: str, files: Iterable[Path]) -> dict[Path, list[str]]:
        names = ",".join(map(str, files))
        done = subprocess.run([*command, mode, "--files", names], capture_output=True, text=True, timeout=120)
        said = re.sub(r"^log4j:.*\n", "", done.stderr, flags=re.MULTILINE)
        gaps = re.findall(
            r"^Non-consecutive offsets in (.*)\n(?:  \d+ is followed by \d+\n)+", said, re.MULTILINE
        )
        said = re.sub(
            r"^Non-consecutive offsets in .*\n(  \d+ is followed by \d+\n)+", "", said, flags=re.MULTILINE
        )
        assert (done.returncode, said) == (0, "")
        assert {Path(name).parent.name for name in gaps} <= WITH_GAPS
        parts = re.split(r"^Dumping (.*)\n", done.stdout, flags=re.MULTILINE)[1:]
        return {Path(name): text.splitlines() for name, text in zip(parts[::2], parts[1::2], strict=True)}

    return run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of all kinds of logs, each closed."""
    root = tmp_path_factory.mktemp("logs")
    for build in LOGS:
        build(root / f"{build.__name__}-0").close(0)
    return sorted(path for path in root.glob("*/*") if path.name[:20].isdecimal())


@pytest.mark.timeout(300)
def test_kafka_reads_the_same_from_every_file_as_we_do(dump: Tool, files: list[Path]) -> None:
    assert {path.suffix for path in files} == {".log", ".index", ".timeindex", ".snapshot"}
    found = dump("--deep-iteration", files)
    assert list(found) == files
    for path in files:
        assert found[path] == list(kafka_lines(path)), path
    lines = [line for some in found.values() for line in some]
    for part in ("endTxnMarker: ABORT", "OptionalLong[", "count: 0 ", "compresscodec: zstd", "LogAppendTime"):
        assert any(part in line for line in lines), part


@pytest.mark.parametrize("build", LOGS)
def test_verify_finds_nothing_in_them(files: list[Path], build: Callable[[Path], Log]) -> None:
    folder = next(path.parent for path in files if path.parent.name == f"{build.__name__}-0")
    start = 41 if build is of_which_records_were_deleted else 0
    log = ScannedLog(TopicPartition("t", 0), folder, 0, start, is_clean=True)
    tasks = segment_tasks(log, is_deep=True)
    assert len(tasks) == len(list(folder.glob("*.log")))
    assert verify_log(log, [check_segment(task) for task in tasks]).findings == []


@pytest.mark.timeout(300)
def test_kafka_finds_every_index_sane(dump: Tool, files: list[Path]) -> None:
    indexes = [path for path in files if path.suffix in (".index", ".timeindex") and path.stat().st_size]
    assert dump("--index-sanity-check", indexes) == {
        path: [f"{path} passed sanity check."] for path in indexes
    }
    assert dump("--verify-index-only", indexes) == {path: [] for path in indexes}


@pytest.mark.timeout(300)
def test_kafka_decodes_the_offsets_topic(dump: Tool, files: list[Path]) -> None:
    logs = [path for path in files if path.parent.name == "consumer_offsets-0" and path.suffix == ".log"]
    lines = [line for found in dump("--offsets-decoder", logs).values() for line in found]
    records = [line.partition(" key: ")[2] for line in lines if line.startswith("| ")]
    assert len(records) == 150
    key = '{"type":"1","data":{"group":"g","topic":"t","partition":3}}'
    values = [line.partition(" payload: ")[2] for line in records if line.startswith(key)]
    assert [value[:14] for value in values] == ['{"version":"3"', '{"version":"1"', "<DELETE>"]
    (group,) = (line for line in records if line.startswith('{"type":"2","data":{"group":"g3"}} payload: {'))
    assert '"subscription":{"topics":["t"]' in group
    assert '"assignedPartitions":[{"topic":"t","partitions":[3]}]' in group
