"""The table of operations against Kafka's: "Operations and resources on protocols" of its 3.9 manual.

kafka_operations.csv has the rows of that list: API key, operation, resource.
"""

from collections import defaultdict
from csv import DictReader
from pathlib import Path

from barnabas.broker.handlers.registry import HANDLERS
from barnabas.broker.security.api_operations import API_OPERATIONS, DENIED, Where
from barnabas.common.security.acl import Operation, ResourceType, pascal_name
from barnabas.protocol.schema import APIS, ApiKey, wire_fields

Rows = set[tuple[str, str]]

NOT_ASKED: dict[ApiKey, Rows] = {
    # The right to write to the topic is enough for idempotent writes (KIP-679).
    ApiKey.PRODUCE: {("IdempotentWrite", "Cluster")},
    # `KafkaApis` asks for Alter.
    ApiKey.ELECT_LEADERS: {("ClusterAction", "Cluster")},
    # Delegation tokens are refused to everybody.
    ApiKey.CREATE_DELEGATION_TOKEN: {("CreateTokens", "User")},
    ApiKey.DESCRIBE_DELEGATION_TOKEN: {("Describe", "DelegationToken"), ("DescribeTokens", "User")},
}
NOT_DOCUMENTED: dict[ApiKey, Rows] = {
    # For the authorized operations on the cluster (KIP-430).
    ApiKey.METADATA: {("Describe", "Cluster")},
    ApiKey.ELECT_LEADERS: {("Alter", "Cluster")},
    # For the settings in the answer (KIP-525).
    ApiKey.CREATE_TOPICS: {("DescribeConfigs", "Topic")},
    # In place of IdempotentWrite, on any topic (KIP-679).
    ApiKey.INIT_PRODUCER_ID: {("Write", "Topic")},
    # From brokers (KIP-890).
    ApiKey.ADD_PARTITIONS_TO_TXN: {("ClusterAction", "Cluster")},
    # For the partitions in the answer.
    ApiKey.DESCRIBE_TRANSACTIONS: {("Describe", "Topic")},
}


def documented() -> dict[int, Rows]:
    rows = defaultdict(set)
    with (Path(__file__).parent / "kafka_operations.csv").open() as file:
        for row in DictReader(file):
            rows[int(row["api_key"])] |= {(row["operation"], row["resource"])} - {("", "")}
    return rows


def asked(key: ApiKey) -> Rows:
    rows = set()
    for question in API_OPERATIONS[key]:
        rows.add((pascal_name(question.operation), pascal_name(question.resource)))
        if question.or_on_cluster is not None:
            rows.add((pascal_name(question.or_on_cluster), "Cluster"))
    return rows


def test_every_api_asks_what_kafka_documents_except_for_the_named_differences() -> None:
    kafka = documented()
    ours = {key: asked(key) for key in HANDLERS if not APIS[key].is_native_only or key < 240}
    assert len(ours) > 50
    missing = {key: kafka[key] - rows for key, rows in ours.items() if kafka[key] - rows}
    added = {key: rows - kafka[key] for key, rows in ours.items() if rows - kafka[key]}
    assert missing == NOT_ASKED
    assert added == NOT_DOCUMENTED


def test_the_table_has_every_api_that_is_served_and_no_other() -> None:
    assert API_OPERATIONS.keys() == HANDLERS.keys()


def test_our_own_apis_ask_as_those_of_kafka_that_do_the_same() -> None:
    assert asked(ApiKey.DESCRIBE_REPLICAS) == asked(ApiKey.DESCRIBE_LOG_DIRS)
    assert asked(ApiKey.PREPARE_TXN) == asked(ApiKey.END_TXN)


def test_the_named_fields_exist_and_every_resource_has_a_code() -> None:
    for key, questions in API_OPERATIONS.items():
        for question in questions:
            assert question.resource in DENIED
            message = APIS[key].response if question.where is Where.ANSWER else APIS[key].request
            fields = {name: wire for name, wire, _ in wire_fields(message)}
            if question.where in (Where.ENTRIES, Where.ANSWER):
                assert fields[question.field].is_array, key
            elif question.field:
                assert fields[question.field].nullable_since is None, key
            else:
                is_cluster = question.resource is ResourceType.CLUSTER
                assert is_cluster or question.where is Where.HANDLER, key
            # A list that may be null could mean all, and must be looked into by its handler.
            if question.where is Where.ENTRIES:
                assert fields[question.field].nullable_since is None, key


def test_denied_is_the_error_of_each_type_of_resource() -> None:
    assert {pascal_name(kind): int(code) for kind, code in DENIED.items()} == {
        "Topic": 29,
        "Group": 30,
        "Cluster": 31,
        "TransactionalId": 53,
    }
    assert Operation.READ == 3
