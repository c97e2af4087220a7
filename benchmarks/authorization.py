"""What ACLs cost: a produce request with 1,000 and with none, and single decisions.

The broker's handlers run in this process, without sockets and threads, from the frame to the bytes of the
answer. That is the part of a request that a check makes longer; a client sees less of it. Both kinds of
requests take turns, and times are of the CPU, so that a busy machine slows both. A decision is remembered
with the session; one for a resource that the session has not named before looks into the table.

By itself: `python -m benchmarks.authorization`.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.session import Session
from barnabas.common.security.acl import (
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from barnabas.common.security.principal import ANONYMOUS, Principal
from barnabas.protocol.schema import ApiKey
from benchmarks.support import Figure, Options, run
from tests.support.building import state
from tests.support.record_requests import produce_request
from tests.support.serving import Connection, Serving, batch

_VALUES = [b"x" * 100] * 10
_IN_TURN = 50
"""Requests of one kind until it is the other's turn."""


def _authorizer(count: int) -> Authorizer:
    """ACLs of many users on names, prefixes and all topics; the peer may write to ``topic``."""
    authorizer, chosen = Authorizer(), random.Random(count)
    acls: dict[ResourcePattern, set[AclEntry]] = {
        ResourcePattern(ResourceType.TOPIC, "topic"): {
            AclEntry(ANONYMOUS, "*", Operation.WRITE, Permission.ALLOW)
        }
    }
    for number in range(count):
        kind = chosen.choice([PatternType.LITERAL, PatternType.PREFIXED])
        name = chosen.choice([f"topic-{number}", f"t{number % 50}", "*"])
        entry = AclEntry(Principal.user(f"user-{number}"), "*", Operation.READ, Permission.ALLOW)
        acls.setdefault(ResourcePattern(ResourceType.TOPIC, name, kind), set()).add(entry)
    authorizer.replace(acls)
    return authorizer


def _serving(folder: str, authorizer: Authorizer | None) -> Serving:
    serving = Serving(Path(folder), authorizer=authorizer)
    serving.managed.know({1: 0, 2: 5, 3: 5})
    serving.managed.tell(state())
    return serving


def _produce_ns(serving: Serving, count: int, session: Session) -> float:
    """Nanoseconds of one request, the median of them."""
    request, times = produce_request(batch(*_VALUES), acks=1), []
    for _ in range(count):
        connection = Connection.of(request, version=9, session=session)
        began_ns = time.thread_time_ns()
        connection.run(serving.dispatch)
        times.append(time.thread_time_ns() - began_ns)
        assert connection.is_answered
    return statistics.median(times)


def _costs(options: Options, count: int) -> tuple[float, float]:
    """Nanoseconds of a produce request without an authorizer, and with this many ACLs."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        kinds = [
            (_serving(one, None), Session("10.0.0.1")),
            (_serving(other, _authorizer(count)), Session("10.0.0.1")),
        ]
        times: list[list[float]] = [[], []]
        for turn in range(options.amount(200, 20)):
            for index, (serving, session) in enumerate(kinds):
                ns = _produce_ns(serving, _IN_TURN, session)
                if turn:
                    times[index].append(ns)
        for serving, _ in kinds:
            serving.close()
    return statistics.median(times[0]), statistics.median(times[1])


def _each_ns(work: Callable[[int], object], count: int) -> float:
    began_ns = time.thread_time_ns()
    for number in range(count):
        work(number)
    return (time.thread_time_ns() - began_ns) / count


def measure(options: Options) -> list[Figure]:
    figures = []
    for count in (1_000, 10_000):
        rounds = [_costs(options, count) for _ in range(options.rounds)]
        more = statistics.median([(with_acls / without - 1) * 100 for without, with_acls in rounds])
        without = statistics.median([before for before, _ in rounds])
        if count == 1_000:
            figures.append(Figure(name="produce of 1 KB, no authorizer", measured=without / 1_000, unit="µs"))
        figures.append(
            Figure(name=f"produce of 1 KB, {count} ACLs, more", measured=more, unit="%", at_most=3.0)
        )
        authorizer, session = _authorizer(count), Session("10.0.0.1")

        def ask(name: str, authorizer: Authorizer = authorizer, session: Session = session) -> bool:
            return authorizer.allows(session, Operation.WRITE, ResourceType.TOPIC, name, ApiKey.PRODUCE)

        known = _each_ns(lambda _, ask=ask: ask("topic"), options.amount(200_000, 20_000))  # type: ignore[misc]  # bound here
        new = _each_ns(lambda number, ask=ask: ask(f"topic-{number}x"), options.amount(50_000, 5_000))  # type: ignore[misc]  # bound here
        figures += [
            Figure(name=f"a remembered decision, {count} ACLs", measured=known, unit="ns"),
            Figure(name=f"a new decision, {count} ACLs", measured=new, unit="ns"),
        ]
    return figures


if __name__ == "__main__":
    run(__doc__, measure)
