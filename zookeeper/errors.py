"""The errors of this package, without an import of the client library.

`MalformedZnode` is declared in `barnabas.zookeeper.json_nodes`, which raises it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from barnabas.protocol.errors import ErrorCode, LocalError, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.zookeeper.znodes import LeadershipState


class ZooKeeperUnavailable(LocalError):
    """ZooKeeper could not be reached in time; a write may or may not have been carried out."""

    retriable = True


class SessionLost(LocalError):
    """The session has expired or was closed, and its ephemeral nodes and watches are gone."""


class ControllerMoved(LocalError):
    """Another controller was elected; this one must resign and write nothing more."""


class LeadershipConflict(LocalError):
    """The state znode is not at the expected version; `current` is None if the partition is gone."""

    def __init__(self, tp: TopicPartition, expected: int, current: LeadershipState | None) -> None:
        present = "no such node" if current is None else f"version {current.partition_epoch}: {current}"
        super().__init__(f"state of {tp}: expected version {expected}, found {present}")
        self.current = current


class ReplicaNotRegistered(LocalError):
    """A broker that was to join an ISR is not registered with the given epoch; nothing was written."""


class BrokerIdTaken(LocalError):
    """Another broker is registered with this id."""


class ZooKeeperRolledBack(LocalError):
    """ZooKeeper repeats earlier zxids, for example after a restore from an older backup."""


@contextmanager
def as_api_errors() -> Iterator[None]:
    """Raise the error that a client understands: NOT_CONTROLLER or REQUEST_TIMED_OUT."""
    try:
        yield
    except ControllerMoved as error:
        raise api_error(ErrorCode.NOT_CONTROLLER, str(error)) from error
    except (ZooKeeperUnavailable, SessionLost) as error:
        raise api_error(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
