"""The exceptions of the clients, in one place.

A broker's error is an `ApiError` of its code's class (``MessageTooLargeError`` and so on); an error on this
side is a `LocalError`. If ``retriable`` is true, a retry may succeed; the clients have already
retried for as long as their settings allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Generic, TypeVar

from barnabas.client.consumer_record import ConsumerRecord
from barnabas.protocol import errors as protocol
from barnabas.protocol.errors import *  # noqa: F403 - all of them, for callers that catch them
from barnabas.protocol.ids import TopicPartition

N = TypeVar("N")


class ClientClosed(protocol.LocalError):
    """The client was closed, or belongs to the process that this one was forked from."""


class NoBrokerReachable(protocol.ConnectionClosed):
    """Neither a known broker nor a bootstrap server answered; the text names each with its reason."""


class BufferExhausted(protocol.LocalError):
    """`buffer_memory` stayed full for `max_block_ms`; the record was not taken."""

    retriable = True


class DeliveryTimedOut(protocol.LocalError, TimeoutError):
    """A record was not acknowledged within `delivery_timeout_ms`; whether it was written is unknown.

    ``__cause__`` is the error of the last attempt, if it had one.
    """


class NotAssigned(protocol.LocalError, KeyError):
    """The partition is not assigned to this consumer, or it has nothing to read at all."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class OffsetUnknown(protocol.LocalError):
    """A partition has no position, and `auto_offset_reset` is ``"none"``: call `seek` to set one."""


class CommitFailed(protocol.LocalError):
    """The offsets may not be committed any more.

    The group has rebalanced without this member: the records since the last commit are redelivered to the
    members that have its partitions now, and ``poll`` joins the group again. Or the topic that was read was
    deleted and made again: the offsets are not those of the new one.
    """


class SubscriptionConflict(protocol.LocalError):
    """`assign` and `subscribe` exclude each other; `unsubscribe` ends either."""


class LogTruncated(protocol.LocalError):
    """Records that were read are gone: an unclean election replaced their history (KIP-320), or a new topic.

    ``divergent_offset`` is the first offset at which the histories differ, None if no common offset is known.
    """

    def __init__(self, message: str, divergent_offset: int | None) -> None:
        super().__init__(message)
        self.divergent_offset = divergent_offset

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.divergent_offset)


class SerializationError(protocol.LocalError):
    """A key or a value cannot be serialized for ``topic``; the record was not taken.

    ``origin`` is ``"key"`` or ``"value"``, ``__cause__`` the exception of the serializer.
    """

    def __init__(self, message: str, topic: str, origin: str) -> None:
        super().__init__(message)
        self.topic = topic
        self.origin = origin

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.topic, self.origin)


class RecordDeserializationError(SerializationError):
    """The key or the value of a record cannot be deserialized (KIP-334).

    The position stays before the record, and the next poll tries it again, unless it is skipped, by
    ``consumer.seek((error.topic, error.partition), error.offset + 1)``. ``record`` is the whole record, with
    ``key`` and ``value`` as bytes; ``origin`` and ``__cause__`` are as in `SerializationError`.
    """

    def __init__(self, message: str, record: ConsumerRecord, origin: str) -> None:
        super().__init__(message, record.topic, origin)
        self.record = record
        self.partition = record.partition
        self.offset = record.offset
        self.key = record.key
        self.value = record.value

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.record, self.origin)


class IllegalTransactionState(protocol.LocalError):
    """A call that the producer's state does not allow; the state is unchanged."""


class ProducerFenced(protocol.LocalError):
    """Another producer has this one's transactional id, or the coordinator has ended its transaction.

    The producer cannot be used any more: close it. ``__cause__`` is the broker's error.
    """


class TransactionAbortable(protocol.LocalError):
    """The transaction cannot be committed; after `abort_transaction` the producer can be used again.

    ``__cause__`` is the first error of a record or a request.
    """


class TransactionAborted(protocol.LocalError):
    """A record was not sent, because its transaction was aborted."""


class TransactionOutcomeUnknown(protocol.LocalError, TimeoutError):
    """The coordinator did not answer within `max_block_ms`. The same call again asks for the outcome.

    ``__cause__`` is the error of the last attempt.
    """

    retriable = True


class _SomeFailed(protocol.BarnabasError, Generic[N]):
    """``errors`` has each failure by name, ``results`` the results of the others."""

    def __init__(self, errors: Mapping[N, protocol.BarnabasError], results: Mapping[N, object]) -> None:
        super().__init__("; ".join(f"{name}: {error}" for name, error in errors.items()))
        self.errors = dict(errors)
        self.results = dict(results)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errors, self.results)


class TopicErrors(_SomeFailed[str]):
    """Some of several topics failed: ``errors`` has their errors, ``results`` the results of the others."""


class GroupErrors(_SomeFailed[str]):
    """Some of several groups failed: ``errors`` has their errors; the keys of ``results`` are the others."""


class PartitionErrors(_SomeFailed[TopicPartition]):
    """Some of several partitions failed: ``errors`` has their errors, ``results`` those of the others."""


def report_bug(message: str, bug: BaseException) -> protocol.BarnabasError:
    """Report an unforeseen exception of ours to the loop's exception handler; returns the error for the user.

    ``message`` names the work that it ended.
    """
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": bug})
    if isinstance(bug, protocol.BarnabasError):
        return bug
    return protocol.LocalError(f"{type(bug).__name__}: {bug}")
