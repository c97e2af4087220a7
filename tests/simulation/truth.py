"""The promises of every history, checked after every step.

The truth is the list of records that the high watermark of any replica has ever passed: they are committed,
and no replica may ever hold others at these offsets. All promises follow from that list.

In a compacted topic a replica may lack a committed record if a later one with its key counts, if it is a
tombstone, or if its transaction was aborted. So the last value of each key is there, and nothing that was not
written.

For the promises about transactions see `log_transactions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from barnabas.broker.replication.partition import Isolation, Role
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import BrokerId, Offset, TopicId, TopicPartition
from tests.simulation.disk import Entry, LogView
from tests.simulation.log_transactions import TrueTransactions, seen_by_a_client

if TYPE_CHECKING:
    from barnabas.broker.replication.partition import Partition
    from barnabas.zookeeper.znodes import LeadershipState
    from tests.simulation.broker import SimBroker
    from tests.simulation.world import World


Records = list[tuple[int, Entry]]
"""Each record with its offset."""


class Violation(AssertionError):
    """A promise is broken."""


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise Violation(message)


class Truth:
    """The committed records of one partition of one topic id, and the checks."""

    def __init__(self, world: World, tp: TopicPartition, topic_id: TopicId) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self._topic_int = topic_id.int
        self.committed: list[Entry] = []
        self.acknowledged_end = 0
        self._world = world
        self._leaders: dict[int, BrokerId] = {}
        self.lossy: dict[BrokerId, int] = {}
        """Members of the ISR, or about to be, whose disks have lost data; with the zxid of the loss."""
        self.is_hidden = False
        """Whether the topic was removed by hand and not restored yet."""
        self._state: LeadershipState | None = None
        self._last_marks: list[object] = []
        self._last_leader_epoch = -1
        self._last_controller_epoch = 0
        self._new_acknowledged: list[tuple[int, list[int | None], int]] = []
        self._new_consumed: list[tuple[int, int, list[tuple[int, Entry]]]] = []
        self.transactions = TrueTransactions()
        self._new_stable: list[tuple[int, Records, list[tuple[int, int]]]] = []
        self._last_stable: dict[BrokerId, tuple[object, int]] = {}
        """Broker → its process, its log and the truncations so far; and its last stable offset then."""
        self._is_compacted = world.is_compacted or "cleanup.policy" in world.overrides_of(tp.topic)
        self._offsets_of: dict[bytes | None, list[int]] = {}
        """Key → the offsets of its committed records, in a compacted topic."""
        self.sequences: dict[int, int] = {}
        """Producer → number of committed batches: sequences 0, 1, 2 and so on, each once, in order."""
        self._sequenced = 0

    @property
    def state(self) -> LeadershipState:
        """The state in ZooKeeper, or the last one before a removal by hand; there must be one."""
        if not self.is_hidden:
            self._state = self._world.state_of(self.tp)
        assert self._state is not None
        return self._state

    def hide(self) -> None:
        """The topic is removed by hand now."""
        self._state = self._world.state_of(self.tp) if self.has_state else None
        self.is_hidden = True

    @property
    def has_state(self) -> bool:
        return self._state is not None if self.is_hidden else self._world.has_state(self.tp)

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """Empty before there is a state."""
        return self.state.isr if self.has_state else ()

    def partition(self, broker: SimBroker) -> Partition | None:
        """The broker's replica of this very topic, while its process is up."""
        return broker.partition_of(self.tp, self.topic_id)

    def view(self, broker: SimBroker) -> LogView | None:
        return broker.disk.view(self.tp, self.topic_id)

    def _marks_of(self, broker: SimBroker) -> tuple[object, ...]:
        """A value that differs after every change of a replica that matters here."""
        log = broker.logs.get(self.tp)
        where: tuple[object, ...]
        # Called for every replica after every step: `UUID.__eq__` would take a tenth of the time.
        if log is None or log.topic_id is None or log.topic_id.int != self._topic_int:
            # In any order.
            where = (broker.life, *broker.logs.strays._strays.values())
        else:
            bounds = log.bounds
            where = (broker.life, id(log), bounds.cuts, bounds.start, bounds.end, broker.disk.cleanings)
        partition = self.partition(broker)
        if partition is None:
            return where
        return (*where, partition.role, partition.leader_epoch, partition.high_watermark)

    def acknowledged(self, base_offset: Offset, values: Sequence[int | None], least: int) -> None:
        """A producer received the acknowledgement of its records, which so many replicas must hold."""
        self._new_acknowledged.append((base_offset, list(values), least))

    def disk_has_lost(self, broker: BrokerId) -> None:
        """A broker has lost all or some of its data."""
        self.lossy[broker] = self._world.zookeeper.zxid

    def _is_unnoticed(self, broker: BrokerId, zxid: int) -> bool:
        """Whether a replica that lost data at a zxid still counts as whole, or may after its leader adds it.

        A member that joined with a later broker epoch is in sync without the lost data. A replica outside the
        ISR may join with the old broker epoch while that is registered (a session outlives its process).
        """
        if broker in self.isr:
            return self.state.broker_epochs.get(broker, zxid) <= zxid
        registered = self._world.registered_epoch(broker)
        return registered is not None and registered <= zxid

    @property
    def is_anybody_trusted(self) -> bool:
        """Whether a member of the ISR that has lost nothing is registered as when it joined."""
        return any(
            self._world.registered_epoch(member) == self.state.broker_epochs.get(member)
            for member in self.isr
            if member not in self.lossy
        )

    def consumed(self, start: int, end: int, records: list[tuple[int, Entry]]) -> None:
        """A consumer has read from one offset to another, and got these records."""
        self._new_consumed.append((start, end, records))

    def consumed_committed(self, end: int, records: Records, aborted: list[tuple[int, int]]) -> None:
        """A consumer with read_committed got these records and aborted transactions, with this LSO."""
        self._new_stable.append((end, records, aborted))

    @property
    def is_whole(self) -> bool:
        """Whether every replica has all records and is in sync, or the topic is hidden."""
        if self.is_hidden or not self.has_state:
            return self.is_hidden
        brokers, state = self._world.brokers, self.state
        replicas = self._world.replicas_of(self.tp)
        if set(state.isr) != set(replicas) or state.leader not in replicas:
            return False
        marks = set()
        for replica in replicas:
            partition = self.partition(brokers[replica])
            if partition is None or partition.leader_epoch != state.leader_epoch:
                return False
            if brokers[replica].replicas.fence.reason is not None:
                return False
            marks |= {partition.high_watermark, partition.log_end_offset}
        return len(marks) == 1

    def check(self) -> None:
        """Check all promises, unless no replica has changed and no client got an answer."""
        world = self._world
        if not self.has_state:
            return
        self._check_elections()
        if self.lossy:
            self.lossy = {
                broker: zxid for broker, zxid in self.lossy.items() if self._is_unnoticed(broker, zxid)
            }
        marks = [self.state, *map(self._marks_of, world.brokers.values())]
        is_news = self._new_acknowledged or self._new_consumed or self._new_stable
        if marks == self._last_marks and not is_news:
            return
        self._last_marks = marks
        for broker in world.brokers.values():
            if broker.is_up:
                self._check_replica(broker)
        self._check_in_sync()
        self._check_clients()
        self._check_sequences()
        self._check_latest()

    def _check_elections(self) -> None:
        """A replaced controller elects no leader any more: its writes are refused."""
        state, epoch = self.state, self._world.controller_epoch
        if state.leader_epoch != self._last_leader_epoch:
            _require(
                state.controller_epoch >= self._last_controller_epoch,
                f"{state} was written by a controller that epoch {self._last_controller_epoch} had replaced",
            )
        self._last_leader_epoch, self._last_controller_epoch = state.leader_epoch, epoch

    def _check_replica(self, broker: SimBroker) -> None:
        """Also with a failed disk: until the failure is handled, the leader may commit records of others."""
        partition, view = self.partition(broker), self.view(broker)
        if partition is None or view is None:
            return
        mark, start = partition.high_watermark, view.log.log_start_offset
        end = len(self.committed)
        _require(
            start <= mark <= view.log.log_end_offset,
            f"broker {broker.id}: log start {start}, high watermark {mark}, end {view.log.log_end_offset}",
        )
        if mark > end:
            _require(start <= end, f"broker {broker.id} starts at {start}, but only {end} are committed")
            self._commit(view.between(end, mark))
            if (world := self._world).is_min_isr_strict:
                needed = [world.min_insync_replicas_of(each, self.tp.topic) for each, _ in self._leading()]
                self._require_held(end, mark, "committed", min(needed, default=0))
        _require(
            self._agrees(view, mark),
            f"broker {broker.id} has other records below its high watermark {mark} than were committed",
        )
        if self._world.has_transactions:
            self._check_stable(broker, partition)
        if partition.role is Role.LEADER:
            other = self._leaders.setdefault(partition.leader_epoch, broker.id)
            _require(other == broker.id, f"{other} and {broker.id} lead in epoch {partition.leader_epoch}")

    def _check_stable(self, broker: SimBroker, partition: Partition) -> None:
        """The last stable offset and the aborted transactions follow from the committed records."""
        log, stable = partition.log, partition.last_stable_offset
        for fault in self.transactions.faults_of(partition, self._is_missing_in(broker)):
            raise Violation(f"broker {broker.id}: {fault}")
        place = (broker.life, id(partition), log.bounds.cuts)
        before, least = self._last_stable.get(broker.id, (None, 0))
        _require(
            before != place or stable >= least,
            f"broker {broker.id}: the last stable offset went back from {least} to {stable}",
        )
        self._last_stable[broker.id] = (place, stable)

    def _is_missing_in(self, broker: SimBroker) -> Callable[[int], bool]:
        """Whether a replica lacks a committed record because of a cleaning."""
        view = self.view(broker) if self._is_compacted else None
        return lambda offset: view is not None and view.between(offset, offset + 1) == [None]

    def _commit(self, entries: list[Entry | None]) -> None:
        """No record is missing where the high watermark is new, and none is of another topic or partition."""
        here = (self.topic_id, self.tp.partition)
        for offset, entry in enumerate(entries, len(self.committed)):
            if entry is None:
                raise Violation(f"the record at {offset} is missing when it is committed")
            if isinstance(entry.value, int):
                place = self._world.origins.setdefault(entry.value, here)
                is_kept = place == here or self.tp in self._world.sent_again_to
                _require(is_kept, f"{entry} of {self.tp} {here} was committed in {place} before")
            self.committed.append(entry)
            self.transactions.add(offset, entry)
            if self._is_compacted:
                self._offsets_of.setdefault(entry.key, []).append(offset)

    def _is_kept(self, entries: list[Entry | None], start: int, end: int) -> bool:
        """Whether these are the committed records between two offsets, without some that a cleaning drops."""
        committed = self.committed[start:end]
        if entries == committed or not self._is_compacted:
            return entries == committed
        return len(entries) == len(committed) and all(
            entry == other if entry is not None else self._may_be_cleaned(offset, other)
            for offset, (entry, other) in enumerate(zip(entries, committed, strict=True), start)
        )

    def _may_be_cleaned(self, offset: int, entry: Entry) -> bool:
        """Whether a cleaning may drop a record, a tombstone or a marker.

        Of a marker that is missed, later checks of its transaction tell.
        """
        outcome = self.transactions.outcome
        if entry.value is None or entry.commits is not None or outcome(offset) is False:
            return True
        return any(later > offset and outcome(later) for later in reversed(self._offsets_of[entry.key]))

    def _agrees(self, view: LogView, end: int) -> bool:
        """Whether a log has the committed records from its start up to an offset; compares each once."""
        view.refresh()
        start = max(view.agreed, view.log.log_start_offset)
        if start >= end:
            return True
        if not self._is_kept(view.between(start, end), start, end):
            return False
        view.agreed = end
        return True

    def _check_in_sync(self) -> None:
        """Every replica that may be elected without loss has all records that were ever committed.

        A replica that has lost data may count as whole until that is noticed, but not all replicas may.
        """
        end = len(self.committed)
        isr = self.state.isr
        has_all = not isr
        for member in isr:
            view = self.view(self._world.brokers[member])
            start = 0 if view is None else view.log.log_start_offset
            holds = start <= end and (end == 0 if view is None else self._agrees(view, end))
            has_all = has_all or holds
            _require(
                holds or member in self.lossy,
                f"broker {member} is in the ISR and lacks committed records: it has {start}.."
                f"{view.log.log_end_offset if view else 0}, committed are {end}",
            )
        _require(has_all, f"no member of the ISR {isr} has all {end} records")

    def _check_clients(self) -> None:
        for base, values, least in self._new_acknowledged:
            end = base + len(values)
            committed = [entry.value for entry in self.committed[base:end]]
            _require(
                committed == values,
                f"acknowledged at {base}: {values}, committed: {committed}",
            )
            self._require_held(base, end, "acknowledged", least)
            self.acknowledged_end = max(self.acknowledged_end, end)
        self._new_acknowledged.clear()
        for start, end, records in self._new_consumed:
            for offset, entry in records:
                committed = self.committed[offset] if offset < len(self.committed) else None
                _require(
                    committed == entry,
                    f"a consumer saw {entry} at {offset}, committed: {committed}",
                )
            seen = dict(records)
            read = [seen.get(offset) for offset in range(start, end)]
            _require(
                self._is_kept(read, start, end), f"a consumer read {start} to {end} and got only {records}"
            )
        self._new_consumed.clear()
        for end, records, aborted in self._new_stable:
            _require(all(at < end for at, _ in records), f"{records} were read up to the LSO {end}")
            seen, visible = seen_by_a_client(records, aborted), self.transactions.visible(records)
            _require(
                seen == visible, f"a consumer sees {seen} with aborted {aborted}, decided were {visible}"
            )
        self._new_stable.clear()

    def _check_sequences(self) -> None:
        for offset, entry in enumerate(self.committed[self._sequenced :], self._sequenced):
            if (producer := entry.producer) is not None:
                producer_id, sequence = producer
                due = self.sequences.get(producer_id, 0)
                _require(
                    sequence == due,
                    f"producer {producer_id}: at offset {offset} sequence {sequence} is committed, "
                    f"due is {due}",
                )
                self.sequences[producer_id] = due + 1
        self._sequenced = len(self.committed)

    def _leading(self) -> list[tuple[SimBroker, Partition]]:
        """The brokers that believe they lead, with their replicas."""
        replicas = [(broker, self.partition(broker)) for broker in self._world.brokers.values()]
        return [(broker, its) for broker, its in replicas if its is not None and its.is_leader]

    def _require_held(self, base: int, end: int, what: str, least: int) -> None:
        """At least so many replicas hold records that are newly committed or acknowledged.

        No more are required than a leader has replicas: a reassignment may leave it only one.
        """
        # A replica that has lost data since, or was deleted, may have held them when it fetched what follows.
        held = sum(
            broker.disk.was_robbed
            or broker.disk.deleted_ends.get((self.tp, self.topic_id), 0) >= end
            or self._holds(self.view(broker), base, end)
            for broker in self._world.brokers.values()
        )
        replicas = [len(partition.view().replicas) for _, partition in self._leading()]
        _require(
            held >= min([least, *replicas]),
            f"offsets {base}..{end} were {what} while {held} replicas hold them, {least} must",
        )

    def _holds(self, view: LogView | None, base: int, end: int) -> bool:
        if view is None or view.log.log_start_offset > end:
            return False
        start = max(base, view.log.log_start_offset)
        return self._is_kept(view.between(start, end), start, end)

    def _check_latest(self) -> None:
        """The leader never reports a log end below an acknowledged record."""
        state = self.state
        broker = self._world.brokers.get(state.leader)
        partition = self.partition(broker) if broker is not None else None
        if partition is None or partition.role is not Role.LEADER:
            return
        if partition.leader_epoch != state.leader_epoch:
            return
        try:
            latest = partition.latest_offset(-1, Isolation.READ_UNCOMMITTED)
        except ApiError:
            # The leader does not know the log end yet, and answers with an error.
            return
        _require(
            latest >= self.acknowledged_end,
            f"the leader reports the log end {latest}, acknowledged are {self.acknowledged_end}",
        )
