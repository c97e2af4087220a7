"""One producer that meets a fault at a step of its transaction, and continues as a client would."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.support.waiting import wait_for

from . import raw_client
from .group_client import GroupClient
from .raw_client import RawClient
from .tools import partitions_seen_by
from .transaction_client import TransactionalClient

SOURCE: Final = TopicPartition("source", 0)
REPLICAS: Final = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)}
"""Each broker leads a partition of the topic of a test."""
LONG_MS: Final = 60_000
FENCED: Final = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}
"""The errors that tell a producer that its transaction is over or that it has a successor."""
WRITTEN: Final = {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}
RETRIED: Final = {ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.CONCURRENT_TRANSACTIONS}


_numbers = itertools.count(1)


@dataclass(slots=True)
class Transaction:
    """``told``: True if its producer learnt of the commit, False if of an error; None without an answer."""

    value: bytes
    offset: int
    told: bool | None = None


@dataclass(slots=True, eq=False)
class Party:
    """A transactional id, brought to one step of a transaction before a fault."""

    cluster: LocalCluster
    topic: str
    step: str
    version: int | None
    timeout_ms: int
    transactions: list[Transaction] = field(default_factory=list)
    errors: list[ErrorCode] = field(default_factory=list)
    connection: RawClient | None = None
    name: str = ""
    client: TransactionalClient = field(init=False)
    places: list[TopicPartition] = field(init=False)
    sequences: dict[TopicPartition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        protocol = "new" if self.version is None else "old"
        self.name = f"{self.step}-{protocol}-{next(_numbers)}"
        self.client = self.make_client()
        self.places = places_of(self.topic)

    def make_client(self) -> TransactionalClient:
        return TransactionalClient(self.cluster, self.name, self.version)

    # Requests

    def init(self) -> None:
        self.client.init(self.timeout_ms)
        self.sequences = dict.fromkeys(self.places, 0)

    def begin(self) -> Transaction:
        number = len(self.transactions) + 1
        made = Transaction(b"%s %d" % (self.name.encode(), number), number)
        self.transactions.append(made)
        return made

    def add(self) -> ErrorCode:
        return self.client.add_error(*self.places) if self.version is not None else ErrorCode.NONE

    def write(self, transaction: Transaction) -> ErrorCode:
        """Write to all partitions, again until each answers without a retriable error."""
        error = self.add()
        for place in self.places:
            if error is ErrorCode.NONE:
                error = self.write_one(transaction, place)
        return error

    def write_one(self, transaction: Transaction, place: TopicPartition) -> ErrorCode:
        request = self.client.request(place, self.sequences[place], value=transaction.value)
        seen: list[object] = []

        def is_answered() -> bool:
            try:
                with RawClient(self.cluster.broker(leader_of(self.cluster, place)).endpoint) as client:
                    seen.append(self.client.result(client.ask(request, self.version)))
            except OSError as error:
                seen.append(error)
                return False
            code = seen[-1]
            return isinstance(code, ErrorCode) and not code.retriable and code not in RETRIED

        wait_for(is_answered, lambda: f"{self.name}: no record is written: {seen[-3:]}")
        code = seen[-1]
        assert isinstance(code, ErrorCode)
        if code in WRITTEN:
            self.sequences[place] += 1
            return ErrorCode.NONE
        return code

    def commit_offsets(self, transaction: Transaction) -> ErrorCode:
        client = self.client
        identity = {"producer_id": client.producer_id, "producer_epoch": client.epoch}
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.name,
            **identity,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=SOURCE.topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=SOURCE.partition, committed_offset=transaction.offset
                        )
                    ],
                )
            ],
        )
        if self.version is not None:
            added = AddOffsetsToTxnRequest(transactional_id=self.name, group_id=self.name, **identity)
            answer = client.ask_coordinator(added, 3, lambda answer: answer.error_code)
            if answer.error_code != ErrorCode.NONE:
                return ErrorCode(answer.error_code)

        def code(answer: Any) -> int:
            return int(answer.topics[0].partitions[0].error_code)

        with GroupClient(self.cluster, self.name) as group:
            return ErrorCode(code(group.ask(request, code)))

    def end(self, transaction: Transaction) -> None:
        """Commit; what the producer learns."""
        before = self.client.producer_id, self.client.epoch
        error = self.client.end_error(committed=True)
        transaction.told = error is ErrorCode.NONE
        self.note(error)
        if (self.client.producer_id, self.client.epoch) != before:
            self.sequences = dict.fromkeys(self.places, 0)

    def note(self, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self.errors.append(error)

    def transact(self, *, with_offsets: bool = True) -> None:
        """A whole transaction; it stops at the first error that is not retriable."""
        transaction = self.begin()
        error = self.write(transaction)
        if error is ErrorCode.NONE and with_offsets:
            error = self.commit_offsets(transaction)
        if error is ErrorCode.NONE:
            self.end(transaction)
        else:
            transaction.told = False
            self.note(error)

    def send(self, broker_id: int, request: Any, version: int | None) -> None:
        """Send a request, and wait for no answer."""
        self.connection = RawClient(self.cluster.broker(broker_id).endpoint)
        self.connection.send(raw_client.encoded(request, version=version))

    # Steps

    def advance(self) -> None:
        """To its step; but the requests without an answer are sent by `send_unanswered`."""
        self.init()
        if self.step == "next":
            self.transact()
        if self.step != "initialised":
            transaction = self.begin()
            if self.step == "writing":
                self.note(self.add())
            else:
                self.note(self.write(transaction))
            if self.step in ("offsets", "ending", "decided"):
                self.note(self.commit_offsets(transaction))
        assert self.errors == [], f"{self.name}: {self.errors}"

    def send_unanswered(self) -> None:
        """The request that is under way when the fault comes."""
        if self.step == "writing":
            request = self.client.request(self.places[0], 0, value=self.transactions[-1].value)
            self.send(leader_of(self.cluster, self.places[0]), request, self.version)
        elif self.step == "ending":
            end = EndTxnRequest(
                transactional_id=self.name,
                producer_id=self.client.producer_id,
                producer_epoch=self.client.epoch,
                committed=True,
            )
            self.send(self.client.coordinator, end, 3 if self.version is not None else None)

    def go_on(self) -> None:
        """Continue with the next step of the producer, in its old epoch."""
        if self.step == "initialised":
            self.transact()
        elif self.step == "writing":
            transaction = self.transactions[-1]
            error = self.write(transaction)
            if error is ErrorCode.NONE:
                self.end(transaction)
            else:
                transaction.told = False
                self.note(error)
        elif self.transactions[-1].told is None:
            self.end(self.transactions[-1])

    def start_again(self) -> None:
        """Another process with the id makes a transaction."""
        self.client = self.make_client()
        self.init()
        self.transact()
        assert self.transactions[-1].told is True, f"{self.name}: {self.errors}"

    def close(self) -> None:
        if self.connection is not None:
            self.connection.socket.close()

    def faults(self, visible: dict[bytes, int], offset: int | None) -> Iterator[str]:
        """The faults of the outcome; ``visible`` counts the partitions that show a value."""
        committed = 0
        for transaction in self.transactions:
            count = visible.get(transaction.value, 0)
            if count not in (0, len(REPLICAS)):
                yield f"{transaction.value!r} is in {count} partitions"
            if transaction.told is not None and transaction.told is not (count > 0):
                yield f"{transaction.value!r}: told {transaction.told}, in {count} partitions; {self.errors}"
            committed = transaction.offset if count else committed
        if (offset or 0) != committed:
            yield f"{self.name}: offset {offset} is committed, of transactions {committed}"


def places_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in REPLICAS]


def leader_of(cluster: LocalCluster, place: TopicPartition) -> int:
    """The leader that the first running broker names, which may be a former one."""
    found: list[int] = []

    def is_known() -> bool:
        for broker in cluster.brokers:
            if broker.state == "running":
                seen = partitions_seen_by(broker.endpoint, place.topic)
                found.append(seen[place.partition][1])
                return found[-1] >= 0
        return False

    wait_for(is_known, lambda: f"{place} has no leader: {found[-1:]}")
    return found[-1]
