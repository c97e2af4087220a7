"""The faults that a program holds over its local cluster, each for as long as a block.

Faults overlap in any way, also several of one server: it is as those that still hold want it, and the end of
one undoes only what no other one holds. The end then waits until the cluster is whole, but for nothing that
a fault which still holds prevents. A broker that has ended by itself is started again, with a warning.

Any thread; calls block and are bounded, `async with` waits in a thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

from barnabas.common.fault_rules import FaultRule
from barnabas.deploy.direct_admin import DirectAdmin
from barnabas.deploy.faults import Aim, has_full_disk, inject
from barnabas.deploy.links import CLIENT, Rule, RuleKind
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import DeployError
from barnabas.deploy.server import title_of
from barnabas.deploy.state import ZOOKEEPER
from barnabas.deploy.zookeeper import ZooKeeper
from barnabas.protocol.errors import ApiError, BarnabasError, ConnectionRefused

T = TypeVar("T")

WHOLE_TIMEOUT_S: Final = 60.0
_START_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.02
_DOWN: Final = frozenset({"kill", "stop"})
"""The faults of `deploy/faults.py` during which a server does not run."""
_PAUSE: Final = "pause"
_FULL_DISK: Final = "fill-disk"
_AS_GOOD_AS_CUT_MS: Final = 1000.0
"""With such a delay, requests between brokers come too late for a cluster to become whole."""


async def in_thread(call: Callable[[], T], undo: Callable[[], object] | None = None) -> T:
    """The outcome of a call in a thread. A caller who is cancelled waits for its end, and for `undo`."""
    executor = asyncio.get_running_loop().run_in_executor
    work = executor(None, call)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await _end_of(work)
        if undo is not None and work.exception() is None:
            undoing = executor(None, undo)
            await _end_of(undoing)
            undoing.result()
        raise


async def _end_of(work: asyncio.Future[Any]) -> None:
    """Wait for it, however often the caller is cancelled: anyio repeats that."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])


class Fault:
    """A fault that holds within a block of `with` or `async with`."""

    def __init__(self, held: HeldFaults) -> None:
        self._held = held

    def __enter__(self) -> Self:
        self._held.begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *outcome: object) -> None:
        # Nobody who presses Ctrl-C wants to wait.
        self._held.end(self, waits=kind is not KeyboardInterrupt)

    async def __aenter__(self) -> Self:
        await in_thread(lambda: self._held.begin(self), undo=lambda: self._held.end(self))
        return self

    async def __aexit__(self, *outcome: object) -> None:
        await in_thread(lambda: self._held.end(self))


class ServerFault(Fault):
    def __init__(self, held: HeldFaults, name: str, server: str) -> None:
        """`name`: of an entry in `deploy/faults.py`; `server`: the id of a broker, or ``zookeeper``."""
        super().__init__(held)
        self.name = name
        self.server = server


class LinkFault(Fault):
    def __init__(self, held: HeldFaults, *rules: Rule) -> None:
        super().__init__(held)
        self.rules = rules


class ProtocolFault(Fault):
    """Rules that brokers apply to requests; a broker that is started in the block is given them again."""

    def __init__(self, held: HeldFaults, rules: Sequence[FaultRule], brokers: Collection[int]) -> None:
        super().__init__(held)
        self.rules = rules
        self.brokers = brokers
        self.kept_hits = 0
        """The hits at processes that have ended; after the block, the hits at all processes."""

    @property
    def hits(self) -> int:
        """How many requests the rules have hit in the block, on all brokers; asks the brokers."""
        return self._held.hits(self)


class HeldFaults:
    def __init__(self, cluster: LocalCluster, admin: DirectAdmin) -> None:
        self.cluster = cluster
        self.admin = admin
        self._lock = threading.RLock()
        """Held while servers and links change; not while the cluster becomes whole."""
        self._held: list[Fault] = []
        """In the order of their beginnings."""
        self._changes = 0
        """The number of beginnings and ends."""
        self._taken_down: set[str] = set()
        """The servers that a fault has ended, or may have ended."""
        self._unready: set[int] = set()
        """Brokers that have been started or resumed, and have not been seen to take part again."""
        self._link_rules: list[Rule] = []
        """The rules that the proxies have, or may have."""
        self._surprises: list[str] = []
        """The texts of warnings that the next change raises."""
        self._rules_at: dict[int, set[str]] = {id: set() for id in cluster.broker_ids}
        """Broker whose process has served → the names of the fault rules that this has, or may have."""
        self._is_closed = False
        self.owner_pid = os.getpid()

    def close(self) -> None:
        """The cluster ends: a fault that ends later changes nothing. Waits for a change under way."""
        with self._lock:
            self._is_closed = True

    def begin(self, fault: Fault) -> None:
        """Raises DeployError for a server that does not run, ValueError for a rule's name that is in use.

        A fault that cannot begin leaves nothing.
        """
        with self._lock:
            if self._is_closed:
                raise DeployError("the cluster does not run any more: no fault can begin")
            if isinstance(fault, ProtocolFault):
                self._check_names(fault)
                fault.kept_hits = 0
            was_down = isinstance(fault, ServerFault) and self._names(fault.server) & _DOWN
            self._changes += 1
            self._held.append(fault)
            try:
                if isinstance(fault, ServerFault) and not was_down:
                    self._inject(fault.name, fault.server)
                self._settle_links()
                self._settle_rules()
            except BaseException as error:
                self._held.remove(fault)
                is_interrupted = not isinstance(error, Exception)
                if is_interrupted and isinstance(fault, ServerFault):
                    # It may have a signal that it has not followed yet.
                    with suppress(DeployError):
                        self._inject("kill", fault.server)
                self._settle(fault, waits=not is_interrupted)
                raise

    def end(self, fault: Fault, *, waits: bool = True) -> None:
        """`waits`: until the cluster is whole.

        Raises TimeoutError, DeployError for a server that does not start, and the error of a broker that did
        not answer, which may have a rule until the next fault begins or ends.
        """
        if self.owner_pid != os.getpid():
            # A forked child that leaves the block; the lock may be that of a thread which it does not have.
            return
        with self._lock:
            if self._is_closed:
                return
            try:
                if isinstance(fault, ProtocolFault):
                    fault.kept_hits += self._hits_at(fault.brokers)[fault]
            finally:
                self._changes += 1
                self._held.remove(fault)
                self._settle(fault, waits=waits)
        if waits:
            self.wait_until_whole(WHOLE_TIMEOUT_S, self._hindered)

    def wait_until_whole(self, timeout_s: float, excused: Callable[[], Collection[int]] = tuple) -> None:
        """Wait until all brokers run that are not `excused`, and their replicas are in each ISR."""
        deadline = time.monotonic() + timeout_s
        while True:
            changes, hindered = self._changes, excused()
            if len(hindered) == len(self.cluster.broker_ids):
                return
            must_run = set(self.cluster.broker_ids) - set(hindered)
            try:
                left_s = max(0.0, deadline - time.monotonic())
                self.cluster.wait_ready(left_s, must_run=must_run, excused=hindered)
                break
            except DeployError:
                # Another thread may have begun a fault meanwhile.
                if self._changes == changes:
                    raise
        while (gap := self._gap(excused())) is not None:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"the cluster is not whole after {timeout_s:g} s: {gap}")
            time.sleep(_POLL_S)

    # -- what holds ----------------------------------------------------------------------------------------

    def _names(self, server: str) -> set[str]:
        """The faults of a server that hold."""
        return {
            fault.name for fault in self._held if isinstance(fault, ServerFault) and fault.server == server
        }

    def _rules(self) -> dict[tuple[RuleKind, str, str], Rule]:
        """The rules of links that hold; of equal ones that of the last fault."""
        return {
            rule.key: rule for fault in self._held if isinstance(fault, LinkFault) for rule in fault.rules
        }

    def _hindered(self) -> set[int]:
        """The brokers that a fault keeps from being a whole part of the cluster."""
        with self._lock:
            unreachable = self._unreachable()
            return {id for id in self.cluster.broker_ids if id in unreachable or self._names(str(id))}

    def reachable(self) -> list[int]:
        """The brokers that know the cluster as it is now: those that run and are not cut off, if any."""
        with self._lock:
            unreachable = self._unreachable()
        running = [int(broker.id) for broker in self.cluster.brokers if broker.state == "running"]
        return [id for id in running if id not in unreachable] or running

    def _unreachable(self) -> set[int]:
        """The brokers that do not reach all others and ZooKeeper, though they may run."""
        brokers = self.cluster.broker_ids
        if self._names(ZOOKEEPER):
            return set(brokers)
        ends = {
            end
            for rule in self._rules().values()
            if CLIENT not in (rule.source, rule.target)
            and (rule.kind is not RuleKind.DELAY or rule.delay_ms >= _AS_GOOD_AS_CUT_MS)
            for end in (rule.source, rule.target)
        }
        return {id for id in brokers if str(id) in ends}

    # -- changes -------------------------------------------------------------------------------------------

    def _inject(self, name: str, server: str) -> None:
        if name != _PAUSE:
            self._taken_down.add(server)
        if name in _DOWN and server != ZOOKEEPER:
            self._keep_hits(int(server))
        inject(self.cluster, name, Aim(target=server))

    def _settle(self, ended: Fault, *, waits: bool = True) -> None:
        """Make servers and links what the faults that hold want, after the end of one."""
        self._settle_links()
        zookeeper = self.cluster.zookeeper
        if isinstance(zookeeper, ZooKeeper) and not zookeeper.is_alive and not self._names(ZOOKEEPER):
            self._note_surprise(ZOOKEEPER)
            self.cluster.start_zookeeper(_START_TIMEOUT_S)
            self._taken_down.discard(ZOOKEEPER)
        for broker_id in self.cluster.broker_ids:
            self._let_run(broker_id, ended)
        if waits:
            self._await_unready()
        for broker_id in self.cluster.broker_ids:
            self._hold_back(broker_id)
        self._settle_rules()
        # Last: where warnings are errors this one raises.
        while self._surprises:
            warnings.warn(self._surprises.pop(), RuntimeWarning, stacklevel=4)

    def _settle_links(self) -> None:
        """Let the proxies have the rules of the faults that hold, and none of an ended one."""
        rules = self._rules()
        removed = [rule for rule in self._link_rules if rule.key not in rules]
        if removed or rules:
            # First: if the answer is lost, they may be there, and have to be removed.
            self._link_rules = [*removed, *rules.values()]
            self.cluster.links.change(removed=removed, added=list(rules.values()))
            self._link_rules = list(rules.values())

    def _let_run(self, broker_id: int, ended: Fault) -> None:
        """Start a broker that is to run and does not, or that has room again; resume one that is to go on."""
        broker, server = self.cluster.broker(broker_id), str(broker_id)
        names = self._names(server)
        if names & _DOWN:
            return
        if broker.is_alive and _FULL_DISK not in names and has_full_disk(self.cluster, broker_id):
            # A log dir that is offline stays so until the broker starts again; a new process has no limit.
            self._keep_hits(broker_id)
            self.cluster.stop_broker(broker_id)
        is_ended = isinstance(ended, ServerFault) and ended.server == server
        if not broker.is_alive and (is_ended or _FULL_DISK not in names):
            self._note_surprise(server)
            self._rules_at.pop(broker_id, None)
            self._unready.add(broker_id)
            self.cluster.launch_broker(broker_id)
            self._taken_down.discard(server)
            if self._names(ZOOKEEPER):
                # It ends if it waits for ZooKeeper for too long.
                self._taken_down.add(server)
        elif broker.state == "paused" and _PAUSE not in names:
            broker.resume()
            self._unready.add(broker_id)

    def _await_unready(self) -> None:
        """Wait for brokers that have been started or resumed, unless a fault keeps them from being ready."""
        running = {id for id in self._unready if self.cluster.broker(id).state == "running"}
        reachable = running - self._unreachable()
        if reachable:
            self.cluster.wait_ready(_START_TIMEOUT_S, must_run=reachable, excused=self._hindered())
            for broker_id in reachable:
                self._rules_at.setdefault(broker_id, set())
            self._unready -= reachable

    def _hold_back(self, broker_id: int) -> None:
        """Let the faults that do not end a broker hold at a new process, too."""
        names = self._names(str(broker_id))
        if not self.cluster.broker(broker_id).is_alive:
            return
        if _FULL_DISK in names and not has_full_disk(self.cluster, broker_id):
            self._inject(_FULL_DISK, str(broker_id))
        if _PAUSE in names:
            self.cluster.broker(broker_id).pause()

    def _note_surprise(self, server: str) -> None:
        """Note a server that is about to be started if it has ended by itself."""
        if server in self._taken_down:
            return
        process = self.cluster.server(server).process
        code = None if process is None else process.exit_code
        text = f"{title_of(server)} had ended by itself (exit code {code}); it is started again"
        self._surprises.append(text)

    # -- rules of the protocol -----------------------------------------------------------------------------

    def hits(self, fault: ProtocolFault) -> int:
        with self._lock:
            if fault not in self._held or self._is_closed:
                return fault.kept_hits
            return fault.kept_hits + self._hits_at(fault.brokers)[fault]

    def _protocol_faults(self) -> list[ProtocolFault]:
        return [fault for fault in self._held if isinstance(fault, ProtocolFault)]

    def _hits_at(self, brokers: Collection[int]) -> dict[ProtocolFault, int]:
        """The hits that the processes of these brokers have counted for the faults that hold.

        Raises the error of a broker that runs and does not answer.
        """
        asked = [id for id in brokers if id in self._rules_at and self.cluster.broker(id).state == "running"]
        hits: dict[str, int] = {}
        if asked:
            described = self.admin.describe_fault_rules(asked)
            for error in described.errors.values():
                if not isinstance(error, ConnectionRefused):
                    raise error
            hits = {state.rule.name: state.hits for state in described.rules}
        return {
            fault: sum(hits.get(rule.name, 0) for rule in fault.rules) for fault in self._protocol_faults()
        }

    def _check_names(self, fault: ProtocolFault) -> None:
        held = {rule.name for other in self._protocol_faults() for rule in other.rules}
        for rule in fault.rules:
            if rule.name in held:
                raise ValueError(f"name={rule.name!r}: a fault rule of this name holds already")

    def _keep_hits(self, broker_id: int) -> None:
        """Remember hits that are about to be lost with the process of this broker."""
        # A broker that does not answer must not keep the fault from ending its server.
        with suppress(BarnabasError):
            for fault, hits in self._hits_at([broker_id]).items():
                fault.kept_hits += hits

    def _settle_rules(self) -> None:
        """Let each broker that runs have the rules of the faults that hold, and no others.

        Raises the first error when all brokers have been asked.
        """
        errors = []
        for broker_id, has in self._rules_at.items():
            rules = {
                rule.name: rule
                for fault in self._protocol_faults()
                if broker_id in fault.brokers
                for rule in fault.rules
            }
            if rules.keys() != has and self.cluster.broker(broker_id).state == "running":
                try:
                    self._give_rules(broker_id, has, rules)
                except BarnabasError as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def _give_rules(self, broker_id: int, has: set[str], rules: Mapping[str, FaultRule]) -> None:
        if removed := has - rules.keys():
            self.admin.remove_fault_rules(*removed, brokers=broker_id)
            has.difference_update(removed)
        if added := [rule for rule in rules.values() if rule.name not in has]:
            # First: if the answer is lost, they may be there, and have to be removed.
            has.update(rules)
            try:
                self.admin.add_fault_rules(*added, brokers=broker_id)
            except ApiError:
                # It refuses them, and may have another of such a name.
                has.difference_update(rule.name for rule in added)
                raise

    # -- wholeness -----------------------------------------------------------------------------------------

    def _gap(self, faulty: Collection[int]) -> str | None:
        """The first reason why the cluster is not whole without the faulty brokers; None if it is."""
        views = self.admin.views([id for id in self.cluster.broker_ids if id not in faulty])
        for broker_id, view in views.items():
            if isinstance(view, BarnabasError):
                return f"broker {broker_id}: {view}"
            for topic in view.topics:
                for partition in topic.partitions:
                    if faulty and set(partition.isr_nodes) <= set(faulty):
                        # It waits for these brokers: no other one may lead it.
                        continue
                    missing = set(partition.replica_nodes) - set(partition.isr_nodes) - set(faulty)
                    if missing or partition.leader_id < 0:
                        name = f"{topic.name}-{partition.partition_index}"
                        return f"{name}: leader {partition.leader_id}, not in sync: {sorted(missing)}"
        return None
