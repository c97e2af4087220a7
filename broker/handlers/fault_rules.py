"""AlterFaultRules and DescribeFaultRules: the rules of faults in this broker's memory."""

from __future__ import annotations

import logging

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.common.fault_rules import from_wire, to_wire
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration
from barnabas.protocol.messages import fault_rules as wire

logger = logging.getLogger(__name__)


def handle_alter(services: Services, request: ApiRequest) -> None:
    body: wire.AlterFaultRulesRequest = request.body
    broker = f"broker {services.config.broker_id}"
    if body.added and not services.config.fault_injection_enable:
        text = f"{broker}: fault.injection.enable is false; it must be true in the broker's settings at start"
        request.respond(
            wire.AlterFaultRulesResponse(error_code=ErrorCode.POLICY_VIOLATION, error_message=text)
        )
        return
    try:
        rules = [from_wire(entry) for entry in body.added]
        removed = services.faults.change(body.removed, rules)
    except InvalidConfiguration as error:
        code = ErrorCode.INVALID_REQUEST
        request.respond(wire.AlterFaultRulesResponse(error_code=code, error_message=f"{broker}: {error}"))
        return
    for name in removed:
        logger.warning("fault rule %s is removed", name)
    for rule in rules:
        logger.warning("fault rule %s: %s", rule.name, rule)
    request.respond(wire.AlterFaultRulesResponse(removed=removed))


def handle_describe(services: Services, request: ApiRequest) -> None:
    request.respond(
        wire.DescribeFaultRulesResponse(
            is_enabled=services.config.fault_injection_enable,
            rules=[
                wire.FaultRuleState(rule=to_wire(rule), matches=matches, hits=hits)
                for rule, matches, hits in services.faults.counts()
            ],
        )
    )
