"""Fetch: read for a consumer or a follower; the records go out as views of the segments' mappings.

A consumer may keep a fetch session (see `fetch_session`), and followers always do (see `follower_sessions`):
then requests name only changed partitions, and answers have only those with news.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Final

from barnabas.broker.clocks import monotonic_ms
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.fetch_session import (
    FetchSession,
    Incremental,
    Refused,
    Sessionless,
)
from barnabas.broker.handlers.services import Services
from barnabas.broker.replication.fetching import (
    FetchItem,
    FetchOutcome,
    FetchParams,
    FetchResult,
    FixedItems,
)
from barnabas.broker.replication.session_partitions import SessionKey
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.fetch_epochs import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerEpoch, BrokerId, Offset, TopicId, TopicPartition
from barnabas.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)

_FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_WITH_ZSTD: Final = 10
_FIRST_WITH_REPLICA_STATE: Final = 15
_READ_COMMITTED: Final = 1
_MAX_WAIT_MS: Final = 600_000
"""As long as a silent connection is kept; who waits and is gone is not noticed, and fills the purgatory."""


def handle(services: Services, request: ApiRequest) -> None:
    body: FetchRequest = request.body
    version = request.api_version
    replica_id = body.replica_id
    if version is not None and version >= _FIRST_WITH_REPLICA_STATE:
        replica_id = body.replica_state.replica_id
    is_follower = replica_id >= 0
    # Followers speak the native protocol alone: in Kafka's, anybody could claim to hold what was written.
    if is_follower and (
        version is not None or request.peer.listener_name != services.config.inter_broker_listener_name
    ):
        request.respond(FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, responses=[]))
        return
    max_bytes = body.max_bytes if is_follower else min(body.max_bytes, services.config.fetch_max_bytes)
    params = FetchParams(
        replica_id=BrokerId(replica_id),
        replica_epoch=BrokerEpoch(body.replica_epoch),
        max_wait_ms=min(body.max_wait_ms, _MAX_WAIT_MS),
        # What is never given must not be waited for.
        min_bytes=min(body.min_bytes, max_bytes),
        max_bytes=max_bytes,
    )
    uses_topic_ids = version is not None and version >= _FIRST_WITH_TOPIC_IDS
    items = _items(services, body, uses_topic_ids)
    if is_follower:
        request.raw.release_frame()
        _handle_follower(services, request, params, items)
        return
    plan = services.fetch_sessions.begin(
        body.session_id,
        body.session_epoch,
        items,
        _forgotten(body, uses_topic_ids),
        uses_topic_ids=uses_topic_ids,
        name_of=_name_of(services),
        now_ms=monotonic_ms(),
    )
    request.raw.release_frame()
    answering = _Answering(services, request, uses_topic_ids=uses_topic_ids)
    match plan:
        case Refused(error):
            request.respond(FetchResponse(error_code=int(error), responses=[]))
        case Incremental(session):
            services.replicas.fetch_from(
                params, session, request.answering(lambda found: answering.incremental(session, found))
            )
        case Sessionless(may_open):
            services.replicas.fetch_from(
                params,
                FixedItems(items),
                request.answering(lambda found: answering.full(found, may_open=may_open)),
            )


def _handle_follower(
    services: Services, request: ApiRequest, params: FetchParams, items: list[FetchItem]
) -> None:
    body: FetchRequest = request.body
    sessions, epoch = services.replicas.follower_sessions, body.session_epoch

    @request.answering
    def full(found: FetchResult) -> None:
        session_id = NO_SESSION
        if epoch == INITIAL_EPOCH:
            session_id = sessions.open(params.replica_id, found.outcomes, services.metadata.current.brokers)
        request.respond(_answer_to_follower(session_id, found.outcomes))

    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        services.replicas.fetch(params, items, full)
        return
    forgotten = [
        TopicPartition(topic.topic, index)
        for topic in body.forgotten_topics_data
        for index in topic.partitions
    ]
    session = sessions.begin(params.replica_id, body.session_id, epoch, items, forgotten)
    if isinstance(session, ErrorCode):
        request.respond(FetchResponse(error_code=int(session), responses=[]))
        return

    @request.answering
    def incremental(found: FetchResult) -> None:
        outcomes = session.answer(epoch, found.outcomes)
        if outcomes is None:
            request.respond(
                FetchResponse(error_code=int(ErrorCode.INVALID_FETCH_SESSION_EPOCH), responses=[])
            )
        else:
            request.respond(_answer_to_follower(session.id, outcomes))

    services.replicas.fetch_from(params, session, incremental)


def _name_of(services: Services) -> Callable[[uuid.UUID], str | None]:
    names = services.metadata.current.topic_names
    return lambda topic_id: names.get(TopicId(topic_id))


def _items(services: Services, body: FetchRequest, uses_topic_ids: bool) -> list[FetchItem]:
    """The partitions that a request names; with topic ids, those of unknown topics have no name."""
    names = services.metadata.current.topic_names
    items = []
    for topic in body.topics:
        name, topic_id = topic.topic, None
        if uses_topic_ids:
            topic_id = topic.topic_id
            name = names.get(TopicId(topic_id), "")
        for asked in topic.partitions:
            items.append(
                FetchItem(
                    TopicPartition(name, asked.partition),
                    asked.current_leader_epoch,
                    Offset(asked.fetch_offset),
                    asked.last_fetched_epoch,
                    Offset(asked.log_start_offset),
                    asked.partition_max_bytes,
                    topic_id,
                    topic.topic_id,
                )
            )
    return items


def _forgotten(body: FetchRequest, uses_topic_ids: bool) -> list[SessionKey]:
    return [
        (topic.topic_id if uses_topic_ids else topic.topic, index)
        for topic in body.forgotten_topics_data
        for index in topic.partitions
    ]


class _Answering:
    """How one consumer's fetch is answered, when its outcomes are there. Any thread."""

    def __init__(self, services: Services, request: ApiRequest, *, uses_topic_ids: bool) -> None:
        body: FetchRequest = request.body
        self._services = services
        self._request = request
        self._uses_topic_ids = uses_topic_ids
        self._epoch = body.session_epoch
        self._is_read_committed = body.isolation_level == _READ_COMMITTED
        self._knows_zstd = request.api_version is None or request.api_version >= _FIRST_WITH_ZSTD

    def full(self, found: FetchResult, *, may_open: bool) -> None:
        outcomes = self._readable(found.outcomes)
        session = None
        if may_open:
            session = self._services.fetch_sessions.open(
                outcomes, uses_topic_ids=self._uses_topic_ids, now_ms=monotonic_ms()
            )
        self._respond(NO_SESSION if session is None else session.id, outcomes)

    def incremental(self, session: FetchSession, found: FetchResult) -> None:
        outcomes = session.answer(self._epoch, self._readable(found.outcomes))
        if outcomes is None:
            self._request.respond(
                FetchResponse(
                    error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.id, responses=[]
                )
            )
            return
        self._respond(session.id, outcomes)

    def _readable(self, outcomes: list[FetchOutcome]) -> list[FetchOutcome]:
        """Clients that do not know zstd are refused the topics that are kept in it, as Kafka does."""
        if self._knows_zstd:
            return outcomes
        return [
            outcome._replace(error=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, read=None)
            if outcome.read is not None and self._is_kept_in_zstd(outcome.item.partition)
            else outcome
            for outcome in outcomes
        ]

    def _is_kept_in_zstd(self, name: TopicPartition) -> bool:
        try:
            return self._services.replicas.partition(name).log.config.compression_type is Compression.ZSTD
        except ApiError:
            # Gone since it was read; the next fetch says so.
            return False

    def _respond(self, session_id: int, outcomes: Iterable[FetchOutcome]) -> None:
        topics: dict[uuid.UUID | str, FetchTopicResponse] = {}
        for outcome in outcomes:
            item = outcome.item
            topic = topics.get(item.topic_id or item.partition.topic)
            if topic is None:
                topic = FetchTopicResponse(
                    topic=item.partition.topic, topic_id=item.topic_id or NO_TOPIC_ID, partitions=[]
                )
                topics[item.topic_id or item.partition.topic] = topic
            answer = _partition(outcome)
            if self._is_read_committed and outcome.read is not None:
                answer.aborted_transactions = []
            topic.partitions.append(answer)
        self._request.respond(FetchResponse(session_id=session_id, responses=list(topics.values())))


def _answer_to_follower(session_id: int, outcomes: Iterable[FetchOutcome]) -> FetchResponse:
    topics: dict[str, list[FetchPartitionResponse]] = {}
    for outcome in outcomes:
        topics.setdefault(outcome.item.partition.topic, []).append(_partition(outcome))
    return FetchResponse(
        session_id=session_id,
        responses=[FetchTopicResponse(topic=name, partitions=parts) for name, parts in topics.items()],
    )


def _partition(outcome: FetchOutcome) -> FetchPartitionResponse:
    read = outcome.read
    index = outcome.item.partition.partition
    if read is None:
        return FetchPartitionResponse(
            partition_index=index,
            error_code=int(outcome.error),
            log_start_offset=outcome.log_start_offset,
            records=b"",
        )
    answer = FetchPartitionResponse(
        partition_index=index,
        error_code=int(ErrorCode.NONE),
        high_watermark=read.high_watermark,
        last_stable_offset=read.high_watermark,
        log_start_offset=read.log_start_offset,
        records=read.records,
    )
    if read.diverging is not None:
        answer.diverging_epoch = EpochEndOffset(
            epoch=read.diverging.epoch, end_offset=read.diverging.end_offset
        )
    return answer
