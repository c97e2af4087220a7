"""The rules of a transactional id: the effect of a request on a state, as pure functions.

Each takes the stored state and gives a `Decision`: an answer, a next state to store first, or a reason to
wait. Only the producer that `present_producer` names may act, with two exceptions: a repetition of the
request that led to the present state is answered, and any process that knows the id and epoch of a prepared
transaction may end it.

Pure functions; any thread. Source: ``TransactionCoordinator.scala`` and ``TransactionMetadata.scala`` in
Apache Kafka; KIP-360, KIP-890, KIP-939. ``docs/decisions/transaction-coordinator.md`` and the pages that it
names say where we differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.state_machine import Moment
from barnabas.broker.coordinators.transactions.records import (
    NO_EPOCH,
    NO_PARTITIONS,
    NO_TIMESTAMP,
    NOT_PREPARED,
    TransactionMetadata,
)
from barnabas.broker.coordinators.transactions.requests import (
    AddPartitions,
    EndTransaction,
    Request,
    Response,
    refused,
)
from barnabas.broker.coordinators.transactions.state import COMPLETION_OF, DECIDED, IDLE, TransactionState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId
from barnabas.protocol.invariants import invariant
from barnabas.protocol.messages.features import EPOCH_PER_TRANSACTION
from barnabas.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from barnabas.protocol.messages.transactions import EndTxnResponse, PrepareTxnRequest

LAST_EPOCH: Final = ProducerEpoch(32_766)
"""The highest epoch that a producer gets, so that the coordinator can always fence it with the next one."""
NO_TIMEOUT_MS: Final = (1 << 31) - 1
"""The stored time-out of a prepared transaction."""
_S = TransactionState

BLANK: Final = TransactionMetadata(_S.EMPTY, NO_PRODUCER_ID, NO_EPOCH, 0, NO_TIMESTAMP)
"""An id that the log does not have."""


class Producer(NamedTuple):
    producer_id: ProducerId
    epoch: ProducerEpoch


# ---- decisions


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer now, without a change."""

    response: Response
    is_promise: bool = False
    """The answer is only true if the present state is replicated."""


@dataclass(frozen=True, slots=True)
class Move:
    """Store the next state, then answer."""

    target: TransactionMetadata
    response: Response


@dataclass(frozen=True, slots=True)
class Fence:
    """Abort the ongoing transaction first; then decide on the request again."""

    target: TransactionMetadata


@dataclass(frozen=True, slots=True)
class Wait:
    """Decide again when the markers are written."""


@dataclass(frozen=True, slots=True)
class WantProducerId:
    """Decide again with a new producer id."""


Decision = Reply | Move | Fence | Wait | WantProducerId


def decide(
    stored: TransactionMetadata,
    request: Request,
    config: BrokerConfig,
    now: Moment,
    new_producer_id: ProducerId | None,
) -> Decision:
    """``new_producer_id`` is an id that no producer has had, if the caller has one."""
    error = refusal(stored, request, config)
    if error is not ErrorCode.NONE:
        return Reply(refused(request, error))
    match request:
        case InitProducerIdRequest():
            return _init_producer_id(stored, request, now, new_producer_id)
        case AddPartitions():
            return _add_partitions(stored, request, now)
        case EndTransaction():
            return _end(stored, request, now, new_producer_id)
        case PrepareTxnRequest():
            return _prepare(stored, request, now)


def refusal(stored: TransactionMetadata, request: Request, config: BrokerConfig) -> ErrorCode:
    """The error of a request that no later state of this id can accept either; NONE for any other."""
    match request:
        case InitProducerIdRequest():
            return _init_refusal(stored, request, config)
        case EndTransaction() if _is_repeated_end(stored, request) or _is_end_of_prepared(stored, request):
            return ErrorCode.NONE
        case _:
            return _identity_error(stored, request)


# ---- the producer that may act


def present_producer(stored: TransactionMetadata) -> Producer:
    """The one producer that is not fenced; after a decision, the producer of the next transaction."""
    if stored.next_producer_id == NO_PRODUCER_ID:
        return Producer(stored.producer_id, stored.producer_epoch)
    # Kafka stores no next epoch with a next id after the last epoch; it is 0 then.
    return Producer(stored.next_producer_id, ProducerEpoch(max(0, stored.next_producer_epoch)))


def _last_producer(stored: TransactionMetadata) -> Producer:
    """The producer whose request led to this state, if it is not the present one."""
    previous = stored.previous_producer_id
    producer_id = stored.producer_id if previous == NO_PRODUCER_ID else previous
    return Producer(producer_id, stored.last_producer_epoch)


def _identity_error(
    stored: TransactionMetadata,
    request: AddPartitions | EndTransaction | PrepareTxnRequest,
) -> ErrorCode:
    present = present_producer(stored)
    if present.producer_id == NO_PRODUCER_ID or request.producer_id != present.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.NONE if request.producer_epoch == present.epoch else ErrorCode.PRODUCER_FENCED


def _is_repeated_end(stored: TransactionMetadata, request: EndTransaction) -> bool:
    """True if the request led to this state already; the epoch shows it, because the end raised it."""
    return (
        request.transaction_version >= EPOCH_PER_TRANSACTION
        and stored.client_transaction_version >= EPOCH_PER_TRANSACTION
        and stored.state not in (_S.EMPTY, _S.ONGOING)
        and stored.last_producer_epoch != NO_EPOCH
        and (request.producer_id, request.producer_epoch) == _last_producer(stored)
        and present_producer(stored).epoch <= LAST_EPOCH
    )


def _is_end_of_prepared(stored: TransactionMetadata, request: EndTransaction) -> bool:
    ongoing = (stored.producer_id, stored.producer_epoch)
    return stored.is_prepared and (request.producer_id, request.producer_epoch) == ongoing


# ---- InitProducerId


def _init_refusal(
    stored: TransactionMetadata, request: InitProducerIdRequest, config: BrokerConfig
) -> ErrorCode:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if not 0 < request.transaction_timeout_ms <= config.transaction_max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    if request.producer_id == NO_PRODUCER_ID or stored.producer_id == NO_PRODUCER_ID:
        # A producer whose id has expired gets a new one.
        return ErrorCode.NONE
    producer = request.producer_id, request.producer_epoch
    if producer == present_producer(stored):
        return ErrorCode.NONE
    # An ongoing transaction is of the present producer, so this repeats a request that was answered.
    is_repeated = stored.state is not _S.ONGOING or stored.is_prepared
    if is_repeated and stored.last_producer_epoch != NO_EPOCH and producer == _last_producer(stored):
        return ErrorCode.NONE
    return ErrorCode.PRODUCER_FENCED


def _init_producer_id(
    stored: TransactionMetadata,
    request: InitProducerIdRequest,
    now: Moment,
    new_producer_id: ProducerId | None,
) -> Decision:
    if stored.state in DECIDED:
        return Wait()
    is_kept = stored.is_prepared and request.keep_prepared_txn
    if stored.state is _S.ONGOING and not is_kept:
        return Fence(fenced(stored, now, request.producer_epoch))
    producer, previous_id, last_epoch = _next_incarnation(stored, request, new_producer_id)
    if producer is None:
        return WantProducerId()
    if is_kept:
        target = stored._replace(
            next_producer_id=producer.producer_id,
            next_producer_epoch=producer.epoch,
            previous_producer_id=previous_id,
            last_producer_epoch=last_epoch,
            prepared_timeout_ms=request.transaction_timeout_ms,
            last_update_timestamp_ms=_later(stored, now),
        )
        return Move(target, _given(producer, stored.producer_id, stored.producer_epoch))
    target = TransactionMetadata(
        _S.EMPTY,
        *producer,
        request.transaction_timeout_ms,
        _later(stored, now),
        previous_producer_id=previous_id,
        last_producer_epoch=last_epoch,
    )
    return Move(target, _given(producer))


def _given(
    producer: Producer, ongoing_id: ProducerId = NO_PRODUCER_ID, ongoing_epoch: ProducerEpoch = NO_EPOCH
) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        ongoing_txn_producer_id=ongoing_id,
        ongoing_txn_producer_epoch=ongoing_epoch,
    )


def _next_incarnation(
    stored: TransactionMetadata, request: InitProducerIdRequest, new_producer_id: ProducerId | None
) -> tuple[Producer | None, ProducerId, ProducerEpoch]:
    """The producer to give, and the stored previous id and last epoch; None if a new id is needed."""
    present = present_producer(stored)
    is_kept = stored.is_prepared and request.keep_prepared_txn
    is_recovery = request.producer_id != NO_PRODUCER_ID and present.producer_id != NO_PRODUCER_ID
    if (
        is_recovery
        and (request.producer_id, request.producer_epoch) != present
        and present.epoch <= LAST_EPOCH
    ):
        # The request was carried out before. No other producer has come since, so the epoch need not grow.
        return present, stored.previous_producer_id, stored.last_producer_epoch
    last_epoch = ProducerEpoch(request.producer_epoch) if is_recovery else NO_EPOCH
    # The producer after the first epoch is the preparing one's, if it ends the transaction: see `_follows`.
    skipped = 1 if is_kept and stored.next_producer_id == NO_PRODUCER_ID else 0
    if present.producer_id != NO_PRODUCER_ID and present.epoch + skipped < LAST_EPOCH:
        producer = Producer(present.producer_id, ProducerEpoch(present.epoch + 1 + skipped))
    elif new_producer_id is None:
        return None, NO_PRODUCER_ID, NO_EPOCH
    else:
        producer = Producer(new_producer_id, ProducerEpoch(skipped))
    # While a prepared transaction is ongoing, `_last_producer` compares with its id.
    stored_id = stored.producer_id if is_kept else producer.producer_id
    is_other = is_recovery and request.producer_id != stored_id
    return producer, ProducerId(request.producer_id) if is_other else NO_PRODUCER_ID, last_epoch


# ---- partitions


def _add_partitions(stored: TransactionMetadata, request: AddPartitions, now: Moment) -> Decision:
    if stored.state in DECIDED:
        return Wait()
    if stored.is_prepared:
        return Reply(refused(request, ErrorCode.INVALID_TXN_STATE))
    if request.verify_only:
        errors = {
            name: ErrorCode.NONE if name in stored.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for name in request.partitions
        }
        return Reply(errors, is_promise=True)
    if stored.state is _S.ONGOING and request.partitions <= stored.partitions:
        return Reply(ErrorCode.NONE, is_promise=True)
    now_ms = _later(stored, now)
    target = TransactionMetadata(
        _S.ONGOING,
        stored.producer_id,
        stored.producer_epoch,
        stored.timeout_ms,
        now_ms,
        stored.partitions | request.partitions,
        stored.start_timestamp_ms if stored.state is _S.ONGOING else now_ms,
    )
    return Move(target, ErrorCode.NONE)


# ---- the end


def _end(
    stored: TransactionMetadata, request: EndTransaction, now: Moment, new_producer_id: ProducerId | None
) -> Decision:
    if stored.state is _S.ONGOING:
        return _decide_end(stored, request, now, new_producer_id)
    is_repeated = _is_repeated_end(stored, request)
    if not is_repeated and stored.client_transaction_version >= EPOCH_PER_TRANSACTION:
        # The present epoch is the next transaction's, which has not begun.
        return _end_unbegun(stored, request, now, new_producer_id)
    if stored.state is _S.EMPTY:
        return _end_unbegun(stored, request, now, new_producer_id)
    # Without an epoch of its own, an end of this transaction cannot be told from one of the next.
    is_committed = stored.state in (_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT)
    if request.committed is not is_committed:
        return Reply(refused(request, ErrorCode.INVALID_TXN_STATE))
    by = _last_producer(stored) if is_repeated else None
    return Reply(_ended(present_producer(stored), by), is_promise=True)


def _end_unbegun(
    stored: TransactionMetadata, request: EndTransaction, now: Moment, new_producer_id: ProducerId | None
) -> Decision:
    """A producer that does not know whether its first partition was added may abort."""
    if request.committed or request.transaction_version < EPOCH_PER_TRANSACTION:
        return Reply(refused(request, ErrorCode.INVALID_TXN_STATE))
    if stored.state in DECIDED:
        return Wait()
    return _decide_end(stored._replace(start_timestamp_ms=now.wall_ms), request, now, new_producer_id)


def _decide_end(
    stored: TransactionMetadata, request: EndTransaction, now: Moment, new_producer_id: ProducerId | None
) -> Decision:
    state = _S.PREPARE_COMMIT if request.committed else _S.PREPARE_ABORT
    if request.transaction_version < EPOCH_PER_TRANSACTION and not stored.is_prepared:
        target = stored._replace(
            state=state,
            last_update_timestamp_ms=_later(stored, now),
            client_transaction_version=0,
            last_producer_epoch=NO_EPOCH,
            previous_producer_id=NO_PRODUCER_ID,
        )
        return Move(target, _ended(present_producer(target)))
    after = _producer_after(stored, request, new_producer_id)
    if after is None:
        return WantProducerId()
    by = Producer(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
    target = _raised(stored, state, now, after, by)
    return Move(target, _ended(after, by))


def _ended(after: Producer, by: Producer | None = None) -> EndTxnResponse:
    """The producer of the next transaction; without it the client needs InitProducerId.

    A process that ends a prepared transaction does not get a producer that came since, and kept it.
    """
    if by is None or _follows(after, by):
        return EndTxnResponse(producer_id=after.producer_id, producer_epoch=after.epoch)
    return EndTxnResponse()


def _follows(after: Producer, by: Producer) -> bool:
    """True if the end gave the next epoch to the producer that ended. Others' epochs leave out that one."""
    return after == (by.producer_id, by.epoch + 1) or (after.epoch == 0 and by.epoch == LAST_EPOCH)


def _producer_after(
    stored: TransactionMetadata, request: EndTransaction, new_producer_id: ProducerId | None
) -> Producer | None:
    """The producer of the next transaction; None if that needs a new producer id."""
    present = present_producer(stored)
    if (request.producer_id, request.producer_epoch) != present:
        # Another process ends a prepared transaction that the present producer has kept.
        return present
    if present.epoch < LAST_EPOCH:
        return Producer(present.producer_id, ProducerEpoch(present.epoch + 1))
    return None if new_producer_id is None else Producer(new_producer_id, ProducerEpoch(0))


def _raised(
    stored: TransactionMetadata, state: TransactionState, now: Moment, after: Producer, by: Producer | None
) -> TransactionMetadata:
    """The decision with the epoch of its markers above that of all records of the transaction."""
    invariant(
        stored.producer_epoch <= LAST_EPOCH,
        "producer %d has epoch %d",
        stored.producer_id,
        stored.producer_epoch,
    )
    markers = Producer(stored.producer_id, ProducerEpoch(stored.producer_epoch + 1))
    is_plain = after == markers
    return stored._replace(
        state=state,
        producer_epoch=markers.epoch,
        timeout_ms=stored.prepared_timeout_ms if stored.is_prepared else stored.timeout_ms,
        last_update_timestamp_ms=_later(stored, now),
        previous_producer_id=_if_other(by, markers),
        next_producer_id=NO_PRODUCER_ID if is_plain else after.producer_id,
        next_producer_epoch=NO_EPOCH if is_plain else after.epoch,
        last_producer_epoch=NO_EPOCH if by is None else by.epoch,
        client_transaction_version=EPOCH_PER_TRANSACTION,
        prepared_timeout_ms=NOT_PREPARED,
    )


def _if_other(by: Producer | None, stored: Producer) -> ProducerId:
    return NO_PRODUCER_ID if by is None or by.producer_id == stored.producer_id else by.producer_id


def fenced(stored: TransactionMetadata, now: Moment, by_epoch: int = NO_EPOCH) -> TransactionMetadata:
    """The abort of an ongoing transaction by the coordinator; its producer may not go on.

    With ``by_epoch`` the producer of this epoch may: it asked for the abort itself.
    """
    present = present_producer(stored)
    after = Producer(present.producer_id, ProducerEpoch(present.epoch + 1))
    by = None if by_epoch == NO_EPOCH else Producer(present.producer_id, ProducerEpoch(by_epoch))
    return _raised(stored, _S.PREPARE_ABORT, now, after, by)


def completed(stored: TransactionMetadata, now: Moment) -> TransactionMetadata:
    """The state after all markers of a decision are written."""
    producer = present_producer(stored)
    has_last = stored.last_producer_epoch != NO_EPOCH
    return TransactionMetadata(
        COMPLETION_OF[stored.state],
        *producer,
        stored.timeout_ms,
        _later(stored, now),
        NO_PARTITIONS,
        stored.start_timestamp_ms,
        previous_producer_id=_if_other(_last_producer(stored) if has_last else None, producer),
        last_producer_epoch=stored.last_producer_epoch,
        client_transaction_version=stored.client_transaction_version,
    )


# ---- preparation


def _prepare(stored: TransactionMetadata, request: PrepareTxnRequest, now: Moment) -> Decision:
    if stored.state in DECIDED:
        return Wait()
    if stored.state is not _S.ONGOING or stored.next_producer_id != NO_PRODUCER_ID:
        return Reply(ErrorCode.INVALID_TXN_STATE)
    if stored.is_prepared:
        return Reply(ErrorCode.NONE, is_promise=True)
    target = stored._replace(
        timeout_ms=NO_TIMEOUT_MS,
        prepared_timeout_ms=stored.timeout_ms,
        last_update_timestamp_ms=_later(stored, now),
    )
    return Move(target, ErrorCode.NONE)


# ---- time


def timeout_at_ms(stored: TransactionMetadata) -> int | None:
    """By the wall clock; None if no transaction is ongoing or it is prepared."""
    if stored.state is not _S.ONGOING or stored.is_prepared:
        return None
    return stored.start_timestamp_ms + stored.timeout_ms


def has_expired(stored: TransactionMetadata, config: BrokerConfig, used_ms: int, now: Moment) -> bool:
    """``used_ms`` is the time of the last change, by the wall clock of ``now``."""
    return stored.state in IDLE and now.is_past(used_ms + config.transactional_id_expiration_ms)


def _later(stored: TransactionMetadata, now: Moment) -> int:
    """The present time, unless another broker's clock was ahead: Kafka never lets this time go back."""
    return max(stored.last_update_timestamp_ms, now.wall_ms)
