"""A request of every API for the tests of the rights of principals, and the rights that it needs.

`CASES` come from the registry and the table of operations; the cases of APIs whose handlers ask are written
out. `example` fills in a request by the names of its fields.
"""

from typing import Any, NamedTuple

from barnabas.broker.handlers.registry import HANDLERS
from barnabas.broker.security.api_operations import API_OPERATIONS, Where
from barnabas.common.security.acl import Operation, ResourceType
from barnabas.protocol.ids import NO_TOPIC_ID
from barnabas.protocol.messages import (
    configs,
    describe_transactions,
    find_coordinator,
    metadata,
    offsets,
    placement,
)
from barnabas.protocol.messages import groups as group_messages
from barnabas.protocol.messages import produce as produce_messages
from barnabas.protocol.messages import topics as topic_messages
from barnabas.protocol.messages import transactions as transaction_messages
from barnabas.protocol.messages.partitions import TopicPartitionIndexes, TopicPartitions
from barnabas.protocol.schema import APIS, ApiKey, WireType, wire_fields
from tests.support import logs
from tests.support.authorizing import (
    GROUP,
    TOPIC,
    TOPIC_ID,
    TRANSACTIONAL_ID,
    Right,
)
from tests.support.record_requests import fetch_request, produce_request
from tests.support.serving import EXTERNAL, INTERNAL, batch

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
    """A name that the answer has only for a principal that may see it; a refusal is no error then."""

    def __str__(self) -> str:
        return f"{self.key.name}{self.label and '-'}{self.label}"


T, G, X, C = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
    ResourceType.CLUSTER,
)
CLUSTER_ACTION = (Operation.CLUSTER_ACTION, C)


def needs(*rights: Right) -> tuple[frozenset[Right], ...]:
    return (frozenset(rights),)


def config_cases(key: ApiKey, resource_class: type[Any], operation: Operation) -> list[Case]:
    def body(kind: configs.ConfigResourceType, name: str) -> Any:
        resource = example(resource_class, resource_type=kind, resource_name=name)
        if hasattr(resource, "configs"):
            resource.configs = []
        return APIS[key].request(resources=[resource])

    return [
        Case(key, body(configs.ConfigResourceType.TOPIC, TOPIC), needs((operation, T)), "topic"),
        Case(key, body(configs.ConfigResourceType.BROKER, "1"), needs((operation, C)), "broker"),
    ]


def find(key_type: int, key: str) -> list[Case]:
    right = needs((Operation.DESCRIBE, X if key_type else G))
    one = find_coordinator.FindCoordinatorRequest(key_type=key_type, key=key)
    several = find_coordinator.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    return [
        Case(ApiKey.FIND_COORDINATOR, one, right, f"one-{key_type}", version=3, is_native=False),
        Case(ApiKey.FIND_COORDINATOR, several, right, f"several-{key_type}", version=4),
    ]


def init(transactional_id: str | None, label: str, right: Right) -> Case:
    body = produce_messages.InitProducerIdRequest(transactional_id=transactional_id)
    return Case(ApiKey.INIT_PRODUCER_ID, body, needs(right), label)


def named(topic: str = TOPIC, *, creates: bool = False, **fields: bool) -> metadata.MetadataRequest:
    topics = [metadata.MetadataRequestTopic(name=topic)]
    return metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=creates, **fields)


def transactional_produce() -> produce_messages.ProduceRequest:
    records = bytes(logs.produced(0, producer_id=7, is_transactional=True))
    body = produce_request(records, topic=TOPIC)
    body.transactional_id = TRANSACTIONAL_ID
    return body


def fetch_offsets(*, is_all: bool) -> offsets.OffsetFetchRequest:
    topics = None if is_all else [TopicPartitionIndexes(name=TOPIC, partition_indexes=[0])]
    group = offsets.OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
    return offsets.OffsetFetchRequest(groups=[group])


def add_partitions(**fields: Any) -> transaction_messages.AddPartitionsToTxnRequest:
    return transaction_messages.AddPartitionsToTxnRequest(**fields)


ADDED_TOPICS = [transaction_messages.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])]
READ_T, WRITE_T, WRITE_X = (Operation.READ, T), (Operation.WRITE, T), (Operation.WRITE, X)
DESCRIBE_T, DESCRIBE_G, DESCRIBE_X = (Operation.DESCRIBE, T), (Operation.DESCRIBE, G), (Operation.DESCRIBE, X)

BY_HAND = [
    Case(ApiKey.PRODUCE, produce_request(batch(b"a"), topic=TOPIC), needs(WRITE_T), "plain"),
    Case(ApiKey.PRODUCE, transactional_produce(), needs(WRITE_T, WRITE_X), "transactional", version=11),
    Case(ApiKey.FETCH, fetch_request(0, topic=TOPIC, version=12), needs(READ_T), "name", version=12),
    Case(
        ApiKey.FETCH,
        fetch_request(0, topic_id=TOPIC_ID, version=13),
        needs(READ_T),
        "id",
        version=13,
        is_native=False,
    ),
    Case(
        ApiKey.FETCH,
        fetch_request(0, topic=TOPIC, replica_id=2),
        needs(CLUSTER_ACTION),
        "follower",
        is_kafka=False,
        listener=INTERNAL,
    ),
    Case(ApiKey.METADATA, named(), needs(DESCRIBE_T), "name"),
    Case(
        ApiKey.METADATA,
        metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=None, topic_id=TOPIC_ID)]),
        needs(DESCRIBE_T),
        "id",
    ),
    Case(ApiKey.METADATA, metadata.MetadataRequest(topics=None), needs(DESCRIBE_T), "all", shown=TOPIC),
    Case(
        ApiKey.ELECT_LEADERS,
        placement.ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=TOPIC, partitions=[0])]),
        needs((Operation.ALTER, C)),
        version=0,
    ),
    *find(0, GROUP),
    *find(1, TRANSACTIONAL_ID),
    Case(
        ApiKey.OFFSET_FETCH,
        fetch_offsets(is_all=False),
        needs(DESCRIBE_G, DESCRIBE_T),
        "named",
        version=8,
    ),
    Case(
        ApiKey.OFFSET_FETCH,
        offsets.OffsetFetchRequest(
            group_id=GROUP, topics=[TopicPartitionIndexes(name=TOPIC, partition_indexes=[0])]
        ),
        needs(DESCRIBE_G, DESCRIBE_T),
        "one",
        version=1,
        is_native=False,
    ),
    Case(
        ApiKey.OFFSET_FETCH,
        fetch_offsets(is_all=True),
        needs(DESCRIBE_G, DESCRIBE_T),
        "all",
        version=8,
        shown=TOPIC,
    ),
    Case(
        ApiKey.LIST_GROUPS,
        group_messages.ListGroupsRequest(),
        (frozenset([DESCRIBE_G]), frozenset([(Operation.DESCRIBE, C)])),
        shown=GROUP,
    ),
    Case(
        ApiKey.LIST_TRANSACTIONS,
        describe_transactions.ListTransactionsRequest(),
        needs(DESCRIBE_X),
        shown=TRANSACTIONAL_ID,
    ),
    Case(
        ApiKey.DESCRIBE_TRANSACTIONS,
        describe_transactions.DescribeTransactionsRequest(transactional_ids=[TRANSACTIONAL_ID]),
        needs(DESCRIBE_X, DESCRIBE_T),
        shown=TOPIC,
    ),
    Case(
        ApiKey.DELETE_TOPICS,
        topic_messages.DeleteTopicsRequest(
            topics=[topic_messages.DeleteTopicState(name=TOPIC)], timeout_ms=0
        ),
        needs((Operation.DELETE, T)),
        "name",
    ),
    Case(
        ApiKey.DELETE_TOPICS,
        topic_messages.DeleteTopicsRequest(
            topics=[topic_messages.DeleteTopicState(topic_id=TOPIC_ID)], timeout_ms=0
        ),
        needs((Operation.DELETE, T)),
        "id",
    ),
    *config_cases(ApiKey.DESCRIBE_CONFIGS, configs.DescribeConfigsResource, Operation.DESCRIBE_CONFIGS),
    *config_cases(ApiKey.ALTER_CONFIGS, configs.AlterConfigsResource, Operation.ALTER_CONFIGS),
    *config_cases(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, configs.IncrementalAlterConfigsResource, Operation.ALTER_CONFIGS
    ),
    init(TRANSACTIONAL_ID, "transactional", WRITE_X),
    init(None, "idempotent", (Operation.IDEMPOTENT_WRITE, C)),
    init(None, "any topic", WRITE_T),
    Case(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        add_partitions(
            v3_and_below_transactional_id=TRANSACTIONAL_ID,
            v3_and_below_producer_id=1_000,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=ADDED_TOPICS,
        ),
        needs(WRITE_X, WRITE_T),
        "client",
        version=3,
        is_native=False,
    ),
    Case(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        add_partitions(
            transactions=[
                transaction_messages.AddPartitionsToTxnTransaction(
                    transactional_id=TRANSACTIONAL_ID,
                    producer_id=1_000,
                    producer_epoch=0,
                    topics=ADDED_TOPICS,
                )
            ]
        ),
        needs(CLUSTER_ACTION),
        "broker",
        version=4,
    ),
]


def automatic(key: ApiKey) -> Case:
    """The case of an API whose table has no question that its handler asks."""
    questions = [each for each in API_OPERATIONS[key] if each.where is not Where.HANDLER]
    enough = [frozenset((each.operation, each.resource) for each in questions)]
    for each in questions:
        if each.or_on_cluster is not None:
            rest = enough[0] - {(each.operation, each.resource)}
            enough.append(rest | {(each.or_on_cluster, C)})
    listener = INTERNAL if HANDLERS[key].inter_broker_only else EXTERNAL
    body = example(APIS[key].request)
    return Case(key, body, tuple(enough), is_kafka=not APIS[key].is_native_only, listener=listener)


WITHOUT_QUESTIONS = {key for key, questions in API_OPERATIONS.items() if not questions}
OPERATIONS_ALONE = {ApiKey.DESCRIBE_CLUSTER}
"""Served to everybody; the right decides the authorized operations in the answer."""
CASES = BY_HAND + [
    automatic(key)
    for key in HANDLERS
    if key not in {case.key for case in BY_HAND} | WITHOUT_QUESTIONS | OPERATIONS_ALONE
]
TESTED_ALONE: dict[ApiKey, set[Right]] = {
    # test_unknown_topics_are_created_only_with_the_right_to
    ApiKey.METADATA: {(Operation.CREATE, C), (Operation.CREATE, T), (Operation.DESCRIBE, C)},
    # test_the_settings_of_a_new_topic_need_a_right_of_their_own
    ApiKey.CREATE_TOPICS: {(Operation.DESCRIBE_CONFIGS, T)},
}


def versions(case: Case) -> list[int | None]:
    kafka = APIS[case.key].versions[1] if case.version is None else case.version
    return [None] * case.is_native + [kafka] * case.is_kafka
