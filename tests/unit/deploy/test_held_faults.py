"""Faults that hold over a cluster, without processes: a cluster and an admin client that remember calls."""

import asyncio
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.client.admin.fault_rules import FaultCounts, FaultRuleState
from barnabas.common.fault_rules import FaultRule
from barnabas.deploy.direct_admin import DirectAdmin
from barnabas.deploy.held_faults import HeldFaults, ProtocolFault, ServerFault
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import DeployError
from barnabas.protocol.errors import BarnabasError, RequestTimedOutError
from barnabas.protocol.ids import BrokerId


class _Cluster:
    """Two brokers that run."""

    def __init__(self) -> None:
        self.broker_ids = [1, 2]
        self.zookeeper = None
        self.launched: list[int] = []
        self.brokers = [
            SimpleNamespace(id=id, state="running", is_alive=True, process=None) for id in self.broker_ids
        ]

    def broker(self, broker_id: int) -> Any:
        return self.brokers[broker_id - 1]

    def launch_broker(self, broker_id: int) -> None:
        self.launched.append(broker_id)

    def wait_ready(self, timeout_s: float, **more: Any) -> None:
        pass


class _Admin:
    """Each rule has hit one request on each broker that has it."""

    def __init__(self) -> None:
        self.rules: dict[int, dict[str, FaultRule]] = {1: {}, 2: {}}
        self.loses_answers = False
        self.begins, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def add_fault_rules(self, *rules: FaultRule, brokers: int) -> None:
        self.begins.set()
        self.may_go_on.wait()
        self.rules[brokers] |= {rule.name: rule for rule in rules}
        if self.loses_answers:
            raise RequestTimedOutError("no answer")

    def remove_fault_rules(self, *names: str, brokers: int) -> None:
        for name in names:
            self.rules[brokers].pop(name, None)

    def describe_fault_rules(self, brokers: Sequence[int]) -> Any:
        counts = FaultCounts(matches=1, hits=1)
        states = [
            FaultRuleState(rule, {BrokerId(id): counts}) for id in brokers for rule in self.rules[id].values()
        ]
        return SimpleNamespace(rules=states)

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


def rule(held: HeldFaults, name: str) -> ProtocolFault:
    return ProtocolFault(held, [FaultRule(name=name, drop=True)], [1])


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
        broker.is_alive, broker.state = False, "gone"
    for fault in (killed, dropped):
        fault.__exit__()
    assert cluster.launched == []
    assert dropped.hits == 0
    with pytest.raises(DeployError, match="does not run any more"), killed:
        pass
