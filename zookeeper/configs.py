"""The settings of topics, brokers, users, client ids and addresses in ZooKeeper, and their changes.

`ConfigStore` reads and writes them. Any broker may write, by compare-and-set and together with a notification
under ``/config/changes`` in one transaction, so there is no change without a notification. The layout and the
formats are those of Apache Kafka in ZooKeeper mode (`Entity.path`). The calls block, may come from any thread
but the client library's, and raise `ZooKeeperUnavailable` or `SessionLost` unless they say otherwise.

`ConfigChanges` watches ``/config/changes`` on a thread of its own, reads the settings of the entity that a
notification names, and passes them to ``apply``. After a lost session it reads everything again. Any broker
removes notifications that are older than a quarter of an hour. While ZooKeeper is unreachable it retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

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
    get_children,
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
    USER = "users"
    """Users, and pairs of a user and a client id; their settings are quotas and SCRAM credentials."""
    CLIENT = "clients"
    IP = "ips"


_REMOVABLE: Final = (EntityKind.USER, EntityKind.CLIENT, EntityKind.IP)
"""Kinds whose node goes with its last setting, so that unused names do not fill ZooKeeper, as in Kafka."""
DEFAULT_NAME: Final = "<default>"
"""The name in ZooKeeper of the defaults of a kind; a sanitized name cannot be equal to it."""


def sanitize(name: str) -> str:
    """A name of any characters as a part of a path, URL-encoded as by Kafka's ``Sanitizer``."""
    if name in (".", ".."):
        # Such a part of a path is illegal in ZooKeeper. Kafka decodes this.
        return name.replace(".", "%2E")
    return quote(name, safe="").replace("~", "%7E")


def desanitize(name: str) -> str:
    """The name that was given to `sanitize`, also as Kafka decodes it (``+`` is a space)."""
    return unquote(name.replace("+", " "))


class Entity(NamedTuple):
    """A topic, a broker, a user, a client id, a user with a client id, an address, or the defaults of a kind.

    The names are those in ZooKeeper: sanitized, or `DEFAULT_NAME`.
    """

    kind: EntityKind
    name: str
    client: str | None = None
    """The client id of a pair, whose kind is USER."""

    @property
    def key(self) -> str:
        """The path below ``/config``, as notifications have it."""
        pair = "" if self.client is None else f"/{EntityKind.CLIENT.value}/{self.client}"
        return f"{self.kind.value}/{self.name}{pair}"

    @property
    def path(self) -> str:
        return f"{paths.CONFIG}/{self.key}"

    @classmethod
    def of_key(cls, key: str) -> Entity:
        """Raises ValueError if it is no key of an entity."""
        kind, *names = key.split("/")
        match names:
            case [name]:
                return cls(EntityKind(kind), name)
            case [user, EntityKind.CLIENT.value, client] if kind == EntityKind.USER.value:
                return cls(EntityKind.USER, user, client)
        raise ValueError(f"{key!r} names no topic, broker, user, client or ip")

    @classmethod
    def topic(cls, name: str) -> Entity:
        return cls(EntityKind.TOPIC, name)

    @classmethod
    def broker(cls, broker: BrokerId) -> Entity:
        return cls(EntityKind.BROKER, str(broker))

    @classmethod
    def user(cls, name: str | None, *clients: str | None) -> Entity:
        """A user, or a user with one client id; None means the default. The names are not sanitized."""
        return cls(EntityKind.USER, _in_path(name), *map(_in_path, clients))

    @classmethod
    def client_id(cls, name: str | None) -> Entity:
        return cls(EntityKind.CLIENT, _in_path(name))

    @classmethod
    def ip(cls, address: str | None) -> Entity:
        return cls(EntityKind.IP, _in_path(address))


def _in_path(name: str | None) -> str:
    return DEFAULT_NAME if name is None else sanitize(name)


ALL_BROKERS: Final = Entity(EntityKind.BROKER, DEFAULT_NAME)
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
        entities = [
            Entity(kind, name) for name in list_children(self.session, f"{paths.CONFIG}/{kind.value}")
        ]
        if kind is EntityKind.USER:
            names = self._children([_clients_folder(user) for user in entities])
            entities += [
                Entity(kind, user.name, client)
                for user, clients in zip(list(entities), names, strict=True)
                for client in clients
            ]
        return self.read(entities)

    def _children(self, parents: Sequence[str]) -> list[list[str]]:
        """The names under each node; none for a missing node."""
        outcomes = self.session.run_all([get_children(path) for path in parents])
        return [[] if isinstance(outcome.error, NoNodeError) else list(outcome.get()) for outcome in outcomes]

    def replace(self, entity: Entity, values: Mapping[str, str], former: StoredConfig) -> bool:
        """Write all settings of an entity and the notification; False if they are not ``former`` any more.

        The node of a user, a client id or an address is deleted if it has neither settings nor children.
        Raises UNKNOWN_TOPIC_OR_PARTITION for a topic that does not exist.
        """
        if not values and not former.exists and entity.kind in _REMOVABLE:
            return True
        transaction = self._writes(entity, values, former)
        notice = znodes.encode_config_change(entity.key)
        transaction.create(paths.CONFIG_CHANGE_PREFIX, notice, sequence=True)
        outcome = self.session.attempt(transaction)
        results = outcome.get()
        error = first_error(results)
        if error is None:
            return True
        if entity.kind is EntityKind.TOPIC and isinstance(results[0], NoNodeError):
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {entity.name!r} does not exist")
        if not isinstance(error, BadVersionError | NodeExistsError | NoNodeError | NotEmptyError):
            raise error
        if outcome.retried:
            # It may be our own write: its answer was lost.
            present = self.read([entity])[entity]
            is_written = present.version == former.version + 1 or not present.exists
            if is_written and dict(present.values) == dict(values):
                return True
        if isinstance(error, NoNodeError):
            recreate(self.session, [f"{paths.CONFIG}/{entity.kind.value}", paths.CONFIG_CHANGES])
        return False

    def _writes(self, entity: Entity, values: Mapping[str, str], former: StoredConfig) -> Transaction:
        """A transaction that fails if the settings are not ``former`` any more."""
        transaction, data = Transaction(), znodes.encode_config(values)
        if entity.kind is EntityKind.TOPIC:
            # The settings of a topic that was just deleted would remain.
            transaction.check(paths.topic(entity.name))
        if former.exists:
            if not values and entity.kind in _REMOVABLE and not self._children([entity.path])[0]:
                transaction.delete(entity.path, former.version)
                self._delete_empty_parents(entity, transaction)
                return transaction
            return transaction.set(entity.path, data, former.version)
        if entity.client is not None:
            user = Entity(entity.kind, entity.name)
            present = read(self.session, [user.path, _clients_folder(user)])
            if user.path not in present:
                transaction.create(user.path, znodes.encode_config({}))
            if _clients_folder(user) not in present:
                transaction.create(_clients_folder(user), b"")
        return transaction.create(entity.path, data)

    def _delete_empty_parents(self, entity: Entity, transaction: Transaction) -> None:
        """Those of the last pair of a user; a child that is created meanwhile fails the transaction."""
        if entity.client is None:
            return
        user = Entity(entity.kind, entity.name)
        clients, folders = self._children([_clients_folder(user), user.path])
        if clients != [entity.client]:
            return
        transaction.delete(_clients_folder(user))
        config = self.read([user])[user]
        if config.is_readable and not config.values and folders == [EntityKind.CLIENT.value]:
            transaction.delete(user.path, config.version)

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
        # Entities that were read and whose nodes may be deleted.
        self._present: set[Entity] = set()
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
            configs = self._store.read_all(kind)
            # Deleted while nobody watched.
            gone = {entity for entity in self._present if entity.kind is kind} - configs.keys()
            self._pass_on(dict.fromkeys(gone, StoredConfig()) | configs)

    def _pass_on(self, configs: Mapping[Entity, StoredConfig]) -> None:
        self._apply(configs)
        for entity, config in configs.items():
            if config.exists and entity.kind in _REMOVABLE:
                self._present.add(entity)
            else:
                self._present.discard(entity)

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
            self._pass_on(self._store.read(changed))
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


def _clients_folder(user: Entity) -> str:
    return f"{user.path}/{EntityKind.CLIENT.value}"


def _changed_entity(path: str, data: bytes) -> Entity | None:
    try:
        return Entity.of_key(znodes.decode_config_change(path, data))
    except (MalformedZnode, ValueError) as error:
        log.info("ignored: %s", error)
        return None
