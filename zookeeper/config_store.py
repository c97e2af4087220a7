"""`ConfigStore`: the settings of topics and brokers in ZooKeeper, and the notifications of their changes.

Any broker may write them, by compare-and-set and together with a notification under ``/config/changes`` in
one transaction, so there is no change without a notification. Layout and formats are those of Apache Kafka in
ZooKeeper mode: ``/config/topics/<topic>``, ``/config/brokers/<id>`` and ``/config/brokers/<default>``.

All calls block, may come from any thread but the client library's, and may raise `ZooKeeperUnavailable` or
`SessionLost`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.controller_writer import first_error
from barnabas.zookeeper.parents import children, make_again
from barnabas.zookeeper.session import Start, ZooKeeperSession
from barnabas.zookeeper.znodes import MalformedZnode, StoredConfig

log = logging.getLogger("barnabas.controller")

Watch = Callable[[Any], None]
ALL_BROKERS: Final = "<default>"
_WHILE_UNREADABLE: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}


class EntityKind(Enum):
    """What settings are kept for; the value is the folder under ``/config``."""

    TOPIC = "topics"
    BROKER = "brokers"


class Entity(NamedTuple):
    """One topic or broker, or all brokers under the name `ALL_BROKERS`."""

    kind: EntityKind
    name: str

    @property
    def path(self) -> str:
        return f"{paths.CONFIG}/{self.kind.value}/{self.name}"

    @classmethod
    def broker(cls, broker: BrokerId | None) -> Entity:
        """A broker, or with None the defaults of all."""
        return cls(EntityKind.BROKER, ALL_BROKERS if broker is None else str(broker))


class ChangeNotice(NamedTuple):
    """A notification: what changed (None when it cannot be read), and when, in ms of ZooKeeper's clock."""

    entity: Entity | None
    created_ms: int


class ConfigStore:
    """See the module."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.session = session

    def read(self, entities: Iterable[Entity]) -> dict[Entity, StoredConfig]:
        """The present settings; an entity without a node has none.

        An unreadable node must not cause the deletion of records. So its settings have no retention limits,
        and a zxid lower than any other, which makes a caller that knows the former settings keep those.
        """
        wanted = list(entities)
        outcomes = self.session.run_all([_get(entity.path) for entity in wanted])
        found = {}
        for entity, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome.error, NoNodeError):
                found[entity] = StoredConfig()
            else:
                found[entity] = _readable(entity, *outcome.get())
        return found

    def read_all(self, kind: EntityKind) -> dict[Entity, StoredConfig]:
        """Every entity of a kind that has a node."""
        names = children(self.session, f"{paths.CONFIG}/{kind.value}")
        return self.read(Entity(kind, name) for name in names)

    def replace(self, entity: Entity, values: Mapping[str, str], former: StoredConfig) -> bool:
        """Write all settings of an entity and the notification; False when it is no longer as ``former``.

        Raises UNKNOWN_TOPIC_OR_PARTITION for a topic that does not exist.
        """
        data, notice = znodes.encode_config(values), znodes.encode_config_change(_entity_path(entity))

        def start(zk: Any) -> Any:
            transaction = zk.transaction()
            if entity.kind is EntityKind.TOPIC:
                # Only that it exists: settings of a topic that was just deleted would be left behind.
                transaction.check(paths.topic(entity.name), -1)
            if former.exists:
                transaction.set_data(entity.path, data, former.version)
            else:
                transaction.create(entity.path, data)
            transaction.create(paths.CONFIG_CHANGE_PREFIX, notice, sequence=True)
            return transaction.commit_async()

        outcome = self.session.attempt(start)
        results = outcome.get()
        error = first_error(results)
        if error is None:
            return True
        if entity.kind is EntityKind.TOPIC and isinstance(results[0], NoNodeError):
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {entity.name!r} does not exist")
        if not isinstance(error, BadVersionError | NodeExistsError | NoNodeError):
            raise error
        if outcome.retried:
            # It may be our own write, whose answer was lost.
            now = self.read([entity])[entity]
            if now.version == former.version + 1 and dict(now.values) == dict(values):
                return True
        if isinstance(error, NoNodeError):
            make_again(self.session, [f"{paths.CONFIG}/{entity.kind.value}", paths.CONFIG_CHANGES])
        return False

    def notices(self, watch: Watch | None = None) -> list[str]:
        """The names of all notifications, oldest first."""
        return sorted(children(self.session, paths.CONFIG_CHANGES, watch))

    def read_notices(self, names: Sequence[str]) -> dict[str, ChangeNotice]:
        """By name; notifications that are gone already are omitted."""
        outcomes = self.session.run_all([_get(paths.config_change(name)) for name in names])
        found = {}
        for name, outcome in zip(names, outcomes, strict=True):
            if not isinstance(outcome.error, NoNodeError):
                data, stat = outcome.get()
                found[name] = ChangeNotice(_changed_entity(paths.config_change(name), data), stat.ctime)
        return found

    def delete_notices(self, names: Iterable[str]) -> None:
        """Remove old ones; another broker may do the same at the same time."""
        for outcome in self.session.run_all([_delete(paths.config_change(name)) for name in names]):
            if isinstance(outcome.error, NotEmptyError):
                # Brokers do not create children there, and the node does no harm.
                log.error("an old notification has children and is not deleted: %s", outcome.error)
            elif outcome.error is not None and not isinstance(outcome.error, NoNodeError):
                raise outcome.error


def _readable(entity: Entity, data: bytes, stat: Any) -> StoredConfig:
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
        # Changes of users and clients are of no concern so far.
        log.info("ignored: %s", error)
        return None


def _get(path: str) -> Start:
    return lambda zk: zk.get_async(path)


def _delete(path: str) -> Start:
    return lambda zk: zk.delete_async(path)
