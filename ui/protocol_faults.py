"""Faults at the protocol: the rules of the brokers, a form that adds one, buttons that remove them.

``GET protocol-faults`` is the rules as JSON. A POST has the fields of a rule, or ``clear``, the name of one
or nothing for all, as a form or as a JSON object. Each change becomes a mark of every chart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from barnabas.common.fault_rules import API_NAMES, fault_rule
from barnabas.protocol.errors import ErrorCode
from barnabas.ui.asking import Missing, answer_change, tried
from barnabas.ui.context import context_of, form_of

ACTIONS: Final = {
    "error": "an error code",
    "disconnect": "disconnect",
    "truncate": "half of the answer",
    "drop": "no answer",
    "delay": "a delay alone",
}
CHOICES: Final[Mapping[str, Any]] = {
    "actions": ACTIONS,
    "apis": sorted(API_NAMES.values()),
    "codes": [code.name for code in ErrorCode if code is not ErrorCode.NONE],
}
_NUMBERS: Final[Mapping[str, type[float] | type[int]]] = {
    "delay_ms": float,
    "probability": float,
    "nth": int,
    "times": int,
    "seed": int,
}


async def _rules(request: Request) -> Response:
    rules, problem = await tried(context_of(request).admin.describe_fault_rules())
    if problem:
        return JSONResponse({"error": problem}, 502)
    return JSONResponse([state.as_json() for state in rules.rules])


async def _change(request: Request) -> Response:
    return await answer_change(request, _changed(request), "faults")


async def _changed(request: Request) -> str:
    """Make the change; returns the sentence. Raises BarnabasError and ValueError."""
    values = await _values(request)
    admin = context_of(request).admin
    if "clear" in values:
        name = values["clear"]
        removed = await admin.remove_fault_rules(*([name] if name else []))
        if name and not removed:
            raise Missing(f"there is no fault rule {name}")
        if not removed:
            return "there were no fault rules"
        sentence = f"fault rule {', '.join(removed)} removed"
    else:
        rule = fault_rule(values)
        await admin.add_fault_rules(rule)
        sentence = f"fault rule {rule.name}: {rule}"
    request.app.state.sampler.history.mark("fault", sentence, broker=None, time_ms=None)
    return sentence


async def _values(request: Request) -> dict[str, Any]:
    if not request.headers.get("content-type", "").startswith("application/json"):
        return dict(_of_form(await form_of(request)))
    values = json.loads(await request.body())
    if not isinstance(values, dict):
        raise ValueError("expected a JSON object with the fields of a rule, or clear")
    return values


def _of_form(form: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """The fields that were filled in. ``then`` is the choice of an action; an error code is for ``error``."""
    action = form.get("then", "")
    for name, text in form.items():
        if name == "clear":
            yield name, text
        elif not text.strip() or name == "then" or (name == "error" and action not in ("", "error")):
            continue
        elif name in _NUMBERS:
            yield name, _number(name, text)
        elif name == "api":
            yield name, text.replace(",", " ").split()
        elif name in ("after", "drop", "disconnect", "truncate"):
            yield name, text in ("on", "true", "1")
        else:
            yield name, text.strip()
    if action in ("disconnect", "truncate", "drop"):
        yield action, True


def _number(name: str, text: str) -> float:
    try:
        return _NUMBERS[name](text)
    except ValueError:
        raise ValueError(f"{name} {text!r}: expected a number") from None


ROUTES: Final = [
    Route("/protocol-faults", _rules),
    Route("/protocol-faults", _change, methods=["POST"]),
]
