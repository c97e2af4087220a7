"""The exit codes of the `barnabas` command, and the errors that map to them.

===  =====================================================================================
  0  done
  1  failed: the error is on stderr
  2  wrong usage: an unknown option, a value out of range, an invalid setting or name
  3  not reachable: no broker (or no ZooKeeper) answered
  4  not found: no such topic, partition, group, transactional id, broker, cluster or file
130  interrupted with Ctrl-C
143  ended by SIGTERM (a command that had work to finish first)
===  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from barnabas.common.suggestions import no_topic_text
from barnabas.protocol.errors import (
    ApiError,
    BarnabasError,
    ConnectionClosed,
    ErrorCode,
    InvalidConfiguration,
    RequestTimedOutLocally,
    Unencodable,
)

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_REACHABLE: Final = 3
NOT_FOUND: Final = 4
INTERRUPTED: Final = 130
TERMINATED: Final = 143

_EXIT_CODES: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: NOT_FOUND,
    ErrorCode.GROUP_ID_NOT_FOUND: NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: NOT_FOUND,
    ErrorCode.BROKER_NOT_AVAILABLE: NOT_FOUND,
    # Values that are never accepted. INVALID_REPLICATION_FACTOR may be valid with more live brokers.
    ErrorCode.INVALID_CONFIG: USAGE,
    ErrorCode.INVALID_GROUP_ID: USAGE,
    ErrorCode.INVALID_PARTITIONS: USAGE,
    ErrorCode.INVALID_SESSION_TIMEOUT: USAGE,
    ErrorCode.INVALID_TOPIC_EXCEPTION: USAGE,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: USAGE,
}


class CommandError(BarnabasError):
    """An error of a command itself, with its exit code."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def unknown_topic(name: str, topics: Iterable[str]) -> CommandError:
    return CommandError(no_topic_text(name, topics), NOT_FOUND)


def check_topics(names: Iterable[str], topics: Iterable[str]) -> None:
    """Raise CommandError for the first name that is not among the topics."""
    known = set(topics)
    for name in names:
        if name not in known:
            raise unknown_topic(name, known)


def exit_code_of(error: BaseException) -> int:
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, ConnectionClosed | RequestTimedOutLocally):
        return NOT_REACHABLE
    if isinstance(error, InvalidConfiguration | Unencodable):
        return USAGE
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND
    if isinstance(error, ApiError) and error.code in _EXIT_CODES:
        return _EXIT_CODES[error.code]
    # If several topics failed with the same code, the command ends with it.
    several = getattr(error, "errors", None)
    if isinstance(several, dict) and several:
        codes = {exit_code_of(part) for part in several.values()}
        return codes.pop() if len(codes) == 1 else FAILED
    return FAILED
