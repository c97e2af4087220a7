"""The periodic tasks of a broker, and their threads.

The ISR check has a thread of its own: a leader that notices a hung follower late delays every acks=all write,
so no task that waits for a disk may run before it. The tasks that flush, remove or write files share
`background.threads` threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from barnabas.broker.clocks import wall_clock_ms
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.scheduler import Scheduler

_REMOVE_DELETED_INTERVAL_MS: Final = 1_000
_LONGEST_INTERVAL_MS: Final = 24 * 3_600_000
"""A task with a longer interval, such as Kafka's default for flushes, never runs."""


class ReplicaWork(Protocol):
    """The replicas' periodic work; `ReplicaManager` implements it."""

    def shrink_isrs(self) -> None: ...

    def checkpoint_high_watermarks(self) -> None: ...

    def retain(self) -> None: ...


class BackgroundWork:
    """The tasks of a broker; `start` and `stop` once each."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        replicas: ReplicaWork,
        *,
        expire_offsets: Callable[[], object],
        producer_id_expiration_ms: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        tasks: list[tuple[float, str, Callable[[], object]]] = [
            (
                config.replica_high_watermark_checkpoint_interval_ms,
                "high watermark checkpoint",
                replicas.checkpoint_high_watermarks,
            ),
            (config.log_retention_check_interval_ms, "retention", replicas.retain),
            (
                config.log_flush_scheduler_interval_ms,
                "flush",
                lambda: logs.flush_pass(wall_clock_ms()),
            ),
            (
                config.log_flush_offset_checkpoint_interval_ms,
                "recovery point checkpoint",
                lambda: logs.checkpoint_pass(wall_clock_ms()),
            ),
            (
                config.log_flush_start_offset_checkpoint_interval_ms,
                "log start checkpoint",
                logs.checkpoint_log_starts,
            ),
            (
                config.producer_id_expiration_check_interval_ms,
                "expiration of producers",
                lambda: logs.expire_producers_pass(wall_clock_ms(), producer_id_expiration_ms()),
            ),
            (
                config.offsets_retention_check_interval_ms,
                "expiration of committed offsets",
                expire_offsets,
            ),
            (
                _REMOVE_DELETED_INTERVAL_MS,
                "removal of deleted logs",
                lambda: logs.remove_deleted(wall_clock_ms()),
            ),
        ]
        due = [task for task in tasks if task[0] <= _LONGEST_INTERVAL_MS]
        self._isr_check = Scheduler(on_fatal=on_fatal, name="isr-check")
        self._isr_check.every(config.replica_lag_time_max_ms / 2, "ISR check", replicas.shrink_isrs)
        self._scheduler = Scheduler(on_fatal=on_fatal, threads=min(config.background_threads, len(due)))
        for interval_ms, name, work in due:
            self._scheduler.every(interval_ms, name, work)

    def start(self) -> None:
        self._isr_check.start()
        self._scheduler.start()

    def stop(self) -> None:
        """End the threads after their current tasks."""
        self._isr_check.stop()
        self._scheduler.stop()
