"""Error codes and exceptions.

`ErrorCode` is the table: Kafka's number and name, whether a retry can help, and the text. Each code has an
exception class (`NotLeaderOrFollowerError` for NOT_LEADER_OR_FOLLOWER). A broker sends the code of such an
exception to the client. Errors of one side alone (a timeout, a closed connection, a full buffer) are
`LocalError`s and have no code.

Source: the error table of https://kafka.apache.org/protocol#protocol_error_codes.
"""

from __future__ import annotations

import copy
from enum import IntEnum
from typing import Any, ClassVar, Final, Self


class BarnabasError(Exception):
    """The base of all errors that we raise on purpose."""

    retriable: ClassVar[bool] = False

    def again(self) -> Self:
        """A copy to raise, if many callers get the same error.

        Each raise adds frames to an exception's traceback, which keep all their locals alive; one object for
        all records of a failed batch would collect thousands of frames.
        """
        copied = copy.copy(self)
        copied.__cause__ = self.__cause__
        return copied

    def with_text(self, text: str) -> Self:
        """A copy with another text."""
        copied = self.again()
        copied.args = (text,)
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


class ClosedUnanswered(ConnectionClosed):
    """The peer closed the connection before any answer, as one does that speaks another protocol."""


class AuthenticationFailed(ConnectionClosed):
    """TLS or SASL failed for a reason that another attempt with the same settings does not change.

    The request was not carried out.
    """

    retriable = False


class SaslAuthenticationFailed(AuthenticationFailed):
    """The broker refused the credentials, or did not prove that it knows them; the text is the broker's."""


class TlsHandshakeFailed(AuthenticationFailed):
    """The two sides could not agree on TLS: a certificate was refused, or the peer does not use TLS."""


class MalformedFrame(LocalError):
    """Bytes that are not a message of ours; the connection that sent them is closed."""


class BeyondBound(MalformedFrame):
    """A request with more elements, or a larger head, than the caller of the decoder allows."""


class MessageTooComplex(LocalError):
    """A message of ours that is too large even without its records; it was not sent."""


class Unencodable(LocalError):
    """A message of ours with a value that does not fit its wire format; it was not sent."""


class InvalidConfiguration(LocalError, ValueError):
    """A setting that is unknown or out of range; the text names it, its value, and the expected values."""


class ErrorCode(IntEnum):
    """Kafka's error codes: the number, whether a retry of the same request may succeed, and the text."""

    retriable: bool
    text: str

    def __new__(cls, number: int, retriable: bool = False, text: str = "") -> Self:
        code = int.__new__(cls, number)
        code._value_ = number
        code.retriable = retriable
        code.text = text
        return code

    UNKNOWN_SERVER_ERROR = -1, False, "the server met an unexpected error; its log has the details"
    NONE = 0, False, "no error"
    OFFSET_OUT_OF_RANGE = 1, False, "the offset is not within the range that this replica holds"
    CORRUPT_MESSAGE = 2, True, "the batch fails its CRC, exceeds the valid size or is malformed"
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "this broker does not host the topic or partition"
    INVALID_FETCH_SIZE = 4, False, "the fetch size is invalid"
    LEADER_NOT_AVAILABLE = 5, True, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, True, "this broker is not the leader of the partition"
    REQUEST_TIMED_OUT = 7, True, "the request timed out on the broker"
    BROKER_NOT_AVAILABLE = 8, False, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, True, "the replica is not available on this broker"
    MESSAGE_TOO_LARGE = 10, False, "the batch is larger than the broker accepts"
    STALE_CONTROLLER_EPOCH = 11, False, "a newer controller has replaced the one that sent this"
    OFFSET_METADATA_TOO_LARGE = 12, False, "the metadata of the committed offset is too large"
    NETWORK_EXCEPTION = 13, True, "the connection was lost before an answer came"
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "the coordinator is loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, True, "the coordinator is not available"
    NOT_COORDINATOR = 16, True, "this broker is not the coordinator"
    INVALID_TOPIC_EXCEPTION = 17, False, "the topic name is invalid, or the topic may not be used in this way"
    RECORD_LIST_TOO_LARGE = 18, False, "the batch is larger than a segment may be"
    NOT_ENOUGH_REPLICAS = 19, True, "fewer in-sync replicas than min.insync.replicas"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "written, but fewer than min.insync.replicas are in sync"
    INVALID_REQUIRED_ACKS = 21, False, "acks must be 0, 1 or -1 (all)"
    ILLEGAL_GENERATION = 22, False, "the request's generation is not the group's current one"
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "the group's protocols do not match the member's"
    INVALID_GROUP_ID = 24, False, "the group id is invalid"
    UNKNOWN_MEMBER_ID = 25, False, "the group does not know this member"
    INVALID_SESSION_TIMEOUT = 26, False, "the session timeout is outside the broker's range"
    REBALANCE_IN_PROGRESS = 27, False, "the group is rebalancing; join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "the committed offset's data is too large"
    TOPIC_AUTHORIZATION_FAILED = 29, False, "not allowed on this topic"
    GROUP_AUTHORIZATION_FAILED = 30, False, "not allowed on this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "not allowed on this cluster, or on this listener"
    INVALID_TIMESTAMP = 32, False, "the timestamp is outside the accepted range"
    UNSUPPORTED_SASL_MECHANISM = 33, False, "the broker does not support this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, False, "the request does not fit the state of the SASL exchange"
    UNSUPPORTED_VERSION = 35, False, "the broker does not support this version of the API"
    TOPIC_ALREADY_EXISTS = 36, False, "a topic of that name exists"
    INVALID_PARTITIONS = 37, False, "the number of partitions is below 1"
    INVALID_REPLICATION_FACTOR = 38, False, "the replication factor is below 1 or above the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, False, "the replica assignment is invalid"
    INVALID_CONFIG = 40, False, "the configuration is invalid"
    NOT_CONTROLLER = 41, True, "this broker is not the controller"
    INVALID_REQUEST = 42, False, "the request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "the message format (magic) does not support this"
    POLICY_VIOLATION = 44, False, "the request violates a policy of the cluster"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "a batch of this producer is missing before this one"
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "this batch was already written"
    INVALID_PRODUCER_EPOCH = 47, False, "a newer producer with this id exists"
    INVALID_TXN_STATE = 48, False, "the transaction's state does not allow this"
    INVALID_PRODUCER_ID_MAPPING = 49, False, "the producer id does not belong to this transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, False, "the transaction timeout exceeds the broker's maximum"
    CONCURRENT_TRANSACTIONS = 51, True, "another transaction of this id is still being completed"
    TRANSACTION_COORDINATOR_FENCED = 52, False, "the transaction coordinator has been replaced"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "not allowed with this transactional id"
    SECURITY_DISABLED = 54, False, "security features are disabled"
    OPERATION_NOT_ATTEMPTED = 55, False, "not attempted because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, True, "the disk of this log failed"
    LOG_DIR_NOT_FOUND = 57, False, "no such log dir"
    SASL_AUTHENTICATION_FAILED = 58, False, "SASL authentication failed"
    UNKNOWN_PRODUCER_ID = 59, False, "the broker has no state of this producer id"
    REASSIGNMENT_IN_PROGRESS = 60, False, "the partition is being reassigned"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "delegation tokens are not enabled"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "not allowed on this connection"
    NON_EMPTY_GROUP = 68, False, "the group has members"
    GROUP_ID_NOT_FOUND = 69, False, "no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "no such fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, True, "the fetch session's epoch is not the expected one"
    LISTENER_NOT_FOUND = 72, True, "the leader has no such listener"
    TOPIC_DELETION_DISABLED = 73, False, "delete.topic.enable is false on this cluster"
    FENCED_LEADER_EPOCH = 74, True, "the leader epoch of the request is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, True, "the leader epoch of the request is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "the client does not support this compression"
    STALE_BROKER_EPOCH = 77, False, "the request names an earlier registration of the broker"
    OFFSET_NOT_AVAILABLE = 78, True, "a new leader's high watermark has not caught up yet"
    MEMBER_ID_REQUIRED = 79, False, "join again with the member id given"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, False, "the group is full"
    FENCED_INSTANCE_ID = 82, False, "another member holds this group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "no eligible leader is available"
    ELECTION_NOT_NEEDED = 84, True, "no election is needed"
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "no reassignment is in progress"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "the group is subscribed to the topic"
    INVALID_RECORD = 87, False, "a record fails the topic's checks"
    UNSTABLE_OFFSET_COMMIT = 88, True, "transactions with offsets for this group are pending"
    THROTTLING_QUOTA_EXCEEDED = 89, True, "the quota is exceeded"
    PRODUCER_FENCED = 90, False, "a newer producer with this transactional id fenced this one"
    RESOURCE_NOT_FOUND = 91, False, "no such resource"
    DUPLICATE_RESOURCE = 92, False, "a resource is named twice"
    UNACCEPTABLE_CREDENTIAL = 93, False, "the credential does not meet the criteria"
    INVALID_UPDATE_VERSION = 95, False, "the version is not a valid one to update to"
    FEATURE_UPDATE_FAILED = 96, False, "the finalized features could not be updated"
    UNKNOWN_TOPIC_ID = 100, True, "this broker hosts no topic with this id"
    INCONSISTENT_TOPIC_ID = 103, True, "the topic id does not match the log's"
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "topic ids were used inconsistently in the fetch session"
    MISMATCHED_ENDPOINT_TYPE = 114, False, "the endpoint is not of the requested type"
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "endpoints of this type are unknown"
    TRANSACTION_ABORTABLE = 120, False, "the transaction must be aborted; the producer may go on"
    REBOOTSTRAP_REQUIRED = 129, False, "the client must start again from its bootstrap servers"


MAX_TEXTS_LENGTH: Final = 64 * 1024
"""Of the entries of one answer, in characters."""
MAX_TEXT_LENGTH: Final = 2_000
"""Characters. A text may quote a peer's bytes, and must still fit into a string of an answer."""


def _bounded(text: str) -> str:
    if len(text) <= MAX_TEXT_LENGTH:
        return text
    return f"{text[:MAX_TEXT_LENGTH]}… ({len(text)} characters)"


class ApiError(BarnabasError):
    """An error that has a code on the wire; `api_error` makes an instance of the code's class."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init_subclass__(cls, code: ErrorCode | None = None, **keywords: Any) -> None:
        """With ``code``, make the class that code's own."""
        super().__init_subclass__(**keywords)
        if code is not None:
            cls.code, cls.retriable, cls.__doc__ = code, code.retriable, code.text
            _CLASSES[code] = cls

    def __init__(self, message: str = "") -> None:
        super().__init__(_bounded(message) or self.code.text)

    @property
    def text(self) -> str:
        """The message without the name of the code, for answers, which have the code as a field."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"


_CLASSES: Final[dict[int, type[ApiError]]] = {}


class ErrorTexts:
    """The texts for the entries of one answer, up to `MAX_TEXTS_LENGTH` characters; then they are None.

    A request may name a hundred thousand partitions that are refused. One thread at a time.
    """

    __slots__ = ("_bare", "_left")

    def __init__(self, used: int = 0) -> None:
        self._left = MAX_TEXTS_LENGTH - used
        self._bare: dict[ErrorCode, ApiError] = {}

    def take(self, text: str) -> str | None:
        return self._count(_bounded(text))

    def of(self, error: ApiError) -> str | None:
        return self._count(error.text)

    def _count(self, text: str) -> str | None:
        self._left -= len(text)
        return text if self._left >= 0 else None

    def kept(self, error: ApiError) -> ApiError:
        """The error, or beyond the bound one with its code alone, to be kept until the answer."""
        if self.of(error) is not None:
            return error.with_traceback(None)
        return self._bare.setdefault(error.code, api_error(error.code))


def api_error(code: int, message: str = "") -> ApiError:
    """The exception for a code from the wire; an unknown number becomes UNKNOWN_SERVER_ERROR and is named."""
    error_class = _CLASSES.get(code)
    if error_class is None:
        return UnknownServerError(f"{message} (unknown error code {code})".strip())
    return error_class(message)


def known_code(code: int) -> ErrorCode:
    """A code from the wire; UNKNOWN_SERVER_ERROR for one of a later version of a broker."""
    return ErrorCode(code) if code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN_SERVER_ERROR


def is_retriable(code: int) -> bool:
    """Whether a retry of the unchanged request may succeed; False for an unknown code."""
    return known_code(code).retriable


def raise_for(code: int, message: str = "") -> None:
    """Raise the error of a code; NONE raises nothing."""
    if code != ErrorCode.NONE:
        raise api_error(code, message)


# fmt: off
class UnknownServerError(ApiError, code=ErrorCode.UNKNOWN_SERVER_ERROR): ...
class OffsetOutOfRangeError(ApiError, code=ErrorCode.OFFSET_OUT_OF_RANGE): ...
class CorruptMessageError(ApiError, code=ErrorCode.CORRUPT_MESSAGE): ...
class UnknownTopicOrPartitionError(ApiError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION): ...
class InvalidFetchSizeError(ApiError, code=ErrorCode.INVALID_FETCH_SIZE): ...
class LeaderNotAvailableError(ApiError, code=ErrorCode.LEADER_NOT_AVAILABLE): ...
class NotLeaderOrFollowerError(ApiError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER): ...
class RequestTimedOutError(ApiError, code=ErrorCode.REQUEST_TIMED_OUT): ...
class BrokerNotAvailableError(ApiError, code=ErrorCode.BROKER_NOT_AVAILABLE): ...
class ReplicaNotAvailableError(ApiError, code=ErrorCode.REPLICA_NOT_AVAILABLE): ...
class MessageTooLargeError(ApiError, code=ErrorCode.MESSAGE_TOO_LARGE): ...
class StaleControllerEpochError(ApiError, code=ErrorCode.STALE_CONTROLLER_EPOCH): ...
class OffsetMetadataTooLargeError(ApiError, code=ErrorCode.OFFSET_METADATA_TOO_LARGE): ...
class NetworkError(ApiError, code=ErrorCode.NETWORK_EXCEPTION): ...
class CoordinatorLoadInProgressError(ApiError, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): ...
class CoordinatorNotAvailableError(ApiError, code=ErrorCode.COORDINATOR_NOT_AVAILABLE): ...
class NotCoordinatorError(ApiError, code=ErrorCode.NOT_COORDINATOR): ...
class InvalidTopicError(ApiError, code=ErrorCode.INVALID_TOPIC_EXCEPTION): ...
class RecordListTooLargeError(ApiError, code=ErrorCode.RECORD_LIST_TOO_LARGE): ...
class NotEnoughReplicasError(ApiError, code=ErrorCode.NOT_ENOUGH_REPLICAS): ...
class NotEnoughReplicasAfterAppendError(ApiError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND): ...
class InvalidRequiredAcksError(ApiError, code=ErrorCode.INVALID_REQUIRED_ACKS): ...
class IllegalGenerationError(ApiError, code=ErrorCode.ILLEGAL_GENERATION): ...
class InconsistentGroupProtocolError(ApiError, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL): ...
class InvalidGroupIdError(ApiError, code=ErrorCode.INVALID_GROUP_ID): ...
class UnknownMemberIdError(ApiError, code=ErrorCode.UNKNOWN_MEMBER_ID): ...
class InvalidSessionTimeoutError(ApiError, code=ErrorCode.INVALID_SESSION_TIMEOUT): ...
class RebalanceInProgressError(ApiError, code=ErrorCode.REBALANCE_IN_PROGRESS): ...
class InvalidCommitOffsetSizeError(ApiError, code=ErrorCode.INVALID_COMMIT_OFFSET_SIZE): ...
class TopicAuthorizationFailedError(ApiError, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED): ...
class GroupAuthorizationFailedError(ApiError, code=ErrorCode.GROUP_AUTHORIZATION_FAILED): ...
class ClusterAuthorizationFailedError(ApiError, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED): ...
class InvalidTimestampError(ApiError, code=ErrorCode.INVALID_TIMESTAMP): ...
class UnsupportedSaslMechanismError(ApiError, code=ErrorCode.UNSUPPORTED_SASL_MECHANISM): ...
class IllegalSaslStateError(ApiError, code=ErrorCode.ILLEGAL_SASL_STATE): ...
class UnsupportedVersionError(ApiError, code=ErrorCode.UNSUPPORTED_VERSION): ...
class TopicAlreadyExistsError(ApiError, code=ErrorCode.TOPIC_ALREADY_EXISTS): ...
class InvalidPartitionsError(ApiError, code=ErrorCode.INVALID_PARTITIONS): ...
class InvalidReplicationFactorError(ApiError, code=ErrorCode.INVALID_REPLICATION_FACTOR): ...
class InvalidReplicaAssignmentError(ApiError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT): ...
class InvalidConfigError(ApiError, code=ErrorCode.INVALID_CONFIG): ...
class NotControllerError(ApiError, code=ErrorCode.NOT_CONTROLLER): ...
class InvalidRequestError(ApiError, code=ErrorCode.INVALID_REQUEST): ...
class UnsupportedForMessageFormatError(ApiError, code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT): ...
class PolicyViolationError(ApiError, code=ErrorCode.POLICY_VIOLATION): ...
class OutOfOrderSequenceNumberError(ApiError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER): ...
class DuplicateSequenceNumberError(ApiError, code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER): ...
class InvalidProducerEpochError(ApiError, code=ErrorCode.INVALID_PRODUCER_EPOCH): ...
class InvalidTxnStateError(ApiError, code=ErrorCode.INVALID_TXN_STATE): ...
class InvalidProducerIdMappingError(ApiError, code=ErrorCode.INVALID_PRODUCER_ID_MAPPING): ...
class InvalidTransactionTimeoutError(ApiError, code=ErrorCode.INVALID_TRANSACTION_TIMEOUT): ...
class ConcurrentTransactionsError(ApiError, code=ErrorCode.CONCURRENT_TRANSACTIONS): ...
class TransactionCoordinatorFencedError(ApiError, code=ErrorCode.TRANSACTION_COORDINATOR_FENCED): ...
class TransactionalIdAuthorizationFailedError(ApiError, code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED): ...  # noqa: E501 - one line a code
class SecurityDisabledError(ApiError, code=ErrorCode.SECURITY_DISABLED): ...
class OperationNotAttemptedError(ApiError, code=ErrorCode.OPERATION_NOT_ATTEMPTED): ...
class KafkaStorageError(ApiError, code=ErrorCode.KAFKA_STORAGE_ERROR): ...
class LogDirNotFoundError(ApiError, code=ErrorCode.LOG_DIR_NOT_FOUND): ...
class SaslAuthenticationFailedError(ApiError, code=ErrorCode.SASL_AUTHENTICATION_FAILED): ...
class UnknownProducerIdError(ApiError, code=ErrorCode.UNKNOWN_PRODUCER_ID): ...
class ReassignmentInProgressError(ApiError, code=ErrorCode.REASSIGNMENT_IN_PROGRESS): ...
class DelegationTokenAuthDisabledError(ApiError, code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED): ...
class DelegationTokenRequestNotAllowedError(ApiError, code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED): ...  # noqa: E501 - one line a code
class NonEmptyGroupError(ApiError, code=ErrorCode.NON_EMPTY_GROUP): ...
class GroupIdNotFoundError(ApiError, code=ErrorCode.GROUP_ID_NOT_FOUND): ...
class FetchSessionIdNotFoundError(ApiError, code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND): ...
class InvalidFetchSessionEpochError(ApiError, code=ErrorCode.INVALID_FETCH_SESSION_EPOCH): ...
class ListenerNotFoundError(ApiError, code=ErrorCode.LISTENER_NOT_FOUND): ...
class TopicDeletionDisabledError(ApiError, code=ErrorCode.TOPIC_DELETION_DISABLED): ...
class FencedLeaderEpochError(ApiError, code=ErrorCode.FENCED_LEADER_EPOCH): ...
class UnknownLeaderEpochError(ApiError, code=ErrorCode.UNKNOWN_LEADER_EPOCH): ...
class UnsupportedCompressionTypeError(ApiError, code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE): ...
class StaleBrokerEpochError(ApiError, code=ErrorCode.STALE_BROKER_EPOCH): ...
class OffsetNotAvailableError(ApiError, code=ErrorCode.OFFSET_NOT_AVAILABLE): ...
class MemberIdRequiredError(ApiError, code=ErrorCode.MEMBER_ID_REQUIRED): ...
class PreferredLeaderNotAvailableError(ApiError, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE): ...
class GroupMaxSizeReachedError(ApiError, code=ErrorCode.GROUP_MAX_SIZE_REACHED): ...
class FencedInstanceIdError(ApiError, code=ErrorCode.FENCED_INSTANCE_ID): ...
class EligibleLeadersNotAvailableError(ApiError, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE): ...
class ElectionNotNeededError(ApiError, code=ErrorCode.ELECTION_NOT_NEEDED): ...
class NoReassignmentInProgressError(ApiError, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS): ...
class GroupSubscribedToTopicError(ApiError, code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC): ...
class InvalidRecordError(ApiError, code=ErrorCode.INVALID_RECORD): ...
class UnstableOffsetCommitError(ApiError, code=ErrorCode.UNSTABLE_OFFSET_COMMIT): ...
class ThrottlingQuotaExceededError(ApiError, code=ErrorCode.THROTTLING_QUOTA_EXCEEDED): ...
class ProducerFencedError(ApiError, code=ErrorCode.PRODUCER_FENCED): ...
class ResourceNotFoundError(ApiError, code=ErrorCode.RESOURCE_NOT_FOUND): ...
class DuplicateResourceError(ApiError, code=ErrorCode.DUPLICATE_RESOURCE): ...
class UnacceptableCredentialError(ApiError, code=ErrorCode.UNACCEPTABLE_CREDENTIAL): ...
class InvalidUpdateVersionError(ApiError, code=ErrorCode.INVALID_UPDATE_VERSION): ...
class FeatureUpdateFailedError(ApiError, code=ErrorCode.FEATURE_UPDATE_FAILED): ...
class UnknownTopicIdError(ApiError, code=ErrorCode.UNKNOWN_TOPIC_ID): ...
class InconsistentTopicIdError(ApiError, code=ErrorCode.INCONSISTENT_TOPIC_ID): ...
class TransactionalIdNotFoundError(ApiError, code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND): ...
class FetchSessionTopicIdError(ApiError, code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR): ...
class MismatchedEndpointTypeError(ApiError, code=ErrorCode.MISMATCHED_ENDPOINT_TYPE): ...
class UnsupportedEndpointTypeError(ApiError, code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE): ...
class TransactionAbortableError(ApiError, code=ErrorCode.TRANSACTION_ABORTABLE): ...
class RebootstrapRequiredError(ApiError, code=ErrorCode.REBOOTSTRAP_REQUIRED): ...
# fmt: on
