"""The protocol of the exactly-once sink, for a driver and its tasks that may die at any step.

Every task leaves its transaction prepared. The driver then stores one decision for the batch in the register,
and commits the transactions that the decision names. Guarantees, under read_committed: a batch is visible
once and as a whole, as soon as it is decided; what no decision names is aborted by the end of the batch, by
`Coordination.abandon`, or by the claim of the next batch or the next run. Why each step is there is in
docs/decisions/spark-exactly-once.md.

The order inside each function matters: see its comments. On the event loop of the admin.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barnabas.client.admin.transactions import ONGOING, TransactionDescription
from barnabas.client.ask import for_each
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import ProducerFenced
from barnabas.client.producer.transactions import PreparedTransaction
from barnabas.protocol.errors import (
    BarnabasError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
)
from barnabas.spark_connector.sink.sink_register import (
    Claim,
    Decision,
    RegisterTopic,
    SinkRecord,
    UnreadableRegister,
    register_id,
)
from barnabas.spark_connector.source.ranges import REGISTER_TOPIC

if TYPE_CHECKING:
    from barnabas.client.admin.admin import Admin
    from barnabas.client.producer.blocking import Producer

MAX_SLOTS: Final = 32
"""Transactional ids that an attempt tries before it gives up: prepared ones belong to earlier attempts."""

_EMPTY: Final = "Empty"
_OPEN: Final = (_EMPTY, ONGOING)
"""The states of an id whose last producer may still write: an attempt begins one transaction at most."""
_OTHERS_NOW: Final = (ProducerFencedError, InvalidProducerIdMappingError)
"""The transaction has ended, and its id was used again or has expired since."""


class SinkFenced(BarnabasError):
    """A later batch, run or query with the same `kafka.transactional.id` has taken over."""


class DecidedBatchAborted(BarnabasError):
    """An operator has aborted a transaction of a batch that was decided: its records are lost."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task did, for the driver. ``transaction`` is None if it had no rows or the batch was decided."""

    claim: Claim
    query_id: str
    batch_id: int | None
    partition: int
    transaction: PreparedTransaction | None = None
    was_decided: bool = False


def attempt_id(name: str, partition: int, slot: int) -> str:
    """The transactional id of a task's attempt. A partition's slots tell its attempts apart."""
    return f"{name}-{partition}-{slot}"


def is_attempt_id(name: str, transactional_id: str) -> bool:
    """Whether `attempt_id` makes it for this very name: not for another one that begins like it."""
    rest = transactional_id.removeprefix(f"{name}-")
    return rest != transactional_id and re.fullmatch(r"[0-9]+-[0-9]+", rest) is not None


# ---- the driver


class Coordination:
    """The driver's side."""

    def __init__(self, admin: Admin, register: RegisterTopic) -> None:
        self._admin = admin
        self._register = register
        self._undecided: dict[str, ProducerIdAndEpoch] = {}
        """By name, the holder of a claim whose `commit` failed; the register may have its decision."""

    async def claim(self, name: str) -> Claim:
        """Take the name over before a batch's tasks start: finish what was decided, abort the rest.

        Raises DecidedBatchAborted, UnreadableRegister, and errors of the clients.
        """
        # First: from now on no other process can decide for this name, so the record read next stays valid.
        identities = await self._admin.fence_producers([register_id(name)])
        holder = identities[register_id(name)]
        value = await self._register.read(name)
        try:
            record = SinkRecord.decode(value)
        except UnreadableRegister as error:
            where = f"the record of sink {name!r} in topic {REGISTER_TOPIC}"
            raise UnreadableRegister(f"{where} {error}") from error
        # Before the sweep, which aborts every transaction that is not committed.
        for decision in record.decisions:
            await self._complete(decision)
        await self._sweep(name, holder, ())
        return Claim(name, holder, record.decided)

    async def commit(self, results: Collection[TaskResult]) -> None:
        """Decide a batch and make it visible. After an error, a repetition of the batch finishes it.

        Raises SinkFenced if the name was claimed since: then nothing of this batch is visible.
        """
        if not any(result.transaction for result in results):
            # Nothing to show, or decided before: then its claim has completed it.
            return
        first = next(iter(results))
        claim = first.claim
        for result in results:
            if result.was_decided or (result.claim, result.query_id, result.batch_id) != (
                claim,
                first.query_id,
                first.batch_id,
            ):
                raise ValueError(f"tasks of different batches: {first} and {result}")
        decision = Decision(
            first.query_id,
            first.batch_id,
            tuple(result.transaction for result in results if result.transaction is not None),
        )
        self._undecided[claim.name] = claim.holder
        try:
            holder = await self._register.write(
                claim.name, claim.holder, claim.record_with(decision).encode()
            )
        except ProducerFenced as error:
            del self._undecided[claim.name]
            raise _fenced(claim.name) from error
        await self._complete(decision)
        # A listing may lack ids whose coordinator is moving; these can be asked for by name.
        expected = {
            attempt_id(claim.name, result.partition, slot)
            for result in results
            if result.transaction is not None
            for slot in _other_slots(result.transaction)
        }
        await self._sweep(claim.name, holder, expected)
        del self._undecided[claim.name]

    async def abandon(self, name: str, claim: Claim | None) -> None:
        """After a failed batch: nothing stays open. A decision whose outcome was unknown is finished.

        ``claim`` is that of the batch; None if no task has returned it. A query that has taken the name over
        is left alone, except that without the claim it is not known from a failed one if it has attempts.
        """
        if claim is None:
            listed = await self._admin.list_transactions(states=_OPEN)
            is_needed = any(is_attempt_id(name, each.transactional_id) for each in listed)
        else:
            is_needed = self._undecided.get(name) == claim.holder or await is_held(
                self._describe, name, claim.holder
            )
        if is_needed:
            await self.claim(name)
            self._undecided.pop(name, None)

    async def _complete(self, decision: Decision) -> None:
        """Commit the transactions of a decision; those that are committed already stay so."""

        async def complete(transaction: PreparedTransaction) -> None:
            try:
                await self._admin.complete_transaction(transaction, commit=True)
            except InvalidTxnStateError as error:
                raise DecidedBatchAborted(
                    f"transaction {transaction} of batch {decision.batch_id} of query "
                    f"{decision.query_id} was to be committed, but it was aborted by another hand, so "
                    "records of that batch are lost; write them again, and use another "
                    "kafka.transactional.id from then on"
                ) from error
            except _OTHERS_NOW:
                # Nobody aborts a decided transaction, so it was committed before.
                pass

        await for_each(decision.transactions, complete)

    async def _sweep(self, name: str, holder: ProducerIdAndEpoch, expected: Collection[str]) -> None:
        """Abort and fence every attempt that may still write, except those of later claims.

        Raises SinkFenced if the name was claimed since.
        """
        listed = await self._admin.list_transactions(states=_OPEN)
        ids = {each.transactional_id for each in listed if is_attempt_id(name, each.transactional_id)}
        found = await for_each(sorted(ids.union(expected)), self._find_open)
        attempts = [attempt for attempt in found.values() if attempt is not None]
        if not attempts:
            return
        # Between finding and ending them. The claim was the last one at this moment, so these attempts
        # belong to it or to earlier claims; and if this process sleeps from here on, attempts of a later
        # claim have other identities, which it does not end.
        if not await is_held(self._describe, name, holder):
            raise _fenced(name)
        await for_each(attempts, self._end)

    async def _describe(self, transactional_id: str) -> TransactionDescription:
        return (await self._admin.describe_transactions([transactional_id]))[transactional_id]

    async def _find_open(self, transactional_id: str) -> PreparedTransaction | None:
        """The identity under which a transactional id may still write; None if it may not."""
        try:
            described = await self._describe(transactional_id)
        except TransactionalIdNotFoundError:
            return None
        if described.state not in _OPEN:
            return None
        return PreparedTransaction(transactional_id, described.producer_id, described.producer_epoch)

    async def _end(self, attempt: PreparedTransaction) -> None:
        # It may have ended, or a later attempt may have fenced it.
        with suppress(InvalidTxnStateError, *_OTHERS_NOW):
            # An abort fences also an attempt that has begun nothing.
            await self._admin.complete_transaction(attempt, commit=False)


async def is_held(
    describe: Callable[[str], Awaitable[TransactionDescription]], name: str, holder: ProducerIdAndEpoch
) -> bool:
    """Whether a claim is the last one of its name and has not decided since."""
    described = await describe(register_id(name))
    return (described.producer_id, described.producer_epoch) == holder


# ---- a task


async def open_attempt(
    open_producer: Callable[[str], Awaitable[Producer]],
    close_producer: Callable[[Producer], Awaitable[None]],
    describe: Callable[[str], Awaitable[TransactionDescription]],
    claim: Claim,
    partition: int,
    attempt: int,
) -> Producer:
    """A producer that may write for this attempt of a task.

    ``open_producer`` makes a producer with this transactional id that keeps a prepared transaction.
    Raises SinkFenced if the batch was decided meanwhile or the name claimed again.
    """
    for slot in range(attempt, attempt + MAX_SLOTS):
        producer = await open_producer(attempt_id(claim.name, partition, slot))
        try:
            # A prepared one is of an earlier attempt, which Spark may have accepted.
            if producer.prepared_transaction is None:
                # After the producer has its identity: the sweep that follows a decision either has found
                # it, or this call finds the decision.
                if await is_held(describe, claim.name, claim.holder):
                    return producer
                raise _fenced(claim.name)
        except BaseException:
            await close_producer(producer)
            raise
        await close_producer(producer)
    raise SinkFenced(
        f"partition {partition} has {MAX_SLOTS} prepared transactions of earlier attempts; "
        "start the query again"
    )


def _other_slots(transaction: PreparedTransaction) -> list[int]:
    """The slots of a partition whose attempts are known, and the next one; without the accepted attempt's."""
    accepted = int(transaction.transactional_id.rpartition("-")[2])
    return [*range(accepted), accepted + 1]


def _fenced(name: str) -> SinkFenced:
    return SinkFenced(
        f"the sink {name!r} (kafka.transactional.id) was taken over by a later batch or run, or by another "
        "query: each query needs a name of its own"
    )
