"""The marks of the failover timeline: the differences of two states, as sentences. Pure.

A mark's time is that of the state that first shows the difference, so it may be half a second late. A gap
that is inferred (no pulse runs) is as coarse, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from barnabas.common.texts import first_of
from barnabas.ui.snapshot import State, is_another

_MOST_NAMED: Final = 4
Times = Mapping[tuple[str, str, str], int]
"""Kind, sentence and partition (or none) of a change → its time in ms."""
_NO_TIMES: Final[Times] = {}
_WORDS: Final[Mapping[tuple[str, str], str]] = {
    ("running", "gone"): "has ended",
    ("running", "paused"): "is paused",
    ("running", "silent"): "does not answer",
    ("silent", "gone"): "has ended",
    ("silent", "paused"): "is paused",
    ("silent", "running"): "answers again",
    ("paused", "running"): "runs again",
    ("paused", "silent"): "runs again and does not answer yet",
    ("paused", "gone"): "has ended",
    ("gone", "silent"): "starts",
    ("gone", "running"): "is back",
    ("gone", "paused"): "is paused",
}
"""(state before, state) → the verb of the mark."""


def marks_between(before: State, after: State, times: Times = _NO_TIMES) -> Iterator[dict[str, Any]]:
    """The marks without their ids, causes first: processes, then the controller, elections, the ISR.

    `times`: of changes whose time is known better than that of `after`.
    """
    time_ms = after["time_ms"]
    if is_another(after["cluster_id"], before):
        text = f"another cluster answers: its id is {after['cluster_id']}"
        yield {"time_ms": time_ms, "kind": "controller", "text": text}
        return
    for id, broker in after["brokers"].items():
        was = before["brokers"].get(id)
        if was is None or was["state"] != broker["state"]:
            verb = "has joined" if was is None else _WORDS[was["state"], broker["state"]]
            yield {"time_ms": time_ms, "kind": "broker", "text": f"broker {id} {verb}", "broker": int(id)}
    for id in before["brokers"].keys() - after["brokers"].keys():
        yield {"time_ms": time_ms, "kind": "broker", "text": f"broker {id} has left", "broker": int(id)}
    own, earlier = after["zookeeper"], before["zookeeper"]
    if own is not None and earlier is not None and own["state"] != earlier["state"]:
        text = f"ZooKeeper {_WORDS[earlier['state'], own['state']]}"
        yield {"time_ms": time_ms, "kind": "zookeeper", "text": text}
    if (controller := after["controller"]) != before["controller"]:
        text, details = controller_text(controller), {} if controller is None else {"broker": controller}
        exact_ms = times.get(("controller", text, ""), time_ms)
        yield {"time_ms": exact_ms, "kind": "controller", "text": text, **details}
    yield from _partition_marks(before["partitions"], after["partitions"], time_ms, times)


def _partition_marks(before: State, after: State, time_ms: int, times: Times) -> Iterator[dict[str, Any]]:
    """One mark for all partitions with the same change, as after the death of a broker."""
    changed: dict[tuple[str, str, int | None], list[str]] = {}
    for name, partition in after.items():
        was = before.get(name)
        if was is None or was is partition:
            continue
        leader = partition["leader"]
        if leader != was["leader"] or (
            leader is not None and partition["leader_epoch"] > was["leader_epoch"]
        ):
            changed.setdefault(("election", leader_text(leader), leader), []).append(name)
        for text, id in isr_texts(was["isr"], partition["isr"]):
            changed.setdefault(("isr", text, id), []).append(name)
    for (kind, text, broker), names in changed.items():
        exact_ms = [times[kind, text, name] for name in names if (kind, text, name) in times]
        named = f"{text}: {first_of(names, _MOST_NAMED)}"
        mark = {"time_ms": min(exact_ms, default=time_ms), "kind": kind, "text": named}
        if broker is not None:
            mark["broker"] = broker
        if len(names) == 1:
            mark["partition"] = names[0]
        yield mark


def controller_text(controller: int | None) -> str:
    return "there is no controller" if controller is None else f"broker {controller} is the controller"


def leader_text(leader: int | None) -> str:
    return "no leader" if leader is None else f"leader {leader}"


def isr_texts(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[str, int]]:
    """A sentence for each broker that left or joined, and its id."""
    for id in sorted({*before} - {*after}):
        yield f"broker {id} left the ISR", id
    for id in sorted({*after} - {*before}):
        yield f"broker {id} joined the ISR", id


class Event(NamedTuple):
    """A mark or a gap as a line of text."""

    time_ms: float
    kind: str
    text: str


def events_of(marks: Iterable[State], gaps: Iterable[State]) -> list[Event]:
    """Marks and gaps in the order of their times."""
    found = [Event(mark["time_ms"], mark["kind"].replace("isr", "ISR"), mark["text"]) for mark in marks]
    found += [Event(gap["start_ms"], "gap", gap["text"]) for gap in gaps]
    return sorted(found)


@dataclass
class _Watched:
    high_watermark: int
    moved_ms: int
    is_moving: bool = False
    gap: dict[str, Any] | None = None


class InferredGaps:
    """Gaps without acknowledgements, from high watermarks that stop under traffic.

    Writers may also have stopped by themselves: so a gap begins only if the partition refuses writes with
    acks=all (its leader is absent or silent, or its ISR too small), and ends when it takes them again.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def look(self, state: State) -> Iterator[dict[str, Any]]:
        """Each gap that begins or ends with this state; its ``name`` identifies it."""
        time_ms = state["time_ms"]
        for name in self._watched.keys() - state["partitions"].keys():
            del self._watched[name]
        for name, partition in state["partitions"].items():
            if partition["is_internal"]:
                continue
            replicas = partition["replicas"]
            known = [r["high_watermark"] for r in replicas.values() if r["high_watermark"] is not None]
            present = max(known, default=-1)
            watched = self._watched.setdefault(name, _Watched(present, time_ms))
            leader = replicas.get(str(partition["leader"]))
            refuses = leader is None or leader["high_watermark"] is None or partition["is_under_min_isr"]
            if present > watched.high_watermark or not refuses:
                if watched.gap is not None:
                    yield watched.gap | {"end_ms": time_ms}
                    watched.gap = None
                # In the state before the first one, the high watermark is unknown. That of a topic that was
                # created again is lower.
                watched.is_moving = 0 <= watched.high_watermark < present
                watched.high_watermark, watched.moved_ms = present, time_ms
            elif watched.is_moving:
                watched.is_moving = False
                watched.gap = {
                    "name": f"{name}@{watched.moved_ms}",
                    "start_ms": watched.moved_ms,
                    "end_ms": None,
                    "text": f"{name}: no acknowledgement (within 500 ms)",
                }
                yield watched.gap
