"""AlterFaultRules and DescribeFaultRules: the rules of faults in this broker's memory."""

from __future__ import annotations

import logging

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.common.fault_rules import MAX_RULES, FaultRule, from_wire, to_wire
from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.messages import fault_rules as wire

logger = logging.getLogger(__name__)


def handle_alter(services: Services, request: ApiRequest) -> None:
    body: wire.AlterFaultRulesRequest = request.body
    try:
        rules = _received(services, body)
        removed = services.faults.change(body.removed, rules)
    except ApiError as error:
        _refuse(services, request, error.code, error.text)
        return
    except InvalidConfiguration as error:
        _refuse(services, request, ErrorCode.INVALID_REQUEST, str(error))
        return
    for name in removed:
        logger.warning("fault rule %s is removed", name)
    for rule in rules:
        logger.warning("fault rule %s: %s", rule.name, rule)
    request.respond(wire.AlterFaultRulesResponse(removed=removed))


def _received(services: Services, body: wire.AlterFaultRulesRequest) -> list[FaultRule]:
    """The rules to add. Raises ApiError and InvalidConfiguration."""
    if body.added and not services.config.fault_injection_enable:
        text = "fault.injection.enable is false; it must be true in the broker's settings at its start"
        raise api_error(ErrorCode.POLICY_VIOLATION, text)
    if len(body.added) > MAX_RULES:
        raise InvalidConfiguration(f"{len(body.added)} fault rules; expected {MAX_RULES} at most")
    return [from_wire(entry) for entry in body.added]


def _refuse(services: Services, request: ApiRequest, code: ErrorCode, text: str) -> None:
    # Several brokers are asked for the same.
    message = f"broker {services.config.broker_id}: {text}"
    request.respond(wire.AlterFaultRulesResponse(error_code=code, error_message=message))


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
