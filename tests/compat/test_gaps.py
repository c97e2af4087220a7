"""A log as a compaction leaves it, written by hand: every client reads it.

It has gaps at its start, between batches and across segments, batches that lost records, and hundreds of
empty batches in a row; each segment ends without a record at or after the offset that a client asks for next.
A broker starts over these files and leads.
"""

import base64
import random
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import TopicPartition
from barnabas.client.blocking import Consumer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.records import decode_records
from tests.support.gaps import keeping, stamped, write_segment
from tests.support.waiting import wait_for

from ..cluster.tools import ClusterView
from .clients import CLIENTS, Driver, Unavailable
from .conftest import EXTERNAL, ToolOf
from .java import CONSOLE_CONSUMER, VERSION, Tool

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(EXTERNAL), reason="writes into the log dirs of a cluster of its own"),
]
TOPIC = "compacted"
EMPTY_RUN = 300
IN_SMALL_FETCHES = {"kafka-python", "aiokafka", "kafkajs"}
T0_MS = 1_700_000_000_000


def compacted_batches(seed: int) -> Iterator[bytearray]:
    """Batches from offset 40 on; about a third of the records is left, and the last batch is empty."""
    choices = random.Random(seed)
    base = 40

    def batch(keep: float, count: int = 10) -> bytearray:
        nonlocal base
        builder = RecordBatchBuilder(compression=choices.choice([Compression.NONE, Compression.GZIP]))
        for offset in range(base, base + count):
            builder.append(b"key-%d" % (offset % 7), b"%d" % offset, [("h", b"%d" % offset)], T0_MS + offset)
        whole = stamped(builder.build(), base)
        left = {offset for offset in range(base, base + count) if choices.random() < keep}
        base += count
        return keeping(whole, left)

    for _ in range(400):
        base += choices.choice([0, 0, 1, 30])
        yield batch(choices.choice([0.0, 0.2, 0.6, 1.0]))
    for _ in range(EMPTY_RUN):
        yield batch(0.0, 1)
    base += 100_000
    for _ in range(100):
        yield batch(0.5)
    yield batch(0.0)


@pytest.fixture(scope="module")
def rows() -> list[tuple[int, bytes]]:
    """(offset, value) of each record that is left."""
    return [
        (record.offset, record.value or b"")
        for batch in compacted_batches(11)
        for record in decode_records(batch)
    ]


def write_log(folder: Path) -> int:
    """Replace the log in a folder by one of three segments; returns its end."""
    for path in folder.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    batches = list(compacted_batches(11))
    base, size = 0, len(batches) // 3 + 1
    for first in range(0, len(batches), size):
        write_segment(folder, base, batches[first : first + size])
        base = parse_header(batches[min(first + size, len(batches)) - 1]).next_offset
    return base


def read_in_a_group(driver: Driver, bootstrap: str, count: int) -> list[int]:
    """The offsets of the records that a member of a group reads, until they are as many as that."""
    driver.ask("member_start", bootstrap=bootstrap, group="readers", topics=[TOPIC])
    wait_for(lambda: len(driver.ask("member_status")["read"]) >= count)
    return [offset for _, _, offset in driver.ask("member_stop")["read"]]


def read_all(cluster: LocalCluster, rows: list[tuple[int, bytes]], end: int, tool: Tool | None) -> list[str]:
    """Read with every client, from several offsets and in large and small fetches; returns what was wrong."""
    wrong: list[str] = []
    starts = [0, 40, rows[5][0] + 1, rows[len(rows) // 2][0], end - 100_000]
    with ExitStack() as stack:
        drivers: dict[str, Driver] = {}
        for name, client in CLIENTS.items():
            with suppress(Unavailable):
                drivers[name] = stack.enter_context(client.start())
        for name, driver in drivers.items():
            arguments: dict[str, Any] = {"bootstrap": cluster.bootstrap, "topic": TOPIC}
            fetches: list[tuple[int, int | None]] = [(start, None) for start in starts]
            if name in IN_SMALL_FETCHES:
                fetches.append((0, 600))
            for start, max_bytes in fetches:
                expected = [row for row in rows if row[0] >= start]
                command = {**arguments, "partition": 0, "offset": start, "count": len(expected)}
                found = driver.ask("fetch", **command, max_bytes=max_bytes)
                read = [(record["offset"], base64.b64decode(record["value"])) for record in found]
                if read != expected:
                    differs = next(
                        (pair for pair in zip(read, expected, strict=False) if pair[0] != pair[1]), 0
                    )
                    wrong.append(
                        f"{name} from {start}, {max_bytes}: {len(read)} of {len(expected)}, {differs}"
                    )
            # The consumer of kafkajs moves in another way than a loop of fetches.
            offsets = [row[0] for row in rows]
            if name == "kafkajs" and read_in_a_group(driver, cluster.bootstrap, len(rows)) != offsets:
                wrong.append("the consumer of kafkajs has read other records")
            times = {"earliest": 0, "latest": end, T0_MS + rows[9][0]: rows[9][0]}
            for at, expected_offset in times.items():
                answer = driver.ask("offsets", **arguments, partitions=[0], at=at)
                if answer != {"0": expected_offset}:
                    wrong.append(f"{name} offsets at {at}: {answer}, expected {expected_offset}")
    tp = TopicPartition(TOPIC, 0)
    for wire in ("native", "kafka"):
        with Consumer(bootstrap_servers=cluster.bootstrap, wire=wire, fetch_max_wait_ms=50) as consumer:
            consumer.assign([tp])
            for start in starts:
                consumer.seek(tp, start)
                values: list[tuple[int, bytes | None]] = []
                while consumer.position(tp) < end:
                    values += [(record.offset, record.value) for record in consumer.poll(timeout_ms=2_000)]
                if values != [row for row in rows if row[0] >= start]:
                    wrong.append(f"barnabas, {wire}, from {start}: {len(values)}")
    if tool is not None:
        said = tool(
            CONSOLE_CONSUMER,
            *("--bootstrap-server", cluster.bootstrap, "--topic", TOPIC, "--partition", "0"),
            *("--offset", "earliest", "--max-messages", str(len(rows)), "--timeout-ms", "60000"),
        )
        lines = [line for line in said.splitlines() if line.isdecimal()]
        if lines != [row[1].decode() for row in rows]:
            wrong.append(f"the console consumer printed {len(lines)} of {len(rows)}")
    return wrong


def test_every_client_reads_a_compacted_log(
    start_cluster: Any, tool_of: ToolOf, rows: list[tuple[int, bytes]]
) -> None:
    cluster: LocalCluster = start_cluster(brokers=1, settings={"zookeeper.session.timeout.ms": "30000"})
    view = ClusterView(cluster)
    view.create_topic(TOPIC, replicas=1, retention_ms="-1")
    cluster.stop_broker(1)
    (folder,) = cluster.broker(1).directory.rglob(f"{TOPIC}-0")
    end = write_log(folder)
    cluster.start_broker(1)
    try:
        tool = tool_of(VERSION)
    except Unavailable:
        tool = None
    assert read_all(cluster, rows, end, tool) == []
