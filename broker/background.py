"""The periodic tasks of a broker, and their threads.

The ISR check has a thread of its own: if a leader notices a hung follower late, every acks=all write is
delayed, so no task that waits for a disk may run before it. The tasks that flush, remove or write files share
`background.threads` threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.common.workers import Workers, WorkRefused
from barnabas.protocol.invariants import InvariantViolation

logger = logging.getLogger(__name__)

_REMOVAL_INTERVAL_MS: Final = 1_000
_CERTIFICATES_INTERVAL_MS: Final = 1_000
_LONGEST_INTERVAL_MS: Final = 24 * 3_600_000
"""A task with a longer interval never runs."""
_FLUSH_CHECK_MS: Final = 1_000
_LEAST_FLUSH_CHECK_MS: Final = 10
"""How often flush.ms is checked, at the least and at the most; a check costs about a microsecond a log."""


class Scheduler(Workers):
    """Runs named tasks periodically, on a bounded number of threads.

    A task that raises is logged and runs again at its next turn; only a broken invariant ends the broker. A
    task never runs twice at the same time. A slow task delays the others only if all threads are busy.
    """

    def every(self, interval_ms: float | Callable[[], float], name: str, work: Callable[[], object]) -> None:
        """Run the work each ``interval_ms``, first after one interval; a function gives the next interval."""
        next_ms = interval_ms if callable(interval_ms) else lambda: interval_ms

        def turn() -> None:
            try:
                work()
            except InvariantViolation:
                raise
            except Exception:
                logger.exception("%s failed; it runs again in %.1f s", name, next_ms() / 1000)
            with suppress(WorkRefused):
                self.submit(turn, after_s=next_ms() / 1000)

        self.submit(turn, after_s=next_ms() / 1000)


class BackgroundWork:
    """The tasks of a broker; `start` and `stop` once each."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        replicas: ReplicaManager,
        *,
        expire_offsets: Callable[[], object],
        expire_transactional_ids: Callable[[], object],
        producer_id_expiration_ms: Callable[[], int],
        reload_certificates: Callable[[], object],
        are_loops_turning: Callable[[], bool],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """``are_loops_turning`` tells whether the network threads have read their sockets."""
        self._replicas, self._are_loops_turning = replicas, are_loops_turning

        def flush_interval_ms() -> float:
            # Kafka checks flush.ms only each log.flush.scheduler.interval.ms, by default never.
            least_ms = max(_LEAST_FLUSH_CHECK_MS, min(logs.least_flush_ms(), _FLUSH_CHECK_MS))
            return min(config.log_flush_scheduler_interval_ms, least_ms)

        tasks: list[tuple[float, str, Callable[[], object]]] = [
            (
                config.replica_high_watermark_checkpoint_interval_ms,
                "high watermark checkpoint",
                replicas.checkpoint_high_watermarks,
            ),
            (config.log_retention_check_interval_ms, "retention", lambda: replicas.retain(wall_clock_ms())),
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
            (config.offsets_retention_check_interval_ms, "expiration of committed offsets", expire_offsets),
            (
                config.transaction_remove_expired_transaction_cleanup_interval_ms,
                "expiration of transactional ids",
                expire_transactional_ids,
            ),
            (_CERTIFICATES_INTERVAL_MS, "reload of certificates", reload_certificates),
            (_REMOVAL_INTERVAL_MS, "removal of deleted logs", lambda: logs.remove_deleted(wall_clock_ms())),
        ]
        due = [task for task in tasks if task[0] <= _LONGEST_INTERVAL_MS]
        self._isr_check = Scheduler("isr-check", on_fatal=on_fatal)
        self._isr_check.every(config.replica_lag_time_max_ms / 2, "ISR check", self._check_isrs)
        self._scheduler = Scheduler(
            "scheduler", on_fatal=on_fatal, threads=min(config.background_threads, len(due) + 1)
        )
        self._scheduler.every(flush_interval_ms, "flush", lambda: logs.flush_pass(wall_clock_ms()))
        for interval_ms, name, work in due:
            self._scheduler.every(interval_ms, name, work)

    def _check_isrs(self) -> None:
        may_shrink = self._are_loops_turning()
        if not may_shrink:
            logger.warning("no ISR shrinks now: the network threads are stuck, fetches may lie unread")
        self._replicas.shrink_isrs(may_shrink=may_shrink)

    def start(self) -> None:
        self._isr_check.start()
        self._scheduler.start()

    def stop(self) -> None:
        """End the threads after their current tasks."""
        self._isr_check.stop()
        self._scheduler.stop()
