"""The one table of error codes: Kafka's numbers and names, whether a retry can help, and what it means.

Each code has an exception class of its own (`NotLeaderOrFollowerError` for ``NOT_LEADER_OR_FOLLOWER``), made
from the table so that the two cannot drift apart. An exception that a broker raises on purpose is one of
these; its code goes to the client. Faults that are ours alone, before or after the wire (a timeout, a closed
connection, a full buffer), are `LocalError`s and have no code.

Source: the error table of https://kafka.apache.org/protocol#protocol_error_codes.
"""

from __future__ import annotations

import copy
from enum import IntEnum
from typing import ClassVar, Final, NamedTuple, Self


class BarnabasError(Exception):
    """The base of all errors that we raise on purpose."""

    retriable: ClassVar[bool] = False

    def again(self) -> Self:
        """A copy to raise, for an error that many callers get.

        Each raise adds frames to an exception's traceback, which keep all their locals alive; one object for
        all records of a failed batch would collect thousands of frames.
        """
        copied = copy.copy(self)
        copied.__cause__ = self.__cause__
        return copied


class LocalError(BarnabasError):
    """An error of this side of the wire, not from a broker."""


class RequestTimedOutLocally(LocalError):
    """No answer came within the deadline; the request may or may not have been carried out."""

    retriable = True


class ConnectionClosed(LocalError):
    """The connection was lost or could not be made; the request may or may not have been carried out."""

    retriable = True


class ConnectionRefused(ConnectionClosed):
    """No process listens there: the peer has ended or not started yet. The request was not carried out."""


class MalformedFrame(LocalError):
    """Bytes that are not a message of ours; the connection that sent them is closed."""


class MessageTooComplex(LocalError):
    """A message of ours that is too large even without its records; it was not sent."""


class Unencodable(LocalError):
    """A message of ours with a value that does not fit its wire format; it was not sent."""


class InvalidConfiguration(LocalError, ValueError):
    """A setting that is unknown or out of range; the text names it, its value, and the expected values."""


class ErrorCode(IntEnum):
    """Kafka's error codes, by number."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115


class _Meaning(NamedTuple):
    retriable: bool
    text: str


_E = ErrorCode
_MEANINGS: dict[ErrorCode, _Meaning] = {
    _E.UNKNOWN_SERVER_ERROR: _Meaning(False, "the server met an unexpected error; its log says which"),
    _E.OFFSET_OUT_OF_RANGE: _Meaning(False, "the offset is not within the range that this replica holds"),
    _E.CORRUPT_MESSAGE: _Meaning(True, "the batch fails its CRC, exceeds the valid size or is malformed"),
    _E.UNKNOWN_TOPIC_OR_PARTITION: _Meaning(True, "this broker does not host the topic or partition"),
    _E.INVALID_FETCH_SIZE: _Meaning(False, "the fetch size is invalid"),
    _E.LEADER_NOT_AVAILABLE: _Meaning(True, "the partition has no leader just now"),
    _E.NOT_LEADER_OR_FOLLOWER: _Meaning(True, "this broker is not the leader of the partition"),
    _E.REQUEST_TIMED_OUT: _Meaning(True, "the request timed out on the broker"),
    _E.BROKER_NOT_AVAILABLE: _Meaning(False, "the broker is not available"),
    _E.REPLICA_NOT_AVAILABLE: _Meaning(True, "the replica is not available on this broker"),
    _E.MESSAGE_TOO_LARGE: _Meaning(False, "the batch is larger than the broker accepts"),
    _E.STALE_CONTROLLER_EPOCH: _Meaning(False, "the controller that sent this has been replaced"),
    _E.OFFSET_METADATA_TOO_LARGE: _Meaning(False, "the metadata of the committed offset is too large"),
    _E.NETWORK_EXCEPTION: _Meaning(True, "the connection was lost before an answer came"),
    _E.COORDINATOR_LOAD_IN_PROGRESS: _Meaning(True, "the coordinator is loading its state"),
    _E.COORDINATOR_NOT_AVAILABLE: _Meaning(True, "the coordinator is not available"),
    _E.NOT_COORDINATOR: _Meaning(True, "this broker is not the coordinator"),
    _E.INVALID_TOPIC_EXCEPTION: _Meaning(False, "the topic name is invalid or the topic may not be used so"),
    _E.RECORD_LIST_TOO_LARGE: _Meaning(False, "the batch is larger than a segment may be"),
    _E.NOT_ENOUGH_REPLICAS: _Meaning(True, "fewer in-sync replicas than min.insync.replicas"),
    _E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _Meaning(
        True, "written, but fewer in-sync replicas than min.insync.replicas hold it"
    ),
    _E.INVALID_REQUIRED_ACKS: _Meaning(False, "acks is none of 0, 1 and -1 (all)"),
    _E.ILLEGAL_GENERATION: _Meaning(False, "the generation of the group has passed"),
    _E.INCONSISTENT_GROUP_PROTOCOL: _Meaning(False, "the group's protocols do not match the member's"),
    _E.INVALID_GROUP_ID: _Meaning(False, "the group id is invalid"),
    _E.UNKNOWN_MEMBER_ID: _Meaning(False, "the group does not know this member"),
    _E.INVALID_SESSION_TIMEOUT: _Meaning(False, "the session timeout is outside the broker's range"),
    _E.REBALANCE_IN_PROGRESS: _Meaning(False, "the group is rebalancing; join again"),
    _E.INVALID_COMMIT_OFFSET_SIZE: _Meaning(False, "the committed offset's data is too large"),
    _E.TOPIC_AUTHORIZATION_FAILED: _Meaning(False, "not allowed on this topic"),
    _E.GROUP_AUTHORIZATION_FAILED: _Meaning(False, "not allowed on this group"),
    _E.CLUSTER_AUTHORIZATION_FAILED: _Meaning(False, "not allowed on this cluster, or on this listener"),
    _E.INVALID_TIMESTAMP: _Meaning(False, "the timestamp is outside the accepted range"),
    _E.UNSUPPORTED_SASL_MECHANISM: _Meaning(False, "the broker does not support this SASL mechanism"),
    _E.ILLEGAL_SASL_STATE: _Meaning(False, "the request does not fit the state of the SASL exchange"),
    _E.UNSUPPORTED_VERSION: _Meaning(False, "the broker does not support this version of the API"),
    _E.TOPIC_ALREADY_EXISTS: _Meaning(False, "a topic of that name exists"),
    _E.INVALID_PARTITIONS: _Meaning(False, "the number of partitions is below 1"),
    _E.INVALID_REPLICATION_FACTOR: _Meaning(
        False, "the replication factor is below 1 or above the number of brokers"
    ),
    _E.INVALID_REPLICA_ASSIGNMENT: _Meaning(False, "the replica assignment is invalid"),
    _E.INVALID_CONFIG: _Meaning(False, "the configuration is invalid"),
    _E.NOT_CONTROLLER: _Meaning(True, "this broker is not the controller"),
    _E.INVALID_REQUEST: _Meaning(False, "the request contradicts itself or the protocol"),
    _E.UNSUPPORTED_FOR_MESSAGE_FORMAT: _Meaning(False, "the message format (magic) does not support this"),
    _E.POLICY_VIOLATION: _Meaning(False, "the request violates a policy of the cluster"),
    _E.OUT_OF_ORDER_SEQUENCE_NUMBER: _Meaning(False, "a batch of this producer is missing before this one"),
    _E.DUPLICATE_SEQUENCE_NUMBER: _Meaning(False, "this batch was already written"),
    _E.INVALID_PRODUCER_EPOCH: _Meaning(False, "a newer producer with this id exists"),
    _E.INVALID_TXN_STATE: _Meaning(False, "the transaction's state does not allow this"),
    _E.INVALID_PRODUCER_ID_MAPPING: _Meaning(
        False, "the producer id does not belong to this transactional id"
    ),
    _E.INVALID_TRANSACTION_TIMEOUT: _Meaning(False, "the transaction timeout exceeds the broker's maximum"),
    _E.CONCURRENT_TRANSACTIONS: _Meaning(True, "another transaction of this id is still being completed"),
    _E.TRANSACTION_COORDINATOR_FENCED: _Meaning(False, "the transaction coordinator has been replaced"),
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _Meaning(False, "not allowed with this transactional id"),
    _E.SECURITY_DISABLED: _Meaning(False, "security features are disabled"),
    _E.OPERATION_NOT_ATTEMPTED: _Meaning(False, "not attempted because of another failure in the request"),
    _E.KAFKA_STORAGE_ERROR: _Meaning(True, "the disk of this log failed"),
    _E.LOG_DIR_NOT_FOUND: _Meaning(False, "no such log dir"),
    _E.SASL_AUTHENTICATION_FAILED: _Meaning(False, "SASL authentication failed"),
    _E.UNKNOWN_PRODUCER_ID: _Meaning(False, "no state of this producer id is held"),
    _E.REASSIGNMENT_IN_PROGRESS: _Meaning(False, "the partition is being reassigned"),
    _E.NON_EMPTY_GROUP: _Meaning(False, "the group has members"),
    _E.GROUP_ID_NOT_FOUND: _Meaning(False, "no such group"),
    _E.FETCH_SESSION_ID_NOT_FOUND: _Meaning(True, "no such fetch session"),
    _E.INVALID_FETCH_SESSION_EPOCH: _Meaning(True, "the fetch session's epoch is not the expected one"),
    _E.LISTENER_NOT_FOUND: _Meaning(True, "the leader has no such listener"),
    _E.TOPIC_DELETION_DISABLED: _Meaning(False, "delete.topic.enable is false on this cluster"),
    _E.FENCED_LEADER_EPOCH: _Meaning(True, "the leader epoch of the request is older than the broker's"),
    _E.UNKNOWN_LEADER_EPOCH: _Meaning(True, "the leader epoch of the request is newer than the broker's"),
    _E.UNSUPPORTED_COMPRESSION_TYPE: _Meaning(False, "the client does not support this compression"),
    _E.STALE_BROKER_EPOCH: _Meaning(False, "the request belongs to an earlier life of the broker"),
    _E.OFFSET_NOT_AVAILABLE: _Meaning(True, "a new leader's high watermark has not caught up yet"),
    _E.MEMBER_ID_REQUIRED: _Meaning(False, "join again with the member id given"),
    _E.PREFERRED_LEADER_NOT_AVAILABLE: _Meaning(True, "the preferred leader is not available"),
    _E.GROUP_MAX_SIZE_REACHED: _Meaning(False, "the group is full"),
    _E.FENCED_INSTANCE_ID: _Meaning(False, "another member holds this group.instance.id"),
    _E.ELIGIBLE_LEADERS_NOT_AVAILABLE: _Meaning(True, "no eligible leader is available"),
    _E.ELECTION_NOT_NEEDED: _Meaning(True, "no election is needed"),
    _E.NO_REASSIGNMENT_IN_PROGRESS: _Meaning(False, "no reassignment is in progress"),
    _E.GROUP_SUBSCRIBED_TO_TOPIC: _Meaning(False, "the group is subscribed to the topic"),
    _E.INVALID_RECORD: _Meaning(False, "a record fails the topic's checks"),
    _E.UNSTABLE_OFFSET_COMMIT: _Meaning(True, "transactions with offsets for this group are pending"),
    _E.THROTTLING_QUOTA_EXCEEDED: _Meaning(True, "the quota is exceeded"),
    _E.PRODUCER_FENCED: _Meaning(False, "a newer producer with this transactional id fenced this one"),
    _E.UNKNOWN_TOPIC_ID: _Meaning(True, "this broker hosts no topic with this id"),
    _E.INCONSISTENT_TOPIC_ID: _Meaning(True, "the topic id does not match the log's"),
    _E.FETCH_SESSION_TOPIC_ID_ERROR: _Meaning(
        True, "topic ids were used inconsistently in the fetch session"
    ),
    _E.MISMATCHED_ENDPOINT_TYPE: _Meaning(False, "this is not an endpoint of the type asked for"),
    _E.UNSUPPORTED_ENDPOINT_TYPE: _Meaning(False, "endpoints of this type are unknown here"),
}


MAX_TEXT_LENGTH: Final = 2_000
"""Characters. A text may quote a peer's bytes, and must still fit into a string of an answer."""


class ApiError(BarnabasError):
    """An error that has a code on the wire; `api_error` makes an instance of the code's class."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str = "") -> None:
        if len(message) > MAX_TEXT_LENGTH:
            message = f"{message[:MAX_TEXT_LENGTH]}… ({len(message)} characters)"
        super().__init__(message or _MEANINGS[self.code].text)

    @property
    def text(self) -> str:
        """The message without the name of the code, for answers, which have the code as a field."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"


def _class_name(code: ErrorCode) -> str:
    words = code.name.removesuffix("_EXCEPTION").removesuffix("_ERROR").split("_")
    return "".join(word.capitalize() for word in words) + "Error"


_CLASSES: dict[int, type[ApiError]] = {
    code: type(
        _class_name(code),
        (ApiError,),
        {"code": code, "retriable": meaning.retriable, "__doc__": meaning.text, "__module__": __name__},
    )
    for code, meaning in _MEANINGS.items()
}


def api_error(code: int, message: str = "") -> ApiError:
    """The exception for a code from the wire; an unknown number becomes UNKNOWN_SERVER_ERROR and is named."""
    found = _CLASSES.get(code)
    if found is None:
        return _CLASSES[ErrorCode.UNKNOWN_SERVER_ERROR](f"{message} (unknown error code {code})".strip())
    return found(message)


def is_retriable(code: int) -> bool:
    """Whether a retry of the unchanged request may succeed."""
    meaning = _MEANINGS.get(ErrorCode(code)) if code in ErrorCode._value2member_map_ else None
    return meaning is not None and meaning.retriable


def raise_for(code: int, message: str = "") -> None:
    """Raise the error that a code stands for; NONE raises nothing."""
    if code != ErrorCode.NONE:
        raise api_error(code, message)


def __getattr__(name: str) -> type[ApiError]:
    """The class of a code by its name, so that ``from …errors import NotLeaderOrFollowerError`` works."""
    for found in _CLASSES.values():
        if found.__name__ == name:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
