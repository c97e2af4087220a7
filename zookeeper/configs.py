"""The settings of topics, brokers, users, client ids and addresses in ZooKeeper, and their changes.

`ConfigStore` reads and writes them. Any broker may write, by compare-and-set and together with a notification
under ``/config/changes`` in one transaction, so there is no change without a notification. The layout and the
formats are those of Apache Kafka in ZooKeeper mode (`Entity.path`). The calls block, may come from any thread
but the client library's, and raise `ZooKeeperUnavailable` or `SessionLost` unless they say otherwise.

`ConfigChanges` watches ``/config/changes``, reads the settings of the entities that notifications name, and
passes them to ``apply`` (`NotificationWatcher`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.errors import as_api_errors
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.notifications import Notice, NotificationWatcher
from barnabas.zookeeper.requests import (
    Transaction,
    first_error,
    get_children,
    list_children,
    read,
    recreate,
    retry_cas,
)
from barnabas.zookeeper.session import ZooKeeperSession
from barnabas.zookeeper.znodes import StoredConfig

log = logging.getLogger("barnabas.zookeeper")

_WHILE_UNREADABLE: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}

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

    @property
    def user_name(self) -> str | None:
        """The name of a single user, which may have credentials; None for everything else."""
        is_user = self.kind is EntityKind.USER and self.client is None and self.name != DEFAULT_NAME
        return desanitize(self.name) if is_user else None

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

    def values_of_kind(self, kind: EntityKind) -> dict[Entity, Mapping[str, str]]:
        """The present settings of every entity of a kind, as texts. Raises REQUEST_TIMED_OUT."""
        with as_api_errors():
            return {entity: config.values for entity, config in self.read_all(kind).items()}

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
        """The parents of the last pair of a user; a child that is created meanwhile fails the transaction."""
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


class ConfigChanges(NotificationWatcher):
    """``apply`` gets the settings that were read: by `load` all, then the changed entities'."""

    subject = "settings"

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
        # Entities that were read and whose nodes may be deleted.
        self._present: set[Entity] = set()
        super().__init__(
            store.session, [paths.CONFIG_CHANGES], name="config-changes", now_ms=now_ms, on_fatal=on_fatal
        )

    def _read_all(self) -> None:
        for kind in EntityKind:
            configs = self._store.read_all(kind)
            # Deleted while nobody watched.
            gone = {entity for entity in self._present if entity.kind is kind} - configs.keys()
            self._pass_on(dict.fromkeys(gone, StoredConfig()) | configs)

    def _read_changed(self, notices: Mapping[str, Notice]) -> None:
        changed = changed_entities(notices)
        if changed:
            log.info("settings changed: %s", ", ".join(sorted(entity.path for entity in changed)))
            self._pass_on(self._store.read(changed))

    def _pass_on(self, configs: Mapping[Entity, StoredConfig]) -> None:
        self._apply(configs)
        for entity, config in configs.items():
            if config.exists and entity.kind in _REMOVABLE:
                self._present.add(entity)
            else:
                self._present.discard(entity)


def _decode(entity: Entity, data: bytes, stat: Any) -> StoredConfig:
    try:
        return StoredConfig(znodes.decode_config(entity.path, data), stat.mzxid, stat.version)
    except MalformedZnode as error:
        log.error("keeping the settings that were read before: %s", error)
        kept = _WHILE_UNREADABLE if entity.kind is EntityKind.TOPIC else {}
        return StoredConfig(kept, 0, stat.version, is_readable=False)


def _clients_folder(user: Entity) -> str:
    return f"{user.path}/{EntityKind.CLIENT.value}"


def changed_entities(notices: Mapping[str, Notice]) -> list[Entity]:
    """The entities that readable notifications name, each once, in the order of the notifications."""
    changed: dict[Entity, None] = {}
    for path, notice in notices.items():
        try:
            changed[Entity.of_key(znodes.decode_config_change(path, notice.data))] = None
        except (MalformedZnode, ValueError) as error:
            log.info("ignored: %s", error)
    return list(changed)
