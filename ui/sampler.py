"""The sampler: it looks at the cluster twice a second while a page listens, and keeps what the pages show.

Guarantees. Each broker is asked by itself, and a tick waits for no answer longer than `_WAIT_S`: a broker
that is paused or gone delays neither the others nor the page. Its memory is bounded. A listener that does not
read gets a new whole state instead of a growing queue. An error in a tick or a part is logged; the next
tick follows.

A part of the state that few pages need (groups, log, …) is a `Part` in the table of `app.py`: it is asked
only while a listener wants it by name, in a task of its own.

Belongs to the event loop of the server.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from barnabas.client.admin.admin import ClusterDescription
from barnabas.client.admin.log_dirs import BrokerLogDirs, BrokerReplicas
from barnabas.client.admin.placement import PartitionReassignment
from barnabas.deploy.cluster_view import (
    ClusterView,
    add_processes,
    broken_links,
    fetch_min_isr,
    fetch_moves,
    join_view,
    unreachable_view,
    zookeeper_view,
)
from barnabas.deploy.local_broker import LocalBroker
from barnabas.deploy.process import cpu_s
from barnabas.protocol.errors import BarnabasError, LocalError
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.ui.context import Context
from barnabas.ui.event_log import open_log, times_of
from barnabas.ui.history import History
from barnabas.ui.snapshot import Look, State, changes, figures_of, state_of
from barnabas.ui.timeline import Event, InferredGaps, events_of, marks_between

log = logging.getLogger(__name__)

TICK_S: Final = 0.5
_WAIT_S: Final = 0.3
_SILENT_S: Final = 1.0
"""A broker that owes an answer for longer is silent."""
_MOVES_S: Final = 2.0
"""Between two looks at reassignments, which are looked at at once when a partition's replicas change."""
_SLOW_S: Final = 10.0
"""Between two looks at values that seldom change: minimum ISRs, disks."""
_CPU_S: Final = 2.0
_FORGET_S: Final = 3.0
"""After a longer pause without listeners, the state before says nothing about the present."""
_MOST_UNREAD: Final = 4
_PARTITIONS: Final = "partitions"
"""The large entry of the state: a page gets the one partition that it draws."""
_ADDED: Final = ("log", "marks", "figures")
"""Entries of an update that are added to what is kept, and are no part of the state."""

T = TypeVar("T")

Ask = Callable[[State], Awaitable[State]]
"""From the present state to an update: an entry with the part's name replaces that part of the state; ``log``
and ``marks`` are lists of entries that are added (without an id they get one); ``figures`` are the newest
points of series, name → (unit, value).
"""


@dataclass(frozen=True)
class Part:
    """A part of the state that a page asks for by ``stream?with=NAME,…``. `make` is called once a server."""

    name: str
    interval_s: float
    make: Callable[[Context], Ask]


class Listener:
    """The unread changes of one open page, or the need of a whole state."""

    def __init__(self, parts: frozenset[str]) -> None:
        self.parts = parts
        self.needs_state = True
        self.is_closed = False
        self._unread: deque[bytes] = deque()
        self._woken = asyncio.Event()

    def put(self, change: bytes) -> None:
        if not self.needs_state:
            self._unread.append(change)
            if len(self._unread) > _MOST_UNREAD:
                self._unread.clear()
                self.needs_state = True
        self._woken.set()

    def close(self) -> None:
        self.is_closed = True
        self._woken.set()

    async def wait(self) -> None:
        """Until there is something to send, or the end."""
        await self._woken.wait()
        self._woken.clear()

    def take(self) -> Iterator[bytes]:
        while self._unread:
            yield self._unread.popleft()


class _Question(Generic[T]):
    """The newest answer to one question, which is asked again and again but once at a time."""

    def __init__(self, ask: Callable[[], Awaitable[T]], interval_s: float = 0.0) -> None:
        self._ask = ask
        self._interval_s = interval_s
        self._asked = -interval_s - 1.0
        self._task: asyncio.Task[T] | None = None
        self.answer: T | None = None
        self.error: BarnabasError | None = None

    def start(self, now: float) -> asyncio.Task[T] | None:
        """Ask if it is time; returns the task that is under way."""
        if self._task is None and now - self._asked >= self._interval_s:
            self._asked = now
            self._task = asyncio.ensure_future(self._ask())
        return self._task

    def take(self) -> None:
        """Keep the answer if it has come. Raises an unforeseen error."""
        if self._task is None or not self._task.done():
            return
        task, self._task = self._task, None
        try:
            self.answer, self.error = task.result(), None
        except BarnabasError as error:
            self.error = error

    def is_late(self, now: float) -> bool:
        return self._task is not None and now - self._asked > _SILENT_S

    def ask_soon(self) -> None:
        self._asked = -self._interval_s - 1.0

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Sampler:
    def __init__(self, context: Context, parts: Sequence[Part] = ()) -> None:
        self._context = context
        self._watcher = context.watcher or context.admin
        self._parts = {part.name: part for part in parts}
        self._asks: dict[str, Ask] = {}
        self._part_questions: dict[str, _Question[State]] = {}
        self._kept: dict[str, State] = {}
        """By part, its newest entries of the state."""
        self._listeners: set[Listener] = set()
        self._is_wanted = asyncio.Event()
        self.state: State | None = None
        """The newest state, without history; None before the first look."""
        self.history = History()
        self._inferred = InferredGaps()
        self.infers_gaps = True
        """False while a pulse measures the gaps."""
        self.extra: Callable[[], State] = dict
        """An update, as one of a part, that every look takes in."""
        self._metadata = _Question(self._ask_metadata)
        self._outage: BarnabasError | None = None
        """Why no broker can be reached, as the first attempt said it."""
        self._known: ClusterDescription | None = None
        """The metadata by which the other questions were chosen."""
        self._moves = _Question(self._ask_moves, _MOVES_S)
        self._min_isr = _Question(self._ask_min_isr, _SLOW_S)
        cluster = context.cluster
        self._zookeeper = (
            None if cluster is None else _Question(partial(asyncio.to_thread, zookeeper_view, cluster), 1.0)
        )
        self._links = (
            None if cluster is None else _Question(partial(asyncio.to_thread, broken_links, cluster), 1.0)
        )
        self._replicas: dict[int, _Question[list[BrokerReplicas]]] = {}
        self._log_dirs: dict[int, _Question[list[BrokerLogDirs]]] = {}
        self._event_log = open_log(context)
        self._times = _Question(self._ask_times)
        self._last: Look | None = None
        """The look that `state` is of."""
        self._cpu = CpuMeter()
        self._failures: set[tuple[type[Exception], str]] = set()
        """The unforeseen errors that were logged: type and place in the code."""
        self._unsettled: frozenset[str] = frozenset()
        """The topics of the last question for minimum ISRs."""

    # -- listeners -----------------------------------------------------------------------------------------

    def listen(self, parts: Iterable[str]) -> Listener:
        """`parts`: also ``partitions``, or only one of them, as ``partitions/t-0``."""
        known = self._parts.keys() | {_PARTITIONS}
        listener = Listener(frozenset(name for name in parts if name.partition("/")[0] in known))
        self._listeners.add(listener)
        self._is_wanted.set()
        return listener

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners:
            self._is_wanted.clear()

    def close(self) -> None:
        """End all streams, so that the server can end at once."""
        for listener in self._listeners:
            listener.close()

    def recent(self) -> State:
        """The newest state with its parts; empty if no page has listened lately."""
        state = self.state
        return state if state is not None and _now_ms() - state["time_ms"] <= _FORGET_S * 1000 else {}

    def events(self) -> list[Event]:
        """The marks and gaps, the newest first."""
        return [*reversed(events_of(self.history.kept("marks"), self.history.gaps))]

    def marks(self) -> Iterable[State]:
        return self.history.kept("marks")

    def log_lines(self) -> Iterable[State]:
        """The kept entries of the part ``log``."""
        return {line["id"]: line for line in self.history.kept("log")}.values()

    def whole(self, parts: frozenset[str]) -> bytes:
        """The state with its history, for a listener that wants these parts."""
        return msgspec.json.encode(self._chosen({**(self.state or {}), **self.history.whole()}, parts))

    def _chosen(self, state: State, parts: frozenset[str]) -> State:
        unwanted = {key for name, kept in self._kept.items() if name and name not in parts for key in kept}
        if "log" not in parts:
            unwanted.add("log")
        chosen = {key: value for key, value in state.items() if key not in unwanted}
        if _PARTITIONS in chosen and _PARTITIONS not in parts:
            # Without entries it still says that there was a change.
            entries = chosen[_PARTITIONS]
            chosen[_PARTITIONS] = {
                name: entries[name] for name in entries if f"{_PARTITIONS}/{name}" in parts
            }
        if "gone" in chosen and unwanted & chosen["gone"].keys():
            chosen["gone"] = {name: keys for name, keys in chosen["gone"].items() if name not in unwanted}
        return chosen

    # -- ticks ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look twice a second while somebody listens, until cancelled."""
        try:
            while True:
                await self._is_wanted.wait()
                started = time.monotonic()
                try:
                    await self._tick()
                except Exception as error:  # noqa: BLE001 - logged; the next look follows
                    self._failed("a look at the cluster", error)
                await asyncio.sleep(max(0.1, TICK_S - (time.monotonic() - started)))
        finally:
            for question in self._questions():
                question.cancel()

    def _questions(self) -> list[_Question[Any]]:
        single: list[_Question[Any]] = [self._metadata, self._moves, self._min_isr, self._times]
        single += [question for question in (self._zookeeper, self._links) if question is not None]
        return [
            *single,
            *self._replicas.values(),
            *self._log_dirs.values(),
            *self._part_questions.values(),
        ]

    async def _tick(self) -> None:
        self._choose_parts()
        now = time.monotonic()
        tasks = [task for question in self._questions() if (task := question.start(now)) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_WAIT_S)
        self._take_answers()
        has_answer = self._metadata.answer is not None or self._metadata.error is not None
        if not has_answer and not self._metadata.is_late(time.monotonic()):
            return
        look, before = self._look(), self.state
        state = state_of(look, before, self._last)
        if before is not None and state["time_ms"] - before["time_ms"] > _FORGET_S * 1000:
            before = None
        figures = figures_of(state, before)
        for name, update in [("", self.extra()), *self._part_updates()]:
            for name_of_list in ("log", "marks"):
                for entry in update.get(name_of_list, ()):
                    self.history.add(name_of_list, entry)
            figures |= update.get("figures", {})
            kept = {key: value for key, value in update.items() if key not in _ADDED}
            self._kept[name] = self._kept.get(name, {}) | kept
        for kept in self._kept.values():
            state |= kept
        if before is not None:
            for mark in marks_between(before, state, self._times.answer or {}):
                self.history.add("marks", mark)
        if self.infers_gaps:
            for gap in self._inferred.look(state):
                self.history.gap(gap["name"], gap["start_ms"], gap["end_ms"], gap["text"])
        self.history.extend_series(figures, state["time_ms"])
        self._publish(state, look)

    def _take_answers(self) -> None:
        for question in self._questions():
            try:
                question.take()
            except Exception as error:  # noqa: BLE001 - logged; the next look follows
                self._failed("a part of a look at the cluster", error)

    def _failed(self, title: str, error: Exception) -> None:
        """Log an unforeseen error once for its place in the code: it may come again at each look."""
        place = str(traceback.extract_tb(error.__traceback__)[-1:])
        if (type(error), place) not in self._failures:
            self._failures.add((type(error), place))
            log.error("%s failed; the next one follows", title, exc_info=error)

    def _publish(self, state: State, look: Look) -> None:
        before, self.state, self._last = self.state, state, look
        if before is None:
            for listener in self._listeners:
                listener.put(b"")
            return
        change, fresh = changes(state, before), self.history.take_fresh()
        if "gone" in change and "gone" in fresh:
            fresh["gone"] |= change["gone"]
        encoded: dict[frozenset[str], bytes] = {}
        for listener in self._listeners:
            if listener.parts not in encoded:
                chosen = self._chosen({**change, **fresh}, listener.parts)
                encoded[listener.parts] = msgspec.json.encode(chosen)
            listener.put(encoded[listener.parts])

    # -- parts ---------------------------------------------------------------------------------------------

    def _choose_parts(self) -> None:
        wanted = {name for listener in self._listeners for name in listener.parts if name in self._parts}
        for name in self._part_questions.keys() - wanted:
            self._part_questions.pop(name).cancel()
            self._kept.pop(name, None)
        for name in wanted - self._part_questions.keys():
            part = self._parts[name]
            if name not in self._asks:
                self._asks[name] = part.make(self._context)
            ask = self._asks[name]
            self._part_questions[name] = _Question(partial(self._ask_part, ask), part.interval_s)

    async def _ask_part(self, ask: Ask) -> State:
        return await ask(self.state or {})

    def _part_updates(self) -> Iterator[tuple[str, State]]:
        """The updates of parts since the last tick."""
        for name, question in self._part_questions.items():
            if question.answer is not None:
                answer, question.answer = question.answer, None
                yield name, answer

    # -- the cluster ---------------------------------------------------------------------------------------

    async def _ask_times(self) -> dict[tuple[str, str, str], int]:
        """The exact times of the changes of the last seconds, from the logs of local brokers."""
        entries = await asyncio.to_thread(self._event_log.new)
        times = {**(self._times.answer or {}), **times_of(entries)}
        since_ms = _now_ms() - _FORGET_S * 1000
        return {change: time_ms for change, time_ms in times.items() if time_ms >= since_ms}

    async def _ask_metadata(self) -> ClusterDescription:
        return await self._watcher.describe_cluster(include_topics=True)

    async def _ask_moves(self) -> tuple[Mapping[TopicPartition, PartitionReassignment], str | None]:
        controller = -1 if self._metadata.answer is None else self._metadata.answer.controller_id
        return await fetch_moves(self._context.admin, controller)

    async def _ask_min_isr(self) -> dict[str, int]:
        topics = [] if self._metadata.answer is None else [*self._metadata.answer.topics]
        return await fetch_min_isr(self._context.admin, topics)

    def _look(self) -> Look:
        """The newest answers. A broker that owes an answer for a second is silent."""
        now = time.monotonic()
        view = self._view(now)
        cluster = self._context.cluster
        if cluster is not None:
            cluster.reload()
            add_processes(view, cluster, self._context.dir_words)
            view.zookeeper = None if self._zookeeper is None else self._zookeeper.answer
            view.broken_links = (self._links.answer or ()) if self._links is not None else ()
        return Look(
            time_ms=_now_ms(),
            view=view,
            cpu_percent=self._cpu.percent(view.processes, now),
            log_dirs={id: dirs.answer[0] for id, dirs in self._log_dirs.items() if dirs.answer},
        )

    def _view(self, now: float) -> ClusterView:
        if (error := self._metadata.error) is not None:
            # The attempts that follow may fail in other words, and the sentence would change in every look.
            if type(error) is not type(self._outage):
                self._outage = error
            return unreachable_view(self._outage or error)
        self._outage = None
        if self._metadata.answer is None or self._metadata.is_late(now):
            return unreachable_view(LocalError("no broker answers"))
        cluster = self._metadata.answer
        self._know(cluster)
        answers = []
        for node in cluster.nodes:
            question = self._replicas[node.node_id]
            if question.error is not None:
                answers.append(BrokerReplicas(node, {}, question.error))
            elif question.is_late(now):
                answers.append(BrokerReplicas(node, {}, LocalError(f"no answer for {_SILENT_S:g} s")))
            elif question.answer:
                answers.append(question.answer[0]._replace(node=node))
            else:
                answers.append(BrokerReplicas(node, {}))
        moves, moves_error = self._moves.answer or ({}, None)
        if moves_error is not None:
            self._moves.ask_soon()
        min_isr = self._min_isr.answer or {}
        return join_view(cluster, cluster.topics, answers, moves, min_isr=min_isr, moves_error=moves_error)

    def _know(self, cluster: ClusterDescription) -> None:
        """Ask each broker of the metadata, and no other; at once if new metadata makes its answer old."""
        admin = self._watcher
        if cluster is self._known:
            return
        before, self._known = self._known, cluster
        brokers, described = {int(node.node_id) for node in cluster.nodes}, cluster.topics
        if before is None or _placement(before) != _placement(cluster):
            self._moves.ask_soon()
        for id in brokers - self._replicas.keys():
            self._replicas[id] = _Question(partial(admin.describe_replicas, None, [id]))
            self._log_dirs[id] = _Question(partial(admin.describe_log_dirs, [id]), _SLOW_S)
        for id in self._replicas.keys() - brokers:
            self._replicas.pop(id).cancel()
            self._log_dirs.pop(id).cancel()
        if described.keys() - (self._min_isr.answer or {}).keys() - self._unsettled:
            # A topic was created: its setting is not waited for twice.
            self._unsettled = frozenset(described)
            self._min_isr.ask_soon()


class CpuMeter:
    """The CPU time of processes over some seconds: in one look a tick is two percent."""

    def __init__(self) -> None:
        self._measured: dict[int, _Measured] = {}
        """By pid."""

    def percent(self, brokers: Sequence[LocalBroker], now: float) -> dict[int, float]:
        """By broker: of one core; absent at first."""
        measured = {
            int(broker.id): (broker.process.pid, self._measure(broker.process.pid, now))
            for broker in brokers
            if broker.process is not None
        }
        self._measured = {pid: one for pid, one in measured.values() if one is not None}
        return {
            id: one.percent
            for id, (_, one) in measured.items()
            if one is not None and one.percent is not None
        }

    def _measure(self, pid: int, now: float) -> _Measured | None:
        """The measurement of before, or a new one if that is old."""
        before = self._measured.get(pid)
        if before is not None and now - before.at < _CPU_S:
            return before
        spent_s = cpu_s(pid)
        if spent_s is None:
            return None
        # A new process with the pid of an ended one has used less.
        if before is None or spent_s < before.spent_s:
            return _Measured(now, spent_s, None)
        return _Measured(now, spent_s, round(100 * (spent_s - before.spent_s) / (now - before.at), 1))


class _Measured(NamedTuple):
    at: float
    spent_s: float
    percent: float | None


def _placement(cluster: ClusterDescription) -> tuple[BrokerId, dict[str, list[tuple[BrokerId, ...]]]]:
    """A reassignment changes the replicas, and the controller lists the reassignments."""
    replicas = {name: [info.replicas for info in topic.partitions] for name, topic in cluster.topics.items()}
    return cluster.controller_id, replicas


def _now_ms() -> int:
    return int(time.time() * 1000)
