"""Which request a fault rule hits: conditions, order, the n-th, so many times, a probability with a seed."""

from collections.abc import Sequence
from typing import Any

import pytest

from barnabas.broker.handlers.fault_table import FaultTable
from barnabas.common.fault_rules import MAX_RULES, FaultRule
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.schema import ApiKey


def rule(name: str = "rule", **values: Any) -> FaultRule:
    return FaultRule(name=name, **{"drop": True, **values})


def table_of(*rules: FaultRule) -> FaultTable:
    table = FaultTable()
    table.change((), rules)
    return table


def hit(
    table: FaultTable,
    api: ApiKey = ApiKey.PRODUCE,
    client_id: str = "app",
    topics: Sequence[str] = ("orders",),
    *,
    is_of_broker: bool = False,
) -> str | None:
    """The name of the rule that hits such a request."""
    active = table.find(api, client_id, is_of_broker, lambda: topics)
    return None if active is None else active.rule.name


def counts(table: FaultTable) -> list[tuple[int, int]]:
    return [(matches, hits) for _, matches, hits in table.counts()]


@pytest.mark.parametrize(
    ("values", "request_values", "is_hit"),
    [
        ({"api": "produce"}, {}, True),
        ({"api": ["fetch", "metadata"]}, {}, False),
        ({}, {"api": ApiKey.LEADER_AND_ISR}, True),
        ({"client_id": "app"}, {}, True),
        ({"client_id": "a?p*"}, {"client_id": "app-2"}, True),
        ({"client_id": "APP"}, {}, False),
        ({"client_id": "a[b]"}, {"client_id": "a[b]"}, True),
        ({"client_id": "app"}, {"client_id": "app\n"}, False),
        ({"topic": "ord*"}, {}, True),
        ({"topic": "orders"}, {"topics": ["others", "orders"]}, True),
        ({"topic": "*"}, {"topics": []}, False),
        ({"topic": "orders.eu"}, {"topics": ["orders-eu"]}, False),
        ({}, {"is_of_broker": True}, False),
        ({"requests": "brokers"}, {"is_of_broker": True}, True),
        ({"requests": "brokers"}, {}, False),
        ({"requests": "all"}, {}, True),
        ({"requests": "all"}, {"is_of_broker": True}, True),
    ],
)
def test_a_rule_matches_by_api_client_topic_and_requester(
    values: dict[str, Any], request_values: dict[str, Any], is_hit: bool
) -> None:
    table = table_of(rule(**values))
    assert (hit(table, **request_values) == "rule") is is_hit
    assert counts(table) == [(is_hit, is_hit)]


def test_topics_are_looked_up_only_for_a_rule_that_asks() -> None:
    def fail() -> Sequence[str]:
        raise AssertionError("no rule asks for topics of this API")

    table = table_of(rule("others", api="fetch", topic="t"), rule())
    active = table.find(ApiKey.PRODUCE, "app", False, fail)
    assert active is not None
    assert active.rule.name == "rule"


def test_the_nth_match_is_hit_and_no_other() -> None:
    table = table_of(rule(nth=3, api="produce"))
    hits = [hit(table, api) for api in (ApiKey.PRODUCE, ApiKey.FETCH, *[ApiKey.PRODUCE] * 3)]
    assert hits == [None, None, None, "rule", None]
    assert counts(table) == [(4, 1)]


def test_a_rule_hits_so_many_times_and_then_leaves_requests_to_the_next() -> None:
    table = table_of(rule("first", times=2), rule("second"))
    assert [hit(table) for _ in range(4)] == ["first", "first", "second", "second"]
    assert counts(table) == [(4, 2), (2, 2)]


def test_rules_are_tried_in_the_order_in_which_they_were_added() -> None:
    table = table_of(rule("narrow", topic="orders"), rule("wide"))
    assert [hit(table), hit(table, topics=["others"])] == ["narrow", "wide"]


def test_a_probability_hits_its_share_and_the_same_matches_with_the_same_seed() -> None:
    def hits(seed: int, **values: Any) -> list[int]:
        table = table_of(rule(probability=0.25, seed=seed, **values))
        return [number for number in range(2_000) if hit(table)]

    assert hits(1) == hits(1) != hits(2)
    assert 400 < len(hits(1)) < 600
    assert hits(1, times=3) == hits(1)[:3], "what a counter holds back draws nothing from the others"
    second = hits(1)[1]
    assert hits(1, nth=second + 1) == [second]
    assert hits(1, nth=second) == []


def test_a_name_that_is_in_use_is_refused_also_to_an_equal_rule() -> None:
    table = table_of(rule(nth=3))
    hit(table)
    for same in (rule(nth=3), rule(nth=2)):
        with pytest.raises(InvalidConfiguration, match="a fault rule of the name rule already"):
            table.change((), [rule("new"), same])
    assert counts(table) == [(1, 0)], "nothing of a refused change is in force"
    assert table.change(["rule"], [rule(nth=3)]) == ["rule"]
    assert counts(table) == [(0, 0)]


def test_rules_are_removed_by_name_or_all_and_the_listener_gets_them() -> None:
    table = table_of(*map(rule, "abc"))
    removed: list[str] = []
    table.on_change = lambda gone: removed.extend(each.rule.name for each in gone)
    assert table.change(["b", "unknown"]) == ["b"]
    assert hit(table) == "a"
    assert table.change(None) == ["a", "c"]
    assert hit(table) is None
    assert removed == ["b", "a", "c"]


def test_a_request_that_was_compared_before_a_removal_is_not_hit_after_it() -> None:
    table = table_of(rule(topic="orders"))

    def topics() -> Sequence[str]:
        table.change(None)
        return ["orders"]

    assert table.find(ApiKey.PRODUCE, "app", False, topics) is None


def test_too_many_rules_are_refused() -> None:
    table = table_of(*(rule(str(number)) for number in range(MAX_RULES)))
    with pytest.raises(InvalidConfiguration, match=f"expected {MAX_RULES} at most"):
        table.change((), [rule("one-more")])
    table.change(["0"], [rule("one-more")])
