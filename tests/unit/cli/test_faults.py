"""`barnabas faults`: the rule of the options, and the rules of brokers as rows."""

import json
from typing import Any

import pytest

from barnabas.cli import arguments
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE
from barnabas.cli.main import main
from barnabas.client.admin.fault_rules import FaultCounts, FaultRules, FaultRuleState
from barnabas.common.fault_rules import FAULTS_CLIENT_ID, FaultRule
from barnabas.protocol.errors import ConnectionClosed
from barnabas.protocol.ids import BrokerId

ONE, TWO, THREE = map(BrokerId, (1, 2, 3))


class FakeAdmin:
    def __init__(self) -> None:
        rule = FaultRule(name="first", api="Fetch", truncate=True)
        counts = {ONE: FaultCounts(3, 1), TWO: FaultCounts(0, 0)}
        self.described = FaultRules([FaultRuleState(rule, counts)], [], {THREE: ConnectionClosed("gone")})
        self.added: list[tuple[FaultRule, Any]] = []
        self.removed: list[tuple[str, ...]] = []

    async def __aenter__(self) -> "FakeAdmin":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def add_fault_rules(self, rule: FaultRule, brokers: Any) -> None:
        self.added.append((rule, brokers))

    async def describe_fault_rules(self, brokers: Any = None) -> FaultRules:
        return self.described

    async def remove_fault_rules(self, *names: str) -> list[str]:
        self.removed.append(names)
        return list(names)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()

    def make(bootstrap: str, settings: Any) -> FakeAdmin:
        assert settings["client_id"] == FAULTS_CLIENT_ID, "a rule on every API would lock it out"
        return fake

    monkeypatch.setattr(arguments, "make_admin", make)
    return fake


def run(*words: str) -> int:
    return main(["faults", *words, "--bootstrap-server", "127.0.0.1:1"])


def test_options_make_a_rule(admin: FakeAdmin) -> None:
    options = (
        "--api produce,fetch --api metadata --topic o* --client-id c --nth 3 --times 1 --probability 0.5 "
        "--seed 7 --requests all --delay-ms 2.5 --error not_leader_or_follower --after --name n --broker 1"
    )
    assert run("add", *options.split()) == OK
    rule = FaultRule(
        name="n",
        api=("Produce", "Fetch", "Metadata"),
        topic="o*",
        client_id="c",
        nth=3,
        times=1,
        probability=0.5,
        seed=7,
        requests="all",
        delay_ms=2.5,
        error="NOT_LEADER_OR_FOLLOWER",
        after=True,
    )
    assert admin.added == [(rule, [1])]


def test_an_invalid_rule_is_wrong_usage(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("add", "--api", "produse", "--drop") == USAGE
    assert "did you mean Produce?" in capsys.readouterr().err
    assert run("add", "--drop", "--disconnect") == USAGE
    assert admin.added == []


def test_rules_are_listed_with_their_counts_by_broker(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("list") == FAILED, "broker 3 did not answer"
    shown = capsys.readouterr()
    assert "3 (1: 3, 2: 0)" in shown.out
    assert "broker 3: gone" in shown.err
    assert run("list", "--json") == FAILED
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["api"], row["truncate"]) == ("first", ["Fetch"], True)
    assert row["brokers"] == {"1": {"matches": 3, "hits": 1}, "2": {"matches": 0, "hits": 0}}


def test_without_rules_the_brokers_that_take_none_are_named(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.described = FaultRules([], [ONE, TWO], {})
    assert run("list") == OK
    said = "there are no fault rules; fault.injection.enable is false on broker 1, 2\n"
    assert capsys.readouterr().out == said


def test_a_broker_that_does_not_answer_is_not_one_without_rules(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.described = FaultRules([], [ONE], {THREE: ConnectionClosed("gone")})
    assert run("list") == FAILED
    assert capsys.readouterr() == ("", "barnabas faults: broker 3: gone\n")
    assert run("clear", "first") == OK, "the broker that removes it says so"
    assert admin.removed == [("first",)]


def test_an_unknown_name_is_not_cleared(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    admin.described = admin.described._replace(errors={})
    assert run("clear", "frist") == NOT_FOUND
    assert "there is no fault rule 'frist'; did you mean first?" in capsys.readouterr().err
    assert admin.removed == []
    assert run("clear", "first") == OK
    assert run("clear") == OK
    assert admin.removed == [("first",), ()]
