"""The handling of failed disks, and of single replicas that an unforeseen error stopped.

`DiskFailures` takes the log dir of a failed or full disk offline, once, and notifies the controller. The
thread that meets a failure reports it by `note` and continues. It may be an IO worker, the fetchers' thread
or the scheduler, and may hold locks. A thread of `DiskFailures` does the rest, in this order, because each
step may wait for the disk or for ZooKeeper:

1. the log manager takes the dir offline (it may have done so itself, in a pass);
2. the partitions of that dir lose their roles and leave the table, and requests that wait for them get
   KAFKA_STORAGE_ERROR;
3. a notification in ZooKeeper makes the controller ask this broker about all its replicas. The answers name
   the lost ones, and the controller elects other leaders. It is retried until ZooKeeper has the notification.

A replica that could not take its role for lack of descriptors or memory (`StorageCallFailed`) is not a disk
failure, but the controller counts it as offline too. After a while this broker requests the role again.

The broker keeps running, also without any disk, and answers requests. A restart after the repair of the disk
brings the replicas back. The work here is bounded by the number of partitions and files.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from barnabas.broker.base.contained import contained
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.broker.replication.isr_changes import RETRY_S, IsrStore
from barnabas.common.backoff import Pause
from barnabas.common.workers import Task
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable

logger = logging.getLogger(__name__)

FIRST_PAUSE_MS: Final = 10_000.0
LONGEST_PAUSE_MS: Final = 600_000.0
_LONGEST_REASON: Final = 500


class DiskFailures:
    def __init__(
        self,
        broker_id: BrokerId,
        logs: LogManager,
        store: IsrStore,
        *,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._store = store
        self._lock = threading.Lock()
        self._noted: dict[Path, LogDirFailure] = {}
        self._lost: list[TopicPartition] = []
        self._must_notify = False
        self._roles_were_refused = False
        self._task = Task("disk-failures", lambda: None if self.work_off() else RETRY_S, on_fatal=on_fatal)
        self.drop_lost: Callable[[Sequence[TopicPartition]], None] = lambda lost: None
        """Takes the roles of replicas away; called on this thread, without locks."""
        logs.on_dir_failed = self._dir_failed

    def start(self) -> None:
        self._task.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._task.stop(timeout_s)

    def note(self, error: ApiError) -> None:
        """Handle the failure of a disk; other errors are ignored. Never blocks for long."""
        if isinstance(error, LogDirFailure):
            with self._lock:
                self._noted.setdefault(error.path, error)
            self._task.wake()

    def note_refused_role(self) -> None:
        """A replica could not take its role, for lack of descriptors or memory."""
        self._roles_were_refused = True

    def retry_refused_roles(self) -> None:
        """Make the controller send the refused roles again; called every few seconds."""
        if self._roles_were_refused:
            with self._lock:
                self._roles_were_refused = False
                self._must_notify = True
            self._task.wake()

    def _dir_failed(self, lost: Sequence[TopicPartition]) -> None:
        """The log manager has taken a dir offline."""
        with self._lock:
            self._lost += lost
            self._must_notify = True
        self._task.wake()

    def work_off(self) -> bool:
        """Do all that is due; False if the controller must still be notified.

        The task runs this; tests call it themselves.
        """
        with self._lock:
            noted, self._noted = self._noted, {}
        for failure in noted.values():
            self._logs.fail_dir(failure)
        with self._lock:
            lost, self._lost = self._lost, []
            must_notify, self._must_notify = self._must_notify, False
        if lost:
            self.drop_lost(lost)
        if must_notify and not self._logs.has_online_dir:
            logger.critical("no log dir is left; this broker hosts no partitions until it is restarted")
        if not must_notify or contained(
            "could not notify the controller of a failed log dir; will retry",
            self._store.notify_log_dir_failure,
            self._broker_id,
            expected=(ZooKeeperUnavailable, SessionLost),
        ):
            return True
        with self._lock:
            self._must_notify = True
        return False


class FailedReplicas:
    """The replicas that an unforeseen error has put out of service, with the reason.

    A failed replica has no role until the controller assigns one again; then it is retried. This broker
    requests the role after a pause, longer each time, because the cause may be gone, such as a leader's bug
    or a bad batch. The broker and all other partitions continue. The controller receives KAFKA_STORAGE_ERROR
    and elects another leader. A coordinator also records partitions that it could not load; they are not
    retried. Any thread. Bounded by the number of partitions of this broker.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._reasons: dict[TopicPartition, str] = {}
        self._pauses: dict[TopicPartition, Pause] = {}
        """Kept for replicas that work again, because one that soon fails again pauses for longer."""

    def note(self, tp: TopicPartition, error: BaseException, what: str, *, is_retried: bool) -> None:
        """Record that the operation ``what`` failed on this replica by an unforeseen error."""
        self._reasons[tp] = f"{what}: {error!r}"[:_LONGEST_REASON]
        pause = ""
        if is_retried:
            before = self._pauses.get(tp, Pause())
            next_ = self._pauses[tp] = before.after(self._now_ms(), FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
            pause = f" or for {next_.length / 1000:.0f} s"
        logger.critical(
            "%s is failed until its role changes%s: %s: %r", tp, pause, what, error, exc_info=error
        )

    def take_due(self) -> bool:
        """Whether to request the roles of failed replicas now; a True starts the next pause."""
        now_ms, is_due = self._now_ms(), False
        for tp, pause in list(self._pauses.items()):
            if now_ms < pause.until:
                continue
            if tp in self._reasons:
                is_due = True
                self._pauses[tp] = pause._replace(until=now_ms + pause.length)
            elif now_ms >= pause.until + LONGEST_PAUSE_MS:
                self._pauses.pop(tp, None)
        return is_due

    def clear(self, tp: TopicPartition) -> None:
        """The replica has a role again, or is gone."""
        if self._reasons.pop(tp, None) is not None:
            logger.warning("%s is no longer failed", tp)

    def reasons(self) -> dict[TopicPartition, str]:
        return self._reasons.copy()
