"""Describing and altering quotas; the error texts are Kafka's."""

from typing import Any

import pytest

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    AlterQuotaEntry,
    AlterQuotaResult,
    DescribeClientQuotasRequest,
    QuotaChange,
    QuotaEntity,
    QuotaFilterComponent,
    QuotaMatch,
)
from barnabas.zookeeper.configs import Entity
from tests.support.serving import Serving

ANY = object()
"""A component of a filter for each name."""


def alter(
    serving: Serving, *entries: tuple[dict[str, str | None], dict[str, Any]], **fields: Any
) -> list[Any]:
    """The results of setting quotas; None removes one."""
    body = AlterClientQuotasRequest(
        entries=[
            AlterQuotaEntry(
                entity=[QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
                ops=[
                    QuotaChange(key=key, value=0.0 if value is None else value, remove=value is None)
                    for key, value in quotas.items()
                ],
            )
            for entity, quotas in entries
        ],
        **{"validate_only": False, **fields},
    )
    results: list[AlterQuotaResult] = serving.call(body, version=1).entries
    assert [each.entity for each in results] == [entry.entity for entry in body.entries]
    return [(ErrorCode(each.error_code).name, each.error_message) for each in results]


def describe(serving: Serving, *, strict: bool = False, **components: Any) -> dict[str, dict[str, float]]:
    """The quotas of each entity, by its names."""
    answer = ask(serving, components, strict=strict)
    assert (answer.error_code, answer.error_message) == (0, "")
    return {
        " ".join(f"{part.entity_type}={part.entity_name}" for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


def ask(serving: Serving, components: dict[str, Any], *, strict: bool = False) -> Any:
    parts = []
    for kind, match in components.items():
        match_type = QuotaMatch.ANY if match is ANY else QuotaMatch.EXACT if match else QuotaMatch.DEFAULT
        parts.append(
            QuotaFilterComponent(
                entity_type=kind.replace("_", "-"),
                match_type=match_type,
                match=None if match is ANY else match,
            )
        )
    return serving.call(DescribeClientQuotasRequest(components=parts, strict=strict), version=1)


@pytest.fixture
def limited(serving: Serving) -> Serving:
    entities = [
        {"user": "alice"},
        {"user": "b c"},
        {"user": None},
        {"client-id": "x"},
        {"client-id": None},
        {"user": "alice", "client-id": "x"},
        {"user": "alice", "client-id": None},
        {"user": None, "client-id": "x"},
        {"user": None, "client-id": None},
    ]
    entries = [(entity, {"producer_byte_rate": number}) for number, entity in enumerate(entities)]
    ips = [
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 5}),
        ({"ip": None}, {"connection_creation_rate": 6}),
    ]
    assert set(alter(serving, *entries, *ips)) == {("NONE", None)}
    serving.configs.stored[Entity.user("carol")] = {"SCRAM-SHA-256": "salt=…"}
    serving.configs.stored[Entity.client_id("gone")] = {}
    return serving


def test_quotas_are_stored_as_kafka_stores_them(serving: Serving) -> None:
    user = Entity.user("alice")
    serving.configs.stored[user] = {"SCRAM-SHA-256": "salt=…", "request_percentage": "5.0"}
    quotas = {
        "producer_byte_rate": 1024.0,
        "consumer_byte_rate": 2.0**40 + 1e-7,
        "request_percentage": None,
        "controller_mutation_rate": 2.5,
    }
    assert alter(serving, ({"user": "alice"}, quotas)) == [("NONE", None)]
    assert serving.configs.stored[user] == {
        "SCRAM-SHA-256": "salt=…",
        "producer_byte_rate": "1024",
        "consumer_byte_rate": "1099511627776",
        "controller_mutation_rate": "2.5",
    }
    # The most of a LONG, which Kafka's users write for "not limited", is no double.
    assert alter(serving, ({"user": "alice"}, {"producer_byte_rate": float(2**63 - 1)})) == [("NONE", None)]
    assert serving.configs.stored[user]["producer_byte_rate"] == "9223372036854775807"
    alter(serving, ({"user": "alice"}, {"producer_byte_rate": 1024.0}))
    # Credentials are no quotas.
    assert alter(serving, ({"user": "alice"}, {"SCRAM-SHA-256": None})) == [("NONE", None)]
    assert serving.configs.stored[user]["SCRAM-SHA-256"] == "salt=…"
    assert describe(serving)["user=alice"] == {
        "producer_byte_rate": 1024,
        "consumer_byte_rate": 2**40,
        "controller_mutation_rate": 2.5,
    }


def test_nothing_is_stored_when_a_request_is_only_validated(serving: Serving) -> None:
    entries = [({"user": "a"}, {"producer_byte_rate": 1.0}), ({"user": "a"}, {"producer_byte_rate": 1.5})]
    results = alter(serving, *entries, validate_only=True)
    assert [code for code, _ in results] == ["NONE", "INVALID_REQUEST"]
    assert serving.configs.stored == {}


@pytest.mark.parametrize(
    ("entity", "quotas", "text"),
    [
        ({}, {}, "Invalid empty client quota entity"),
        ({"user": ""}, {}, "Empty user not supported"),
        ({"client-id": ""}, {}, "Empty client-id not supported"),
        ({"group": "g"}, {}, "Unhandled client quota entity type: group"),
        (
            {"user": "a", "ip": "10.0.0.1"},
            {},
            "Invalid quota entity combination, IP entity should not be used with user/client ID entity.",
        ),
        ({"ip": "10.0.0.256"}, {}, "10.0.0.256 is not a valid IP or resolvable host."),
        (
            {"user": "a"},
            {"connection_creation_rate": 1},
            "Invalid configuration key connection_creation_rate",
        ),
        ({"user": "a"}, {"SCRAM-SHA-256": 1}, "Invalid configuration key SCRAM-SHA-256"),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1}, "Invalid configuration key producer_byte_rate"),
        ({"user": "a"}, {"producer_byte_rate": 1.5}, "Configuration producer_byte_rate must be a LONG value"),
        (
            {"user": "a"},
            {"producer_byte_rate": 1e19},
            "Configuration producer_byte_rate must be a LONG value",
        ),
        (
            {"ip": "10.0.0.1"},
            {"connection_creation_rate": 2.0**31},
            "Configuration connection_creation_rate must be a INT value",
        ),
        (
            {"user": "a"},
            {"consumer_byte_rate": -1.0},
            "Configuration consumer_byte_rate must be a LONG value",
        ),
        (
            {"user": "a"},
            {"request_percentage": -1.0},
            "Configuration request_percentage must be a number of at least 0",
        ),
        (
            {"user": "a"},
            {"controller_mutation_rate": float("nan")},
            "Configuration controller_mutation_rate must be a number of at least 0",
        ),
    ],
)
def test_what_kafka_refuses_is_refused(
    serving: Serving, entity: dict[str, str | None], quotas: dict[str, Any], text: str
) -> None:
    good = {"user": "good"}, {"producer_byte_rate": 1}
    assert alter(serving, (entity, quotas), good) == [("INVALID_REQUEST", text), ("NONE", None)]
    assert list(serving.configs.stored) == [Entity.user("good")]


def test_the_error_of_the_store_is_that_of_its_entry(serving: Serving) -> None:
    serving.configs.trouble = api_error(ErrorCode.REQUEST_TIMED_OUT, "no ZooKeeper")
    ((code, text),) = alter(serving, ({"user": "a"}, {"producer_byte_rate": 1}))
    assert (code, text) == ("REQUEST_TIMED_OUT", "no ZooKeeper")
    answer = ask(serving, {})
    assert (answer.error_code, answer.entries) == (ErrorCode.REQUEST_TIMED_OUT, None)


def test_a_stored_text_that_is_no_number_is_reported(serving: Serving) -> None:
    serving.configs.stored[Entity.user("a")] = {"producer_byte_rate": "many"}
    answer = ask(serving, {})
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert answer.error_message == "producer_byte_rate of users/a is not a number in ZooKeeper"
    # A question for one other user reads that user only.
    assert describe(serving, strict=True, user="b") == {}


@pytest.mark.parametrize(
    ("components", "strict", "numbers"),
    [
        ({}, False, {0, 1, 2, 3, 4, 5, 6, 7, 8, "5", "6"}),
        ({}, True, set()),
        ({"user": ANY}, False, {0, 1, 2, 5, 6, 7, 8}),
        ({"user": ANY}, True, {0, 1, 2}),
        ({"user": "alice"}, False, {0, 5, 6}),
        ({"user": "alice"}, True, {0}),
        ({"user": "b c"}, True, {1}),
        ({"user": None}, True, {2}),
        ({"user": None}, False, {2, 7, 8}),
        ({"client_id": "x"}, True, {3}),
        ({"client_id": "x"}, False, {3, 5, 7}),
        ({"client_id": ANY}, True, {3, 4}),
        ({"client_id": None}, False, {4, 6, 8}),
        ({"user": "alice", "client_id": "x"}, True, {5}),
        ({"user": "alice", "client_id": None}, False, {6}),
        ({"user": None, "client_id": ANY}, True, {7, 8}),
        ({"user": "nobody"}, True, set()),
        ({"ip": ANY}, True, {"5", "6"}),
        ({"ip": "10.0.0.1"}, True, {"5"}),
        ({"ip": None}, False, {"6"}),
        ({"ip": "10.0.0.9"}, False, set()),
    ],
)
def test_a_filter_matches_as_kafkas_does(
    limited: Serving, components: dict[str, Any], strict: bool, numbers: set[Any]
) -> None:
    found = describe(limited, strict=strict, **components)
    assert {
        int(values["producer_byte_rate"]) if "producer_byte_rate" in values else str(int(rate))
        for values in found.values()
        for rate in values.values()
    } == numbers


@pytest.mark.parametrize(
    ("components", "code", "text"),
    [
        ([("", 2, None)], "INVALID_REQUEST", "Unexpected empty filter component entity type"),
        ([("group", 2, None)], "UNSUPPORTED_VERSION", "Custom entity type 'group' not supported"),
        ([("user", 2, None)] * 2, "INVALID_REQUEST", "Duplicate user filter component entity type"),
        ([("client-id", 2, None)] * 2, "INVALID_REQUEST", "Duplicate client filter component entity type"),
        ([("user", 3, None)], "INVALID_REQUEST", "Unexpected match type: 3"),
        (
            [("user", 2, None), ("ip", 2, None)],
            "INVALID_REQUEST",
            "Invalid entity filter component combination, IP filter component should not be used with user "
            "or clientId filter component.",
        ),
    ],
)
def test_a_filter_that_kafka_refuses_is_refused(
    serving: Serving, components: list[tuple[str, int, str | None]], code: str, text: str
) -> None:
    parts = [
        QuotaFilterComponent(entity_type=kind, match_type=match_type, match=match)
        for kind, match_type, match in components
    ]
    answer = serving.call(DescribeClientQuotasRequest(components=parts, strict=False), version=1)
    assert (ErrorCode(answer.error_code).name, answer.error_message) == (code, text)
