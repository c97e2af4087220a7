"""A broker with an authorizer for the tests of what principals may do, and a request of every API.

`SecuredServing` has the topic, the group and the transactional id called `TOPIC`, `GROUP` and
`TRANSACTIONAL_ID`, or none of them. `ask` sends a request as alice, with these rights alone. `example` fills
in a request by the names of its fields.
"""

import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.session import Session
from barnabas.common.security.acl import (
    ANY_HOST,
    CLUSTER_NAME,
    AclEntry,
    Operation,
    Permission,
    ResourcePattern,
    ResourceType,
)
from barnabas.common.security.principal import Principal
from barnabas.protocol.ids import NO_TOPIC_ID, TopicPartition
from barnabas.protocol.messages.inter_broker import UpdateMetadataRequest
from barnabas.protocol.schema import ApiKey, WireType, wire_fields
from barnabas.protocol.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.support import group_requests, transaction_requests
from tests.support.building import LIVE, led_by, metadata, state
from tests.support.serving import EXTERNAL, Connection, Serving

TOPIC, GROUP, TRANSACTIONAL_ID = "secret-topic", "secret-group", "secret-id"
NAMES = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.GROUP: GROUP,
    ResourceType.TRANSACTIONAL_ID: TRANSACTIONAL_ID,
    ResourceType.CLUSTER: CLUSTER_NAME,
}
TOPIC_ID = uuid.UUID(int=77)
TP = TopicPartition(TOPIC, 0)
ADMIN, ALICE = Principal.user("admin"), Principal.user("alice")
HOST = "127.0.0.1"

Right = tuple[Operation, ResourceType]
NamedRight = tuple[Operation, ResourceType, str]


class RecordingAuthorizer(Authorizer):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(super_users=[ADMIN])
        self.asked: set[tuple[ApiKey, Right]] = set()
        self._granted: list[ResourcePattern] = []

    def grant_only(self, rights: Collection[Right | NamedRight]) -> None:
        """To alice; without a name on the resource of the type that the tests name."""
        entries: dict[ResourcePattern, list[AclEntry]] = {pattern: [] for pattern in self._granted}
        for operation, kind, *name in rights:
            entry = AclEntry(ALICE, ANY_HOST, operation, Permission.ALLOW)
            pattern = ResourcePattern(kind, name[0] if name else NAMES[kind])
            entries.setdefault(pattern, []).append(entry)
        self._granted = list(entries)
        self.replace(entries)

    def allows(
        self,
        session: Session,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        api: ApiKey,
        **flags: Any,
    ) -> bool:
        assert name, f"{api.name} asked for a {resource_type.name} without a name"
        self.asked.add((api, (operation, resource_type)))
        return super().allows(session, operation, resource_type, name, api, **flags)

    def allows_any(
        self, session: Session, operation: Operation, resource_type: ResourceType, api: ApiKey
    ) -> bool:
        self.asked.add((api, (operation, resource_type)))
        return super().allows_any(session, operation, resource_type, api)


class SecuredServing(Serving):
    def __init__(self, folder: Path, *, is_empty: bool = False) -> None:
        self.acls = RecordingAuthorizer()
        super().__init__(folder, authorizer=self.acls, transaction_two_phase_commit_enable=True)
        self.session = Session(HOST, ADMIN)
        self.partitions_in_zookeeper = 1
        self._lead(OFFSETS_TOPIC, group_requests.OFFSETS_ID, is_full=True)
        self._lead(TRANSACTIONS_TOPIC, transaction_requests.TRANSACTIONS_ID)
        self.call(group_requests.find("any"))
        self.call(transaction_requests.init("any"))
        group_requests.work(self)
        transaction_requests.work(self)
        if not is_empty:
            self._fill()
        self.acls.asked.clear()

    def _lead(self, topic: str, topic_id: uuid.UUID, **fields: Any) -> None:
        update: UpdateMetadataRequest = metadata(LIVE, led_by(1), topic=topic, topic_id=topic_id, **fields)
        self.managed.metadata.update(update)
        assert self.managed.tell(state(isr=(1,)), topic=topic, topic_id=topic_id) == []

    def _fill(self) -> None:
        self._lead(TOPIC, TOPIC_ID)
        committed = self.send(group_requests.commit(group=GROUP, topic=TOPIC))
        assert group_requests.code_of(committed) == 0
        producer = self.call(transaction_requests.init(TRANSACTIONAL_ID))
        added = transaction_requests.add(producer, TP, transactional_id=TRANSACTIONAL_ID)
        assert set(transaction_requests.errors(self.call(added)).values()) == {0}

    def ask(
        self,
        body: Any,
        rights: Collection[Right | NamedRight] = (),
        *,
        listener: str = EXTERNAL,
        version: int | None = None,
    ) -> Connection:
        self.acls.grant_only(rights)
        connection = Connection.of(body, listener, version=version, session=Session(HOST, ALICE))
        return self.run(connection)


# ---- requests


_NAMED = {
    "group_id": GROUP,
    "groups_names": GROUP,
    "groups": GROUP,
    "transactional_id": TRANSACTIONAL_ID,
    "transactional_ids": TRANSACTIONAL_ID,
}
_IN_TOPICS = {"name", "topic", "topic_name"}
_PLAIN: dict[WireType, Any] = {
    WireType.BOOLEAN: False,
    WireType.STRING: "x",
    WireType.BYTES: b"",
    WireType.FLOAT64: 0.0,
    WireType.UUID: NO_TOPIC_ID,
}


def example(message: type[Any], **given: Any) -> Any:
    """A message whose lists have one element; fields with a default keep it."""
    fields = dict(given)
    is_topic = "Topic" in message.__name__
    for name, wire, make_default in wire_fields(message):
        if name in fields or make_default is not None:
            continue
        if wire.struct is not None:
            value = example(wire.struct)
        elif wire.kind is WireType.STRING and name in _NAMED:
            value = _NAMED[name]
        elif wire.kind is WireType.STRING and is_topic and name in _IN_TOPICS:
            value = TOPIC
        else:
            value = _PLAIN.get(wire.kind, 0)
        fields[name] = [value] if wire.is_array else value
    return message(**fields)


class Case(NamedTuple):
    """A request, and the sets of rights of which any one suffices for it."""

    key: ApiKey
    body: Any
    enough: tuple[frozenset[Right], ...]
    label: str = ""
    version: int | None = None
    """Of Kafka's protocol, if not the last one that is served."""
    is_native: bool = True
    is_kafka: bool = True
    listener: str = EXTERNAL
    shown: str = ""
    """A name that the answer has only for who may see it; a refusal is no error then."""

    def __str__(self) -> str:
        return f"{self.key.name}{self.label and '-'}{self.label}"
