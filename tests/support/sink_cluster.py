"""A cluster in memory for the exactly-once sink: real rules of transactions, and what readers would see.

`Clients` are those of one process; ``ask`` carries out each request, and may stop, lose or refuse it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.client.admin.transactions import TransactionDescription, TransactionListing
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import ProducerFenced
from barnabas.client.producer.transactions import PreparedTransaction
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.spark_connector.sink.sink_register import register_id
from tests.support.transacting import TransactionRig, abort, add, commit, init, keep, prepare

Row = tuple[int, int, int]
"""Batch, partition and number."""
Ask = Callable[[Callable[[], Any]], Awaitable[Any]]


class SinkCluster:
    """Coordinators of any transactional id, the records of their transactions, and the register."""

    def __init__(self) -> None:
        self.rigs: dict[str, TransactionRig] = {}
        self.visible: Counter[Row] = Counter()
        self.register: bytes | None = None
        self._open: dict[str, list[Row | bytes]] = {}

    def _do(self, transactional_id: str, request: Any) -> Any:
        rig = self.rigs.setdefault(transactional_id, TransactionRig())
        was_ongoing = rig.state is TransactionState.ONGOING
        before = rig.stored.start_timestamp_ms, rig.stored.producer_epoch
        answer = rig.do_all(request)
        is_same = (rig.stored.start_timestamp_ms, rig.stored.producer_epoch) == before
        if was_ongoing and not (rig.state is TransactionState.ONGOING and is_same):
            rows = self._open.pop(transactional_id, [])
            if rig.state is TransactionState.COMPLETE_COMMIT:
                for row in rows:
                    if isinstance(row, bytes):
                        self.register = row
                    else:
                        self.visible[row] += 1
        return answer

    def init(self, transactional_id: str, request: Any) -> Any:
        answer = self._do(transactional_id, request)
        _raise(answer.error_code, transactional_id)
        return answer

    def write(self, transactional_id: str, producer: ProducerIdAndEpoch, rows: Sequence[Row | bytes]) -> None:
        request = add(producer.producer_epoch, producer_id=producer.producer_id)
        _raise(self._do(transactional_id, request), transactional_id)
        self._open.setdefault(transactional_id, []).extend(rows)

    def prepare(self, transactional_id: str, producer: ProducerIdAndEpoch) -> None:
        request = prepare(producer.producer_epoch, producer_id=producer.producer_id)
        _raise(self._do(transactional_id, request), transactional_id)

    def end(self, target: PreparedTransaction, *, committed: bool) -> Any:
        make = commit if committed else abort
        answer = self._do(target.transactional_id, make(target.epoch, 2, producer_id=target.producer_id))
        _raise(answer.error_code, target.transactional_id)
        return answer

    def identity(self, transactional_id: str) -> ProducerIdAndEpoch:
        stored = self.rigs[transactional_id].stored
        return ProducerIdAndEpoch(stored.producer_id, stored.producer_epoch)

    def open_ids(self) -> list[str]:
        return [name for name, rig in self.rigs.items() if rig.state is TransactionState.ONGOING]


def _raise(code: ErrorCode, subject: str) -> None:
    if code != ErrorCode.NONE:
        raise api_error(code, subject)


async def ask_at_once(work: Callable[[], Any]) -> Any:
    return work()


class Clients:
    """The clients of one process."""

    def __init__(self, cluster: SinkCluster, ask: Ask = ask_at_once) -> None:
        self.cluster = cluster
        self.ask = ask
        self.unlisted: set[str] = set()
        """Ids that the list lacks, because their coordinators move."""

    # As the admin

    async def fence_producers(self, transactional_ids: Iterable[str], /) -> dict[str, ProducerIdAndEpoch]:
        (transactional_id,) = transactional_ids
        given = await self.ask(lambda: self.cluster.init(transactional_id, init()))
        return {transactional_id: ProducerIdAndEpoch(given.producer_id, given.producer_epoch)}

    async def list_transactions(self, *, states: Iterable[str]) -> list[TransactionListing]:
        def listing() -> list[TransactionListing]:
            return [
                TransactionListing(name, BrokerId(1), rig.stored.producer_id, rig.state.value)
                for name, rig in self.cluster.rigs.items()
                if rig.state.value in states and name not in self.unlisted
            ]

        listed: list[TransactionListing] = await self.ask(listing)
        return listed

    async def describe_transactions(
        self, transactional_ids: Iterable[str], /
    ) -> dict[str, TransactionDescription]:
        (name,) = transactional_ids

        def described() -> TransactionDescription:
            if name not in self.cluster.rigs:
                raise api_error(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, name)
            rig = self.cluster.rigs[name]
            producer = self.cluster.identity(name)
            return TransactionDescription(
                name, BrokerId(1), rig.state.value, *producer, 0, None, (), rig.stored.is_prepared
            )

        return {name: await self.ask(described)}

    async def describe(self, transactional_id: str) -> TransactionDescription:
        return (await self.describe_transactions([transactional_id]))[transactional_id]

    async def complete_transaction(self, transaction: PreparedTransaction, /, *, commit: bool = True) -> None:
        await self.ask(lambda: self.cluster.end(transaction, committed=commit))

    # As a task

    async def open_producer(self, transactional_id: str) -> AttemptProducer:
        given = await self.ask(lambda: self.cluster.init(transactional_id, keep()))
        return AttemptProducer(self, transactional_id, given)

    async def close_producer(self, producer: AttemptProducer) -> None:
        producer.is_closed = True

    # As the register

    async def read(self, name: str) -> bytes | None:
        value: bytes | None = await self.ask(lambda: self.cluster.register)
        return value

    async def write(self, name: str, holder: ProducerIdAndEpoch, value: bytes) -> ProducerIdAndEpoch:
        transactional_id = register_id(name)
        try:
            given = await self.ask(lambda: self.cluster.init(transactional_id, init(*holder)))
            producer = ProducerIdAndEpoch(given.producer_id, given.producer_epoch)
            await self.ask(lambda: self.cluster.write(transactional_id, producer, [value]))
            target = PreparedTransaction(transactional_id, *producer)
            ended = await self.ask(lambda: self.cluster.end(target, committed=True))
        except BarnabasError as error:
            if getattr(error, "code", None) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
                raise ProducerFenced(str(error)) from error
            raise
        return ProducerIdAndEpoch(ended.producer_id, ended.producer_epoch)


class AttemptProducer:
    """The producer of an attempt."""

    def __init__(self, requests: Clients, transactional_id: str, given: Any) -> None:
        self.requests = requests
        self.transactional_id = transactional_id
        self.producer = ProducerIdAndEpoch(given.producer_id, given.producer_epoch)
        self.is_closed = False
        self.prepared_transaction: PreparedTransaction | None = None
        if given.ongoing_txn_producer_id >= 0:
            self.prepared_transaction = PreparedTransaction(
                transactional_id, given.ongoing_txn_producer_id, given.ongoing_txn_producer_epoch
            )

    async def write(self, rows: Sequence[Row]) -> None:
        cluster = self.requests.cluster
        await self.requests.ask(lambda: cluster.write(self.transactional_id, self.producer, rows))

    async def prepare(self) -> PreparedTransaction:
        cluster = self.requests.cluster
        await self.requests.ask(lambda: cluster.prepare(self.transactional_id, self.producer))
        return PreparedTransaction(self.transactional_id, *self.producer)
