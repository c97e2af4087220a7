"""`ConfigChanges`: watches for changed settings and reads them again, on every broker.

A thread of its own watches ``/config/changes``. Each notification names a topic or broker whose settings have
changed; the present settings are read and passed to ``apply``. After a lost session everything is read again,
since notifications may have come and gone meanwhile. Any broker removes notifications that are older than a
quarter of an hour, as in Apache Kafka.

``apply`` is called on the thread that calls `load` (once, before `start`) and then on this one, never on two
at a time. While ZooKeeper is unreachable the read is retried, so changes are not lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from barnabas.zookeeper.config_store import ChangeNotice, ConfigStore, Entity, EntityKind
from barnabas.zookeeper.session import SessionEvent, SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.znodes import StoredConfig

log = logging.getLogger("barnabas.controller")

NOTICE_LIFETIME_MS: Final = 15 * 60_000
_RETRY_S: Final = 1.0
_LONGEST_REST_S: Final = 30.0
_STOP_S: Final = 2.0

Apply = Callable[[Mapping[Entity, StoredConfig]], None]


class ConfigChanges:
    """See the module."""

    def __init__(
        self,
        store: ConfigStore,
        *,
        apply: Apply,
        now_ms: Callable[[], int],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._apply = apply
        self._now_ms = now_ms
        self._on_fatal = on_fatal
        # When each known notification was made, in ms.
        self._seen: dict[str, int] = {}
        self._condition = threading.Condition()
        self._must_look = False
        self._must_reload = False
        self._stopping = False
        self._rest_s = 0.0
        self._thread = threading.Thread(target=self._run, name="config-changes", daemon=True)
        # From now on, so that a session that is lost between `load` and `start` is noticed.
        store.session.add_listener(self._session_changed)

    def load(self) -> None:
        """Read all settings and begin to watch. Raises ZooKeeperUnavailable or SessionLost."""
        # Listed first: a change that is made while the settings are read is seen as one.
        self._note(self._read_notices())
        for kind in EntityKind:
            self._apply(self._store.read_all(kind))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after what it does now, or leave it while ZooKeeper does not answer. Idempotent."""
        self._store.session.remove_listener(self._session_changed)
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_S)

    def look(self) -> None:
        """Read the notifications that are new, and what they name; remove the old ones."""
        fresh = self._read_notices()
        changed = {notice.entity for notice in fresh.values() if notice.entity is not None}
        if changed:
            log.info("settings changed: %s", ", ".join(sorted(entity.path for entity in changed)))
            self._apply(self._store.read(changed))
        self._note(fresh)
        too_old = self._now_ms() - NOTICE_LIFETIME_MS
        self._store.delete_notices([name for name, created_ms in self._seen.items() if created_ms < too_old])

    def _read_notices(self) -> dict[str, ChangeNotice]:
        """The new notifications; forgets those that are gone. Sets the watch again."""
        names = self._store.notices(lambda _: self._wake())
        self._seen = {name: self._seen[name] for name in names if name in self._seen}
        return self._store.read_notices([name for name in names if name not in self._seen])

    def _note(self, notices: Mapping[str, ChangeNotice]) -> None:
        self._seen |= {name: notice.created_ms for name, notice in notices.items()}

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.RENEWED:
            self._wake(reload=True)
        elif event is SessionEvent.RESUMED:
            self._wake()

    def _wake(self, *, reload: bool = False) -> None:
        with self._condition:
            self._must_look = True
            self._must_reload = self._must_reload or reload
            self._condition.notify()

    def _run(self) -> None:
        try:
            while self._wait():
                self._catch_up()
        except Exception as error:
            log.critical("the thread that hears of changed settings ends: %r", error, exc_info=True)
            self._on_fatal(error)

    def _wait(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._stopping or self._must_look)
            return not self._stopping

    def _catch_up(self) -> None:
        with self._condition:
            reload, self._must_look, self._must_reload = self._must_reload, False, False
        try:
            if reload:
                self.load()
            else:
                self.look()
        except (ZooKeeperUnavailable, SessionLost) as error:
            log.warning("settings cannot be read now: %s", error)
            with self._condition:
                self._condition.wait_for(lambda: self._stopping or self._must_look, _RETRY_S)
            self._wake(reload=reload)
        except Exception:
            # An error in settings must not end the broker.
            self._rest_s = min(max(self._rest_s * 2, _RETRY_S), _LONGEST_REST_S)
            log.critical("changed settings were not applied; retry in %.0f s", self._rest_s, exc_info=True)
            with self._condition:
                self._condition.wait_for(lambda: self._stopping, self._rest_s)
            self._wake(reload=True)
        else:
            self._rest_s = 0.0
