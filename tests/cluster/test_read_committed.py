"""Readers over committed, aborted and open transactions, while the leader of their partition is killed."""

import asyncio
import json

from barnabas.client.blocking import read_range
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import decode_records

from .isolation import (
    COMMITTED,
    T0,
    TOPIC,
    Writers,
    read_decided_and_open_transactions,
    read_to_the_end,
    wait_for_markers,
    write,
)
from .tools import run_command


def read_range_to(bootstrap: str, end: int) -> list[bytes]:
    """The committed values of the batches that a range reader hands out."""
    values: list[bytes] = []
    for piece in read_range(bootstrap, T0, 0, end, isolation_level="read_committed"):
        for position, header in iter_batches(piece):
            if not header.is_control:
                batch = bytes(piece[position : position + header.size_bytes])
                values += [record.value or b"" for record in decode_records(batch)]
    return values


async def command(*words: str, stdin: str = "") -> str:
    done = await asyncio.to_thread(run_command, *words, stdin=stdin)
    return done.stdout


async def test_committed_readers_see_decided_transactions_through_a_failover(cluster: LocalCluster) -> None:
    bootstrap = cluster.bootstrap
    async with Writers(bootstrap, "native") as writers:
        admin, third = writers.admin, writers.third
        await read_decided_and_open_transactions(writers, "native", "kafka")
        shown = json.loads(await command("status", "-b", bootstrap, "--topic", TOPIC, "--json"))
        stable = await admin.list_offsets({T0: "latest"}, isolation_level="read_committed")
        (leader,) = [
            replica
            for replica in shown["partitions"][0]["replicas"]
            if replica["broker"] == shown["partitions"][0]["leader"]
        ]
        assert leader["last_stable_offset"] == stable[T0].offset < leader["high_watermark"]

        await asyncio.to_thread(cluster.kill, leader["broker"])
        await write(third, b"c1")
        assert await read_to_the_end(bootstrap, "kafka", "read_committed") == COMMITTED
        await third.commit_transaction()
        await wait_for_markers(admin)
        committed = [*COMMITTED, b"c0", b"p1", b"c1"]
        for wire in ("native", "kafka"):
            assert await read_to_the_end(bootstrap, wire, "read_committed") == committed
        end = (await admin.list_offsets({T0: "latest"}))[T0].offset
        assert await asyncio.to_thread(read_range_to, bootstrap, end) == committed
        words = ("produce", TOPIC, "-b", bootstrap, "--transactional-id", "lines")
        await command(*words, stdin="one\ntwo\n")
        printed = await command("consume", TOPIC, "-b", bootstrap, "--isolation", "read_committed")
        assert printed.encode().splitlines() == [*committed, b"one", b"two"]
