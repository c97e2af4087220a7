"""Takes the log dir of a failed or full disk offline, once, and notifies the controller.

The thread that meets a failure reports it by `note` and continues. It may be an IO worker, the fetchers'
thread or the scheduler, and may hold locks. A thread of this object does the rest, in this order, because
each step may wait for the disk or for ZooKeeper:

1. the log manager takes the dir offline (it may have done so itself, in a pass);
2. the partitions of that dir lose their roles and leave the table, and requests that wait for them get
   KAFKA_STORAGE_ERROR;
3. a notification in ZooKeeper makes the controller ask this broker about all its replicas. The answers name
   the lost ones, and the controller elects other leaders. It is retried until ZooKeeper has the notification.

A replica that could not take its role for lack of descriptors or memory (`StorageCallFailed`) is not a disk
failure, but the controller counts it as offline too. After a while this broker requests the role again.

The process stays alive, also without any disk: it continues to answer, and a restart after the repair of the
disk brings the replicas back. The work here is bounded by the number of partitions and files.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.broker.replication.isr_changes import IsrStore
from barnabas.broker.replication.work_thread import WorkThread
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable

logger = logging.getLogger(__name__)


class DiskFailures:
    """See the module. ``drop_lost`` takes the roles away; it is called on this thread, without locks."""

    def __init__(
        self,
        broker_id: BrokerId,
        logs: LogManager,
        store: IsrStore,
        *,
        drop_lost: Callable[[Sequence[TopicPartition]], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._store = store
        self._drop_lost = drop_lost
        self._condition = threading.Condition()
        self._noted: dict[Path, LogDirFailure] = {}
        self._lost: list[TopicPartition] = []
        self._must_notify = False
        self._roles_were_refused = False
        self._thread = WorkThread(
            "disk-failures",
            self._condition,
            has_work=lambda: bool(self._noted or self._lost or self._must_notify),
            work_off=self.work_off,
            on_fatal=on_fatal,
        )
        logs.on_dir_failed = self._dir_failed

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._thread.stop(timeout_s)

    def note(self, error: ApiError) -> None:
        """Take up the failure of a disk; any other error is none of ours. Never blocks for long."""
        if isinstance(error, LogDirFailure):
            with self._condition:
                self._noted.setdefault(error.path, error)
                self._condition.notify()

    def note_refused_role(self) -> None:
        """A replica could not take its role although the disk is sound."""
        self._roles_were_refused = True

    def retry_refused_roles(self) -> None:
        """Make the controller send the refused roles again; called every few seconds."""
        if self._roles_were_refused:
            with self._condition:
                self._roles_were_refused = False
                self._must_notify = True
                self._condition.notify()

    def _dir_failed(self, lost: Sequence[TopicPartition]) -> None:
        """The log manager has taken a dir offline."""
        with self._condition:
            self._lost += lost
            self._must_notify = True
            self._condition.notify()

    def work_off(self) -> bool:
        """Do once everything that is due; False when the controller could not be told yet.

        The thread runs this; tests call it without the thread.
        """
        with self._condition:
            noted, self._noted = self._noted, {}
        for failure in noted.values():
            self._logs.fail_dir(failure)
        with self._condition:
            lost, self._lost = self._lost, []
            must_notify, self._must_notify = self._must_notify, False
        if lost:
            self._drop_lost(lost)
        if must_notify and not self._logs.has_online_dir:
            logger.critical("no log dir is left; this broker hosts no partitions until it is restarted")
        return not must_notify or self._notify()

    def _notify(self) -> bool:
        try:
            self._store.notify_log_dir_failure(self._broker_id)
            return True
        except (ZooKeeperUnavailable, SessionLost) as error:
            logger.warning("could not notify the controller of a failed log dir; will retry: %s", error)
        except InvariantViolation:
            raise
        except Exception:
            logger.critical("could not notify the controller of a failed log dir; will retry", exc_info=True)
        with self._condition:
            self._must_notify = True
        return False
