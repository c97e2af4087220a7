"""What happens when a disk fails or is full: its log dir goes offline, once, and the controller hears of it.

Whoever meets a failure hands it in by `note` and goes on: it may be an IO worker, the fetchers' thread or the
scheduler, and may hold locks. One thread of its own does the rest, in this order, because each step may wait
for the disk or for ZooKeeper:

1. the log manager takes the dir offline (it may have done so itself, in a pass);
2. the partitions lost with it lose their roles and leave the table, and all that waits on them is answered
   with KAFKA_STORAGE_ERROR;
3. the controller is told, by a notification in ZooKeeper, and asks this broker about all its replicas: the
   answers say which are lost, and others come to lead. Tried again until ZooKeeper has it.

A replica that could not take its role for lack of descriptors or memory (`StorageCallFailed`) is no disk
failure, but the controller counts it as offline too. After a while this broker asks for the role again.

The process stays alive, also without any disk: it goes on answering, and a restart after the disk was mended
brings the replicas back. What waits here is bounded by the number of partitions and files.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.broker.replication.isr_changes import IsrStore, IsrStoreUnavailable
from barnabas.broker.replication.work_thread import WorkThread
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.invariants import InvariantViolation

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
            logger.critical("no log dir is left: this broker holds no partition until it is restarted")
        return not must_notify or self._notify()

    def _notify(self) -> bool:
        try:
            self._store.notify_log_dir_failure(self._broker_id)
            return True
        except IsrStoreUnavailable as error:
            logger.warning("the controller could not be told of a failed log dir yet: %s", error)
        except InvariantViolation:
            raise
        except Exception:
            logger.critical("the controller could not be told of a failed log dir yet", exc_info=True)
        with self._condition:
            self._must_notify = True
        return False
