"""The settings of topics and brokers in ZooKeeper, and the notifications of their changes.

`ConfigStore` reads and writes them. Any broker may write, by compare-and-set and together with a notification
under ``/config/changes`` in one transaction, so there is no change without a notification. Apache Kafka in
ZooKeeper mode has the same layout and formats: ``/config/topics/<topic>``, ``/config/brokers/<id>`` and
``/config/brokers/<default>``. The calls block, may come from any thread but the client library's, and raise
`ZooKeeperUnavailable` or `SessionLost` unless they say otherwise.

`ConfigChanges` watches ``/config/changes`` on a thread of its own. Each notification names a topic or broker;
its present settings are read and passed to ``apply``. After a lost session everything is read again, because
notifications may have come and gone meanwhile. Any broker removes notifications that are older than a quarter
of an hour, as in Apache Kafka. While ZooKeeper is unreachable the read is retried, so no change is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from barnabas.common.workers import Task
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable, as_api_errors
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.requests import (
    Transaction,
    Watch,
    delete,
    first_error,
    list_children,
    read,
    recreate,
    retry_cas,
)
from barnabas.zookeeper.session import SessionEvent, ZooKeeperSession
from barnabas.zookeeper.znodes import StoredConfig

log = logging.getLogger("barnabas.zookeeper")

NOTICE_LIFETIME_MS: Final = 15 * 60_000
_WHILE_UNREADABLE: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
_RETRY_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_STOP_S: Final = 2.0

Apply = Callable[[Mapping["Entity", StoredConfig]], None]


class EntityKind(Enum):
    """The kinds of entities with settings; the value is the folder under ``/config``."""

    TOPIC = "topics"
    BROKER = "brokers"


class Entity(NamedTuple):
    """One topic, one broker, or `ALL_BROKERS`."""

    kind: EntityKind
    name: str

    @property
    def path(self) -> str:
        return f"{paths.CONFIG}/{self.kind.value}/{self.name}"

    @classmethod
    def topic(cls, name: str) -> Entity:
        return cls(EntityKind.TOPIC, name)

    @classmethod
    def broker(cls, broker: BrokerId) -> Entity:
        return cls(EntityKind.BROKER, str(broker))


ALL_BROKERS: Final = Entity(EntityKind.BROKER, "<default>")
"""The defaults of all brokers."""


class ChangeNotice(NamedTuple):
    """A notification: the changed entity (None if unreadable), and the time in ms of ZooKeeper's clock."""

    entity: Entity | None
    created_ms: int


class ConfigStore:
    def __init__(self, session: ZooKeeperSession) -> None:
        self.session = session

    def read(self, entities: Iterable[Entity]) -> dict[Entity, StoredConfig]:
        """The present settings; empty for an entity without a node.

        An unreadable node must not cause the deletion of records. So its settings have no retention limits,
        and a zxid lower than any other, which makes a caller that knows the former settings keep those.
        """
        by_path = {entity.path: entity for entity in entities}
        nodes = read(self.session, list(by_path))
        return {
            entity: _decode(entity, *nodes[path]) if path in nodes else StoredConfig()
            for path, entity in by_path.items()
        }

    def values(self, entities: Iterable[Entity]) -> dict[Entity, Mapping[str, str]]:
        """The present settings as texts. Raises REQUEST_TIMED_OUT."""
        with as_api_errors():
            return {entity: config.values for entity, config in self.read(entities).items()}

    def change(self, entity: Entity, edit: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Write what ``edit`` makes of the present settings; it is called again if others write meanwhile.

        Raises REQUEST_TIMED_OUT, UNKNOWN_TOPIC_OR_PARTITION, and what ``edit`` raises.
        """

        def attempt() -> bool | None:
            former = self.read([entity])[entity]
            return self.replace(entity, edit(former.values), former) or None

        with as_api_errors():
            retry_cas(attempt, f"the settings of {entity.name!r} are changed by others again and again")

    def read_all(self, kind: EntityKind) -> dict[Entity, StoredConfig]:
        """Every entity of a kind that has a node."""
        names = list_children(self.session, f"{paths.CONFIG}/{kind.value}")
        return self.read(Entity(kind, name) for name in names)

    def replace(self, entity: Entity, values: Mapping[str, str], former: StoredConfig) -> bool:
        """Write all settings of an entity and the notification; False if they are not ``former`` any more.

        Raises UNKNOWN_TOPIC_OR_PARTITION for a topic that does not exist.
        """
        data, notice = znodes.encode_config(values), znodes.encode_config_change(_entity_path(entity))
        transaction = Transaction()
        if entity.kind is EntityKind.TOPIC:
            # The settings of a topic that was just deleted would remain.
            transaction.check(paths.topic(entity.name))
        if former.exists:
            transaction.set(entity.path, data, former.version)
        else:
            transaction.create(entity.path, data)
        transaction.create(paths.CONFIG_CHANGE_PREFIX, notice, sequence=True)
        outcome = self.session.attempt(transaction)
        results = outcome.get()
        error = first_error(results)
        if error is None:
            return True
        if entity.kind is EntityKind.TOPIC and isinstance(results[0], NoNodeError):
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {entity.name!r} does not exist")
        if not isinstance(error, BadVersionError | NodeExistsError | NoNodeError):
            raise error
        if outcome.retried:
            # It may be our own write: its answer was lost.
            present = self.read([entity])[entity]
            if present.version == former.version + 1 and dict(present.values) == dict(values):
                return True
        if isinstance(error, NoNodeError):
            recreate(self.session, [f"{paths.CONFIG}/{entity.kind.value}", paths.CONFIG_CHANGES])
        return False

    def notices(self, watch: Watch | None = None) -> list[str]:
        return sorted(list_children(self.session, paths.CONFIG_CHANGES, watch))

    def read_notices(self, names: Sequence[str]) -> dict[str, ChangeNotice]:
        """By name; notifications that are gone already are omitted."""
        by_path = {f"{paths.CONFIG_CHANGES}/{name}": name for name in names}
        return {
            by_path[path]: ChangeNotice(_changed_entity(path, data), stat.ctime)
            for path, (data, stat) in read(self.session, list(by_path)).items()
        }

    def delete_notices(self, names: Iterable[str]) -> None:
        """Remove old ones; another broker may do the same at the same time."""
        for outcome in self.session.run_all([delete(f"{paths.CONFIG_CHANGES}/{name}") for name in names]):
            if isinstance(outcome.error, NotEmptyError):
                # Brokers do not create children there, and the node does no harm.
                log.error("an old notification has children and is not deleted: %s", outcome.error)
            elif outcome.error is not None and not isinstance(outcome.error, NoNodeError):
                raise outcome.error


class ConfigChanges:
    """``apply`` is called by `load` (once, before `start`), then on this thread; never on two at a time."""

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
        # When each known notification was made, in ms.
        self._seen: dict[str, int] = {}
        self._must_reload = False
        self._pause_s = 0.0
        self._task = Task("config-changes", self._catch_up, on_fatal=on_fatal)
        # Here, so that the loss of a session between `load` and `start` is noticed.
        store.session.add_listener(self._session_changed)

    def load(self) -> None:
        """Read all settings and begin to watch. Raises ZooKeeperUnavailable or SessionLost."""
        # Listed first, so that a change during the read counts as a change.
        self._remember(self._read_notices())
        for kind in EntityKind:
            self._apply(self._store.read_all(kind))

    def start(self) -> None:
        self._task.start()

    def stop(self) -> None:
        """End the task; it is abandoned if ZooKeeper does not answer. Idempotent."""
        self._store.session.remove_listener(self._session_changed)
        self._task.stop(_STOP_S)

    def read_changes(self) -> None:
        """Apply the settings that new notifications name; remove old notifications."""
        notices = self._read_notices()
        changed = {notice.entity for notice in notices.values() if notice.entity is not None}
        if changed:
            log.info("settings changed: %s", ", ".join(sorted(entity.path for entity in changed)))
            self._apply(self._store.read(changed))
        self._remember(notices)
        too_old = self._now_ms() - NOTICE_LIFETIME_MS
        self._store.delete_notices([name for name, created_ms in self._seen.items() if created_ms < too_old])

    def _read_notices(self) -> dict[str, ChangeNotice]:
        """The new notifications; forgets the ids of removed notifications, and sets the watch again."""
        names = self._store.notices(lambda _: self._task.wake())
        self._seen = {name: self._seen[name] for name in names if name in self._seen}
        return self._store.read_notices([name for name in names if name not in self._seen])

    def _remember(self, notices: Mapping[str, ChangeNotice]) -> None:
        self._seen |= {name: notice.created_ms for name, notice in notices.items()}

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
            log.warning("settings cannot be read now: %s", error)
            self._must_reload = self._must_reload or reload
            return _RETRY_S
        except Exception:
            # An error in settings must not end the broker.
            self._pause_s = min(max(self._pause_s * 2, _RETRY_S), _LONGEST_PAUSE_S)
            log.critical("changed settings were not applied; retry in %.0f s", self._pause_s, exc_info=True)
            self._must_reload = True
            return self._pause_s
        self._pause_s = 0.0
        return None


def _decode(entity: Entity, data: bytes, stat: Any) -> StoredConfig:
    try:
        return StoredConfig(znodes.decode_config(entity.path, data), stat.mzxid, stat.version)
    except MalformedZnode as error:
        log.error("keeping the settings that were read before: %s", error)
        kept = _WHILE_UNREADABLE if entity.kind is EntityKind.TOPIC else {}
        return StoredConfig(kept, 0, stat.version, is_readable=False)


def _entity_path(entity: Entity) -> str:
    return f"{entity.kind.value}/{entity.name}"


def _changed_entity(path: str, data: bytes) -> Entity | None:
    try:
        folder, _, name = znodes.decode_config_change(path, data).partition("/")
        return Entity(EntityKind(folder), name)
    except (MalformedZnode, ValueError) as error:
        # Such as changes of users and clients.
        log.info("ignored: %s", error)
        return None
