"""The overview, the topics and one partition, as the newest look at the cluster shows them.

The script of each page fetches its own page again after a change, and takes over what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.deploy.faults import FAULTS, Fault
from barnabas.ui.context import render
from barnabas.ui.explain import explain
from barnabas.ui.sampler import Sampler
from barnabas.ui.snapshot import State

_ROW_FAULTS: Final = tuple(FAULTS[name] for name in ("kill", "stop", "pause", "resume", "restart"))
"""Of a broker's row in the overview; the page of the faults has all."""
_RATES: Final = {"records_in": "records in", "acknowledged": "acknowledged", "bytes_in": "bytes in"}


async def _overview(request: Request) -> Response:
    sampler: Sampler = request.app.state.sampler
    state = sampler.recent()
    brokers = [(broker, faults_of(broker["state"])) for broker in state.get("brokers", {}).values()]
    return render(
        request,
        "overview.html",
        brokers=brokers,
        problems=state.get("problems"),
        zookeeper=state.get("zookeeper"),
        is_pulsing=state.get("is_pulsing", False),
        rates=_RATES,
        events=sampler.events(),
    )


def faults_of(state: str) -> list[tuple[Fault, bool]]:
    """The faults of a broker in this state of the page, and whether each makes sense."""
    process = "running" if state == "silent" else state
    return [(fault, process in fault.states) for fault in _ROW_FAULTS]


async def _topics(request: Request) -> Response:
    own, internal = topics_of(request.app.state.sampler.recent().get("partitions", {}))
    return render(request, "topics.html", topics=own, internal=internal)


def topics_of(partitions: Mapping[str, State]) -> tuple[list[State], list[State]]:
    """A row for each topic by name: those of users, and the internal ones."""
    rows: dict[str, State] = {}
    for partition in sorted(partitions.values(), key=lambda each: (each["topic"], each["partition"])):
        topic = partition["topic"]
        row = rows.setdefault(
            topic,
            {"topic": topic, "is_internal": partition["is_internal"], "size_bytes": None, "rate": 0.0}
            | {"squares": []},
        )
        row["squares"].append({"partition": partition["partition"], **square_of(partition)})
        row["rate"] += partition["records_per_s"] or 0
        sizes = [each["size_bytes"] for each in partition["replicas"].values()]
        if known := [size for size in sizes if size is not None]:
            row["size_bytes"] = (row["size_bytes"] or 0) + sum(known)
    return (
        [row for row in rows.values() if not row["is_internal"]],
        [row for row in rows.values() if row["is_internal"]],
    )


def square_of(partition: State) -> dict[str, str]:
    """The class, the text, and the same in words, of a partition in the list of topics."""
    name = f"{partition['topic']}-{partition['partition']}"
    leader, isr = partition["leader"], partition["isr"]
    if leader is None or leader < 0:
        return {"kind": "offline", "text": "!", "words": f"{name} has no leader"}
    words = f"{name}: leader {leader}, in sync {_listed(isr)}"
    missing = [id for id in partition["replicas"] if int(id) not in isr]
    if partition["is_under_min_isr"]:
        return {"kind": "under-min", "text": str(leader), "words": f"{words}, below min.insync.replicas"}
    if missing:
        return {"kind": "under", "text": str(leader), "words": f"{words}, not in sync {_listed(missing)}"}
    return {"kind": "whole", "text": str(leader), "words": words}


def _listed(ids: Iterable[Any]) -> str:
    return " ".join(map(str, ids))


async def _partition(request: Request) -> Response:
    topic, number = request.query_params.get("topic", ""), request.query_params.get("partition", "0")
    chosen = request.query_params.get("replica", "")
    replica = int(chosen) if chosen.isascii() and chosen.isdecimal() else None
    sampler: Sampler = request.app.state.sampler
    name = f"{topic}-{number}"
    partition = sampler.recent().get("partitions", {}).get(name)
    return render(
        request,
        "partition.html",
        topic=topic,
        number=number,
        name=name,
        facts={} if partition is None else facts_of(partition),
        replica=replica,
        sentences=[] if partition is None or replica is None else explain(name, partition, replica),
        events=sampler.events(),
    )


def facts_of(partition: State) -> dict[str, Any]:
    """By title; None for what is unknown."""
    leader, rate, target = partition["leader"], partition["records_per_s"], partition["moves_to"]
    facts = {
        "leader": "none" if leader is None or leader < 0 else f"broker {leader}",
        "epoch": partition["leader_epoch"],
        "ISR": ", ".join(map(str, partition["isr"])) or "empty",
        "min.insync.replicas": partition["min_isr"],
        "records/s": None if rate is None else f"{rate:,.0f}",
    }
    return facts if target is None else facts | {"moves to": ", ".join(map(str, target))}


ROUTES: Final = [
    Route("/", _overview),
    Route("/topics", _topics),
    Route("/partition", _partition),
]
