"""Coordinators of 100,000 transactional ids: how fast they load, how long a takeover lasts, their memory.

By itself: the records of 100,000 ids in a log on disk to their state machines, as new leaders read them; the
memory of a machine, without a transaction and with an ongoing one. And for real: on three brokers 100,000 ids
get producers in one partition of the transaction topic, whose leader gets SIGKILL, until another one answers
InitProducerId, the finding of it included.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import uvloop

from barnabas.broker.config.load import config_from
from barnabas.broker.coordinators.loading import last_records, without_collection
from barnabas.broker.coordinators.machine_shard import Hosted
from barnabas.broker.coordinators.transactions.coordinator import transactions_of
from barnabas.broker.coordinators.transactions.records import TransactionMetadata, TransactionRecord, to_bytes
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.coordinators.transactions.transaction import Transaction
from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.client.admin.admin import Admin
from barnabas.client.cluster import Cluster
from barnabas.client.config import ConsumerConfig
from barnabas.client.coordinators import CoordinatorLink, find_coordinator
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ApiError, LocalError, raise_for
from barnabas.protocol.ids import BrokerId, LeaderEpoch, ProducerEpoch, ProducerId, TopicPartition
from barnabas.protocol.messages.find_coordinator import CoordinatorType
from barnabas.protocol.messages.produce import InitProducerIdRequest
from benchmarks.support import Figure, Options, run, running_cluster, tell, temporary_folder
from tests.support.batches import build_batch
from tests.support.defaults import log_config

_STATE_TOPIC: Final = "__transaction_state"
_PARTITION: Final = TopicPartition(_STATE_TOPIC, 0)
_SEGMENT_BYTES: Final = 100 << 20
_RECORDS_PER_BATCH: Final = 500
_DATA_PARTITIONS: Final = 6
_AT_ONCE: Final = 200
_RETRY_S: Final = 0.01
_TIMEOUT_S: Final = 120.0


def _id(number: int) -> str:
    return f"transactional-id-{number}"


# -- by itself ---------------------------------------------------------------------------------------------


def _records(ids: int, state: TransactionState) -> Iterator[TransactionRecord]:
    names = frozenset(TopicPartition("topic", partition) for partition in range(_DATA_PARTITIONS))
    partitions = names if state is TransactionState.ONGOING else frozenset()
    for number in range(ids):
        stored = TransactionMetadata(
            state, ProducerId(number), ProducerEpoch(1), 60_000, 1_000, partitions, 1_000
        )
        yield TransactionRecord(_id(number), stored)


def _written(folder: Path, ids: int, state: TransactionState) -> Log:
    """A log with the last records of so many ids."""
    config = log_config(cleanup_policy=("compact",), segment_bytes=_SEGMENT_BYTES)
    log = Log.open(_PARTITION, LogLoader(folder / "state", config, now_ms=0))
    records = list(_records(ids, state))
    for first in range(0, ids, _RECORDS_PER_BATCH):
        batch = build_batch(to_bytes(one, 0) for one in records[first : first + _RECORDS_PER_BATCH])
        log.append_as_leader(parse_produced(batch), 0, 0)
    return log


def _load(log: Log, ids: int) -> list[Hosted[Transaction]]:
    """The hosted machines of all ids in a log."""
    records = last_records(log, lambda: True)
    if records is None:
        raise RuntimeError("the records were not wanted")
    config = config_from({"broker.id": "1", "zookeeper.connect": "localhost:2181", "log.dirs": "/data"})
    loaded = [
        Hosted(transactional_id, Transaction(transactional_id, LeaderEpoch(1), config, stored))
        for transactional_id, stored in transactions_of(records, _PARTITION).stored.items()
    ]
    if len(loaded) != ids:
        raise RuntimeError(f"{len(loaded)} ids were loaded of {ids}")
    return loaded


def _memory_bytes(log: Log, ids: int) -> float:
    """The memory of one hosted id, after the records that were read are freed."""
    gc.collect()
    tracemalloc.start()
    try:
        loaded = _load(log, ids)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(loaded)
    finally:
        tracemalloc.stop()


def _loading(options: Options) -> list[Figure]:
    ids = options.amount(100_000, 20_000)
    figures = []
    for state in (TransactionState.COMPLETE_COMMIT, TransactionState.ONGOING):
        rounds: list[float] = []
        cpu: list[float] = []
        with temporary_folder(options) as folder:
            log = _written(folder, ids, state)
            for _ in range(options.rounds):
                gc.collect()
                started, cpu_started = time.perf_counter(), time.process_time()
                with without_collection():
                    _load(log, ids)
                rounds.append(time.perf_counter() - started)
                cpu.append(time.process_time() - cpu_started)
            memory = _memory_bytes(log, ids)
            log.abandon()
        tell(f"{ids:,} ids in {state.value}: loaded in {rounds[-1]:.2f} s, {memory:,.0f} bytes each")
        name = f"{ids:,} transactional ids in {state.value}"
        figures += [
            Figure.of(f"loading {name}", rounds, "s", at_most=3),
            Figure.of("  CPU", cpu, "s"),
            Figure(name=f"memory of one of {name}", measured=memory, unit="bytes"),
        ]
    return figures


# -- for real ----------------------------------------------------------------------------------------------


async def _initialize(cluster: Cluster, link: CoordinatorLink, transactional_id: str) -> None:
    """Get a producer for an id; asked again while its coordinator is not ready."""
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            try:
                answer = await link.ask(request, timeout_ms=5_000)
                raise_for(answer.error_code, transactional_id)
                return
            except (ApiError, LocalError) as error:
                if not error.retriable:
                    raise
                link.forget()
            await asyncio.sleep(_RETRY_S)


async def _fill(bootstrap: str, ids: int) -> None:
    cluster = Cluster(ConsumerConfig.of({"bootstrap_servers": bootstrap}))
    await cluster.start()
    link = CoordinatorLink(cluster, CoordinatorType.TRANSACTION, _id(0))
    waiting = iter(range(ids))

    async def some() -> None:
        for number in waiting:
            await _initialize(cluster, link, _id(number))

    try:
        await _initialize(cluster, link, _id(0))
        started = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(_AT_ONCE)))
        tell(f"{ids:,} ids were initialized, {ids / (time.perf_counter() - started):,.0f}/s")
    finally:
        cluster.close()


async def _wait_whole(admin: Admin) -> None:
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            described = await admin.describe_topics(_STATE_TOPIC)
            if len(described[_STATE_TOPIC].partitions[0].isr) == 3:
                return
            await asyncio.sleep(0.05)


async def _taken_over(running: LocalCluster, number: int) -> float:
    """The seconds from the SIGKILL of the coordinator until another one gives an id a producer."""
    async with Admin(bootstrap_servers=running.bootstrap) as admin:
        await _wait_whole(admin)
    cluster = Cluster(ConsumerConfig.of({"bootstrap_servers": running.bootstrap}))
    await cluster.start()
    try:
        victim: BrokerId = await find_coordinator(cluster, CoordinatorType.TRANSACTION, _id(0))
        running.kill(victim)
        killed_at = time.perf_counter()
        link = CoordinatorLink(cluster, CoordinatorType.TRANSACTION, _id(0))
        await _initialize(cluster, link, _id(number))
        seconds = time.perf_counter() - killed_at
    finally:
        cluster.close()
    await asyncio.to_thread(running.start_broker, victim)
    return seconds


def _takeovers(options: Options) -> Figure:
    ids = options.amount(100_000, 20_000)
    rounds = []
    with running_cluster(options, transaction_state_log_num_partitions="1") as running:
        uvloop.run(_fill(running.bootstrap, ids))
        for number in range(options.rounds):
            rounds.append(uvloop.run(_taken_over(running, number)))
            tell(f"the coordinator of {ids:,} ids was replaced in {rounds[-1]:.2f} s")
    name = f"kill of the coordinator of {ids:,} ids until another one serves them"
    return Figure.of(name, rounds, "s", at_most=3)


def measure(options: Options) -> list[Figure]:
    return [*_loading(options), _takeovers(options)]


if __name__ == "__main__":
    run(__doc__, measure)
