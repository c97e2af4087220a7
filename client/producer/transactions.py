"""The states of a transactional producer, and the effects of errors on its transaction, without I/O or clock.

`_NEXT` is the table: a call of the user that it does not have raises IllegalTransactionState and changes
nothing. After an abortable error nothing is committed, and `abort_transaction` makes the producer usable
again; after any other error only another producer can write. `reactions` has the table of errors.

New protocol (KIP-890; the native one, and Kafka's with ``transaction.version`` 2): brokers add partitions to
the transaction at the first write, and the answer of EndTxn has the epoch of the next transaction. An EndTxn
that a broker reads late has an earlier epoch and is refused, so EndTxn is repeated without risk.

Old protocol (Kafka up to 3.9): the epoch stays, so a late copy of an EndTxn would end whichever transaction
is ongoing by then: the torn transaction. Two rules exclude it. EndTxn is repeated only while no other
transaction has begun. And once an EndTxn was sent without an answer, the next transaction begins only after
InitProducerId has raised the epoch, which fences every copy of it (``needs_new_epoch``). So it does after an
abort that dropped a batch that was sent: under its numbers the next one would pass for a copy of it.

It belongs to the producer's event loop; the sender uses it under the accumulator's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple, Self

from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import (
    IllegalTransactionState,
    ProducerFenced,
    TransactionAbortable,
    TransactionAborted,
)
from barnabas.client.reactions import Api, Reaction, reaction_to
from barnabas.protocol.errors import BarnabasError, InvalidTxnStateError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.invariants import invariant

LAST_PRODUCE_OF_OLD_PROTOCOL: Final = 11
LAST_COMMIT_OFFSETS_OF_OLD_PROTOCOL: Final = 4
LAST_END_TXN_OF_OLD_PROTOCOL: Final = 4
LAST_ADD_PARTITIONS_OF_CLIENTS: Final = 3
"""From the next version on, only brokers send AddPartitionsToTxn."""
CONCURRENT_BACKOFF_MS: Final = 20
"""The first pause before a retry; a coordinator completes most transactions within it."""


class PreparedTransaction(NamedTuple):
    """A transaction that waits for its outcome, from any process. ``str`` and `parse` convert it to text."""

    transactional_id: str
    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}:{self.transactional_id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for a text that `str` did not make."""
        parts = text.split(":", 2)
        if (
            len(parts) != 3
            or not parts[2]
            or not all(part.isascii() and part.isdigit() for part in parts[:2])
        ):
            raise ValueError(f"{text!r}: expected producer_id:epoch:transactional_id")
        return cls(parts[2], int(parts[0]), int(parts[1]))


class State(Enum):
    UNINITIALIZED = "not initialized"
    INITIALIZING = "being initialized"
    READY = "without a transaction"
    IN_TRANSACTION = "in a transaction"
    PREPARED = "in a prepared transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that can only be aborted"
    FATAL_ERROR = "unusable"


class Step(Enum):
    """A call of the user, or an event; the value of a call is its name."""

    BEGIN = "begin_transaction"
    SEND_OFFSETS = "send_offsets_to_transaction"
    PREPARE = "prepare_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    INITIALIZE = "a producer id is requested"
    INITIALIZED = "a producer id was assigned"
    FOUND_PREPARED = "a producer id was assigned, and a prepared transaction was found"
    NOT_INITIALIZED = "no producer id was assigned"
    NOT_RENEWED = "no new epoch was assigned"
    UNDECIDED = "a commit was cancelled before its EndTxn was sent"
    NOT_PREPARED = "the transaction cannot be prepared"
    ENDED = "the transaction has ended"
    ABORTABLE = "a request or a record failed"


_CALLS: Final = frozenset({Step.BEGIN, Step.SEND_OFFSETS, Step.PREPARE, Step.COMMIT, Step.ABORT})

_NEXT: Final[dict[State, dict[Step, State]]] = {
    State.UNINITIALIZED: {Step.INITIALIZE: State.INITIALIZING},
    State.INITIALIZING: {
        Step.INITIALIZED: State.READY,
        Step.FOUND_PREPARED: State.PREPARED,
        Step.NOT_INITIALIZED: State.UNINITIALIZED,
        Step.NOT_RENEWED: State.READY,
    },
    State.READY: {Step.BEGIN: State.IN_TRANSACTION, Step.INITIALIZE: State.INITIALIZING},
    State.IN_TRANSACTION: {
        Step.SEND_OFFSETS: State.IN_TRANSACTION,
        Step.PREPARE: State.PREPARED,
        Step.COMMIT: State.COMMITTING,
        Step.ABORT: State.ABORTING,
        Step.ABORTABLE: State.ABORTABLE_ERROR,
    },
    # A repeated call asks again for an outcome that is unknown.
    State.PREPARED: {
        Step.PREPARE: State.PREPARED,
        Step.COMMIT: State.COMMITTING,
        Step.ABORT: State.ABORTING,
        Step.ABORTABLE: State.ABORTABLE_ERROR,
        Step.NOT_PREPARED: State.IN_TRANSACTION,
    },
    State.COMMITTING: {
        Step.COMMIT: State.COMMITTING,
        Step.UNDECIDED: State.IN_TRANSACTION,
        Step.ABORTABLE: State.ABORTABLE_ERROR,
        Step.ENDED: State.READY,
    },
    State.ABORTING: {Step.ABORT: State.ABORTING, Step.ENDED: State.READY},
    State.ABORTABLE_ERROR: {Step.ABORT: State.ABORTING},
    State.FATAL_ERROR: {},
}


class TransactionMachine:
    """The transactions of one producer, one at a time."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        self.identity: ProducerIdAndEpoch | None = None
        """The id and epoch of the present transaction, or of the next one."""
        self.prepared: PreparedTransaction | None = None
        """The prepared transaction that this producer found or made; None unless PREPARED or ending it."""
        self.error: BarnabasError | None = None
        """Why the transaction cannot be committed, or the producer not used; None without such an error."""
        self.uses_new_protocol = False
        self.needs_new_epoch = False
        """True if InitProducerId must raise the epoch before the next transaction."""
        self.is_started = False
        """True if a request was sent that may have begun the transaction; else no EndTxn is sent."""
        self.is_confirmed = False
        """True if the coordinator has the transaction for certain."""
        self.wanted: set[TopicPartition] = set()
        """Old protocol: partitions with records that must be added before their first batch."""
        self._added: set[TopicPartition] = set()
        self._last_outcome = ""
        """Of the transaction before: "committed" or "aborted"."""

    def known_identity(self) -> ProducerIdAndEpoch:
        if self.identity is None:
            raise IllegalTransactionState("the producer has no id")
        return self.identity

    # Calls and events

    def check(self, call: Step) -> None:
        """Raise what `step` would raise for a call, without taking it."""
        if call in _NEXT[self.state]:
            return
        if self.error is not None:
            raise self.failure()
        now = f"the producer is {self.state.value}"
        if self.state in (State.COMMITTING, State.ABORTING):
            ending = Step.COMMIT if self.state is State.COMMITTING else Step.ABORT
            now += f"; call {ending.value}() again for the outcome"
        elif self.state is State.READY:
            if self._last_outcome:
                # The call that ended it may have been cancelled while its end went on.
                now += f" since the last one was {self._last_outcome}"
            now += f"; call {Step.BEGIN.value}() first"
        raise IllegalTransactionState(f"{call.value}: {now}")

    def step(self, step: Step) -> None:
        """Take a step. Raises IllegalTransactionState or the producer's error for a call that is refused."""
        if step in _CALLS:
            self.check(step)
        invariant(step in _NEXT[self.state], "%s while the producer is %s", step.value, self.state.value)
        self.state = _NEXT[self.state][step]

    def initialized(self, identity: ProducerIdAndEpoch, prepared: PreparedTransaction | None = None) -> None:
        self._forget_transaction()
        self.identity, self.prepared, self.needs_new_epoch = identity, prepared, False
        self.step(Step.INITIALIZED if prepared is None else Step.FOUND_PREPARED)
        self.is_started = self.is_confirmed = prepared is not None

    def not_initialized(self) -> None:
        """InitProducerId had no answer in time; a producer that has an id keeps it, and asks again."""
        self.step(Step.NOT_INITIALIZED if self.identity is None else Step.NOT_RENEWED)

    def ended(self, following: ProducerIdAndEpoch | None) -> None:
        """The transaction has ended; EndTxn of the new protocol names the identity that follows."""
        if following is not None:
            self.identity, self.needs_new_epoch = following, False
        self._last_outcome = "committed" if self.state is State.COMMITTING else "aborted"
        self._forget_transaction()
        self.step(Step.ENDED)

    def failed(self, reaction: Reaction, error: BarnabasError) -> None:
        """An error that no retry helps against; the first one of a transaction is kept."""
        if self.state is State.FATAL_ERROR:
            return
        if reaction in (Reaction.FENCED, Reaction.FAIL):
            self.state, self.error = State.FATAL_ERROR, error
            if reaction is Reaction.FENCED:
                text = f"another producer with transactional id {self.transactional_id!r} fenced this one"
                self.error = ProducerFenced(f"{text}, or the transaction timed out: {error}")
                self.error.__cause__ = error
            return
        # The batches that were numbered under this epoch may leave gaps.
        self.needs_new_epoch = self.needs_new_epoch or self.is_started
        if Step.ABORTABLE in _NEXT[self.state]:
            self.step(Step.ABORTABLE)
            self.error = error

    def not_prepared(self) -> None:
        """The first request to prepare was refused."""
        self.step(Step.NOT_PREPARED)
        self.prepared = None

    def outdate_epoch(self) -> None:
        """With the old protocol no other transaction may have this epoch; see the module."""
        self.needs_new_epoch = self.needs_new_epoch or not self.uses_new_protocol

    def reaction_to_refused_end(self, error: BarnabasError, *, committed: bool) -> Reaction | None:
        """The reaction of an error of EndTxn; None if there is nothing left to abort."""
        reaction = reaction_to(Api.END_TXN, error)
        is_not_ongoing = isinstance(error, InvalidTxnStateError)
        if committed:
            # After its time-out the coordinator has aborted it; an abort gets the epoch that was raised.
            return Reaction.ABORT if is_not_ongoing and self.uses_new_protocol else reaction
        if reaction is Reaction.ABORT or (is_not_ongoing and not self.is_confirmed):
            # The next epoch fences requests that are still on their way.
            self.needs_new_epoch = True
            return None
        return reaction

    # The sender's questions

    @property
    def is_sending(self) -> bool:
        """True if records of the present transaction may be sent."""
        return self.state in (State.IN_TRANSACTION, State.COMMITTING)

    def identity_for(self, tp: TopicPartition) -> ProducerIdAndEpoch | None:
        """The identity for batches of a partition; None if none may be sent now."""
        if not self.is_sending:
            return None
        if self.uses_new_protocol or tp in self._added:
            return self.identity
        self.wanted.add(tp)
        return None

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """The coordinator has added partitions to the transaction."""
        self._added.update(partitions)
        self.wanted -= self._added
        self.is_confirmed = True

    def failure(self) -> BarnabasError:
        """The error of calls after a failed transaction, or of a producer that cannot be used any more."""
        error = self.error
        invariant(error is not None, "no error while the producer is %s", self.state.value)
        if error is None or self.state is State.FATAL_ERROR:
            return (error or IllegalTransactionState(self.state.value)).again()
        abortable = TransactionAbortable(f"the transaction can only be aborted: {error}")
        abortable.__cause__ = error
        return abortable

    def refusal(self) -> BarnabasError | None:
        """The error for records that are sent now; None in a transaction."""
        if self.state is State.IN_TRANSACTION:
            return None
        if self.error is not None:
            return self.failure()
        hint = f"; call {Step.BEGIN.value}() first" if self.state is State.READY else ""
        return IllegalTransactionState(f"no record can be sent: the producer is {self.state.value}{hint}")

    def dropped(self) -> BarnabasError | None:
        """The error of the unsent records of a transaction that will be aborted; None if they may be sent."""
        if self.state is State.ABORTING:
            return TransactionAborted("the transaction was aborted before the record was sent")
        return self.failure() if self.error is not None else None

    def _forget_transaction(self) -> None:
        self.error = self.prepared = None
        self.is_started = self.is_confirmed = False
        self.wanted.clear()
        self._added.clear()
