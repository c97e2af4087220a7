"""The calls of a transactional producer's user, and the requests to coordinators that they cause.

Guarantees: one call runs at a time. Each is bounded by `max_block_ms`; a call that sends EndTxn runs to its
end even if its caller is cancelled, so that the producer knows the outcome. A coordinator that moves or dies
is looked up again, and the request is repeated. The rules are in `transactions`.

On the producer's event loop; the accumulator is changed under its lock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

from barnabas.client.ask import ToCoordinator, ask
from barnabas.client.client import seconds_after
from barnabas.client.cluster import Cluster
from barnabas.client.config import ClientConfig
from barnabas.client.coordinators import CoordinatorLink, ProducerIdAndEpoch
from barnabas.client.errors import (
    IllegalTransactionState,
    TransactionAborted,
    TransactionOutcomeUnknown,
    report_bug,
)
from barnabas.client.offsets import GroupMetadata, OffsetAndMetadata
from barnabas.client.producer.accumulator import Accumulator
from barnabas.client.producer.sender import Sender
from barnabas.client.producer.transactions import (
    CONCURRENT_BACKOFF_MS,
    LAST_ADD_PARTITIONS_OF_CLIENTS,
    LAST_COMMIT_OFFSETS_OF_OLD_PROTOCOL,
    LAST_END_TXN_OF_OLD_PROTOCOL,
    PreparedTransaction,
    State,
    Step,
    TransactionMachine,
)
from barnabas.client.reactions import REPEATED, Api, Reaction, reaction_to
from barnabas.common.backoff import Backoff, Retries
from barnabas.protocol.errors import BarnabasError, ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages import transactions as wire
from barnabas.protocol.messages.features import EPOCH_PER_TRANSACTION, TRANSACTION_VERSION
from barnabas.protocol.messages.find_coordinator import CoordinatorType
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.produce import InitProducerIdRequest
from barnabas.protocol.partition_entries import in_topics, numbers_in_topics, partitions_of
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")
log = logging.getLogger(__name__)

_DOUBT_MS: Final = 3_000
"""How long a partition may be unknown to the group's coordinator before metadata is asked about it."""


class TransactionSession:
    """The transactions of one producer."""

    def __init__(
        self, cluster: Cluster, accumulator: Accumulator, sender: Sender, machine: TransactionMachine
    ) -> None:
        self.machine = machine
        self._cluster = cluster
        self._config = accumulator.config
        self._accumulator = accumulator
        self._sender = sender
        self._link = CoordinatorLink(cluster, CoordinatorType.TRANSACTION, machine.transactional_id)
        self._group_link: CoordinatorLink | None = None
        """The coordinator of the group that offsets were sent to last."""
        self._turn = asyncio.Lock()
        """Held by the call that runs."""
        self._ending: asyncio.Task[None] | None = None
        """Ends the transaction, also after its caller was cancelled."""
        self._adding: asyncio.Task[None] | None = None
        sender.add_partitions = self._add_partitions
        self._refuse_records()

    async def start(self) -> None:
        """Get a producer id, which fences earlier producers with this transactional id.

        Raises InvalidConfiguration if the brokers cannot keep a prepared transaction.
        """
        if self._config.keep_prepared and self._cluster.is_kafka:
            raise InvalidConfiguration(
                "keep_prepared=True: expected brokers of Barnabas and the native protocol; Kafka's protocol "
                "cannot keep a prepared transaction (KIP-939)"
            )
        async with self._turn:
            await self._initialize(keep_prepared=self._config.keep_prepared)

    async def begin(self) -> None:
        async with self._turn:
            machine = self.machine
            machine.check(Step.BEGIN)
            # A transaction that ended in the old protocol has the same epoch, and may lack markers. The new
            # protocol does not wait for them, so they would end this transaction.
            is_upgraded = self._has_new_protocol() and not machine.uses_new_protocol
            if machine.needs_new_epoch or is_upgraded:
                await self._initialize()
            machine.step(Step.BEGIN)
            machine.uses_new_protocol = self._has_new_protocol()
            self._accept_records()

    async def finish(self) -> None:
        """The end of a block: commit, unless the block has ended or prepared its transaction itself."""
        if self.machine.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            try:
                await self.commit()
            except BaseException as error:
                await self.settle_after(error)
                raise

    async def settle_after(self, error: BaseException) -> None:
        """After an error in a block, or at its end: abort, or wait for the commit that is under way.

        A failure of that is only noted, because the error of the block is more important. A caller that was
        interrupted waits for a limited time.
        """
        ending = self._ending
        if self.machine.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            ending = asyncio.create_task(self.abort())
        if ending is None:
            return
        limit = asyncio.timeout(None if isinstance(error, Exception) else seconds_after(error))
        try:
            async with limit:
                await asyncio.shield(ending)
        except BarnabasError as failure:
            log.warning("a transaction could not be ended: %s", failure)
            error.add_note(f"The transaction could not be ended: {failure}")
        except TimeoutError:
            if not limit.expired():
                raise
            log.warning("a transaction of %r has not ended yet", self.machine.transactional_id)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        async with self._turn:
            machine = self.machine
            machine.step(Step.SEND_OFFSETS)
            if not offsets:
                return
            asked = Api.ADD_OFFSETS
            try:
                if not machine.uses_new_protocol:
                    await self._add_offsets(group.group_id)
                asked = Api.COMMIT_OFFSETS
                await self._commit_offsets(offsets, group)
            except BarnabasError as error:
                raise self._failed(reaction_to(asked, error), error) from error
            except asyncio.CancelledError:
                text = "sending offsets was cancelled, and some may be missing in the transaction"
                self._failed(Reaction.ABORT, TransactionAborted(text))
                raise

    async def prepare(self) -> PreparedTransaction:
        async with self._turn:
            machine = self.machine
            machine.check(Step.PREPARE)
            is_first = machine.state is State.IN_TRANSACTION
            if is_first:
                await self._flush()
                if not machine.is_started:
                    self._accept_records()
                    text = f"{Step.PREPARE.value}: the transaction has neither records nor offsets"
                    raise IllegalTransactionState(text)
                machine.prepared = self._target()
            machine.step(Step.PREPARE)
            prepared = self._target()
            request = wire.PrepareTxnRequest(
                transactional_id=prepared.transactional_id,
                producer_id=prepared.producer_id,
                producer_epoch=prepared.epoch,
            )
            try:
                await self._ask(self._to(Api.PREPARE_TXN, concerns_prepared=True), request)
            except BarnabasError as error:
                unknown = _unless_unknown(Api.PREPARE_TXN, error, machine.transactional_id)
                if unknown is not error:
                    raise unknown from error
                reaction = reaction_to(Api.PREPARE_TXN, error)
                if reaction is Reaction.REFUSED and is_first:
                    machine.not_prepared()
                    self._accept_records()
                    raise
                raise self._failed(reaction, error) from error
            return prepared

    async def commit(self) -> None:
        async with self._turn:
            is_first = self.machine.state is State.IN_TRANSACTION
            self.machine.step(Step.COMMIT)
            if is_first:
                await self._flush()
            await self._end(lambda: self._end_transaction(committed=True))

    async def abort(self) -> None:
        async with self._turn:
            self.machine.step(Step.ABORT)
            self._refuse_records()
            self._sender.wake()
            await self._end(self._drop_and_abort)

    async def close(self) -> None:
        """Abort the open transaction, unless it is prepared or its outcome was requested already."""
        if self.machine.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            await self.abort()

    def cancel(self) -> None:
        for task in (self._ending, self._adding):
            if task is not None:
                task.cancel()

    # Ending

    async def _flush(self) -> None:
        """Deliver all records and take no more; undone if cancelled. Raises TransactionAbortable."""
        machine = self.machine
        self._refuse_records()
        try:
            await self._sender.flush()
        except BaseException:
            if machine.state is State.COMMITTING:
                machine.step(Step.UNDECIDED)
            if machine.state is State.IN_TRANSACTION:
                self._accept_records()
            raise
        if machine.error is not None:
            raise machine.failure()

    async def _end(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run an end of the transaction, or wait for the running one; a cancelled caller does not stop it."""
        if self._ending is None:
            self._ending = asyncio.create_task(end())
            self._ending.add_done_callback(self._ended)
        await asyncio.shield(self._ending)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending = None
        if not task.cancelled() and (error := task.exception()) is not None:
            # Its caller may have been cancelled.
            log.debug("a transaction of %r did not end: %s", self.machine.transactional_id, error)

    async def _drop_and_abort(self) -> None:
        """Wait for the batches in flight, and abort."""
        self.machine.wanted.clear()
        try:
            async with asyncio.timeout(self._config.max_block_ms / 1000):
                await self._sender.flush()
                if self._adding is not None:
                    # Later than EndTxn, it would add partitions to the next transaction.
                    await asyncio.wait((self._adding,))
        except TimeoutError:
            self._sender.fail_all(TransactionAborted("the transaction was aborted; the outcome is unknown"))
        await self._end_transaction(committed=False)

    async def _end_transaction(self, *, committed: bool) -> None:
        machine = self.machine
        following: ProducerIdAndEpoch | None = None
        if machine.is_started:
            route = self._to(Api.END_TXN)
            route.unanswered = machine.outdate_epoch
            if not machine.uses_new_protocol:
                route.last_version = LAST_END_TXN_OF_OLD_PROTOCOL
            try:
                answer = await _end_txn(route, self._target(), self._config.max_block_ms, committed=committed)
            except TransactionOutcomeUnknown:
                raise
            except BarnabasError as error:
                reaction = machine.reaction_to_refused_end(error, committed=committed)
                if reaction is not None:
                    raise self._failed(reaction, error) from error
            else:
                if answer.producer_id >= 0:
                    following = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        machine.ended(following)
        self._refuse_records()

    # Requests

    async def _initialize(self, *, keep_prepared: bool = False) -> None:
        machine, identity = self.machine, self.machine.identity
        machine.step(Step.INITIALIZE)
        request = InitProducerIdRequest(
            transactional_id=machine.transactional_id,
            transaction_timeout_ms=self._config.transaction_timeout_ms,
            **({} if identity is None else identity._asdict()),
            keep_prepared_txn=keep_prepared,
        )
        try:
            answer = await self._ask(self._to(Api.INIT_PRODUCER_ID, concerns_prepared=keep_prepared), request)
        except BaseException as error:
            if isinstance(error, BarnabasError):
                reaction = reaction_to(Api.INIT_PRODUCER_ID, error)
                if reaction in (Reaction.FENCED, Reaction.FAIL):
                    machine.failed(reaction, error)
                    raise machine.failure() from error
            machine.not_initialized()
            raise
        prepared = None
        if answer.ongoing_txn_producer_id >= 0:
            prepared = PreparedTransaction(
                machine.transactional_id, answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch
            )
        machine.uses_new_protocol = self._has_new_protocol()
        machine.initialized(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch), prepared)
        self._refuse_records()

    def _add_partitions(self) -> None:
        if self._adding is None:
            self._adding = asyncio.create_task(self._add_wanted())
            self._adding.add_done_callback(self._partitions_added)

    async def _add_wanted(self) -> None:
        machine = self.machine
        while machine.wanted:
            identity = self.machine.known_identity()
            wanted = sorted(machine.wanted)
            machine.is_started = True
            request = wire.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=machine.transactional_id,
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.producer_epoch,
                v3_and_below_topics=numbers_in_topics(wire.AddPartitionsToTxnTopic, wanted),
            )
            route = self._to(Api.ADD_PARTITIONS)
            route.last_version, route.is_wanted = LAST_ADD_PARTITIONS_OF_CLIENTS, lambda: machine.is_sending
            await self._ask(route, request)
            machine.added(wanted)
            self._sender.wake()

    def _partitions_added(self, task: asyncio.Task[None]) -> None:
        self._adding = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            if not isinstance(error, BarnabasError):
                error = report_bug("adding partitions to a transaction failed", error)
            self._failed(reaction_to(Api.ADD_PARTITIONS, error), error)

    async def _add_offsets(self, group_id: str) -> None:
        machine, identity = self.machine, self.machine.known_identity()
        machine.is_started = True
        request = wire.AddOffsetsToTxnRequest(
            transactional_id=machine.transactional_id,
            **identity._asdict(),
            group_id=group_id,
        )
        await self._ask(self._to(Api.ADD_OFFSETS), request)
        machine.is_confirmed = True

    async def _commit_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        machine, identity = self.machine, self.machine.known_identity()
        link = self._group_link
        if link is None or link.key != group.group_id:
            link = self._group_link = CoordinatorLink(self._cluster, CoordinatorType.GROUP, group.group_id)
        committed = {
            tp: wire.TxnOffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=to_commit.offset,
                committed_leader_epoch=to_commit.leader_epoch,
                committed_metadata=to_commit.metadata,
            )
            for tp, to_commit in offsets.items()
        }
        request = wire.TxnOffsetCommitRequest(
            transactional_id=machine.transactional_id,
            **group._asdict(),
            **identity._asdict(),
            topics=in_topics(wire.TxnOffsetCommitRequestTopic, committed.items()),
        )
        machine.is_started = True
        route = self._to(Api.COMMIT_OFFSETS, link)
        if not machine.uses_new_protocol:
            route.last_version = LAST_COMMIT_OFFSETS_OF_OLD_PROTOCOL
        deadline = time.monotonic() + self._config.max_block_ms / 1000
        try:
            await self._ask(route, request, min(_DOUBT_MS, self._config.max_block_ms // 2))
        except BarnabasError as error:
            if reaction_to(Api.COMMIT_OFFSETS, error) not in REPEATED:
                raise
            # Whatever the last attempt ended with: it may have been cut off by the limit.
            await self._check_exist(offsets, deadline)
            if (left_ms := int((deadline - time.monotonic()) * 1000)) <= 0:
                raise
            await self._ask(route, request, left_ms)
        machine.is_confirmed = True

    async def _check_exist(self, partitions: Iterable[TopicPartition], deadline: float) -> None:
        """Raises UNKNOWN_TOPIC_OR_PARTITION for a partition that metadata lacks: it is not just new."""
        topics = [MetadataRequestTopic(name=name) for name in sorted({tp.topic for tp in partitions})]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                answer = await self._cluster.ask_any(request)
        except (BarnabasError, TimeoutError) as error:
            log.debug("whether the partitions exist is unknown: %s", error)
            return
        existing = partitions_of(answer.topics)
        if missing := sorted(set(partitions).difference(existing)):
            text = f"there is no partition {missing[0]}, of which an offset was sent"
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)

    def _to(
        self, api: Api, link: CoordinatorLink | None = None, *, concerns_prepared: bool = False
    ) -> ToCoordinator:
        return _route(api, link or self._link, self.machine.transactional_id, concerns_prepared)

    async def _ask(self, route: ToCoordinator, message: RequestOf[R], limit_ms: int | None = None) -> R:
        limit_ms = self._config.max_block_ms if limit_ms is None else limit_ms
        return (await ask(route, message, _make_retries(self._config, limit_ms))).response

    def _failed(self, reaction: Reaction, error: BarnabasError) -> BarnabasError:
        """The transaction or the producer has failed; returns the error for the caller."""
        if reaction in REPEATED:
            # All retries until the deadline failed.
            reaction = Reaction.ABORT
        self.machine.failed(reaction, error)
        self._refuse_records()
        self._sender.wake()
        return self.machine.failure() if self.machine.error is not None else error

    def _target(self) -> PreparedTransaction:
        """The transaction to prepare or to end."""
        machine = self.machine
        return machine.prepared or PreparedTransaction(machine.transactional_id, *machine.known_identity())

    def _has_new_protocol(self) -> bool:
        if not self._cluster.is_kafka:
            return True
        return self._cluster.finalized_level(TRANSACTION_VERSION) >= EPOCH_PER_TRANSACTION

    def _refuse_records(self) -> None:
        refusal = self.machine.refusal()
        if refusal is None:
            refusal = IllegalTransactionState("no record can be sent: the transaction is being prepared")
        with self._accumulator.lock:
            self._accumulator.refuse(refusal)

    def _accept_records(self) -> None:
        with self._accumulator.lock:
            self._accumulator.accept()


async def complete_prepared(
    cluster: Cluster, prepared: PreparedTransaction, *, commit: bool, timeout_ms: int
) -> None:
    """Commit or abort a prepared transaction, of any process; a repeated call has no further effect.

    Raises TransactionOutcomeUnknown, PRODUCER_FENCED if another producer has ended it, INVALID_TXN_STATE if
    it has the other outcome.
    """
    link = CoordinatorLink(cluster, CoordinatorType.TRANSACTION, prepared.transactional_id)
    route = _route(Api.END_TXN, link, prepared.transactional_id)
    await _end_txn(route, prepared, timeout_ms, committed=commit)


def _route(
    api: Api, link: CoordinatorLink, transactional_id: str, concerns_prepared: bool = False
) -> ToCoordinator:
    def subject(code: int) -> str:
        text = f"{api.value} of transactional id {transactional_id!r}"
        if concerns_prepared and code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            text += "; expected transaction.two.phase.commit.enable=true in the brokers"
        return text

    return ToCoordinator(subject, link=link, api=api)


def _make_retries(config: ClientConfig, limit_ms: int) -> Retries:
    longest_ms = max(CONCURRENT_BACKOFF_MS, config.retry_backoff_ms)
    return Retries(Backoff(CONCURRENT_BACKOFF_MS, longest_ms), limit_ms / 1000)


async def _end_txn(
    route: ToCoordinator, target: PreparedTransaction, limit_ms: int, *, committed: bool
) -> wire.EndTxnResponse:
    """Raises as `ask`, but TransactionOutcomeUnknown after the deadline."""
    request = wire.EndTxnRequest(
        transactional_id=target.transactional_id,
        producer_id=target.producer_id,
        producer_epoch=target.epoch,
        committed=committed,
    )
    try:
        return (await ask(route, request, _make_retries(route.cluster.config, limit_ms))).response
    except BarnabasError as error:
        raise _unless_unknown(Api.END_TXN, error, target.transactional_id) from error


def _unless_unknown(api: Api, error: BarnabasError, transactional_id: str) -> BarnabasError:
    """The error of a call: a retriable one, after the deadline, leaves the outcome unknown."""
    if reaction_to(api, error) not in REPEATED:
        return error
    return TransactionOutcomeUnknown(
        f"the coordinator of transactional id {transactional_id!r} did not answer {api.value} in time; "
        f"call again for the outcome: {error}"
    )
