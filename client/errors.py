"""The exceptions of the clients, in one place.

A broker's error is an `ApiError` of its code's class (``MessageTooLargeError`` and so on); an error on this
side is a `LocalError`. If ``retriable`` is true, a retry may succeed; the clients have already
retried for as long as their settings allow.
"""

from __future__ import annotations

from collections.abc import Mapping

from barnabas.protocol import errors as protocol
from barnabas.protocol.errors import *  # noqa: F403 - all of them, for callers that catch them


class ClientClosed(protocol.LocalError):
    """The client was closed, or belongs to the process that this one was forked from."""


class NoBrokerReachable(protocol.ConnectionClosed):
    """Neither a known broker nor a bootstrap server answered; the text names each with its reason."""


class BufferExhausted(protocol.LocalError):
    """No memory of `buffer_memory` became free within `max_block_ms`; the record was not taken."""

    retriable = True


class DeliveryTimedOut(protocol.LocalError, TimeoutError):
    """A record was not acknowledged within `delivery_timeout_ms`; whether it was written is unknown.

    ``__cause__`` is the error of the last attempt, if it had one.
    """


class NotAssigned(protocol.LocalError, KeyError):
    """The partition is not among those that the consumer was given by `assign`."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class OffsetUnknown(protocol.LocalError):
    """A partition has no position, and `auto_offset_reset` is none: `seek` must say where to begin."""


class CommitFailed(protocol.LocalError):
    """The group has rebalanced without this member, whose partitions now belong to others.

    These redeliver the records since the last commit. ``poll`` joins the group again.
    """


class SubscriptionConflict(protocol.LocalError):
    """`assign` and `subscribe` exclude each other; `unsubscribe` ends either."""


class LogTruncated(protocol.LocalError):
    """Records that were read are gone: an unclean election put another history in their place (KIP-320).

    ``divergent_offset`` is the first offset at which the histories differ, None when no common one is known.
    """

    def __init__(self, message: str, divergent_offset: int | None) -> None:
        super().__init__(message)
        self.divergent_offset = divergent_offset

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.divergent_offset)


class _SomeFailed(protocol.BarnabasError):
    """Some of several things failed: ``errors`` says which and why, ``results`` holds what succeeded."""

    def __init__(self, errors: Mapping[str, protocol.BarnabasError], results: Mapping[str, object]) -> None:
        super().__init__("; ".join(f"{name}: {error}" for name, error in errors.items()))
        self.errors = dict(errors)
        self.results = dict(results)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errors, self.results)


class TopicErrors(_SomeFailed):
    """Some of several topics failed: ``errors`` says which and why, ``results`` holds what succeeded."""


class GroupErrors(_SomeFailed):
    """Some of several groups failed: ``errors`` says which and why; ``results`` has the others as keys."""
