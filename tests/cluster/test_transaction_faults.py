"""Transactions at every step of their life when a fault comes: each test is a fault, and has all the steps.

A test brings producers of the old protocol (Produce 9) and of the new one to each step, injects its fault,
lets each producer go on as a client would, and heals. Then for every producer: its transaction is in all
partitions or in none, as the producer was told if it was told; so are its offsets; and the id can be used for
another transaction. No transaction stays open.

| step | reached by |
| --- | --- |
| initialised | InitProducerId answered |
| writing | the first Produce sent, its confirmation under way |
| written | records in partitions of every broker |
| offsets | the same, and offsets of a group |
| ending | EndTxn sent, not answered |
| decided | EndTxn answered while a leader is stopped: its markers are missing, the others are written |
| next | the next transaction has begun |

Markers on all partitions and no completion: `test_markers_are_written_again_by_the_next_coordinator`.
`docs/testing.md` says where the other cells are.
"""

import itertools
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from barnabas.broker.coordinators.internal_topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from barnabas.broker.coordinators.transactions.verification import VERIFICATION
from barnabas.client import ConfigResource, NewTopic
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.zookeeper import ZooKeeper
from barnabas.logtools.entries import Damage, read_batches
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import BatchHeader
from tests.support.waiting import wait_for

from .tools import ClusterView, running
from .transaction_party import FENCED, LONG_MS, REPLICAS, SOURCE, Party, places_of

COORDINATORS: Final = (1, 2)
OUTSIDE: Final = 3
"""The broker that keeps no records of the transaction coordinators."""
SETTINGS: Final = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "1",
    "min.insync.replicas": "1",
    "zookeeper.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "3000",
}
VERSIONS: Final = (9, None)
STEPS: Final = ("initialised", "writing", "written", "offsets", "ending", "decided", "next")
DECIDED: Final = ("ending", "decided")
SHORT_MS: Final = 3_000
_numbers = itertools.count(1)


class Table:
    """The parties of one fault."""

    def __init__(self, cluster: LocalCluster, timeout_ms: int) -> None:
        self.cluster = cluster
        self.view = ClusterView(cluster)
        self.topic = f"t-{next(_numbers)}"
        with self.view.admin(20_000) as admin:
            admin.create_topics([NewTopic(self.topic, replica_assignment=REPLICAS)])
        self.view.wait_isr(self.topic, 3)
        # Producers with a decision must not time out before they reach it.
        self.parties = [
            Party(cluster, self.topic, step, version, LONG_MS if step in DECIDED else timeout_ms)
            for step in STEPS
            for version in VERSIONS
        ]

    @property
    def coordinator(self) -> int:
        return self.view.leader(TRANSACTIONS_TOPIC)

    @contextmanager
    def at_their_steps(self) -> Iterator[None]:
        """Bring all to their steps; the broker that leads the last partition is stopped then."""
        for party in self.parties:
            party.advance()
        self.cluster.pause(OUTSIDE)
        try:
            for party in self.parties:
                if party.step == "decided":
                    # Answered although the markers cannot be written: the decision is replicated.
                    party.end(party.transactions[-1])
                    assert party.transactions[-1].told is True, party.errors
                else:
                    party.send_unanswered()
            yield
        finally:
            if self.cluster.broker(OUTSIDE).state == "paused":
                self.cluster.resume(OUTSIDE)

    def go_on(self, *, again: bool = True) -> None:
        for party in self.parties:
            party.go_on()
        if again:
            for party in self.parties:
                party.start_again()

    def check(self) -> None:
        """Every promise for every party; nothing stays open."""
        self.close()
        view, parties = self.view, self.parties
        wait_all_stable(self.cluster, self.topic)
        visible: dict[bytes, int] = {}
        for value in view.read(self.topic, len(REPLICAS), "read_committed"):
            visible[value or b""] = visible.get(value or b"", 0) + 1
        faults: list[str] = []
        with view.admin() as admin:
            for party in parties:
                (offset,) = admin.group_offsets(
                    party.name, [SOURCE], require_stable=True, timeout_ms=20_000
                ).values()
                faults += party.faults(visible, None if offset is None else offset.offset)
            assert faults == []
            assert admin.list_transactions(states=("Ongoing", "PrepareCommit", "PrepareAbort")) == []

    def close(self) -> None:
        for party in self.parties:
            party.close()

    def told(self) -> dict[str, set[bool | None]]:
        """The outcomes of the transaction during the fault, as the producers of each step learnt them."""
        told: dict[str, set[bool | None]] = {}
        for party in self.parties:
            met = party.transactions[1 if party.step == "next" else 0]
            told.setdefault(party.step, set()).add(met.told)
        return told


def wait_all_stable(cluster: LocalCluster, topic: str) -> None:
    """Wait until the LSO of every partition is its high watermark."""
    names = dict.fromkeys([*places_of(topic), TopicPartition(OFFSETS_TOPIC, 0)], "latest")
    seen: list[object] = []

    def is_stable() -> bool:
        with ClusterView(cluster).admin() as admin:
            ends = {name: one.offset for name, one in admin.list_offsets(names).items()}
            found = admin.list_offsets(names, isolation_level="read_committed")
            seen.append({name: (one.offset, ends[name]) for name, one in found.items()})
        return all(one.offset == ends[name] for name, one in found.items())

    wait_for(is_stable, lambda: f"a transaction is open, LSO and HW: {seen[-1]}")


def headers_outside(cluster: LocalCluster, topic: str, partition: int) -> list[BatchHeader]:
    """The batches in the log of the broker outside."""
    (folder,) = cluster.broker(OUTSIDE).log_dirs
    return [
        batch.header
        for path in sorted(folder.glob(f"{topic}-{partition}/*.log"))
        for batch in read_batches(path)
        if not isinstance(batch, Damage)
    ]


def count_markers(cluster: LocalCluster, place: TopicPartition) -> int:
    """The control batches in the log of the broker outside."""
    return sum(header.is_control for header in headers_outside(cluster, *place))


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers and a ZooKeeper for all faults; each test leaves them healthy."""
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"), settings=SETTINGS)
    with running(cluster):
        view = ClusterView(cluster)
        with view.admin(20_000) as admin:
            admin.create_topics(
                [
                    NewTopic(SOURCE.topic, 1, 3),
                    NewTopic(
                        TRANSACTIONS_TOPIC,
                        configs={"cleanup.policy": "compact"},
                        replica_assignment={0: COORDINATORS},
                    ),
                    NewTopic(
                        OFFSETS_TOPIC, configs={"cleanup.policy": "compact"}, replica_assignment={0: (2, 3)}
                    ),
                ]
            )
        yield cluster


@pytest.fixture
def make_table(harmed: LocalCluster) -> Iterator[Callable[..., Table]]:
    """All steps. Connections that a failed test left open would fail one of the next tests."""
    made: list[Table] = []

    def make(timeout_ms: int = LONG_MS) -> Table:
        made.append(Table(harmed, timeout_ms))
        return made[-1]

    yield make
    for table in made:
        table.close()
    heal(harmed)


@pytest.fixture
def table(make_table: Callable[..., Table]) -> Table:
    return make_table()


def heal(cluster: LocalCluster) -> None:
    for broker in cluster.brokers:
        if broker.state == "paused":
            cluster.resume(broker.id)
        elif broker.state == "gone":
            cluster.start_broker(broker.id)
        elif resource.prlimit(broker.running_process.pid, resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
            cluster.kill(broker.id)
            cluster.start_broker(broker.id)
    for topic in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC):
        ClusterView(cluster).wait_isr(topic, 2)


def kill_coordinator(table: Table) -> None:
    table.cluster.kill(table.coordinator)
    table.cluster.resume(OUTSIDE)


def stop_coordinator(table: Table) -> None:
    """It is resumed when another one coordinates, and does not know that yet."""
    before = table.coordinator
    table.cluster.pause(before)
    table.cluster.resume(OUTSIDE)
    wait_for(lambda: table.coordinator != before, "the stopped coordinator is not replaced")
    table.cluster.resume(before)


def kill_leader(table: Table) -> None:
    table.cluster.kill(OUTSIDE)


def stop_leader(table: Table) -> None:
    """It is resumed when others lead its partitions."""

    def leads_nothing() -> bool:
        return all(info.leader != OUTSIDE for info in table.view.partitions(table.topic))

    wait_for(leads_nothing, "the stopped leader is not replaced")
    table.cluster.resume(OUTSIDE)


def kill_group_coordinator(table: Table) -> None:
    table.cluster.resume(OUTSIDE)
    table.cluster.kill(table.view.leader(OFFSETS_TOPIC))


def lose_zookeeper(table: Table) -> None:
    zookeeper = table.cluster.zookeeper
    assert isinstance(zookeeper, ZooKeeper)
    zookeeper.kill()
    table.cluster.resume(OUTSIDE)
    # Transactions do not need it.
    for party in table.parties:
        if party.step == "offsets":
            party.end(party.transactions[-1])
    zookeeper.restart()


def fill_disk(table: Table) -> None:
    """No marker can be written on this broker, which goes on without its log dir."""
    broker = table.cluster.broker(OUTSIDE)
    pid = broker.running_process.pid
    # An active segment's file is longer than its batches.
    size = min(
        sum(header.size_bytes for header in headers_outside(table.cluster, table.topic, partition))
        for partition in REPLICAS
    )
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    table.cluster.resume(OUTSIDE)
    wait_for(
        lambda: all(OUTSIDE not in info.isr for info in table.view.partitions(table.topic)),
        lambda: f"broker {OUTSIDE} writes: {table.view.partitions(table.topic)}",
    )


@pytest.mark.parametrize(
    "fault",
    [
        kill_coordinator,
        stop_coordinator,
        kill_leader,
        stop_leader,
        kill_group_coordinator,
        lose_zookeeper,
        fill_disk,
    ],
    ids=lambda fault: fault.__name__,
)
def test_a_fault_of_a_broker_tears_no_transaction(table: Table, fault: Callable[[Table], None]) -> None:
    """The producers are not told of it: every transaction is committed."""
    with table.at_their_steps():
        fault(table)
    table.go_on()
    table.check()
    assert table.told() == {step: {True} for step in STEPS}


def test_the_time_out_aborts_what_is_open_and_its_producer_learns_of_it(
    harmed: LocalCluster, make_table: Callable[..., Table]
) -> None:
    """Every second producer is dead; the others are stopped, and go on after their time-out."""
    table = make_table(SHORT_MS)
    stopped = [Party(harmed, table.topic, party.step, party.version, SHORT_MS) for party in table.parties]
    table.parties += [party for party in stopped if party.step in ("writing", "written", "offsets", "next")]
    with table.at_their_steps():
        pass
    wait_all_stable(harmed, table.topic)
    for party in table.parties:
        aborted = "Empty" if party.step == "initialised" else "CompleteAbort"
        party.client.wait_state("CompleteCommit" if party.step in DECIDED else aborted)
    for party in table.parties:
        if party in stopped:
            party.go_on()
            assert party.errors, f"{party.name}: {party.transactions}"
            assert set(party.errors) <= FENCED, f"{party.name}: {party.errors}"
        party.start_again()
    table.check()


def test_a_producer_with_a_successor_is_fenced_at_every_step(table: Table) -> None:
    """Zombies of both protocols. The successor's InitProducerId races with the unanswered requests."""
    with table.at_their_steps():
        pass
    for party in table.parties:
        zombie, sequences = party.client, dict(party.sequences)
        party.start_again()
        successor = party.client
        party.client, party.sequences = zombie, sequences
        before = len(party.errors)
        transaction = party.begin()
        errors = [party.write(transaction), zombie.end_error(committed=True)]
        transaction.told = False
        assert set(errors) <= FENCED, f"{party.name}: {errors}"
        assert party.errors[before:] == []
        party.client = successor
    table.check()


def test_markers_are_written_again_by_the_next_coordinator(table: Table) -> None:
    """All markers are written, and the completion is not: its follower is stopped, then the coordinator dies.

    So every partition gets the markers twice.
    """
    cluster, view = table.cluster, table.view
    parties = [party for party in table.parties if party.step == "decided"]
    for party in parties:
        party.advance()
    cluster.pause(OUTSIDE)
    for party in parties:
        party.end(party.transactions[-1])
    before = table.coordinator
    (follower,) = set(COORDINATORS) - {before}
    markers = {place: count_markers(cluster, place) for place in places_of(table.topic)}
    cluster.pause(follower)
    cluster.resume(OUTSIDE)
    last = places_of(table.topic)[-1]
    assert view.leader(*last) == OUTSIDE
    wait_for(lambda: count_markers(cluster, last) == markers[last] + len(parties), "no marker is written")
    assert {party.client.describe().transaction_state for party in parties} == {"PrepareCommit"}
    cluster.kill(before)
    cluster.resume(follower)
    for party in parties:
        party.client.wait_state("CompleteCommit")
        party.start_again()
    table.parties = parties
    table.check()


def test_a_hanging_transaction_is_found_and_can_be_aborted(harmed: LocalCluster, table: Table) -> None:
    """Its record came without the coordinator's knowledge, as from a leader that verifies nothing."""
    view, place = table.view, places_of(table.topic)[0]
    party = Party(harmed, table.topic, "hanging", 9, LONG_MS)
    party.init()
    brokers = ConfigResource.all_brokers()
    with view.admin() as admin:
        admin.alter_configs({brokers: {VERIFICATION: "false"}})
        hanging = party.begin()
        wait_for(lambda: party.write_one(hanging, place) is ErrorCode.NONE, "the record is refused")
        admin.alter_configs({brokers: {VERIFICATION: None}})
        # The next transaction of the partition is committed, but read_committed readers do not reach it.
        follower = Party(harmed, table.topic, "follower", None, LONG_MS)
        follower.init()
        follower.transact()
        follower.client.wait_state("CompleteCommit")
        (found,) = admin.find_hanging_transactions(places_of(table.topic), max_transaction_timeout_ms=0)
        assert (found.partition, found.producer.producer_id) == (place, party.client.producer_id)
        readable = view.read(table.topic, len(REPLICAS), "read_committed")
        assert readable.count(follower.transactions[0].value) == len(REPLICAS) - 1
        admin.abort_transaction(place, start_offset=found.producer.transaction_start_offset)
        assert admin.find_hanging_transactions(places_of(table.topic), max_transaction_timeout_ms=0) == []
    party.client.epoch += 1
    hanging.told = False
    party.start_again()
    table.parties = [party, follower]
    table.check()
