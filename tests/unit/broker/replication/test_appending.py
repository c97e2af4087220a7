"""An append holds no lock while it is forced to disk."""

from __future__ import annotations

import threading
from pathlib import Path

from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_config import LogConfig
from barnabas.protocol.batch_builder import build_batch
from tests.support.building import ME, TP, TWO, partition_of, state
from tests.support.slow_disk import SlowDisk
from tests.support.waiting import DEADLINE_S


def test_the_isr_check_goes_on_while_an_append_is_forced_to_a_slow_disk(tmp_path: Path) -> None:
    disk = SlowDisk()
    log = Log.open(TP, tmp_path / str(TP), LogConfig(flush_messages=1), now_ms=0, files=disk)
    partition = partition_of(log)
    partition.make_leader(state(isr=(ME, TWO), replicas=(ME, TWO)), 0.0)
    disk.is_slow = True
    records = parse_produced(build_batch([(None, b"v")]))

    def append() -> None:
        partition.append_as_leader(records, require_all=False, now_ms=0.0, wall_clock_ms=0)

    appending = threading.Thread(target=append, daemon=True)
    shrunk = threading.Event()

    def check() -> None:
        if partition.propose_shrink(1e6) is not None:
            shrunk.set()

    appending.start()
    try:
        assert disk.began.wait(DEADLINE_S)
        threading.Thread(target=check, daemon=True).start()
        assert shrunk.wait(DEADLINE_S), "the partition is locked while its log is flushed"
        assert log.recovery_point == 0
    finally:
        disk.released.set()
        appending.join(DEADLINE_S)
    assert log.recovery_point == 1
    log.abandon()
