"""The rules of faults that brokers inject into requests, for tests of programs: add, show, remove.

Rules live in the memory of each broker, which needs ``fault.injection.enable``. No rule hits a client with
the id `FAULTS_CLIENT_ID`. These calls are made by such a client, a short-lived one if the admin client has
another id: otherwise a rule on every API could not be removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from barnabas.client.admin.log_dirs import LogDirAdmin
from barnabas.client.arguments import several
from barnabas.client.metadata import Node
from barnabas.common.fault_rules import FAULTS_CLIENT_ID, FaultRule, from_wire, to_wire
from barnabas.protocol.errors import ApiError, BarnabasError, ConnectionRefused
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages import fault_rules as wire


class FaultCounts(NamedTuple):
    """The number of requests that met the conditions of a rule on one broker, and of those that it hit."""

    matches: int
    hits: int


class FaultRuleState(NamedTuple):
    """A rule, and its counts on each broker that has it."""

    rule: FaultRule
    brokers: Mapping[BrokerId, FaultCounts]

    @property
    def matches(self) -> int:
        """The number of requests that met the rule's conditions, on all its brokers."""
        return sum(counts.matches for counts in self.brokers.values())

    @property
    def hits(self) -> int:
        """The number of requests that the rule has hit, on all its brokers."""
        return sum(counts.hits for counts in self.brokers.values())

    def as_json(self) -> dict[str, Any]:
        """The fields of the rule, and ``brokers``: the counts by broker."""
        counts = {str(broker): each._asdict() for broker, each in self.brokers.items()}
        return {**asdict(self.rule), "api": list(self.rule.api), "brokers": counts}


class FaultRules(NamedTuple):
    """The rules of several brokers, in the order in which a broker tries them.

    ``disabled`` has the brokers whose ``fault.injection.enable`` is false, ``errors`` the errors of brokers
    that did not answer.
    """

    rules: list[FaultRuleState]
    disabled: list[BrokerId]
    errors: Mapping[BrokerId, BarnabasError]


class FaultRuleAdmin(LogDirAdmin):
    async def add_fault_rules(
        self, *rules: FaultRule, brokers: Collection[int] | int | None = None
    ) -> list[str]:
        """Add rules to these brokers, or to all live ones, after those that they have; returns the names.

        Raises a broker's error, as INVALID_REQUEST for a name that is in use, or POLICY_VIOLATION without
        ``fault.injection.enable``. Then the rules are removed again from all brokers that may have them; a
        note of the error names brokers that did not answer to that.
        """
        added = [to_wire(rule) for rule in several("rules", rules, FaultRule)]
        names = [entry.name for entry in added]
        async with self._unhit() as unhit:
            answers = await unhit._ask_live(wire.AlterFaultRulesRequest(added=added), _ids(brokers))
            if errors := _errors(answers):
                # A broker that has refused them may have others of these names.
                nodes = [node for node, answer in answers if not isinstance(answer, ApiError)]
                undone = await unhit._ask_each(nodes, wire.AlterFaultRulesRequest(removed=names))
                for node, answer in undone:
                    if isinstance(answer, BarnabasError) and not isinstance(answer, ConnectionRefused):
                        errors[0].add_note(f"broker {node.node_id} may have the rules: {answer}")
                raise errors[0]
        return names

    async def remove_fault_rules(
        self, *names: str, brokers: Collection[int] | int | None = None
    ) -> list[str]:
        """Remove the rules of these names, or all rules, from these brokers or all live ones.

        Returns the names of the rules that there were. Connections that a rule has stalled are closed, and
        delayed requests go on.
        """
        removed = several("names", names, str) or None
        async with self._unhit() as unhit:
            answers = await unhit._ask_live(wire.AlterFaultRulesRequest(removed=removed), _ids(brokers))
        if errors := _errors(answers):
            raise errors[0]
        found: dict[str, None] = {}
        for _, answer in answers:
            found |= dict.fromkeys(getattr(answer, "removed", ()))
        return list(found)

    async def describe_fault_rules(self, brokers: Collection[int] | int | None = None) -> FaultRules:
        """The rules of these brokers, or of all live ones, with their counts."""
        counts: dict[FaultRule, dict[BrokerId, FaultCounts]] = {}
        disabled, errors = [], {}
        async with self._unhit() as unhit:
            answers = await unhit._ask_live(wire.DescribeFaultRulesRequest(), _ids(brokers))
        for node, answer in answers:
            if isinstance(answer, BarnabasError):
                errors[node.node_id] = answer
                continue
            if not answer.is_enabled:
                disabled.append(node.node_id)
            for state in answer.rules:
                of_rule = counts.setdefault(from_wire(state.rule), {})
                of_rule[node.node_id] = FaultCounts(state.matches, state.hits)
        states = [FaultRuleState(rule, of_rule) for rule, of_rule in counts.items()]
        return FaultRules(states, disabled, errors)

    @asynccontextmanager
    async def _unhit(self) -> AsyncIterator[FaultRuleAdmin]:
        """This client, or a short-lived one that no rule hits."""
        if self.config.client_id == FAULTS_CLIENT_ID:
            yield self
            return
        self._open()
        async with FaultRuleAdmin(replace(self.config, client_id=FAULTS_CLIENT_ID)) as unhit:
            yield unhit


def _ids(brokers: Collection[int] | int | None) -> list[int] | None:
    return None if brokers is None else several("brokers", brokers, int)


def _errors(answers: Sequence[tuple[Node, Any]]) -> list[BarnabasError]:
    """The errors of brokers; rules of a broker whose process has ended are gone, and it gets none.

    If no process listens, that is an error, too.
    """
    errors = [answer for _, answer in answers if isinstance(answer, BarnabasError)]
    others = [error for error in errors if not isinstance(error, ConnectionRefused)]
    return others or (errors if len(errors) == len(answers) else [])
