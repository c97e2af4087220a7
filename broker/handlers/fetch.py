"""Fetch: read for a consumer or a follower; the records are sent as views of the segments' mappings.

Followers and consumers may keep a session (see `fetch_sessions`): then requests name only changed partitions,
and answers contain only partitions with news.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.base.limits import MAX_ON_NETWORK_THREAD
from barnabas.broker.handlers.api_request import ApiRequest, EncodedAnswer
from barnabas.broker.handlers.authorization import allows, may_act_as_broker
from barnabas.broker.handlers.leader_hints import LeaderHints
from barnabas.broker.handlers.reading_pace import ReadingPace
from barnabas.broker.handlers.services import Services
from barnabas.broker.network.request import Lane
from barnabas.broker.replication.delayed_fetch import (
    FetchItem,
    FetchOutcome,
    FetchParams,
    FetchResult,
    FetchSource,
)
from barnabas.broker.replication.fetch_sessions import (
    FetchSession,
    SessionKey,
    SessionRequest,
    key_of,
)
from barnabas.broker.replication.partition import Isolation, PartitionRead
from barnabas.broker.replication.subscriptions import FollowerEnd, UnfitProgress, leaves_nothing
from barnabas.common.security.acl import Operation, ResourceType
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerEpoch, BrokerId, Offset, TopicId, TopicPartition
from barnabas.protocol.messages import fetch as wire
from barnabas.protocol.messages.log_offsets import DEBUGGING_REPLICA_ID
from barnabas.protocol.schema import ApiKey

_FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_WITH_ZSTD: Final = 10
_FIRST_WITH_REPLICA_STATE: Final = 15
_FIRST_WITH_HINTS: Final = 16
_OF_SESSION: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
_HINTED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_OF_FOLLOWER: Final = (ApiKey.FETCH, None, True)
# Looking up a member of an Enum takes 0.3 µs in Python 3.11.
_NETWORK: Final = Lane.NETWORK
_FOLLOWER: Final = Isolation.FOLLOWER
_ISOLATIONS: Final = (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED)
_PARTITION_BYTES: Final = 40
"""Of an answer's partition without its records, in Kafka's protocol."""
_MAX_WAIT_MS: Final = 600_000
"""As long as a silent connection is kept: until then a client that is gone takes up memory."""


def handle(services: Services, request: ApiRequest) -> None:
    """Run on the network thread unless the fetch looks at many partitions, of its session for example."""
    body: wire.FetchRequest = request.body
    version = request.api_version
    replica_id = body.replica_id
    if version is not None and version >= _FIRST_WITH_REPLICA_STATE:
        replica_id = body.replica_state.replica_id
    is_follower = replica_id >= 0
    # Followers use the native protocol only: in Kafka's, any client could claim to hold records.
    if is_follower and (
        version is not None
        or (
            request.raw.peer.listener_name != services.config.inter_broker_listener_name
            and not services.brokers.is_super_user(request.raw.peer.session)
        )
        or not may_act_as_broker(services, request)
    ):
        _refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    max_bytes = body.max_bytes if is_follower else min(body.max_bytes, services.config.fetch_max_bytes)
    if request.quotas is not None:
        if is_follower:
            request.quotas = None
        else:
            max_bytes = request.most_fetched_bytes(max_bytes)
    params = FetchParams(
        replica_id=BrokerId(replica_id),
        replica_epoch=BrokerEpoch(body.replica_epoch),
        max_wait_ms=min(body.max_wait_ms, _MAX_WAIT_MS),
        # More than the answer may hold must not be waited for.
        min_bytes=min(body.min_bytes, max_bytes),
        max_bytes=max_bytes,
        isolation=_FOLLOWER if is_follower else _ISOLATIONS[body.isolation_level == 1],
        rack_id=body.rack_id,
        listener_name=request.raw.peer.listener_name,
        is_follower=is_follower,
        reads_any_replica=replica_id == DEBUGGING_REPLICA_ID or (body.rack_id != "" and not is_follower),
        # A rule of faults acts on fetches, which a subscription would replace.
        subscribes=is_follower and body.subscribes and body.min_bytes <= 1 and not services.faults.rules,
    )
    if services.authorizer is not None and not is_follower:
        known = services.authorizer.known_topics(request.raw.peer.session, Operation.READ)
        if known is not None:
            params.readable, params.may_read = known, _asking(services, request)
    fetch = _Fetch(services, request, params)
    if is_follower:
        request.raw.kind = _OF_FOLLOWER
        # It sends an empty fetch to end its long poll, which is still unanswered.
        fetch.begin()
    else:
        # Only one fetch of a connection waits or holds cold records, because only the first unanswered
        # request can be answered.
        request.raw.run_in_turn(fetch.begin)
    request.raw.release_frame()


def handle_progress(services: Services, request: ApiRequest) -> None:
    """A follower has applied pushes. Its fetch was allowed, on this connection."""
    body: wire.FetchProgressRequest = request.body
    sessions = services.replicas.follower_sessions
    subscription = sessions.subscription(body.session_id, body.subscription)
    if subscription is not None:
        ends = [
            FollowerEnd(
                TopicPartition(topic.topic, end.partition),
                Offset(end.fetch_offset),
                end.last_fetched_epoch,
                Offset(end.log_start_offset),
            )
            for topic in body.topics
            for end in topic.partitions
        ]
        try:
            if subscription.peer is not request.raw.peer:
                raise UnfitProgress("another connection has the subscription")
            services.replicas.note_reported(subscription, body.push_number, ends)
        except UnfitProgress as error:
            request.raw.close_connection(f"its progress fits no push: {error}")
            return
    request.raw.release_frame()
    request.raw.respond_nothing()


def _asking(services: Services, request: ApiRequest) -> Callable[[str], bool]:
    """Asks whether a consumer may read a topic. As in Kafka, a fetch that waits keeps its decisions."""
    decisions: dict[str, bool] = {}

    def may_read(topic: str) -> bool:
        decision = decisions.get(topic)
        if decision is None:
            # A topic of an unknown id has no name, and another error.
            decision = not topic or allows(services, request, Operation.READ, ResourceType.TOPIC, topic)
            decisions[topic] = decision
        return decision

    return may_read


def _refuse(request: ApiRequest, code: ErrorCode, session_id: int = wire.NO_SESSION) -> None:
    request.respond(wire.FetchResponse(error_code=int(code), session_id=session_id, responses=[]))


def _items(services: Services, body: wire.FetchRequest, uses_topic_ids: bool) -> list[FetchItem]:
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
            items[(topic_id or name, partition.partition)] = item
    return list(items.values())


def _forgotten(body: wire.FetchRequest, uses_topic_ids: bool) -> list[SessionKey]:
    return [
        (topic.topic_id, index) if uses_topic_ids else TopicPartition(topic.topic, index)
        for topic in body.forgotten_topics_data
        for index in topic.partitions
    ]


def fetched_partitions(services: Services, request: ApiRequest) -> list[FetchItem]:
    """The partitions that a fetch reads: those of its session, if it continues one, and those it names."""
    body: wire.FetchRequest = request.body
    # Either is a consumer's by default; versions have one of them.
    replica_id = BrokerId(max(body.replica_id, body.replica_state.replica_id))
    params = FetchParams(
        replica_id, BrokerEpoch(body.replica_epoch), 0, 0, 0, _FOLLOWER, is_follower=replica_id >= 0
    )
    return _Fetch(services, request, params).partitions()


def refusal_of_fetch(services: Services, request: ApiRequest, code: ErrorCode) -> wire.FetchResponse:
    """The answer with a code for each partition. It ends the session, whose next epoch is not known.

    Clients read the code of the whole answer as one of the session alone, and then do not look at the others.
    """
    items = fetched_partitions(services, request)
    outcomes = [FetchOutcome(item, PartitionRead.failed(code)) for item in items]
    response = _response(services, request, wire.NO_SESSION, outcomes)
    response.error_code = code if code in _OF_SESSION or not items else ErrorCode.NONE
    return response


class _Fetch:
    """One fetch; `send` answers it when its result is complete. Any thread."""

    __slots__ = ("_params", "_replicas", "_request", "_services", "_session", "_session_request", "_sessions")

    def __init__(self, services: Services, request: ApiRequest, params: FetchParams) -> None:
        body: wire.FetchRequest = request.body
        version = request.api_version
        uses_topic_ids = version is not None and version >= _FIRST_WITH_TOPIC_IDS
        self._services, self._request, self._params = services, request, params
        self._replicas = replicas = services.replicas
        self._sessions = replicas.follower_sessions if params.is_follower else replicas.consumer_sessions
        self._session_request = SessionRequest(
            params.replica_id,
            body.session_id,
            body.session_epoch,
            _items(services, body, uses_topic_ids),
            _forgotten(body, uses_topic_ids) if body.forgotten_topics_data else (),
            uses_topic_ids,
            request.raw.peer.session.principal,
        )
        self._session: FetchSession | None = None

    def partitions(self) -> list[FetchItem]:
        request = self._session_request
        items = {key_of(item): item for item in self._sessions.items_of(request)}
        for key in request.forgotten:
            items.pop(key, None)
        return list((items | {key_of(item): item for item in request.items}).values())

    def begin(self) -> None:
        if self._sessions.size_of(self._session_request) > MAX_ON_NETWORK_THREAD:
            self._request.raw.continue_in(Lane.GENERAL, self._read)
        else:
            self._read()

    def _read(self) -> None:
        pace = self._request.raw.peer.session.reading_pace
        if pace is not None and not self._params.is_follower:
            pace.fetched(self._request.raw.received_ns / 1e9)
        try:
            session = self._session = self._sessions.begin(self._session_request)
        except ApiError as error:
            _refuse(self._request, error.code)
            return
        source = FetchSource(self._session_request.items) if session is None else session
        raw = self._request.raw
        timers = raw.deadlines if raw.lane is _NETWORK else None
        cancel = self._replicas.fetch(self._params, source, self._request.answering(self.send), timers)
        if cancel is not None:
            raw.park(cancel)

    def send(self, result: FetchResult) -> None:
        outcomes, request = result.outcomes, self._request
        if not request.is_since(_FIRST_WITH_ZSTD):
            outcomes = [self._without_zstd(outcome) for outcome in outcomes]
        session, epoch = self._session, self._session_request.epoch
        session_id = wire.NO_SESSION
        is_empty = request.quotas is not None and not request.charge_fetched(_size(outcomes))
        if is_empty:
            # The partitions stay as they were for the next fetch, which reads them again.
            outcomes = []
        if session is not None:
            session_id = session.id
            news = session.answer(epoch, outcomes)
            if news is None:
                _refuse(request, ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id)
                return
            outcomes = news
        elif epoch == wire.INITIAL_EPOCH and not is_empty:
            session_id = self._sessions.open(self._session_request, outcomes)
        if request.quotas is None and not self._params.is_follower:
            self._keep_pace(result)
        if session is not None and self._params.subscribes and leaves_nothing(result):
            self._subscribe(session, outcomes)
        elif result.answers is None or request.quotas is not None or len(outcomes) != len(result.outcomes):
            request.respond(_response(self._services, request, session_id, outcomes))
        else:
            self._share(result.answers, session_id, outcomes)

    def _subscribe(self, session: FetchSession, outcomes: Sequence[FetchOutcome]) -> None:
        number = self._session_request.epoch
        services, request, push = self._services, self._request, self._request.raw.push

        def send(push_number: int, news: Sequence[FetchOutcome]) -> bool:
            goes_on = bool(news) and not services.faults.rules
            pushed = _response(services, request, session.id, news if goes_on else ())
            pushed.subscription, pushed.push_number = number, push_number
            return push(codec_msgpack.encode_response(wire.PUSHES, pushed)) and goes_on

        subscription = self._replicas.subscription(number, session, self._params, send, request.raw.peer)
        response = _response(services, request, session.id, outcomes)
        if session.subscribe(subscription, outcomes):
            response.subscription = number
        request.respond(response)
        # The subscription keeps the request.
        request.raw.drop_frame()
        subscription.open()

    def _share(
        self, answers: dict[int | None, EncodedAnswer], session_id: int, outcomes: list[FetchOutcome]
    ) -> None:
        """Send the answer that others of this version get too, with other ids of correlation and session."""
        request = self._request
        version = request.api_version
        if version is None and session_id != wire.NO_SESSION:
            request.respond(_response(self._services, request, session_id, outcomes))
            return
        answer = answers.get(version)
        if answer is None:
            answer = request.encoded(_response(self._services, request, wire.NO_SESSION, outcomes))
            if answer is None:
                return
            answers[version] = answer
        raw = request.raw
        raw.errors = answer.errors
        if version is None:
            raw.respond(codec_msgpack.for_another_request(answer.buffers, request.correlation_id))
        else:
            raw.respond(
                codec_kafka.for_another_fetch(answer.buffers, version, request.correlation_id, session_id)
            )

    def _keep_pace(self, result: FetchResult) -> None:
        """Let the next fetch wait, if the consumer would pause for longer by itself."""
        has_more = any(outcome.read.has_more for outcome in result.outcomes)
        session, now_s = self._request.raw.peer.session, monotonic_ms() / 1000
        if session.reading_pace is None:
            if not has_more:
                return
            session.reading_pace = ReadingPace(now_s)
        delay_s = session.reading_pace.delay_s(now_s, result.bytes_read, has_more=has_more)
        self._request.raw.throttle_ms = int(delay_s * 1000)

    def _without_zstd(self, outcome: FetchOutcome) -> FetchOutcome:
        """As in Kafka, clients that do not know zstd get an error for topics that are compressed with it."""
        try:
            log = self._replicas.partition(outcome.item.partition).log
        except ApiError:
            # Gone since it was read; the next fetch returns the error.
            return outcome
        if outcome.read.error or log.config.compression is not Compression.ZSTD:
            return outcome
        return FetchOutcome(outcome.item, PartitionRead.failed(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE))


def _response(
    services: Services, request: ApiRequest, session_id: int, outcomes: Iterable[FetchOutcome]
) -> wire.FetchResponse:
    topics: dict[uuid.UUID | str, wire.FetchTopicResponse] = {}
    version, hints = request.api_version, None
    if version is not None and version >= _FIRST_WITH_HINTS:
        hints = LeaderHints(services, request.raw.peer.listener_name)
    for item, read in outcomes:
        key = item.topic_id or item.partition.topic
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = wire.FetchTopicResponse(
                topic=item.partition.topic, topic_id=item.topic_id or NO_TOPIC_ID, partitions=[]
            )
        answer = _partition(item, read)
        if hints is not None and read.error in _HINTED:
            answer.current_leader = hints.find(item.partition, item.current_leader_epoch)
        topic.partitions.append(answer)
    response = wire.FetchResponse(session_id=session_id, responses=list(topics.values()))
    if hints is not None:
        response.node_endpoints = list(hints.endpoints.values())
    return response


def _size(outcomes: Iterable[FetchOutcome]) -> int:
    """The bytes of an answer, nearly."""
    return sum(_PARTITION_BYTES + len(outcome.read.records) for outcome in outcomes)


def _partition(item: FetchItem, read: PartitionRead) -> wire.FetchPartitionResponse:
    answer = wire.FetchPartitionResponse(
        partition_index=item.partition.partition,
        error_code=int(read.error),
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        preferred_read_replica=read.preferred_read_replica,
        records=read.records,
        fetch_offset=item.fetch_offset,
    )
    if read.aborted_transactions is not None:
        answer.aborted_transactions = [
            wire.AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in read.aborted_transactions
        ]
    if read.diverging is not None:
        answer.diverging_epoch = wire.EpochEndOffset(
            epoch=read.diverging.epoch, end_offset=read.diverging.end_offset
        )
    return answer
