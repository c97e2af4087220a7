"""Error codes that not every client knows, each replaced by the one that Kafka answers to such clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.schema import APIS, ApiKey

_REPLACED: Final[Mapping[tuple[ApiKey, ErrorCode], tuple[ErrorCode, int | None]]] = {
    (ApiKey.LIST_OFFSETS, ErrorCode.OFFSET_NOT_AVAILABLE): (ErrorCode.LEADER_NOT_AVAILABLE, 5),
    (ApiKey.DELETE_TOPICS, ErrorCode.TOPIC_DELETION_DISABLED): (ErrorCode.INVALID_REQUEST, 3),
    # While groups are loaded, clients expect no other error here.
    (ApiKey.SYNC_GROUP, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): (ErrorCode.REBALANCE_IN_PROGRESS, None),
    (ApiKey.HEARTBEAT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): (ErrorCode.NONE, None),
    (ApiKey.INIT_PRODUCER_ID, ErrorCode.PRODUCER_FENCED): (ErrorCode.INVALID_PRODUCER_EPOCH, 4),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ErrorCode.PRODUCER_FENCED): (ErrorCode.INVALID_PRODUCER_EPOCH, 2),
    (ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.PRODUCER_FENCED): (ErrorCode.INVALID_PRODUCER_EPOCH, 2),
    (ApiKey.END_TXN, ErrorCode.PRODUCER_FENCED): (ErrorCode.INVALID_PRODUCER_EPOCH, 2),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.PRODUCER_FENCED): (ErrorCode.INVALID_PRODUCER_EPOCH, None),
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.TRANSACTION_ABORTABLE): (ErrorCode.INVALID_TXN_STATE, 4),
    # Older producers fail at it.
    (ApiKey.TXN_OFFSET_COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        2,
    ),
}
"""The API and the code → the code instead, and the first version that knows the real one, if any does."""


def known_error(request: ApiRequest, error: ErrorCode) -> ErrorCode:
    """The error as the client of this request knows it."""
    replacement, since = _REPLACED.get((request.api_key, error), (error, None))
    return error if since is not None and request.is_since(since) else replacement


def respond_code(request: ApiRequest, code: ErrorCode) -> None:
    """Answer with a code of the whole request, and nothing else."""
    request.respond(APIS[request.api_key].response(error_code=known_error(request, code)))
