"""Faults that hold over a cluster, without processes: a cluster and an admin client that remember calls."""

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.client.admin.fault_rules import FaultCounts, FaultRuleState
from barnabas.common.fault_rules import FaultRule
from barnabas.deploy import held_faults
from barnabas.deploy.direct_admin import DirectAdmin
from barnabas.deploy.faults import Aim
from barnabas.deploy.held_faults import HeldFaults, LinkFault, ProtocolFault, ServerFault
from barnabas.deploy.links import Rule, RuleKind
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import DeployError
from barnabas.protocol.errors import BarnabasError, ErrorCode, RequestTimedOutLocally, api_error
from barnabas.protocol.ids import BrokerId

LOST = RequestTimedOutLocally("no answer")


class _Broker:
    process = None

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.state = "running"

    @property
    def is_alive(self) -> bool:
        return self.state != "gone"

    def kill(self) -> None:
        self.state = "gone"

    def pause(self) -> None:
        self.state = "paused"

    def resume(self) -> None:
        self.state = "running"


class _Cluster:
    """Two brokers that run."""

    def __init__(self) -> None:
        self.broker_ids = [1, 2]
        self.zookeeper = None
        self.launched: list[int] = []
        self.awaited: list[set[int]] = []
        self.links = self
        self.rules: dict[Any, Rule] = {}
        self.interrupts = False
        self.brokers = [_Broker(id) for id in self.broker_ids]

    def broker(self, broker_id: int) -> Any:
        return self.brokers[broker_id - 1]

    def server(self, name: str) -> Any:
        return self.broker(int(name))

    def launch_broker(self, broker_id: int) -> None:
        self.broker(broker_id).state = "running"
        self.launched.append(broker_id)

    def change(self, removed: Sequence[Rule] = (), added: Sequence[Rule] = ()) -> None:
        if self.interrupts:
            raise KeyboardInterrupt
        gone = {rule.key for rule in removed}
        self.rules = {key: rule for key, rule in self.rules.items() if key not in gone}
        self.rules |= {rule.key: rule for rule in added}

    def wait_ready(self, timeout_s: float, must_run: set[int], excused: Any) -> None:
        if timeout_s == held_faults._START_TIMEOUT_S:
            self.awaited.append(must_run)


class _Admin:
    """Each rule has hit one request on each broker that has it."""

    def __init__(self) -> None:
        self.rules: dict[int, dict[str, FaultRule]] = {1: {}, 2: {}}
        self.errors: dict[int, BarnabasError] = {}
        self.loses_answers = False
        self.begins, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def add_fault_rules(self, *rules: FaultRule, brokers: int) -> None:
        self.begins.set()
        self.may_go_on.wait()
        if brokers in self.errors:
            raise self.errors[brokers]
        self.rules[brokers] |= {rule.name: rule for rule in rules}
        if self.loses_answers:
            raise LOST

    def remove_fault_rules(self, *names: str, brokers: int) -> None:
        if brokers in self.errors:
            raise self.errors[brokers]
        for name in names:
            self.rules[brokers].pop(name, None)

    def describe_fault_rules(self, brokers: Sequence[int]) -> Any:
        counts = FaultCounts(matches=1, hits=1)
        rules = dict.fromkeys(rule for id in brokers for rule in self.rules[id].values())
        states = [
            FaultRuleState(rule, {BrokerId(id): counts for id in brokers if rule.name in self.rules[id]})
            for rule in rules
        ]
        return SimpleNamespace(
            rules=states, errors={id: self.errors[id] for id in brokers if id in self.errors}
        )

    def views(self, brokers: Sequence[int]) -> dict[int, Any]:
        return {}


@pytest.fixture
def cluster() -> _Cluster:
    return _Cluster()


@pytest.fixture
def admin() -> _Admin:
    return _Admin()


@pytest.fixture
def held(cluster: _Cluster, admin: _Admin) -> HeldFaults:
    return HeldFaults(cast(LocalCluster, cluster), cast(DirectAdmin, admin))


def rule(held: HeldFaults, *names: str, brokers: Sequence[int] = (1,)) -> ProtocolFault:
    return ProtocolFault(held, [FaultRule(name=name, drop=True) for name in names], brokers)


def test_the_end_of_a_fault_leaves_the_hits_of_another_as_they_are(held: HeldFaults) -> None:
    with rule(held, "outer") as outer:
        with rule(held, "inner") as inner:
            assert inner.hits == 1
        assert (inner.hits, outer.hits) == (1, 1)
    assert outer.hits == 1


def test_a_fault_whose_rules_were_added_without_an_answer_leaves_none(
    held: HeldFaults, admin: _Admin
) -> None:
    admin.loses_answers = True
    with pytest.raises(BarnabasError, match="no answer"), rule(held, "lost"):
        pass
    assert admin.rules == {1: {}, 2: {}}


def test_a_rule_of_somebody_else_stays_when_a_fault_of_its_name_cannot_begin(
    held: HeldFaults, admin: _Admin
) -> None:
    theirs = admin.rules[1]["name"] = FaultRule(name="name", drop=True)
    admin.errors[1] = api_error(ErrorCode.INVALID_REQUEST, "in use")
    fault = rule(held, "name", brokers=[1, 2])
    with pytest.raises(BarnabasError, match="in use"), fault:
        pass
    admin.errors.clear()
    with rule(held, "other"):
        pass
    assert admin.rules == {1: {"name": theirs}, 2: {}}


def test_a_broker_that_does_not_answer_keeps_no_rule_at_another_nor_for_longer_than_that(
    held: HeldFaults, admin: _Admin
) -> None:
    with pytest.raises(BarnabasError, match="no answer"), rule(held, "held", brokers=[1, 2]):
        admin.errors[1] = LOST
    assert [[*rules] for rules in admin.rules.values()] == [["held"], []]
    admin.errors.clear()
    with rule(held, "next"):
        assert [[*rules] for rules in admin.rules.values()] == [["next"], []]


def test_a_fault_whose_hits_cannot_be_asked_for_ends(
    held: HeldFaults, admin: _Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(brokers: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), rule(held, "held"):
        monkeypatch.setattr(admin, "describe_fault_rules", interrupt)
    assert admin.rules == {1: {}, 2: {}}


def test_hits_of_a_broker_that_does_not_answer_are_not_left_out_in_silence(
    held: HeldFaults, admin: _Admin
) -> None:
    with rule(held, "held", brokers=[1, 2]) as fault:
        assert fault.hits == 2
        admin.errors[2] = LOST
        with pytest.raises(BarnabasError, match="no answer"):
            assert fault.hits
        admin.errors.clear()


@pytest.mark.parametrize(("name", "state"), [("kill", "gone"), ("pause", "paused")])
def test_a_started_broker_that_another_fault_stops_is_not_waited_for(
    held: HeldFaults, cluster: _Cluster, name: str, state: str
) -> None:
    link = LinkFault(held, Rule(kind=RuleKind.CUT, source="1", target="2")).__enter__()
    with ServerFault(held, "kill", "1"):
        pass
    other = ServerFault(held, name, "1").__enter__()
    link.__exit__()
    assert cluster.broker(1).state == state
    assert cluster.awaited == []
    other.__exit__()
    assert cluster.awaited == [{1}]


def test_rules_are_tried_in_the_order_in_which_they_are_given(held: HeldFaults, admin: _Admin) -> None:
    names = [f"rule-{number}" for number in range(20)]
    with rule(held, *names):
        assert [*admin.rules[1]] == names


def test_a_broker_that_resumes_without_reaching_the_others_loses_the_rules_of_ended_faults(
    held: HeldFaults, admin: _Admin
) -> None:
    with LinkFault(held, Rule(kind=RuleKind.CUT, source="1", target="2")):
        with ServerFault(held, "pause", "1"):
            with rule(held, "held"):
                pass
            held.cluster.broker(1).state = "running"
            dropped = rule(held, "dropped").__enter__()
            held.cluster.broker(1).state = "paused"
            dropped.__exit__()
            assert [*admin.rules[1]] == ["dropped"]
        assert admin.rules[1] == {}


def test_a_link_whose_end_was_interrupted_is_as_the_next_change_wants_it(
    held: HeldFaults, cluster: _Cluster
) -> None:
    def delay(delay_ms: float) -> LinkFault:
        return LinkFault(held, Rule(kind=RuleKind.DELAY, source="1", target="2", delay_ms=delay_ms))

    outer = delay(50).__enter__()
    for ending, left in ((delay(200).__enter__(), [50]), (outer, [])):
        cluster.interrupts = True
        with pytest.raises(KeyboardInterrupt):
            ending.__exit__()
        cluster.interrupts = False
        with rule(held, "any"):
            assert [rule.delay_ms for rule in cluster.rules.values()] == left


def test_a_server_that_got_a_signal_before_an_interruption_ends_and_starts_again(
    held: HeldFaults, cluster: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inject(_: object, name: str, aim: Aim) -> None:
        if name == "stop":
            raise KeyboardInterrupt
        cluster.server(aim.target).kill()

    monkeypatch.setattr(held_faults, "inject", inject)
    with pytest.raises(KeyboardInterrupt), ServerFault(held, "stop", "1"):
        pass
    assert cluster.launched == [1]


@pytest.mark.filterwarnings("error")
def test_a_broker_that_ended_by_itself_is_started_also_where_warnings_are_errors(
    held: HeldFaults, cluster: _Cluster
) -> None:
    with pytest.raises(RuntimeWarning, match="broker 1 had ended by itself"), LinkFault(held):
        cluster.broker(1).kill()
    assert cluster.launched == [1]


async def test_a_fault_whose_beginning_is_cancelled_does_not_stay(held: HeldFaults, admin: _Admin) -> None:
    async def hold() -> None:
        async with rule(held, "cancelled"):
            raise AssertionError("the block was entered")

    admin.may_go_on.clear()
    holding = asyncio.create_task(hold())
    await asyncio.to_thread(admin.begins.wait)
    for _ in range(2):
        holding.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
    admin.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await holding
    with held._lock:
        assert admin.rules == {1: {}, 2: {}}


def test_a_fault_that_ends_after_its_cluster_starts_nothing(held: HeldFaults, cluster: _Cluster) -> None:
    killed, dropped = ServerFault(held, "kill", "1"), rule(held, "dropped")
    held._held += [killed, dropped]
    held.close()
    for broker in cluster.brokers:
        broker.state = "gone"
    for fault in (killed, dropped):
        fault.__exit__()
    assert cluster.launched == []
    assert dropped.hits == 0
    with pytest.raises(DeployError, match="does not run any more"), killed:
        pass
