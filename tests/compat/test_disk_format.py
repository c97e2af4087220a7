"""Kafka's own dump tool reads every file that a log writes, and says the same of it as `barnabas log dump`.

The logs are those of `log_kinds.LOGS`. One run of the tool in each mode reads all their files.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.coordinators.transactions.records import TransactionMetadata, TransactionRecord, to_bytes
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_dir import ScannedLog
from barnabas.broker.log.producer_state import MAX_SEQUENCE
from barnabas.logtools.entries import Damage, DumpedBatch, base_offset_of, read_batches, read_entries
from barnabas.logtools.verification import verify_log
from barnabas.protocol.ids import ProducerEpoch, ProducerId, TopicPartition
from barnabas.protocol.record_batch import DELETE_HORIZON_MASK, TimestampType
from barnabas.protocol.records import decode_marker, decode_records
from tests.support.batches import build_batch
from tests.support.log_kinds import LOGS, cleaned, of_which_records_were_deleted, with_gaps

from .java import DUMP, Tool

Dump = Callable[..., dict[Path, list[str]]]

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
        elif path.suffix == ".txnindex":
            yield (
                f"version: 0 producerId: {entry['producer_id']} firstOffset: {entry['first_offset']} "
                f"lastOffset: {entry['last_offset']} lastStableOffset: {entry['last_stable_offset']}"
            )
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
        f"coordinatorEpoch: {entry['coordinator_epoch']} currentTxnFirstOffset: OptionalLong"
    )
    first_offset = entry["current_transaction_first_offset"]
    if not entry["batches"]:
        # A marker with a raised epoch leaves none of it.
        yield f"{head}.empty lastTimestamp: {entry['timestamp_ms']} "
    for batch in entry["batches"]:
        delta = batch["last_offset"] - batch["base_offset"]
        # Kafka counts back from the last sequence, also from the -1 of a coordinator's batch.
        first_sequence = (batch["last_sequence"] - delta) & MAX_SEQUENCE
        # The entry of the last batch alone has the open transaction.
        is_open = first_offset >= 0 and batch is entry["batches"][-1]
        ongoing = f"[{first_offset}]" if is_open else ".empty"
        yield (
            f"{head}{ongoing} lastTimestamp: {batch['timestamp_ms']} firstSequence: {first_sequence} "
            f"lastSequence: {batch['last_sequence']} lastOffset: {batch['last_offset']} "
            f"offsetDelta: {delta} timestamp: {batch['timestamp_ms']}"
        )


# -- the tests -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dump(tool: Tool) -> Dump:
    """Kafka's DumpLogSegments: the lines that it prints of each file. It may report nothing on stderr."""

    def run(mode: str, files: Iterable[Path]) -> dict[Path, list[str]]:
        names = ",".join(map(str, files))
        code, printed, said = tool.run(DUMP, mode, "--files", names)
        said = re.sub(r"^log4j:.*\n", "", said, flags=re.MULTILINE)
        gaps = re.findall(
            r"^Non-consecutive offsets in (.*)\n(?:  \d+ is followed by \d+\n)+", said, re.MULTILINE
        )
        said = re.sub(
            r"^Non-consecutive offsets in .*\n(  \d+ is followed by \d+\n)+", "", said, flags=re.MULTILINE
        )
        assert (code, said) == (0, "")
        assert {Path(name).parent.name for name in gaps} <= WITH_GAPS
        parts = re.split(r"^Dumping (.*)\n", printed, flags=re.MULTILINE)[1:]
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
def test_kafka_reads_the_same_from_every_file_as_we_do(dump: Dump, files: list[Path]) -> None:
    assert {path.suffix for path in files} == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
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
    verdict = verify_log(log, is_deep=True)
    assert len(verdict.segments) == len(list(folder.glob("*.log")))
    assert verdict.findings == []


@pytest.mark.timeout(300)
def test_kafka_finds_every_index_sane(dump: Dump, files: list[Path]) -> None:
    indexes = [path for path in files if path.suffix in (".index", ".timeindex") and path.stat().st_size]
    assert dump("--index-sanity-check", indexes) == {
        path: [f"{path} passed sanity check."] for path in indexes
    }


@pytest.mark.timeout(300)
def test_kafka_decodes_the_offsets_topic(dump: Dump, files: list[Path]) -> None:
    logs = [path for path in files if path.parent.name == "consumer_offsets-0" and path.suffix == ".log"]
    lines = [line for found in dump("--offsets-decoder", logs).values() for line in found]
    records = [line.partition(" key: ")[2] for line in lines if line.startswith("| ") and " key: " in line]
    assert len(records) == 150 + 3
    of_transactions = [line for line in lines if "isTransactional: true" in line]
    assert ["isControl: true" in line for line in of_transactions] == [False, True, False, True, False]
    for partition in (40, 41, 42):
        key = f'{{"type":"1","data":{{"group":"g","topic":"t","partition":{partition}}}}}'
        (committed,) = (line for line in records if line.startswith(key))
        assert f'"offset":{partition}' in committed
    key = '{"type":"1","data":{"group":"g","topic":"t","partition":3}}'
    values = [line.partition(" payload: ")[2] for line in records if line.startswith(key)]
    assert [value[:14] for value in values] == ['{"version":"3"', '{"version":"1"', "<DELETE>"]
    (group,) = (line for line in records if line.startswith('{"type":"2","data":{"group":"g3"}} payload: {'))
    assert '"subscription":{"topics":["t"]' in group
    assert '"assignedPartitions":[{"topic":"t","partitions":[3]}]' in group


@pytest.mark.timeout(300)
def test_kafka_decodes_the_transaction_topic(dump: Dump, tmp_path: Path) -> None:
    """Both versions, with the tagged fields that this release of Kafka knows and those that it does not."""
    plain = TransactionMetadata(
        TransactionState.ONGOING,
        ProducerId(7),
        ProducerEpoch(3),
        60_000,
        1_700_000_000_123,
        frozenset({TopicPartition("t", 1)}),
        1_700_000_000_000,
    )
    tagged = plain._replace(
        state=TransactionState.PREPARE_COMMIT,
        previous_producer_id=ProducerId(5),
        next_producer_id=ProducerId(8),
        next_producer_epoch=ProducerEpoch(1),
        last_producer_epoch=ProducerEpoch(2),
        client_transaction_version=2,
        prepared_timeout_ms=30_000,
    )
    empty = plain._replace(state=TransactionState.EMPTY, partitions=frozenset())
    others = {
        TransactionState.PREPARE_ABORT: "PrepareAbort",
        TransactionState.COMPLETE_COMMIT: "CompleteCommit",
        TransactionState.COMPLETE_ABORT: "CompleteAbort",
    }
    values = [plain, tagged, empty, *(empty._replace(state=state) for state in others), None]
    records = [to_bytes(TransactionRecord("id", value), level) for level in (0, 2) for value in values]
    log = tmp_path / f"{0:020d}.log"
    log.write_bytes(build_batch(records, timestamp_ms=1_700_000_000_000))
    (lines,) = dump("--transaction-log-decoder", [log]).values()
    found = [line.partition(" key: ")[2] for line in lines if line.startswith("| ")]
    head, tail = (
        "transaction_metadata::transactionalId=id payload: ",
        "txnLastUpdateTimestamp=1700000000123,txnTimeoutMs=60000",
    )
    assert found == 2 * [
        f"{head}producerId:7,producerEpoch:3,state=Ongoing,partitions=[t-1],{tail}",
        f"{head}producerId:7,producerEpoch:3,state=PrepareCommit,partitions=[t-1],{tail}",
        *(
            f"{head}producerId:7,producerEpoch:3,state={name},partitions=[],{tail}"
            for name in ("Empty", *others.values())
        ),
        f"{head}<DELETE>",
    ]
