"""Fetch: read for a consumer or a follower; the records are sent as views of the segments' mappings.

Followers and consumers may keep a session (see `fetch_sessions`): then requests name only changed partitions,
and answers contain only partitions with news.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final

from barnabas.broker.base.limits import MAX_ON_NETWORK_THREAD
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.leader_hints import LeaderHints
from barnabas.broker.handlers.services import Services
from barnabas.broker.network.request import Lane
from barnabas.broker.replication.delayed_fetch import (
    FetchItem,
    FetchOutcome,
    FetchParams,
    FetchResult,
    FixedItems,
)
from barnabas.broker.replication.fetch_sessions import (
    FetchSession,
    FetchSessions,
    SessionKey,
    SessionRequest,
    key_of,
)
from barnabas.broker.replication.partition import Isolation
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerEpoch, BrokerId, Offset, TopicId, TopicPartition
from barnabas.protocol.messages.fetch import (
    INITIAL_EPOCH,
    NO_SESSION,
    AbortedTransaction,
    EpochEndOffset,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from barnabas.protocol.schema import ApiKey

_FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_WITH_ZSTD: Final = 10
_FIRST_WITH_REPLICA_STATE: Final = 15
_FIRST_WITH_HINTS: Final = 16
_HINTED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_OF_FOLLOWER: Final = (ApiKey.FETCH, None, True)
_MAX_WAIT_MS: Final = 600_000
"""As long as a silent connection is kept: until then a client that is gone takes up memory."""


def handle(services: Services, request: ApiRequest) -> None:
    """Run on the network thread unless the fetch looks at many partitions, of its session for example."""
    body: FetchRequest = request.body
    version = request.api_version
    replica_id = body.replica_id
    if version is not None and version >= _FIRST_WITH_REPLICA_STATE:
        replica_id = body.replica_state.replica_id
    is_follower = replica_id >= 0
    # Followers use the native protocol only: in Kafka's, any client could claim to hold records.
    if is_follower and (
        version is not None or request.peer.listener_name != services.config.inter_broker_listener_name
    ):
        _refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    if is_follower:
        request.raw.kind = _OF_FOLLOWER
    max_bytes = body.max_bytes if is_follower else min(body.max_bytes, services.config.fetch_max_bytes)
    params = FetchParams(
        replica_id=BrokerId(replica_id),
        replica_epoch=BrokerEpoch(body.replica_epoch),
        max_wait_ms=min(body.max_wait_ms, _MAX_WAIT_MS),
        # More than the answer may hold must not be waited for.
        min_bytes=min(body.min_bytes, max_bytes),
        max_bytes=max_bytes,
        isolation=Isolation.of_request(replica_id, body.isolation_level),
        rack_id=body.rack_id,
        listener_name=request.peer.listener_name,
    )
    uses_topic_ids = version is not None and version >= _FIRST_WITH_TOPIC_IDS
    in_session = SessionRequest(
        params.replica_id,
        body.session_id,
        body.session_epoch,
        _items(services, body, uses_topic_ids),
        _forgotten(body, uses_topic_ids),
        uses_topic_ids,
    )
    request.raw.release_frame()
    if is_follower:
        # It sends an empty fetch to end its long poll, which is still unanswered.
        _begin(services, request, params, in_session)
    else:
        # Only one fetch of a connection waits or holds cold records, because only the first unanswered
        # request can be answered.
        request.raw.run_in_turn(lambda: _begin(services, request, params, in_session))


def _begin(services: Services, request: ApiRequest, params: FetchParams, in_session: SessionRequest) -> None:
    replicas = services.replicas
    sessions = replicas.follower_sessions if params.is_follower else replicas.consumer_sessions

    def fetch() -> None:
        _fetch(services, request, params, sessions, in_session)

    if sessions.size_of(in_session) > MAX_ON_NETWORK_THREAD:
        request.raw.continue_in(Lane.GENERAL, fetch)
    else:
        fetch()


def _fetch(
    services: Services,
    request: ApiRequest,
    params: FetchParams,
    sessions: FetchSessions,
    in_session: SessionRequest,
) -> None:
    try:
        session = sessions.begin(in_session)
    except ApiError as error:
        _refuse(request, error.code)
        return
    answer = _Answer(services, request, sessions, in_session, session)
    source = FixedItems(in_session.items) if session is None else session
    cancel = services.replicas.fetch(params, source, request.answering(answer.send))
    if cancel is not None:
        request.raw.park(cancel)


def _refuse(request: ApiRequest, code: ErrorCode, session_id: int = NO_SESSION) -> None:
    request.respond(FetchResponse(error_code=int(code), session_id=session_id, responses=[]))


def _items(services: Services, body: FetchRequest, uses_topic_ids: bool) -> list[FetchItem]:
    """The partitions that a request names; a topic of an unknown id has an empty name.

    As in Kafka, the last entry of a partition counts, so an entry costs nothing beyond its request.
    """
    names = services.metadata.current.topic_names
    items: dict[SessionKey, FetchItem] = {}
    for topic in body.topics:
        name, topic_id = topic.topic, None
        if uses_topic_ids:
            topic_id = topic.topic_id
            name = names.get(TopicId(topic_id), "")
        for partition in topic.partitions:
            item = FetchItem(
                TopicPartition(name, partition.partition),
                partition.current_leader_epoch,
                Offset(partition.fetch_offset),
                partition.last_fetched_epoch,
                Offset(partition.log_start_offset),
                partition.partition_max_bytes,
                topic_id,
                topic.topic_id,
            )
            items[key_of(item)] = item
    return list(items.values())


def _forgotten(body: FetchRequest, uses_topic_ids: bool) -> list[SessionKey]:
    return [
        (topic.topic_id, index) if uses_topic_ids else TopicPartition(topic.topic, index)
        for topic in body.forgotten_topics_data
        for index in topic.partitions
    ]


class _Answer:
    """The answer to one fetch, sent when its result is complete. Any thread."""

    def __init__(
        self,
        services: Services,
        request: ApiRequest,
        sessions: FetchSessions,
        in_session: SessionRequest,
        session: FetchSession | None,
    ) -> None:
        self._services = services
        self._request = request
        self._sessions = sessions
        self._in_session = in_session
        self._session = session
        self._knows_zstd = request.is_since(_FIRST_WITH_ZSTD)
        version = request.api_version
        self._knows_hints = version is not None and version >= _FIRST_WITH_HINTS

    def send(self, result: FetchResult) -> None:
        outcomes = self._readable(result.outcomes)
        session, epoch = self._session, self._in_session.epoch
        session_id = NO_SESSION
        if session is not None:
            session_id = session.id
            news = session.answer(epoch, outcomes)
            if news is None:
                _refuse(self._request, ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id)
                return
            outcomes = news
        elif epoch == INITIAL_EPOCH:
            session_id = self._sessions.open(self._in_session, outcomes)
        self._respond(session_id, outcomes)

    def _readable(self, outcomes: list[FetchOutcome]) -> list[FetchOutcome]:
        """As in Kafka, clients that do not know zstd get an error for topics that are compressed with it."""
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
            return self._services.replicas.partition(name).log.config.compression is Compression.ZSTD
        except ApiError:
            # Gone since it was read; the next fetch returns the error.
            return False

    def _respond(self, session_id: int, outcomes: Iterable[FetchOutcome]) -> None:
        topics: dict[uuid.UUID | str, FetchTopicResponse] = {}
        hints = LeaderHints(self._services, self._request.peer.listener_name) if self._knows_hints else None
        for outcome in outcomes:
            item = outcome.item
            key = item.topic_id or item.partition.topic
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchTopicResponse(
                    topic=item.partition.topic, topic_id=item.topic_id or NO_TOPIC_ID, partitions=[]
                )
            answer = _partition(outcome)
            if hints is not None and outcome.error in _HINTED:
                answer.current_leader = hints.find(item.partition, item.current_leader_epoch)
            topic.partitions.append(answer)
        response = FetchResponse(session_id=session_id, responses=list(topics.values()))
        if hints is not None:
            response.node_endpoints = hints.endpoints
        self._request.respond(response)


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
        error_code=0,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        records=read.records,
    )
    if read.aborted_transactions is not None:
        answer.aborted_transactions = [
            AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in read.aborted_transactions
        ]
    answer.preferred_read_replica = read.preferred_read_replica
    if read.diverging is not None:
        answer.diverging_epoch = EpochEndOffset(
            epoch=read.diverging.epoch, end_offset=read.diverging.end_offset
        )
    return answer
