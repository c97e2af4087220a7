"""`barnabas faults add|list|clear`: the faults that brokers inject into requests, for tests of programs."""

from __future__ import annotations

import argparse
from typing import Any, Final

from barnabas.cli.action import Column, actions, answer, arg, flag, repeated, show
from barnabas.cli.arguments import not_empty, on_cluster
from barnabas.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from barnabas.client.admin.admin import Admin, FaultRuleState
from barnabas.common.fault_rules import FAULTS_CLIENT_ID, REQUESTERS, FaultRule, fault_rule
from barnabas.common.suggestions import suggestion
from barnabas.protocol.errors import InvalidConfiguration

_VALUES: Final = "api client_id topic error delay_ms nth times probability seed requests name"
_FLAGS: Final = "drop disconnect truncate after"


def _check_rule(options: argparse.Namespace) -> None:
    given = {name: getattr(options, name) for name in (*_VALUES.split(), *_FLAGS.split())}
    given["api"] = [name.strip() for names in options.api for name in names.split(",")]
    try:
        options.rule = fault_rule({name: value for name, value in given.items() if value not in (None, [])})
    except InvalidConfiguration as error:
        raise CommandError(str(error), USAGE) from None


async def _add(options: argparse.Namespace, admin: Admin) -> None:
    rule: FaultRule = options.rule
    await admin.add_fault_rules(rule, brokers=options.broker)
    answer(options, FaultRuleState(rule, {}).as_json(), f"{rule.name}: {rule}")


async def _list(options: argparse.Namespace, admin: Admin) -> None:
    described = await admin.describe_fault_rules(options.broker)
    nothing = "" if described.errors else "there are no fault rules"
    if nothing and described.disabled:
        nothing += f"; fault.injection.enable is false on broker {', '.join(map(str, described.disabled))}"
    columns: dict[str, Column] = {
        "rule": lambda row: row["state"].rule.name,
        "does": lambda row: row["state"].rule.action,
        "to": lambda row: row["state"].rule.conditions,
        "matches": lambda row: _by_broker(row["state"], "matches"),
        "hits": lambda row: _by_broker(row["state"], "hits"),
    }
    rows = [{"state": state} for state in described.rules]
    show(options, rows, columns, nothing, value=[state.as_json() for state in described.rules])
    if described.errors:
        raise CommandError("; ".join(f"broker {id}: {error}" for id, error in described.errors.items()))


async def _clear(options: argparse.Namespace, admin: Admin) -> None:
    if options.names:
        described = await admin.describe_fault_rules()
        there = [state.rule.name for state in described.rules]
        for name in options.names:
            # A broker that did not tell its rules may have this one.
            if name not in there and not described.errors:
                hint = suggestion(name, there) if there else "; there are none"
                raise CommandError(f"there is no fault rule {name!r}{hint}", NOT_FOUND)
    removed = await admin.remove_fault_rules(*options.names)
    answer(options, {"removed": removed}, f"removed {', '.join(removed)}" if removed else "there were none")


def _by_broker(state: FaultRuleState, name: str) -> str:
    """The sum, and of several brokers each."""
    counts = {broker: getattr(each, name) for broker, each in state.brokers.items()}
    each = f" ({', '.join(f'{broker}: {count}' for broker, count in counts.items())})"
    return f"{sum(counts.values())}{each if len(counts) > 1 else ''}"


_BROKER: Final = repeated("--broker", "ID", "only this broker (default: all)", type=int, default=None)
_CLIENT: Final[dict[str, Any]] = {"client_id": FAULTS_CLIENT_ID}

add_arguments = actions(
    on_cluster(
        "add",
        "add a rule, after those that there are",
        _add,
        repeated("--api", "API,…", "requests of these APIs, as Produce or list-offsets (default: all)"),
        arg("--client-id", "ID", "requests of this client; a pattern with * and ?"),
        arg("--topic", "TOPIC", "requests that name this topic; a pattern with * and ?"),
        arg("--requests", help="whose requests (default: clients)", choices=REQUESTERS),
        arg("--nth", "N", "only the N-th of these requests, on each broker", type=int),
        arg("--times", "N", "at most N of these requests, on each broker", type=int),
        arg("--probability", "P", "this share of these requests, above 0 and up to 1", type=float),
        arg("--seed", "N", "the same seed chooses the same share (default: 0)", type=int),
        arg("--error", "CODE", "answer with this error, as NOT_LEADER_OR_FOLLOWER"),
        flag("--drop", "answer neither this request nor later ones of its connection"),
        flag("--disconnect", "close the connection instead of an answer"),
        flag("--truncate", "send half of the answer, then close the connection"),
        arg("--delay-ms", "MS", "let the request wait, alone or before one of these four", type=float),
        flag("--after", "handle the request first, so that only its answer is lost"),
        arg("--name", "NAME", "for `clear` (default: made from what the rule does)", type=not_empty),
        _BROKER,
        check=_check_rule,
        epilog="example: `barnabas faults add --api produce --topic orders --nth 3 --disconnect --after`",
        **_CLIENT,
    ),
    on_cluster("list", "show the rules and how many requests they have hit", _list, _BROKER, **_CLIENT),
    on_cluster(
        "clear",
        "remove these rules, or all",
        _clear,
        arg("names", "NAME", "default: all", nargs="*"),
        **_CLIENT,
    ),
)
