"""Records a history as frames: after each step its name, a sentence on it, and each replica with its records.

A history that is written by hand is a function. It runs statement by statement here, so nothing in it knows
of the recording: a call names the step, and the comment above it, or else the docstring of what it calls,
explains it. What a step changed follows from two frames. With a planted mistake the history goes on after a
broken promise, so that the frames show what comes of it.

The same history always gives the same frames.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

from barnabas.protocol.ids import BrokerId, Offset
from barnabas.protocol.invariants import InvariantViolation
from barnabas.ui.explain import explain
from tests.simulation.broker import SimBroker
from tests.simulation.disk import Entry
from tests.simulation.kinds import KINDS
from tests.simulation.log_transactions import seen_by_a_client
from tests.simulation.planted import Mutation
from tests.simulation.truth import Truth
from tests.simulation.world import OPEN_WORLDS, World

Frame = dict[str, Any]
_BROKEN: Final = (AssertionError, InvariantViolation)
_COUNTS: Final = ("no record", "a record", "two records", "three records")


# Pictures.


def picture(world: World) -> dict[str, Any]:
    """The brokers and the partition, in the form of the live page; None for what no process could tell."""
    state, name = world.state, str(world.tp)
    leader = world.hosts.get(state.leader)
    led = None if leader is None else leader.partition
    replicas = {str(id_): _replica(world, world.brokers[id_], led) for id_ in world.replicas_of(world.tp)}
    controller = world.controller
    brokers = {
        str(host.id): {
            "id": int(host.id),
            "state": "paused" if host.is_up and host.is_paused else "running" if host.is_up else "gone",
            "is_controller": controller is not None and controller.broker_id == host.id,
        }
        for host in world.hosts.values()
    }
    partition = {
        "topic": world.tp.topic,
        "partition": world.tp.partition,
        "is_internal": False,
        "leader": None if state.leader < 0 else int(state.leader),
        "leader_epoch": int(state.leader_epoch),
        "isr": sorted(map(int, state.isr)),
        "min_isr": world.min_insync_replicas,
        "records_per_s": 0,
        "is_under_min_isr": len(state.isr) < world.min_insync_replicas,
        "replicas": replicas,
    }
    return {"partitions": {name: partition}, "brokers": brokers}


def _replica(world: World, broker: SimBroker, led: Any) -> dict[str, Any]:
    view, partition = broker.view, broker.partition
    follower = None if led is None or not led.is_leader else led._followers._states.get(broker.id)
    return {
        "role": "none" if partition is None else partition.role.value,
        "log_start_offset": None if view is None else int(view.log.log_start_offset),
        "high_watermark": None if partition is None else int(partition.high_watermark),
        "last_stable_offset": None if partition is None else int(partition.last_stable_offset),
        "log_end_offset": None if view is None else int(view.log.log_end_offset),
        "remote_log_end_offset": None
        if follower is None or follower.log_end_offset < 0
        else int(follower[0]),
        "leader_epoch": None if partition is None else int(partition.leader_epoch),
        "size_bytes": None if view is None else view.log.size_bytes,
        "is_offline": not broker.is_up or broker.disk.has_failed,
        "failure": "the process is dead"
        if not broker.is_up
        else "the process is paused"
        if broker.is_paused
        else None,
        "caught_up_ms_ago": None,
    }


def entries_of(broker: SimBroker) -> list[tuple[int, Entry]]:
    """The records of a replica's log, with their offsets; also while its process is dead."""
    view = broker.view
    if view is None:
        return []
    start = view.log.log_start_offset
    entries = enumerate(view.between(start, view.log.log_end_offset), start)
    return [(offset, entry) for offset, entry in entries if entry is not None]


def _shown(entry: Entry) -> int | str | None:
    """The value as a page shows it."""
    if entry.commits is not None:
        return "commit" if entry.commits else "abort"
    return entry.value.decode(errors="replace") if isinstance(entry.value, bytes) else entry.value


def _visible(world: World, entries: Sequence[tuple[int, Entry]]) -> list[int] | None:
    """The offsets that a consumer with read_committed sees; None in a log without transactions."""
    leader = world.brokers.get(world.state.leader)
    partition = None if leader is None else leader.partition
    if partition is None or all(entry.writer is None for _, entry in entries):
        return None
    start, stable = partition.log.log_start_offset, partition.last_stable_offset
    aborted = [
        (one.producer_id, one.first_offset) for one in partition.log.aborted_transactions(start, stable)
    ]
    return [at for at, _ in seen_by_a_client([one for one in entries if one[0] < stable], aborted)]


def standing_of(state: dict[str, Any], visible: Sequence[int] | None) -> str:
    """Sentences on the view of each process, which may differ from the state in ZooKeeper."""
    (partition,) = state["partitions"].values()
    leader = "nobody" if partition["leader"] is None else f"broker {partition['leader']}"
    isr = ", ".join(map(str, partition["isr"])) or "empty"
    sentences = [f"In ZooKeeper: leader {leader}, epoch {partition['leader_epoch']}, ISR {isr}"]
    for id_, replica in partition["replicas"].items():
        process, epoch = state["brokers"][id_]["state"], replica["leader_epoch"]
        words = {"leader": f"leads in epoch {epoch}", "follower": f"follows in epoch {epoch}"}
        role = "is dead" if process == "gone" else words.get(replica["role"], "has no role")
        sentences.append(f"Broker {id_} {role}{', paused' if process == 'paused' else ''}")
    if visible is not None:
        offsets = ", ".join(map(str, visible)) or "none"
        sentences.append(f"A consumer with read_committed sees offset {offsets}")
    return ". ".join(sentences) + "."


# Changes.


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) or "nobody"


def changes(before: Frame, after: Frame, name: str) -> Iterator[str]:
    """Sentences on the differences of two frames."""
    yield from _changes_of_processes(before, after)
    old, new = before["state"]["partitions"][name], after["state"]["partitions"][name]
    if (old["leader"], old["leader_epoch"]) != (new["leader"], new["leader_epoch"]):
        leader = "No replica" if new["leader"] is None else f"Broker {new['leader']}"
        yield f"{leader} leads in epoch {new['leader_epoch']}, ZooKeeper says."
    if old["isr"] != new["isr"]:
        yield f"The ISR goes from {_ids(old['isr'])} to {_ids(new['isr'])}."
    for broker, replica in new["replicas"].items():
        yield from _changes_of_replica(f"broker {broker}", old["replicas"].get(broker, replica), replica)
    if added := [offset for offset in after["acknowledged"] if offset not in before["acknowledged"]]:
        yield f"The producer gets the acknowledgement of offset {_ids(added)}."
    if added := [offset for offset in after["lost"] if offset not in before["lost"]]:
        yield f"Offset {_ids(added)} was acknowledged, and the leader has another record there, or none."
    if added := [offset for offset in after["diverged"] if offset not in before["diverged"]]:
        yield f"The logs have different records at offset {_ids(added)}."
    if after["visible"] != before["visible"] and after["visible"] is not None:
        seen = f"offset {_ids(after['visible'])}" if after["visible"] else "no record"
        yield f"A consumer with read_committed sees {seen}."


def _changes_of_processes(before: Frame, after: Frame) -> Iterator[str]:
    words = {"running": "runs", "paused": "is paused", "gone": "is dead"}
    for name, broker in after["state"]["brokers"].items():
        former = before["state"]["brokers"][name]
        if broker["state"] != former["state"]:
            yield f"Broker {name} {words[broker['state']]}."
        if broker["is_controller"] and not former["is_controller"]:
            yield f"Broker {name} is the controller."


def _changes_of_replica(name: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    begun = (new["role"], new["leader_epoch"])
    if begun != (old["role"], old["leader_epoch"]) and new["role"] in ("leader", "follower"):
        role = "leads" if new["role"] == "leader" else "follows"
        yield f"{name.capitalize()} {role} in epoch {new['leader_epoch']} from now on."
    end, former_end = new["log_end_offset"], old["log_end_offset"]
    if None not in (end, former_end) and end < former_end:
        yield f"{name.capitalize()} loses its records from offset {end} on."
    elif None not in (end, former_end) and end > former_end:
        yield f"The log of {name} ends at {end}, after {former_end}."
    for field, what in (("high_watermark", "high watermark"), ("log_start_offset", "log start")):
        if None not in (new[field], old[field]) and new[field] != old[field]:
            yield f"The {what} of {name} goes from {old[field]} to {new[field]}."


# Recorder.


class Recorder:
    """Collects the frames of the newest world. With `is_tolerant` the checks of the world note, not raise."""

    def __init__(self, *, is_tolerant: bool = False) -> None:
        self.frames: list[Frame] = []
        self.violation: str | None = None
        """The first broken promise."""
        self._is_tolerant = is_tolerant
        self._acknowledged: dict[int, int | None] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the block the recorder learns of acknowledgements and of broken promises."""
        acknowledged, check = Truth.acknowledged, World.check

        def note(truth: Truth, base_offset: Offset, values: Sequence[int | None], least: int) -> None:
            self._acknowledged |= dict(enumerate(values, base_offset))
            acknowledged(truth, base_offset, values, least)

        def tolerant(world: World) -> None:
            try:
                check(world)
            except _BROKEN as error:
                self.note(error)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Truth, "acknowledged", note)
            if self._is_tolerant:
                patch.setattr(World, "check", tolerant)
            yield

    def note(self, error: BaseException, otherwise: str = "") -> None:
        """A promise is broken; `otherwise` is the text of an error without one."""
        if not self._is_tolerant:
            raise error
        if self.violation is None:
            self.violation = (str(error) or otherwise).partition("\n")[0].rstrip(":")

    def step(self, step: str, explains: str, *, is_always_shown: bool) -> None:
        """Add a frame, unless nothing changed and the step need not be shown."""
        world = OPEN_WORLDS[-1]
        frame = self._frame(world, step, explains)
        if self.frames:
            frame["changes"] = list(changes(self.frames[-1], frame, str(world.tp)))
        has_news = not self.frames or any(
            frame[key] != self.frames[-1][key] for key in ("state", "entries", "acknowledged")
        )
        if is_always_shown or has_news:
            self.frames.append(frame)

    def _frame(self, world: World, step: str, explains: str) -> Frame:
        entries = {id_: entries_of(world.brokers[id_]) for id_ in world.replicas_of(world.tp)}
        records: dict[int, set[Any]] = {}
        for each in entries.values():
            for offset, entry in each:
                records.setdefault(offset, set()).add((entry.epoch, _shown(entry)))
        led = dict(entries.get(world.state.leader, ()))
        start = min(led, default=0)
        state, visible = picture(world), _visible(world, [*led.items()])
        ((name, partition),) = state["partitions"].items()
        return {
            "step": step,
            "explains": explains,
            "changes": [],
            "state": state,
            "standing": standing_of(state, visible),
            "explained": {id_: explain(name, partition, int(id_)) for id_ in partition["replicas"]},
            "entries": {
                str(id_): [[offset, _shown(entry), int(entry.epoch)] for offset, entry in each]
                for id_, each in entries.items()
            },
            "acknowledged": sorted(self._acknowledged),
            "lost": [
                offset
                for offset, value in sorted(self._acknowledged.items())
                if world.state.leader >= 0
                and offset >= start
                and (offset not in led or led[offset].value != value)
            ],
            "diverged": [offset for offset, found in sorted(records.items()) if len(found) > 1],
            "visible": visible,
            "violation": self.violation,
        }


# Histories that are written by hand.


def _brokers(brokers: Sequence[BrokerId]) -> str:
    names = [str(broker) for broker in brokers]
    return f"Broker {names[0]}" if len(names) == 1 else f"Brokers {', '.join(names[:-1])} and {names[-1]}"


def _produced(_: World, broker: BrokerId, count: int = 1, acks: int = -1, **__: Any) -> str:
    what = _COUNTS[count] if count < len(_COUNTS) else f"{count} records"
    return f"A producer sends {what} to broker {broker}, acks={'all' if acks < 0 else acks}"


_TITLES: Final[dict[str, Callable[..., str]]] = {
    "World": lambda *_, **__: "A cluster starts",
    "world_with_a_record": lambda *_, **__: "A cluster starts, and a record is written",
    "world_with_a_pending_expansion": lambda *_: "A cluster in which broker 3 is about to join the ISR",
    "produce": _produced,
    "replicate": lambda _, *brokers: f"{_brokers(brokers)} fetch" + "es" * (len(brokers) == 1),
    "fetch_without_answer": lambda _, *brokers: f"{_brokers(brokers)} fetch, and the answers are lost",
    "kill": lambda _, broker: f"Broker {broker} is killed",
    "suspect": lambda _, broker: f"A controller takes broker {broker} for dead",
    "clear_suspicion": lambda _, broker: f"A controller reaches broker {broker} again",
    "run_controllers": lambda _: "The controllers work",
    "deliver_requests": lambda _, *brokers: f"{_brokers(brokers)}: the controller's requests arrive",
    "restart_with_an_empty_disk": lambda _, broker: f"Broker {broker} restarts with an empty disk",
    "remove_from_isr": lambda _, *brokers: f"{_brokers(brokers)} lag out of the ISR",
    "heal_and_settle": lambda *_, **__: "All faults end",
    "settle": lambda _: "The cluster comes to rest",
    "expire": lambda _, broker: f"The ZooKeeper session of broker {broker} expires",
    "advance": lambda _, ms: f"{ms:g} ms pass",
    "work_off": lambda _, broker: f"Broker {broker} writes its changes of the ISR",
    "shrink": lambda _, broker: f"Broker {broker} looks for followers that lag",
    "consume": lambda _, broker, offset, **__: f"A consumer reads from broker {broker}",
    "deliver_control": lambda _, channels, broker: (
        f"Broker {broker}: the requests of controller {channels.source} arrive"
    ),
    "move_leadership": lambda _, broker: f"The leadership moves to broker {broker}",
    "elect_controller": lambda _: "Another controller is elected",
    "crash": lambda broker, **__: f"Broker {broker.id} crashes",
    "lose_power": lambda _, *brokers: f"{_brokers(brokers)} lose power",
    "start": lambda broker: f"Broker {broker.id} starts again",
    "wipe": lambda broker: f"Broker {broker.id} gets an empty disk",
    "write": lambda _, broker: f"The producer writes in a transaction, to broker {broker}",
    "end": lambda _, *, committed: f"The producer {'commits' if committed else 'aborts'}",
    "send_marker": lambda _, broker, **__: f"The coordinator sends its marker to broker {broker}",
    "deliver": lambda _, *__: "A message arrives",
    "drop_truths": lambda _, *__: "No record is promised any more",
}


class _Steps:
    """Runs the statements of a history, one after the other, and records a frame after each."""

    def __init__(self, history: Callable[[], None], recorder: Recorder) -> None:
        source = textwrap.dedent(inspect.getsource(history))
        self._lines = source.splitlines()
        (function,) = ast.parse(source).body
        assert isinstance(function, ast.FunctionDef)
        self._body = function.body[1:]
        self._names = dict(history.__globals__)
        self._recorder = recorder

    def run(self) -> None:
        with self._recorder.watching():
            self._run(self._body)

    def _run(self, statements: list[ast.stmt]) -> bool:
        """False if the history cannot go on."""
        for statement in statements:
            match statement:
                case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Name(id="World")) as call)]):
                    # The world is closed by the caller, after the last frame.
                    name = statement.items[0].optional_vars
                    opening = ast.Assign([name], call, lineno=statement.lineno, col_offset=0)
                    goes_on = self._step(opening) and self._run(statement.body)
                case ast.For():
                    goes_on = True
                    for value in list(self._value(statement.iter)):
                        self._names["_next"] = value
                        self._do(ast.Assign([statement.target], ast.Name("_next", ast.Load())))
                        goes_on = goes_on and self._run(statement.body)
                case _:
                    goes_on = self._step(statement)
            if not goes_on:
                return False
        return True

    def _value(self, node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), "history", "eval"), self._names)

    def _do(self, statement: ast.stmt) -> None:
        module = ast.fix_missing_locations(ast.Module([statement], []))
        exec(compile(module, "history", "exec"), self._names)

    def _step(self, statement: ast.stmt) -> bool:
        step, explains, is_always_shown = self._words(statement)
        try:
            self._do(statement)
            goes_on = True
        except _BROKEN as error:
            is_claim = isinstance(statement, ast.Assert)
            self._recorder.note(
                error, f"this does not hold: {ast.unparse(statement.test)}" if is_claim else ""
            )
            goes_on = is_claim
        if not isinstance(statement, ast.Assert | ast.Import) and OPEN_WORLDS:
            self._recorder.step(step, explains, is_always_shown=is_always_shown)
        return goes_on

    def _words(self, statement: ast.stmt) -> tuple[str, str, bool]:
        """The title of a step, its explanation, and whether it is shown although nothing changes."""
        comment = self._comment(statement.lineno)
        value = getattr(statement, "value", None)
        call = value if isinstance(value, ast.Call) else None
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(target, ast.Attribute) and target.attr == "is_paused":
            state = "is paused" if self._value(statement.value) else "resumes"
            return f"Broker {self._value(target.value).id} {state}", comment, bool(comment)
        if call is None:
            return self._lines[statement.lineno - 1].strip(), comment, bool(comment)
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        of = [self._value(call.func.value)] if isinstance(call.func, ast.Attribute) else []
        explains = comment or _first_sentence(self._value(call.func).__doc__ or "")
        if name not in _TITLES:
            return ast.unparse(statement), explains, bool(comment)
        named = {str(keyword.arg): self._value(keyword.value) for keyword in call.keywords}
        return _TITLES[name](*of, *map(self._value, call.args), **named), explains, bool(comment)

    def _comment(self, line: int) -> str:
        """The comment just above a line."""
        above: list[str] = []
        for text in reversed(self._lines[: line - 1]):
            if not text.strip().startswith("#"):
                break
            above.insert(0, text.strip().removeprefix("#").strip())
        return " ".join(above)


def _first_sentence(docstring: str) -> str:
    """Without what a caller has to know."""
    text = " ".join(inspect.cleandoc(docstring).partition("\n\n")[0].split()).partition(";")[0]
    return text and text.rstrip(".") + "."


def frames_of(history: Callable[[], None], mistake: Mutation | None = None) -> list[Frame]:
    """The frames of a history, with a mistake planted or as the code is."""
    recorder = Recorder(is_tolerant=mistake is not None)
    with pytest.MonkeyPatch.context() as patch:
        if mistake is not None:
            mistake(patch.setattr)
        try:
            _Steps(history, recorder).run()
            recorder.frames[-1]["violation"] = recorder.violation
        finally:
            for world in list(OPEN_WORLDS):
                world.close()
    return recorder.frames


# Random histories.


def frames_of_seed(kind: str, seed: int) -> list[Frame]:
    """The frames of a random history: each step after which the partition or a process is different.

    A history of which the code breaks a promise ends with that frame.
    """
    recorder = Recorder(is_tolerant=True)
    history = KINDS[kind].make(seed)
    check = World.check

    def recording(world: World) -> None:
        check(world)
        if history.trace:
            method = getattr(history, history.trace[-1].split()[0], None)
            explains = _first_sentence(getattr(method, "__doc__", "") or "")
            recorder.step(history.trace[-1], explains, is_always_shown=False)

    with recorder.watching(), pytest.MonkeyPatch.context() as patch, history.world as world:
        # The history ends at a broken promise, unlike one with a planted mistake.
        patch.setattr(World, "check", recording)
        try:
            history.run()
        except _BROKEN as error:
            recorder.note(error)
            recorder.step("A promise is broken", str(error), is_always_shown=True)
        assert OPEN_WORLDS[-1:] in ([], [world])
    return recorder.frames
