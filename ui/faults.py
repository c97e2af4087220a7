"""Faults of the cluster on this machine: a page with every button, and the change that injects one.

A fault runs in a thread, one at a time for a server, and one at a time for the links. Its sentence becomes a
mark of every chart.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.deploy.faults import DELAY_MS, FAULTS, Aim, TargetKind, has_full_disk, inject
from barnabas.deploy.links import RuleKind, named
from barnabas.deploy.process import DeployError
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.state import LINKS, ZOOKEEPER
from barnabas.protocol.errors import BarnabasError
from barnabas.ui import protocol_faults
from barnabas.ui.asking import tried
from barnabas.ui.context import context_of, form_of, outcome, refused, render

_MARKED_AT_END: Final = frozenset({"restart", "give-room", "drain"})
"""All others hold from their beginning."""
_under_way: Final[set[tuple[Path, str]]] = set()
"""By the directory of the cluster and the server, or ``links``."""


async def _page(request: Request) -> Response:
    context = context_of(request)
    cluster = context.cluster
    seen = None if cluster is None else await asyncio.to_thread(_look, cluster.directory)
    # Brokers of other software have no such rules.
    rules, problem = (None, "") if context.is_kafka else await tried(context.admin.describe_fault_rules())
    return render(
        request,
        "faults.html",
        seen=seen,
        delay_ms=DELAY_MS,
        rules=rules,
        rules_problem=problem,
        choices=protocol_faults.CHOICES,
    )


def _look(directory: Path) -> dict[str, Any]:
    cluster = RunningCluster.open(directory)
    names = [str(id) for id in cluster.broker_ids]
    servers = [*names, *([ZOOKEEPER] if cluster.zookeeper_process else []), *([LINKS] * cluster.has_links)]
    rows = []
    for name in servers:
        state = cluster.server(name).state
        is_broker = name in names
        is_full = is_broker and has_full_disk(cluster, int(name))
        kinds = {TargetKind.SERVER, TargetKind.BROKER} if is_broker else {TargetKind.SERVER}
        faults = [
            (fault, state in fault.states and is_full == (fault.name == "give-room"))
            if fault.name in ("fill-disk", "give-room")
            else (fault, state in fault.states)
            for fault in FAULTS.values()
            if fault.kind in kinds
        ]
        said = f"{state}, its disk is full" if is_full else state
        looks = "full" if is_full else state
        rows.append({"name": name, "title": named(name), "looks": looks, "said": said, "faults": faults})
    return {"servers": rows, **_links(cluster)}


def _links(cluster: RunningCluster) -> dict[str, Any]:
    if not cluster.has_links:
        return {"ends": [], "rules": {}, "links_error": None}
    try:
        rules, error = cluster.links.rules(), None
    except DeployError as failure:
        rules, error = [], str(failure)
    said: dict[tuple[str, str], str] = {}
    for rule in rules:
        words = {RuleKind.CUT: "cut", RuleKind.DELAY: f"+{rule.delay_ms:g} ms"}
        link = rule.source, rule.target
        said[link] = " ".join(filter(None, [said.get(link), words.get(rule.kind, rule.kind.value)]))
    return {
        "ends": [(end, named(end)) for end in cluster.link_server.ends],
        "rules": said,
        "links_error": error,
    }


async def _inject(request: Request) -> Response:
    context, form = context_of(request), await form_of(request)
    if context.cluster is None:
        return refused(request, "faults", "only the cluster of a directory of this machine can be broken")
    try:
        name, aim = _read(form)
    except ValueError as error:
        return refused(request, "faults", str(error))
    fault = FAULTS.get(name)
    is_link = fault is not None and fault.kind in (TargetKind.PAIR, TargetKind.ALL_LINKS)
    key = context.cluster.directory, LINKS if is_link else aim.target
    if key in _under_way:
        return refused(request, "faults", f"another fault of {named(key[1])} is under way")
    began_ms = int(time.time() * 1000)
    _under_way.add(key)
    try:
        sentence = await asyncio.to_thread(_run, context.cluster.directory, name, aim)
    except BarnabasError as error:
        return refused(request, "faults", f"{fault.label if fault else name}: {error}")
    finally:
        _under_way.discard(key)
    request.app.state.sampler.history.mark(
        "fault",
        sentence,
        broker=int(aim.target) if aim.target.isdecimal() else None,
        time_ms=None if name in _MARKED_AT_END else began_ms,
    )
    return outcome(request, "faults", sentence)


def _run(directory: Path, name: str, aim: Aim) -> str:
    # The record has the processes that another program has started since.
    return inject(RunningCluster.open(directory), name, aim)


def _read(form: Mapping[str, str]) -> tuple[str, Aim]:
    """The fault and its aim: three fields, or one of a button without JavaScript: ``cut 1 2``.

    Raises ValueError.
    """
    name, target, other, *_ = [*form.get("fault", "").split(), "", "", ""]
    text = form.get("delay_ms") or str(DELAY_MS)
    try:
        delay_ms = float(text)
    except ValueError:
        delay_ms = math.nan
    if not 0 < delay_ms <= 60_000:
        raise ValueError(f"delay_ms {text!r}: expected a number of milliseconds from 1 to 60000")
    name = form.get("name", name)
    return name, Aim(target=form.get("target", target), other=form.get("other", other), delay_ms=delay_ms)


ROUTES: Final = [
    Route("/faults", _page),
    Route("/faults", _inject, methods=["POST"]),
]
