"""The rules of protocol faults in the page: shown, added by a form or by JSON, removed; each a mark."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from barnabas.client.admin.fault_rules import FaultCounts, FaultRules, FaultRuleState
from barnabas.common.fault_rules import FaultRule
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.ui.app import make_app
from barnabas.ui.context import Context
from tests.support.asgi import get, post

ONE, TWO = BrokerId(1), BrokerId(2)


class Brokers:
    """The rules of two brokers, and the history of the page."""

    def __init__(self) -> None:
        self.rules: dict[str, FaultRule] = {}
        self.marks: list[str] = []
        self.disabled: list[BrokerId] = []
        self.refusal: Exception | None = None
        self.is_kafka = False

    async def describe_fault_rules(self) -> FaultRules:
        if self.refusal:
            raise self.refusal
        counts = {ONE: FaultCounts(3, 2), TWO: FaultCounts(4, 0)}
        return FaultRules([FaultRuleState(rule, counts) for rule in self.rules.values()], self.disabled, {})

    async def add_fault_rules(self, rule: FaultRule) -> None:
        if self.refusal:
            raise self.refusal
        self.rules[rule.name] = rule

    async def remove_fault_rules(self, *names: str) -> list[str]:
        removed = [name for name in self.rules if name in names or not names]
        for name in removed:
            del self.rules[name]
        return removed

    def mark(self, kind: str, text: str, *, broker: int | None, time_ms: int | None) -> None:
        assert (kind, broker) == ("fault", None)
        self.marks.append(text)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def app_of(brokers: Brokers, **context: Any) -> Starlette:
    app = make_app(Context(admin=cast(Any, brokers), bootstrap="", settings={}, **context))
    app.state.sampler = SimpleNamespace(history=brokers)
    return app


@pytest.fixture
def app(brokers: Brokers) -> Starlette:
    return app_of(brokers)


async def test_the_form_adds_a_rule_and_marks_it(app: Starlette, brokers: Brokers) -> None:
    form = {
        "api": "produce, fetch",
        "topic": " orders ",
        "client_id": "",
        "nth": "3",
        "delay_ms": "2.5",
        "then": "disconnect",
        "error": "NOT_LEADER_OR_FOLLOWER",
        "after": "on",
    }
    answer = await post(app, "protocol-faults", **form)
    assert answer.status == 303
    (rule,) = brokers.rules.values()
    expected = FaultRule(
        name=rule.name,
        api=["Produce", "Fetch"],
        topic="orders",
        nth=3,
        delay_ms=2.5,
        disconnect=True,
        after=True,
    )
    assert rule == expected, "the error code is of another action"
    assert brokers.marks == [f"fault rule {rule.name}: {rule}"]
    page = (await get(app, "faults")).text
    assert f'data-rule="{rule.name}"' in page
    assert 'data-title="Matches">7<' in page
    assert 'data-title="Hits">2<' in page


async def test_a_script_adds_shows_and_clears_rules_as_json(app: Starlette, brokers: Brokers) -> None:
    answer = await post(
        app, "protocol-faults", {"name": "n", "api": "Produce", "error": "REQUEST_TIMED_OUT", "times": 2}
    )
    said = "fault rule n: REQUEST_TIMED_OUT on every request of Produce, at most 2"
    assert json.loads(answer.text) == {"outcome": said}
    (shown,) = json.loads((await get(app, "protocol-faults")).text)
    assert (shown["name"], shown["times"], shown["brokers"]["1"]) == ("n", 2, {"matches": 3, "hits": 2})
    answer = await post(app, "protocol-faults", clear="unknown", accept="application/json")
    assert (answer.status, json.loads(answer.text)) == (
        404,
        {"error": "Nothing was changed: there is no fault rule unknown"},
    )
    await post(app, "protocol-faults", clear="n")
    assert brokers.rules == {}
    answer = await post(app, "protocol-faults", {"clear": ""})
    assert (answer.status, json.loads(answer.text)) == (200, {"outcome": "there were no fault rules"})
    assert brokers.marks[1:] == ["fault rule n removed"]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"then": "drop", "api": "Produse"}, "no API has the name 'Produse'; did you mean Produce?"),
        ({"then": "drop", "nth": "x"}, "nth 'x': expected a number"),
        ({"then": "delay"}, "no action; expected one of"),
        ({"dorp": "true"}, "a fault rule has no 'dorp'; did you mean drop?"),
    ],
)
async def test_an_invalid_rule_is_an_error_and_no_mark(
    app: Starlette, brokers: Brokers, form: dict[str, str], said: str
) -> None:
    answer = await post(app, "protocol-faults", **form, accept="application/json")
    assert answer.status == 400
    assert said in json.loads(answer.text)["error"]
    assert brokers.marks == []


async def test_the_page_says_why_there_are_no_rules(app: Starlette, brokers: Brokers) -> None:
    assert "No rules." in (await get(app, "faults")).text
    brokers.disabled = [TWO]
    assert "it is false on broker 2" in (await get(app, "faults")).text
    brokers.refusal = api_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert "CLUSTER_AUTHORIZATION_FAILED" in (await get(app, "faults")).text
    assert (await get(app, "protocol-faults")).status == 502
    answer = await post(app, "protocol-faults", then="drop", accept="application/json")
    assert answer.status == 403


async def test_a_page_that_may_only_see_shows_no_form(brokers: Brokers) -> None:
    app = app_of(brokers, is_read_only=True)
    brokers.rules["n"] = FaultRule(name="n", drop=True)
    page = (await get(app, "faults")).text
    assert "Add a rule" not in page
    assert page.count("<button") == page.count(" disabled>Clear")
