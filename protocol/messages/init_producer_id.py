"""InitProducerId: the id and epoch under which a producer numbers its batches (KIP-98, KIP-360)."""

from __future__ import annotations

from barnabas.protocol import schema as s


@s.message
class InitProducerIdResponse:
    """``producer_id`` is -1 if there is an error."""

    throttle_time_ms: int = s.int32(default=0)
    error_code: int = s.int16()
    producer_id: int = s.int64(default=-1)
    producer_epoch: int = s.int16(default=-1)


@s.request(s.ApiKey.INIT_PRODUCER_ID, InitProducerIdResponse, versions=(0, 4), flexible_since=2)
class InitProducerIdRequest(s.RequestOf[InitProducerIdResponse]):
    """``transactional_id`` None requests idempotence only; the timeout is then ignored.

    ``producer_id`` and ``producer_epoch`` are -1, or the producer's present ones, to raise the epoch.
    """

    transactional_id: str | None = s.string(nullable_since=0, default=None)
    transaction_timeout_ms: int = s.int32(default=60_000)
    producer_id: int = s.int64(since=3, default=-1, ignorable=False)
    producer_epoch: int = s.int16(since=3, default=-1, ignorable=False)
