"""InitProducerId: the id and epoch under which a producer numbers its batches (KIP-98, KIP-360)."""

from __future__ import annotations

from barnabas.protocol.schema import ApiKey, RequestOf, int16, int32, int64, message, request, string


@message
class InitProducerIdResponse:
    """``producer_id`` is -1 if there is an error."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16(default=-1)


@request(ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse, versions=(0, 4), flexible_since=2)
@message
class InitProducerIdRequest(RequestOf[InitProducerIdResponse]):
    """``transactional_id`` None requests idempotence only; the timeout is then ignored.

    ``producer_id`` and ``producer_epoch`` are -1, or the producer's present ones, to raise the epoch.
    """

    transactional_id: str | None = string(nullable_since=0, default=None)
    transaction_timeout_ms: int = int32(default=60_000)
    producer_id: int = int64(since=3, default=-1, ignorable=False)
    producer_epoch: int = int16(since=3, default=-1, ignorable=False)
