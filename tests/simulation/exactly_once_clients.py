"""Producers that write in transactions over many partitions, and readers of committed records and offsets.

Some producers change their version between transactions, in both directions, and not all of those raise
their epoch then, as Java's producer and ours do. Some prepare a transaction, and leave it to any process to
end it as was decided elsewhere (KIP-939). After an error a producer aborts, and begins with a raised epoch,
as real clients do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum
from typing import TYPE_CHECKING, Any

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from tests.simulation.coordinated_world import MAX_TIMEOUT_MS, OFFSETS, CoordinatedWorld, Profile
from tests.simulation.transactional_client import (
    Add,
    AddOffsets,
    CommitOffsets,
    Gone,
    Init,
    Prepare,
    Put,
    Sleep,
    TransactionalClient,
)

if TYPE_CHECKING:
    from tests.simulation.exactly_once_judge import Attempt, Judge

DATA = tuple(TopicPartition("t", partition) for partition in range(3))
BRIEF = tuple(TopicPartition("u", partition) for partition in range(2))
"""The partitions of a topic that is deleted, created again and grown."""
PLAIN = TopicPartition("v", 0)
"""The partition of records that its leader acknowledges alone."""
COMMITTED = DATA[0]
"""The partition whose offsets are committed; each transactional id has a group of its own."""
PROFILE = Profile(topics={"t": len(DATA), "v": 1})


class Kind(Enum):
    FIRST = "version 1"
    SECOND = "version 2"
    CHANGING = "a changing version"
    PREPARING = "two phases"


class Producer(TransactionalClient):
    def __init__(
        self,
        world: CoordinatedWorld,
        name: str,
        transactional_id: str,
        kind: Kind,
        *,
        is_last: bool = False,
    ) -> None:
        super().__init__(
            world,
            transactional_id,
            group_of(transactional_id),
            version=2 if kind in (Kind.SECOND, Kind.PREPARING) else 1,
            timeout_ms=MAX_TIMEOUT_MS if is_last else world.random.choice((800, 2_000, 5_000)),
        )
        self.judge: Judge = world.judge
        self.name = name
        self.kind = kind
        self.keeps_prepared = kind is Kind.PREPARING
        self.is_last = is_last
        self.attempt: Attempt | None = None
        """The transaction that it is in, until it begins the next one."""
        self.committed = 0
        """The commits that were acknowledged."""
        self._sequences: dict[TopicPartition, int] = {}
        self._number = 0
        self.begin()

    def __str__(self) -> str:
        return f"{self.name} of {self.transactional_id} ({self.kind.value})"

    def about(self) -> Any:
        return self.judge.about(self.attempt, self)

    def is_given_up(self, tp: TopicPartition) -> bool:
        return tp in BRIEF

    # Life

    def life(self) -> Generator[Any, Any, None]:
        try:
            yield from self._init(Init())
            while True:
                if self.kind is Kind.CHANGING and self.world.random.random() < 0.5:
                    # At once: the markers of its former transaction may be on their way.
                    yield from self._change_version()
                else:
                    yield Sleep(self.world.random.uniform(1, 400))
                yield from self._transact()
        except Gone:
            return

    def _init(self, init: Init) -> Generator[Any, Any, Any]:
        """A prepared transaction that was kept is ended first, as was decided."""
        given = yield from super()._init(init)
        prepared = given.ongoing_txn_producer_id, given.ongoing_txn_producer_epoch
        if prepared[0] != -1:
            attempt = self.attempt = self.judge.prepared[prepared]
            # Any process may end it that knows its id and epoch.
            yield from self._end(attempt.is_commit_sent, self.world.random.choice((prepared, None)))
            self.judge.told(attempt, attempt.is_commit_sent)
        return given

    def _change_version(self) -> Generator[Any, Any, None]:
        self.version = 3 - self.version
        if self.world.random.random() < 0.3:
            yield from self._init(Init(self._producer_id, self._epoch))

    def _be(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._sequences.clear()
        super()._be(producer_id, epoch)

    def _transact(self) -> Generator[Any, Any, None]:
        draw = self.world.random
        self._number += 1
        attempt = self.attempt = self.judge.begin(self, self._number, (self._producer_id, self._epoch))
        brief = [name for name in BRIEF if self.world.leader_of(name) is not None]
        names = draw.sample([*DATA, *brief, OFFSETS], draw.randint(2, 4))
        if self.is_last:
            names = [*DATA, OFFSETS]
        error, has_begun = yield from self._write(attempt, names)
        is_well = error is ErrorCode.NONE
        is_commit = is_well and (self.is_last or draw.random() < 0.7)
        attempt.is_end_sent, attempt.is_commit_sent = True, is_commit
        if is_well and self.kind is Kind.PREPARING and not self.is_last and draw.random() < 0.8:
            yield from self._prepare(attempt)
        if has_begun or self.version == 2:
            ended = yield from self._end(is_commit)
            self.judge.told(attempt, is_commit)
            self.committed += is_commit
            if ended.producer_id == -1 and self.version == 2:
                raise Gone
        if not is_well or draw.random() < 0.05:
            yield from self._init(Init(self._producer_id, self._epoch))

    def _prepare(self, attempt: Attempt) -> Generator[Any, Any, None]:
        """From here on the decision stands, whoever carries it out."""
        self.judge.prepared[attempt.epoch] = attempt
        prepared = yield Prepare()
        if prepared.error_code != ErrorCode.NONE:
            raise Gone
        attempt.is_prepared = True
        if self.world.random.random() < 0.6:
            raise Gone

    def _write(
        self, attempt: Attempt, names: list[TopicPartition]
    ) -> Generator[Any, Any, tuple[ErrorCode, bool]]:
        """The first error, and whether the coordinator knows that the transaction has begun."""
        draw, has_begun = self.world.random, False
        if self.version == 1:
            added = tuple(name for name in names if name != OFFSETS)
            for names_at_once in (added,) if draw.random() < 0.5 else tuple((name,) for name in added):
                error = yield Add(names_at_once)
                has_begun = has_begun or error is ErrorCode.NONE
                if error is not ErrorCode.NONE:
                    return error, has_begun
        places = [name for name in names for _ in range(draw.randint(1, 2))]
        draw.shuffle(places)
        for name in places:
            value = self.world.next_value
            self.world.next_value += 1
            if name == OFFSETS and self.version == 1:
                error = yield AddOffsets()
                has_begun = has_begun or error is ErrorCode.NONE
                if error is not ErrorCode.NONE:
                    return error, has_begun
            if name == OFFSETS:
                error = yield CommitOffsets(((COMMITTED, value, str(value)),))
            else:
                sequence = self._sequences.get(name, 0)
                error = yield Put(name, value, sequence)
                self._sequences[name] = sequence + 1
            if error is not ErrorCode.NONE:
                return error, has_begun
            attempt.acknowledged[name].append(value)
            if draw.random() < 0.05:
                yield Sleep(draw.uniform(100, 3_000))
        return ErrorCode.NONE, has_begun

    def perform(self, step: Any, answered: Callable[[Any], None]) -> None:
        if self.attempt is not None:
            match step:
                case Put(value=value) | CommitOffsets(commits=((_, value, _),)):
                    self.judge.sends(self.attempt, value)
        super().perform(step, answered)


def group_of(transactional_id: str) -> str:
    """The group whose offsets the producers of an id commit."""
    return f"g-{transactional_id}"


class Reader:
    """Reads one partition in order, as a consumer with read_committed, from any broker that may lead it."""

    def __init__(self, world: CoordinatedWorld, tp: TopicPartition) -> None:
        self._world = world
        self._tp = tp
        self._offset = 0
        world.at(0, self._turn)

    def _turn(self) -> None:
        world = self._world
        self.read()
        world.at(world.random.uniform(100, 1_500), self._turn)

    def read(self) -> None:
        """Read up to the last stable offset; one fetch reads up to the end of a segment."""
        world, shown = self._world, []
        broker = world.leader_of(self._tp)
        while broker is not None:
            read = world.consume(broker.id, self._offset, self._tp, is_read_committed=True)
            # A new leader's last stable offset may be lower for a while.
            if read is None or read[0] <= self._offset:
                break
            self._offset, records = read
            shown += records
        if shown:
            world.check()
            world.judge.shows(self._tp, shown)


class PlainProducer:
    """Writes with acks=1 to any broker that may lead."""

    def __init__(self, world: CoordinatedWorld) -> None:
        self._world = world
        world.at(0, self._turn)

    def _turn(self) -> None:
        world = self._world
        leader = world.leader_of(PLAIN)
        if leader is not None and world.is_faulty:
            # The judge sees every acknowledgement.
            world.produce(leader.id, acks=1, tp=PLAIN)
        world.at(world.random.uniform(100, 1_500), self._turn)


class OffsetReader:
    """Asks for the offset of a group, mostly for a stable one, as a consumer does when it begins."""

    def __init__(self, world: CoordinatedWorld, transactional_id: str) -> None:
        self._world = world
        self._group = group_of(transactional_id)
        world.at(0, self._turn)

    def _turn(self) -> None:
        world = self._world
        topic = TopicPartitionIndexes(name=COMMITTED.topic, partition_indexes=[COMMITTED.partition])
        body = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self._group, topics=[topic])],
            require_stable=world.random.random() < 0.7,
        )
        # The judge sees every answer.
        world.request(world.group_coordinator_of(self._group), body, lambda response: None)
        world.at(world.random.uniform(100, 1_500), self._turn)
