"""Notifications of changes: sequential nodes in a folder, each of which names a changed entity.

A broker that changes shared state also creates a notification. `NotificationWatcher` watches the folders on
a thread of its own, and reads the entities in new notifications. After a lost session it reads everything,
because notifications may have come and gone meanwhile. Any broker removes notifications that are older than a
quarter of an hour. While ZooKeeper is unreachable the read is retried, so no change is lost.

Source: `ZkNodeChangeNotificationListener` of Apache Kafka 3.9.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from kazoo.exceptions import NoNodeError, NotEmptyError

from barnabas.common.workers import Task
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.requests import Watch, delete, list_children, read
from barnabas.zookeeper.session import SessionEvent, ZooKeeperSession

log = logging.getLogger("barnabas.zookeeper")

NOTICE_LIFETIME_MS: Final = 15 * 60_000
_RETRY_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_STOP_S: Final = 2.0


class Notice(NamedTuple):
    """A notification and when it was made, in ms of ZooKeeper's clock."""

    data: bytes
    created_ms: int


def list_notices(session: ZooKeeperSession, folder: str, watch: Watch | None = None) -> list[str]:
    """The paths of the notifications, in their order."""
    return [f"{folder}/{name}" for name in sorted(list_children(session, folder, watch))]


def read_notices(session: ZooKeeperSession, paths: Sequence[str]) -> dict[str, Notice]:
    """By path; notifications that are gone already are omitted."""
    return {path: Notice(data or b"", stat.ctime) for path, (data, stat) in read(session, paths).items()}


def delete_notices(session: ZooKeeperSession, paths: Iterable[str]) -> None:
    """Remove old ones; another broker may do the same at the same time."""
    for outcome in session.run_all([delete(path) for path in paths]):
        if isinstance(outcome.error, NotEmptyError):
            # Brokers do not create children there, and the node does no harm.
            log.error("an old notification has children and is not deleted: %s", outcome.error)
        elif outcome.error is not None and not isinstance(outcome.error, NoNodeError):
            raise outcome.error


class NotificationWatcher(ABC):
    """`load` is called once before `start`; then the thread calls it and `read_changes`, never at once."""

    subject: ClassVar[str]
    """The subject of the notifications, for logs."""

    def __init__(
        self,
        session: ZooKeeperSession,
        folders: Sequence[str],
        *,
        name: str,
        now_ms: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._session = session
        self._folders = folders
        self._now_ms = now_ms
        # When each known notification was made, in ms.
        self._seen: dict[str, int] = {}
        self._must_reload = False
        self._pause_s = 0.0
        self._task = Task(name, self._catch_up, on_fatal=on_fatal)
        # Here, so that the loss of a session between `load` and `start` is noticed.
        session.add_listener(self._session_changed)

    @abstractmethod
    def _read_all(self) -> None:
        """Read and apply everything."""

    @abstractmethod
    def _read_changed(self, notices: Mapping[str, Notice]) -> None:
        """Read and apply the entities that these notifications name."""

    def load(self) -> None:
        """Read everything and begin to watch. Raises ZooKeeperUnavailable or SessionLost."""
        # Listed first, so that a change during the read counts as a change.
        self._remember(self._read_notices())
        self._read_all()

    def start(self) -> None:
        self._task.start()

    def stop(self) -> None:
        """End the task; it is abandoned if ZooKeeper does not answer. Idempotent."""
        self._session.remove_listener(self._session_changed)
        self._task.stop(_STOP_S)

    def read_changes(self) -> None:
        """Apply the entities that new notifications name; remove old notifications."""
        notices = self._read_notices()
        if notices:
            self._read_changed(notices)
        self._remember(notices)
        too_old = self._now_ms() - NOTICE_LIFETIME_MS
        delete_notices(
            self._session, [path for path, created_ms in self._seen.items() if created_ms < too_old]
        )

    def _read_notices(self) -> dict[str, Notice]:
        """The new notifications; forgets the paths of removed notifications, and sets the watches again."""
        paths = [
            path
            for folder in self._folders
            for path in list_notices(self._session, folder, lambda _: self._task.wake())
        ]
        self._seen = {path: self._seen[path] for path in paths if path in self._seen}
        return read_notices(self._session, [path for path in paths if path not in self._seen])

    def _remember(self, notices: Mapping[str, Notice]) -> None:
        self._seen |= {path: notice.created_ms for path, notice in notices.items()}

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.RENEWED:
            self._must_reload = True
        if event in (SessionEvent.RENEWED, SessionEvent.RESUMED):
            self._task.wake()

    def _catch_up(self) -> float | None:
        """Returns after how many seconds to try again."""
        reload, self._must_reload = self._must_reload, False
        try:
            if reload:
                self.load()
            else:
                self.read_changes()
        except (ZooKeeperUnavailable, SessionLost) as error:
            log.warning("%s cannot be read now: %s", self.subject, error)
            self._must_reload = self._must_reload or reload
            return _RETRY_S
        except Exception:
            # Data that others have written must not end the broker.
            self._pause_s = min(max(self._pause_s * 2, _RETRY_S), _LONGEST_PAUSE_S)
            log.critical(
                "changed %s were not applied; retry in %.0f s", self.subject, self._pause_s, exc_info=True
            )
            self._must_reload = True
            return self._pause_s
        self._pause_s = 0.0
        return None
