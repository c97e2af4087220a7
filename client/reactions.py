"""The reactions to errors in the answers of coordinators and leaders: one table, by request and code.

`group_membership` and `transactions` carry them out for a group's member and for a transactional producer;
`ask` repeats requests by them. Pure.

Sources: KIP-62, KIP-345 and KIP-394 for groups, KIP-1050 for transactions.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, is_retriable


class Api(Enum):
    """The requests whose answers concern a membership or a transaction."""

    JOIN = "JoinGroup"
    SYNC = "SyncGroup"
    HEARTBEAT = "Heartbeat"
    COMMIT = "OffsetCommit"
    OFFSETS = "OffsetFetch"
    """Also other requests about a group, by no member of it."""
    INIT_PRODUCER_ID = "InitProducerId"
    PRODUCE = "Produce"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    ADD_OFFSETS = "AddOffsetsToTxn"
    COMMIT_OFFSETS = "TxnOffsetCommit"
    END_TXN = "EndTxn"
    PREPARE_TXN = "PrepareTxn"
    DESCRIBE_TXN = "DescribeTransactions"


class Reaction(Enum):
    """The reaction to an error code in an answer; a later one is more severe."""

    GO_ON = "no error"
    RETRY = "retry after a pause"
    FIND_COORDINATOR = "retry with the present coordinator"
    TAKE_MEMBER_ID = "join with the member id that was given"
    REJOIN = "a rebalance is under way: join again, with the same member id"
    FORGET_GENERATION = "the generation has ended and the partitions are lost; the member id is still valid"
    FORGET_MEMBER = "the group has removed the member: join as a new one"
    REFUSED = "the call is refused; the transaction stays open"
    ABORT = "abort the transaction"
    FAIL = "raised to the user; a transactional producer is unusable, its settings or permissions are wrong"
    FENCED = "another member has the instance id, or another producer the transactional id"


REPEATED: Final = frozenset({Reaction.RETRY, Reaction.FIND_COORDINATOR})
_SEVERITY: Final = {reaction: place for place, reaction in enumerate(Reaction)}
_E, _R = ErrorCode, Reaction
_Codes = dict[int, Reaction]

_NO_COORDINATOR: Final[_Codes] = {
    _E.COORDINATOR_NOT_AVAILABLE: _R.FIND_COORDINATOR,
    _E.NOT_COORDINATOR: _R.FIND_COORDINATOR,
}
_OF_GROUP: Final[_Codes] = {**_NO_COORDINATOR, _E.FENCED_INSTANCE_ID: _R.FENCED}
_OF_MEMBER: Final[_Codes] = {
    **_OF_GROUP,
    _E.REBALANCE_IN_PROGRESS: _R.REJOIN,
    _E.ILLEGAL_GENERATION: _R.FORGET_GENERATION,
    _E.UNKNOWN_MEMBER_ID: _R.FORGET_MEMBER,
}
_OF_TRANSACTION: Final[_Codes] = {
    **_NO_COORDINATOR,
    _E.REQUEST_TIMED_OUT: _R.FIND_COORDINATOR,
    _E.BROKER_NOT_AVAILABLE: _R.FIND_COORDINATOR,
    _E.INVALID_PRODUCER_EPOCH: _R.FENCED,
    _E.PRODUCER_FENCED: _R.FENCED,
    _E.TRANSACTION_ABORTABLE: _R.ABORT,
    _E.INVALID_TXN_STATE: _R.FAIL,
    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _R.FAIL,
    _E.CLUSTER_AUTHORIZATION_FAILED: _R.FAIL,
    _E.UNSUPPORTED_VERSION: _R.FAIL,
}
_FORGOTTEN: Final[_Codes] = {
    # The coordinator has forgotten the producer, which gets another id.
    _E.UNKNOWN_PRODUCER_ID: _R.ABORT,
    _E.INVALID_PRODUCER_ID_MAPPING: _R.ABORT,
}
_ENDED: Final[_Codes] = {
    # The leader of a log says this also of a transaction that timed out: the EndTxn of the abort decides.
    _E.INVALID_PRODUCER_EPOCH: _R.ABORT,
    _E.INVALID_TXN_STATE: _R.ABORT,
}
REACTIONS: Final[dict[Api, _Codes]] = {
    Api.JOIN: {**_OF_MEMBER, _E.MEMBER_ID_REQUIRED: _R.TAKE_MEMBER_ID, _E.REBALANCE_IN_PROGRESS: _R.RETRY},
    Api.SYNC: _OF_MEMBER,
    Api.HEARTBEAT: _OF_MEMBER,
    Api.COMMIT: {**_OF_MEMBER, _E.REQUEST_TIMED_OUT: _R.FIND_COORDINATOR},
    Api.OFFSETS: _OF_GROUP,
    Api.INIT_PRODUCER_ID: _OF_TRANSACTION,
    Api.PRODUCE: {**_OF_TRANSACTION, **_ENDED},
    Api.ADD_PARTITIONS: {**_OF_TRANSACTION, **_FORGOTTEN},
    Api.ADD_OFFSETS: {**_OF_TRANSACTION, **_FORGOTTEN, _E.GROUP_AUTHORIZATION_FAILED: _R.ABORT},
    Api.COMMIT_OFFSETS: {
        **_OF_TRANSACTION,
        **_FORGOTTEN,
        **_ENDED,
        _E.UNSUPPORTED_FOR_MESSAGE_FORMAT: _R.FAIL,
    },
    Api.END_TXN: {**_OF_TRANSACTION, **_FORGOTTEN},
    # The brokers' settings may forbid to prepare, and Apache Kafka does not have the request.
    Api.PREPARE_TXN: {
        **_OF_TRANSACTION,
        **_FORGOTTEN,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _R.REFUSED,
        _E.UNSUPPORTED_VERSION: _R.REFUSED,
    },
    Api.DESCRIBE_TXN: _NO_COORDINATOR,
}
"""Other errors are repeated if they are retriable, as `ErrorCode` says; else they FAIL, or ABORT these:"""
_ELSE_ABORTED: Final = frozenset({Api.PRODUCE, Api.ADD_PARTITIONS, Api.COMMIT_OFFSETS})


def reaction_to(api: Api, error: BarnabasError | int) -> Reaction:
    """The reaction to an error: a code of an answer, or an error of this side, such as a lost connection."""
    otherwise = Reaction.ABORT if api in _ELSE_ABORTED else Reaction.FAIL
    if isinstance(error, BarnabasError) and not isinstance(error, ApiError):
        return Reaction.FIND_COORDINATOR if error.retriable else otherwise
    code = error.code if isinstance(error, ApiError) else error
    if code == ErrorCode.NONE:
        return Reaction.GO_ON
    return REACTIONS[api].get(code) or (Reaction.RETRY if is_retriable(code) else otherwise)


def severity(api: Api, error: BarnabasError | int) -> int:
    """The larger, the more an error of an answer hides its others."""
    return _SEVERITY[reaction_to(api, error)]
