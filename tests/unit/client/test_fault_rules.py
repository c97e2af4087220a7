"""Fault rules of several brokers, of which one refuses them or does not answer."""

from collections.abc import Iterable
from typing import Any, cast

import pytest

from barnabas.client.admin.fault_rules import FaultRuleAdmin
from barnabas.client.metadata import Node
from barnabas.common.fault_rules import FAULTS_CLIENT_ID, FaultRule
from barnabas.protocol.errors import (
    BarnabasError,
    ConnectionRefused,
    ErrorCode,
    RequestTimedOutLocally,
    api_error,
)
from barnabas.protocol.ids import BrokerId, Endpoint
from barnabas.protocol.messages.fault_rules import AlterFaultRulesRequest, AlterFaultRulesResponse

NODES = [Node(BrokerId(id), Endpoint("127.0.0.1", 9000 + id)) for id in (1, 2, 3)]
REFUSAL = api_error(ErrorCode.INVALID_REQUEST, "the name is in use")
SILENCE = RequestTimedOutLocally("no answer")


class Brokers(FaultRuleAdmin):
    """Each broker answers with its error, if it has one."""

    def __init__(self, *errors: BarnabasError | None) -> None:
        super().__init__(client_id=FAULTS_CLIENT_ID)
        self._errors = dict(zip(NODES, errors, strict=True))
        self.removed_at: list[int] = []

    async def _ask_live(self, request: Any, chosen: Any = None) -> Any:
        return await self._ask_each(NODES, request)

    async def _ask_each(self, nodes: Iterable[Node], request: Any) -> Any:
        change = cast(AlterFaultRulesRequest, request)
        if change.removed:
            self.removed_at += [node.node_id for node in nodes]
        return [(node, self._errors[node] or AlterFaultRulesResponse()) for node in nodes]


async def test_rules_are_taken_back_from_each_broker_that_may_have_them() -> None:
    brokers = Brokers(None, REFUSAL, SILENCE)
    with pytest.raises(BarnabasError, match="the name is in use") as raised:
        await brokers.add_fault_rules(FaultRule(drop=True))
    assert brokers.removed_at == [1, 3], "the one that refuses them may have another of the name"
    assert raised.value.__notes__ == ["broker 3 may have the rules: no answer"]


async def test_a_broker_that_does_not_run_needs_no_rules() -> None:
    brokers = Brokers(None, ConnectionRefused("no process"), None)
    await brokers.add_fault_rules(FaultRule(drop=True))
    assert brokers.removed_at == []
