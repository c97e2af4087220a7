"""A broker with an authorizer for the tests of the rights of principals.

`SecuredServing` has the topic, the group and the transactional id called `TOPIC`, `GROUP` and
`TRANSACTIONAL_ID`, or none of them. `ask` sends a request as alice, with these rights alone.
"""

import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

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
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.inter_broker import UpdateMetadataRequest
from barnabas.protocol.schema import ApiKey
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
    """Remembers its questions."""

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
