"""Background work: a slow disk never delays the ISR check."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.background_work import BackgroundWork
from barnabas.broker.config.load import config_from
from barnabas.broker.log.log_config import LogConfig
from barnabas.broker.log.log_manager import LogManager
from barnabas.protocol.batch_builder import build_batch
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from tests.support.logs import append_batches
from tests.support.slow_disk import SlowDisk
from tests.support.waiting import DEADLINE_S, wait_for


class Replicas:
    def __init__(self) -> None:
        self.isr_checks = 0
        self.retained = 0

    def shrink_isrs(self) -> None:
        self.isr_checks += 1

    def checkpoint_high_watermarks(self) -> None:
        return

    def retain(self) -> None:
        self.retained += 1


@pytest.fixture
def disk() -> Iterator[SlowDisk]:
    disk = SlowDisk()
    yield disk
    disk.released.set()


@pytest.fixture
def logs(tmp_path: Path, disk: SlowDisk) -> Iterator[LogManager]:
    logs = LogManager.open(
        [tmp_path],
        broker_id=BrokerId(1),
        cluster_id="cluster",
        config_of=lambda topic: LogConfig(flush_ms=0, file_delete_delay_ms=0),
        now_ms=0,
        files=disk,
    )
    yield logs
    disk.released.set()
    logs.close(0)


@pytest.mark.parametrize("work", ["flush", "recovery points", "removal"])
def test_a_slow_disk_does_not_hold_up_the_isr_check(
    tmp_path: Path, logs: LogManager, disk: SlowDisk, work: str
) -> None:
    key = TopicPartition("topic", 0)
    log = logs.get_or_create(key, TopicId(uuid.UUID(int=7)), 0)
    append_batches(log, build_batch([(None, b"v")]))
    if work == "recovery points":
        log.roll(0)
    elif work == "removal":
        logs.delete(key, 0)
    disk.is_slow = True
    replicas = Replicas()
    faults: list[BaseException] = []
    background = BackgroundWork(
        config_from(
            {
                "broker.id": "1",
                "zookeeper.connect": "localhost:2181",
                "log.dirs": str(tmp_path),
                "background.threads": "1",
                "replica.lag.time.max.ms": "2",
                "replica.fetch.wait.max.ms": "1",
                "log.flush.scheduler.interval.ms": "1" if work == "flush" else "3600000",
                "log.flush.offset.checkpoint.interval.ms": "1" if work == "recovery points" else "3600000",
            }
        ),
        logs,
        replicas,
        expire_offsets=lambda: None,
        producer_id_expiration_ms=lambda: 1 << 40,
        on_fatal=faults.append,
    )
    background.start()
    try:
        assert disk.began.wait(DEADLINE_S)
        seen = replicas.isr_checks
        wait_for(lambda: replicas.isr_checks >= seen + 3, "the ISR check beside a slow disk")
        assert not disk.released.is_set()
    finally:
        disk.released.set()
        background.stop()
    assert faults == []
