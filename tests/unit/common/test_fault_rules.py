"""A fault rule that exists is valid; an invalid value is refused by its name with what was expected."""

from typing import Any

import pytest

from barnabas.common.fault_rules import MAX_DELAY_MS, FaultRule, fault_rule, from_wire, to_wire
from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration
from barnabas.protocol.frames import LENGTH_BYTES
from barnabas.protocol.messages.fault_rules import AlterFaultRulesRequest
from barnabas.protocol.schema import ApiKey


@pytest.mark.parametrize("name", ["ListOffsets", "LIST_OFFSETS", "list-offsets", "listoffsets"])
def test_an_api_is_named_as_kafka_does_or_as_it_is_declared(name: str) -> None:
    rule = FaultRule(api=[name, "produce"], drop=True)
    assert rule.api == ("ListOffsets", "Produce")
    assert rule.api_keys == (ApiKey.LIST_OFFSETS, ApiKey.PRODUCE)


def test_an_error_is_named_in_any_case() -> None:
    rule = FaultRule(error="not-leader_or_follower")
    assert (rule.error, rule.error_code) == ("NOT_LEADER_OR_FOLLOWER", ErrorCode.NOT_LEADER_OR_FOLLOWER)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"api": "Produse", "drop": True}, "did you mean Produce?"),
        ({"api": 0, "drop": True}, "api=0: expected the name of an API, or several"),
        ({"api": [0], "drop": True}, "no API has the name 0"),
        ({"error": "NOT_LEADER"}, "error='NOT_LEADER': .*did you mean NOT_LEADER_OR_FOLLOWER"),
        ({"error": "NONE"}, "no error code has this name"),
        ({}, "no action; expected one of error, delay_ms, drop, disconnect and truncate"),
        ({"drop": True, "error": "NETWORK_EXCEPTION"}, "has error and drop; expected one of them"),
        ({"drop": "yes"}, "drop='yes': expected True or False"),
        ({"delay_ms": float("nan")}, f"delay_ms=nan: expected 0 to {MAX_DELAY_MS}"),
        ({"delay_ms": MAX_DELAY_MS + 1}, f"expected 0 to {MAX_DELAY_MS}"),
        ({"delay_ms": -1}, f"delay_ms=-1: expected 0 to {MAX_DELAY_MS}"),
        ({"drop": True, "probability": 0}, "probability=0: expected a number above 0, up to 1"),
        ({"drop": True, "probability": True}, "probability=True"),
        ({"drop": True, "nth": 0}, "nth=0: expected a whole number of 1 or more"),
        ({"drop": True, "times": 1.5}, "times=1.5: expected a whole number"),
        ({"drop": True, "seed": 1 << 63}, "seed=.*63 bits"),
        ({"drop": True, "requests": "client"}, "did you mean clients?"),
        ({"drop": True, "topic": ""}, "topic='': expected a name or a pattern"),
        (
            {"drop": True, "client_id": "x" * 257},
            "expected a name or a pattern of 1 to 256 printable characters",
        ),
        ({"drop": True, "client_id": "a\nb"}, "expected a name or a pattern"),
        ({"drop": True, "name": "two words"}, "without spaces"),
        ({"drop": True, "name": "x" * 129}, "expected up to 128 printable characters"),
        ({"drop": True, "topics": "t"}, "no 'topics'; did you mean topic?"),
    ],
)
def test_an_invalid_value_is_refused_with_what_was_expected(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidConfiguration, match=problem) as refused:
        fault_rule(values)
    assert len(str(refused.value)) < 400, "also for a long value"


def test_a_rule_without_a_name_gets_one_that_tells_what_it_does() -> None:
    first, second = (FaultRule(api="Fetch", truncate=True) for _ in range(2))
    assert first.name != second.name
    assert first.name.startswith("fetch-truncate-")
    assert FaultRule(delay_ms=1).name.startswith("every-api-delay-")


def test_a_rule_is_described_in_words() -> None:
    rule = FaultRule(
        api="Produce", topic="orders", nth=3, delay_ms=200, error="REQUEST_TIMED_OUT", after=True
    )
    assert rule.action == "delay 200 ms, REQUEST_TIMED_OUT after handling"
    assert rule.conditions == "request 3 of Produce for topic orders"
    rule = FaultRule(drop=True, times=2, probability=0.5, requests="all", client_id="a*")
    said = "drop on every request from client a* from clients and brokers, at most 2, with probability 0.5"
    assert str(rule) == said


def test_a_rule_is_received_as_it_was_sent() -> None:
    rule = FaultRule(
        name="n",
        api=("Produce", "Fetch"),
        client_id="c*",
        topic="t",
        delay_ms=0.5,
        disconnect=True,
        after=True,
        nth=2,
        times=1,
        probability=0.25,
        seed=-7,
        requests="all",
    )
    request = AlterFaultRulesRequest(added=[to_wire(rule), to_wire(FaultRule(error="CORRUPT_MESSAGE"))])
    frame = b"".join(map(bytes, codec_msgpack.encode_request(1, "c", request)))
    received = codec_msgpack.decode_request(memoryview(frame)[LENGTH_BYTES:]).body
    assert from_wire(received.added[0]) == rule
