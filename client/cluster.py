"""A client's view of the cluster: metadata that is kept fresh, and one connection per broker made on demand.

Metadata requests use a connection of their own (first to a bootstrap server, then to any broker), so that
neither a produce request that waits for replicas nor a long-polled fetch delays them.
Refreshes are coalesced and no more frequent than ``retry_backoff_ms``, but the first sign of a change (a lost
connection, NOT_LEADER_OR_FOLLOWER) triggers one at once. If a broker does not answer, the next one is asked
as well. If no known broker answers, the bootstrap servers are asked again.

Everything here runs on the event loop that `start` was called on.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypedDict, TypeVar, Unpack

from barnabas.client.arguments import check_text
from barnabas.client.config import ClientConfig
from barnabas.client.errors import ClientClosed, NoBrokerReachable, report_bug
from barnabas.client.first_answer import HedgeDelay, first_answer
from barnabas.client.metadata import Leader, MetadataCache, TopicInfo
from barnabas.client.metrics import Metrics, since
from barnabas.client.wire_choice import WireChoice
from barnabas.common.backoff import Retries
from barnabas.common.channel import Answer, Channel
from barnabas.common.dialects import NO_FEATURES, Wire
from barnabas.common.traffic import Traffic
from barnabas.protocol.codec_msgpack import check_values
from barnabas.protocol.errors import (
    AuthenticationFailed,
    BarnabasError,
    ConnectionClosed,
    ErrorCode,
    RequestTimedOutLocally,
    api_error,
    is_retriable,
    raise_for,
)
from barnabas.protocol.frames import BufferPool
from barnabas.protocol.ids import BrokerId, Endpoint, TopicPartition
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.protocol.schema import ApiKey, RequestOf
from barnabas.protocol.topic_names import validate_topic_name

R = TypeVar("R")
log = logging.getLogger(__name__)

MAIN_LANE: Final = "main"
FETCH_LANE: Final = "fetch"
"""Long-polled fetches have a connection of their own, or every other request would wait for them."""
SOUGHT_LANE: Final = "sought"
"""Fetches of new positions while a long-polled fetch waits; brokers answer a connection in order."""
GROUP_LANE: Final = "group"
"""Joins have one too, because they are answered when all members have joined."""

_BUILT_BY_US: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
"""Requests that have no value that a user passed in unchecked; they are frequent, too."""

_LEAST_HEDGE_S: Final = 0.3
_LEAST_NODE_HEDGE_S: Final = 0.5
_WATCH_INTERVAL_S: Final = 0.5


class RequestOptions(TypedDict, total=False):
    """``last_version`` is the last version of Kafka's protocol that a request may have."""

    timeout_ms: int | None
    lane: str
    last_version: int | None


class Cluster:
    """Brokers, leaders and requests to them."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        is_in_use: Callable[[str], bool] = lambda name: True,
        may_create: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Watched topics are refreshed while in use; a missing topic is created if `may_create` allows it."""
        self.config = config
        self.cache = MetadataCache()
        self._is_in_use = is_in_use
        self._may_create = may_create
        self._topics: set[str] = set()
        self._hedge = HedgeDelay(_LEAST_HEDGE_S)
        self._node_hedge = HedgeDelay(_LEAST_NODE_HEDGE_S)
        self._last_failed: BrokerId | None = None
        """The broker that `ask_any_node` asks last."""
        self._requested_topics: Counter[str] = Counter()
        """Topics that calls request now, with the number of calls."""
        self._pool = BufferPool()
        self._traffic = Traffic()
        self._security = config.make_security()
        self._channels: dict[tuple[BrokerId, str], Channel] = {}
        self._control: dict[tuple[Endpoint, Wire], Channel] = {}
        self._wires = WireChoice(config.wire, self._control_channel)
        self._silent_rounds: dict[Channel, int] = {}
        self._stale_endpoint: Endpoint | None = None
        self._listeners: list[Callable[[], None]] = []
        self._next_refresh: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done after the next refresh."""
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_now = asyncio.Event()
        self._last_refresh = float("-inf")
        self._updated_at = time.monotonic()
        """The time of the last successful refresh, or of the start."""
        self._age_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self.refusal: AuthenticationFailed | None = None
        """Why the last refresh failed, if its repetition does not help."""
        self.refused_at = float("-inf")
        """When it failed, by `time.monotonic`."""
        self._refresh_error: type[BaseException] | None = None
        """That of the last refresh."""
        self._is_started = False
        """Until then `start` raises what goes wrong, so it is not logged too."""
        self.is_closed = False

    async def start(self) -> None:
        """Connect to the cluster. Raises NoBrokerReachable naming every server that was tried.

        Raises AuthenticationFailed, and InvalidConfiguration for certificates that cannot be used.
        """
        try:
            await self.refresh()
        except BaseException:
            self.close()
            raise
        self._is_started = True
        self._watch()

    def close(self) -> None:
        """Close every connection; requests in flight fail. Idempotent."""
        self.is_closed = True
        for timer in (self._age_timer, self._watch_timer):
            if timer is not None:
                timer.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()
        for channel in [*self._channels.values(), *self._control.values()]:
            channel.close("the client was closed")

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call this after every refresh, successful or not."""
        self._listeners.append(listener)

    # Metadata

    def watch_topics(self, *topics: str) -> None:
        """Include these topics in every refresh from now on; refresh at once if one of them is new."""
        is_new = not self._topics.union(self.cache.topics, self.cache.topic_errors).issuperset(topics)
        self._topics.update(topics)
        if is_new:
            self.request_refresh(at_once=True)

    def unwatch_topics(self, *topics: str) -> None:
        """Leave these topics out of refreshes from now on."""
        self._topics.difference_update(topics)
        for name in set(topics) - self._requested_topics.keys():
            self.cache.forget(name)

    def watch_only(self, *topics: str) -> None:
        """Include these topics, and no other watched ones, in every refresh from now on."""
        self.unwatch_topics(*self._topics.difference(topics))
        self.watch_topics(*topics)

    @contextmanager
    def asking_about(self, names: Iterable[str]) -> Iterator[None]:
        """Include these topics in every refresh within the block; forget them after it unless watched."""
        uses = Counter(names)
        self._requested_topics += uses
        try:
            yield
        finally:
            self._requested_topics -= uses
            for name in uses.keys() - self._requested_topics.keys() - self._topics:
                self.cache.forget(name)

    async def topic(self, name: str, timeout_ms: int, *, watches: bool = False) -> TopicInfo:
        """A topic and its partitions; waits until the cluster has it.

        Raises the cluster's last error for the topic, such as UNKNOWN_TOPIC_OR_PARTITION, after the timeout,
        or at once if waiting cannot help, INVALID_TOPIC_EXCEPTION; TypeError for a name that is no text.
        """
        check_text("topic", name)
        validate_topic_name(name)
        with self.asking_about([name]):
            info = await self._topic(name, time.monotonic() + timeout_ms / 1000, timeout_ms)
            if watches:
                # Within the block, because a topic that is not watched is forgotten at its end.
                self.watch_topics(name)
            return info

    async def _topic(self, name: str, deadline: float, timeout_ms: int) -> TopicInfo:
        # Refresh immediately for a topic that was not requested before.
        is_new = name not in self.cache.topic_errors
        last_error: BarnabasError | None = None
        while (info := self.cache.topics.get(name)) is None:
            try:
                async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                    await self.refresh(at_once=is_new)
                last_error = None
            except TimeoutError:
                pass
            except NoBrokerReachable as error:
                last_error = error
            is_new = False
            code = self.cache.topic_errors.get(name, 0)
            if name in self.cache.topics:
                continue
            if time.monotonic() >= deadline or (code and not is_retriable(code)):
                if last_error is not None:
                    raise last_error
                raise api_error(
                    code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {name!r} is not known to the cluster (asked for {timeout_ms} ms)",
                )
        return info

    async def leader(self, tp: TopicPartition, timeout_ms: int) -> Leader:
        """The leader of a partition, waiting for one. Raises as `topic`, and LEADER_NOT_AVAILABLE."""
        if (leader := self.cache.leader_for(tp)) is not None:
            return leader
        with self.asking_about([tp.topic]):
            return await self._leader(tp, timeout_ms)

    async def _leader(self, tp: TopicPartition, timeout_ms: int) -> Leader:
        deadline = time.monotonic() + timeout_ms / 1000
        await self._topic(tp.topic, deadline, timeout_ms)
        # The metadata may be from before the topic got the partition.
        is_new = False
        while (leader := self.cache.leader_for(tp)) is None:
            if is_new and (missing := self.cache.no_such_partition(tp)) is not None:
                raise missing
            if time.monotonic() >= deadline:
                raise api_error(
                    ErrorCode.LEADER_NOT_AVAILABLE, f"partition {tp} has no leader for {timeout_ms} ms"
                )
            await self.refresh_before(deadline)
            await self._topic(tp.topic, deadline, timeout_ms)
            is_new = True
        return leader

    # Requests

    def channel(self, node_id: BrokerId, lane: str = MAIN_LANE) -> Channel:
        """The connection to a broker. Raises ConnectionClosed when no such broker is known."""
        self._check_open()
        node = self.cache.nodes.get(node_id)
        if node is None:
            raise ConnectionClosed(f"broker {node_id} is not among the live brokers")
        channel = self._channels.get((node_id, lane))
        if channel is not None and channel.endpoint == node.endpoint and not channel.is_closed:
            return channel
        if channel is not None:
            channel.close(f"broker {node_id} moved to {node.endpoint}")
        channel = self._channels[node_id, lane] = self._make_channel(
            node.endpoint, self._wires.chosen or Wire.NATIVE
        )
        return channel

    async def request(self, node_id: BrokerId, message: RequestOf[R], **options: Unpack[RequestOptions]) -> R:
        """Ask one broker.

        Raises ConnectionClosed or RequestTimedOutLocally, after requesting a refresh; Unencodable, without
        sending it, for a value of a wrong type.
        """
        answer = await self.request_frame(node_id, message, **options)
        body: R = answer.body
        return body

    async def request_frame(
        self,
        node_id: BrokerId,
        message: RequestOf[Any],
        *,
        lane: str = MAIN_LANE,
        timeout_ms: int | None = None,
        last_version: int | None = None,
    ) -> Answer:
        """A `request` that also returns the frame; the answer's records are views of it."""
        if message.api_key not in _BUILT_BY_US:
            check_values(message)
        try:
            channel = self.channel(node_id, lane)
            answer = await channel.request_frame(message, timeout_ms=timeout_ms, last_version=last_version)
            self._silent_rounds.pop(channel, None)
            return answer
        except (ConnectionClosed, RequestTimedOutLocally):
            self.node_failed(node_id)
            raise

    @property
    def is_kafka(self) -> bool:
        """Whether the client speaks Kafka's protocol; False until it knows. A started client knows."""
        return self._wires.chosen is Wire.KAFKA

    def finalized_level(self, feature: str) -> int:
        """The level that brokers have finalized, by the newest answer to ApiVersions; 0 if none has it.

        Brokers of the native protocol do not send their features to clients.
        """
        channels = [*self._channels.values(), *self._control.values()]
        features = (channel.features for channel in channels)
        newest = max(features, key=lambda features: features.epoch, default=NO_FEATURES)
        return newest.levels.get(feature, 0)

    async def ask_leader(
        self, tp: TopicPartition, leader: Leader, message: RequestOf[Any], lane: str
    ) -> Answer | None:
        """A `request_frame`; None as soon as metadata names another leader, because this one may hang."""
        asking = asyncio.create_task(self.request_frame(leader.node_id, message, lane=lane))
        try:
            while not asking.done():
                await asyncio.wait((asking, self._next_refresh), return_when=asyncio.FIRST_COMPLETED)
                new_leader = self.cache.leader_for(tp)
                if not asking.done() and new_leader is not None and new_leader != leader:
                    return None
            return asking.result()
        finally:
            asking.cancel()

    async def ask_any_node(self, message: RequestOf[R]) -> tuple[BrokerId, R]:
        """Ask live brokers in any order until one answers; if one is slow, the next is asked as well.

        Returns the broker and its answer. Raises the error of the last broker.
        """
        if not self.cache.nodes:
            await self.refresh()
        nodes = list(self.cache.nodes)
        random.shuffle(nodes)
        upcoming = deque(sorted(nodes, key=lambda node_id: node_id == self._last_failed))
        return await first_answer(upcoming, lambda node_id: self.request(node_id, message), self._node_hedge)

    async def send_oneway(self, node_id: BrokerId, message: RequestOf[Any]) -> None:
        """Send a request without a response (acks=0). Raises ConnectionClosed."""
        try:
            await self.channel(node_id).send_oneway(message)
        except ConnectionClosed:
            self.node_failed(node_id)
            raise

    def invalidate(self, tp: TopicPartition) -> None:
        """Mark the known leader of a partition as wrong, and request a refresh."""
        self.request_refresh(at_once=self.cache.invalidate(tp))

    def node_failed(self, node_id: BrokerId) -> None:
        """Mark a broker as unreachable, because its partitions may have other leaders."""
        self._last_failed = node_id
        if not self.is_closed:
            self.request_refresh(at_once=self.cache.invalidate_node(node_id))

    def metrics(self) -> Metrics:
        """The measurements of `CLIENT_METRICS`. Any thread."""
        traffic = self._traffic
        # Lists, because the loop may add a connection meanwhile.
        channels = [*list(self._channels.values()), *list(self._control.values())]
        return {
            "connection-count": traffic.opened - traffic.closed,
            "connection-creation-total": traffic.opened,
            "connection-close-total": traffic.closed,
            "successful-authentication-total": traffic.authenticated,
            "failed-authentication-total": traffic.refused,
            "request-total": traffic.requests,
            "response-total": traffic.responses,
            "outgoing-byte-total": traffic.sent_bytes,
            "incoming-byte-total": traffic.received_bytes,
            "requests-in-flight": sum(channel.in_flight for channel in channels),
            "metadata-age": since(self._updated_at),
        }

    # Refreshing

    async def refresh(self, *, at_once: bool = False) -> None:
        """Wait for the present refresh, or else a new one. Raises NoBrokerReachable and ClientClosed.

        The present one may not include a topic that was added just now.
        """
        self._check_open()
        refreshing = self.request_refresh(at_once=at_once)
        # Not awaited directly, because a cancelled caller must not cancel it for the others.
        await asyncio.wait((refreshing,))
        self._check_open()
        refreshing.result()

    async def refresh_before(self, deadline: float) -> None:
        """Wait for the next refresh, successful or not, at most until a time of `time.monotonic`."""
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                await self.refresh()
        except (TimeoutError, NoBrokerReachable) as error:
            log.debug("no fresh metadata: %s", error)

    async def refresh_after(self, error: BarnabasError, retries: Retries) -> None:
        """Before a retry, wait for fresh metadata. Raises an error that is permanent or past the deadline."""
        retries.check(error)
        await self.refresh_before(retries.deadline)
        # The next attempt would have no time, and its error would tell nothing.
        retries.check(error)
        retries.failed(error)

    def request_refresh(self, *, at_once: bool = False) -> asyncio.Task[None]:
        """Start a refresh unless one is under way; ``at_once`` skips the pause since the last one."""
        if self._refreshing is None or self._refreshing.done():
            self._refresh_now.clear()
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(self._refreshed)
        if at_once:
            self._refresh_now.set()
        return self._refreshing

    async def _refresh(self) -> None:
        pause = self._last_refresh + self.config.retry_backoff_ms / 1000 - time.monotonic()
        if pause > 0 and not self._refresh_now.is_set():
            try:
                async with asyncio.timeout(pause):
                    await self._refresh_now.wait()
            except TimeoutError:
                pass
        self._last_refresh = time.monotonic()
        names = {name for name in self._topics if self._is_in_use(name)} | self._requested_topics.keys()
        response = await self._ask_about(names, creates=False)
        # Drop topics that are no longer used; otherwise they would stay in the cache, or even be created.
        in_use = self._topics | self._requested_topics.keys()
        topics = [topic for topic in response.topics if topic.name in in_use]
        missing = {
            topic.name
            for topic in topics
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            and topic.name is not None
            and self._may_create(topic.name)
        }
        if missing:
            # A second request, only for topics in use now; otherwise a deleted topic would be recreated.
            response = await self._ask_about(missing, creates=True)
            topics = [topic for topic in topics if topic.name not in missing] + response.topics
        response.topics = topics
        self.cache.update(response)
        self._updated_at = time.monotonic()
        if self.cache.is_stale:
            # A broker without ZooKeeper answers from stale metadata, so others are asked next time.
            self._stale_endpoint = next((endpoint for endpoint, _ in self._control), None)
        self._drop_vanished_nodes()

    async def _ask_about(self, names: Iterable[str], *, creates: bool) -> MetadataResponse:
        topics = [MetadataRequestTopic(name=name) for name in sorted(names)]
        response = await self.ask_any(MetadataRequest(topics=topics, allow_auto_topic_creation=creates))
        raise_for(response.error_code, "this is the answer to Metadata")
        return response

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self.is_closed:
            return
        error = task.exception()
        self.refusal = error if isinstance(error, AuthenticationFailed) else None
        if self.refusal is not None:
            self.refused_at = time.monotonic()
        if error is not None:
            # An outage has many attempts a second.
            if self._is_started and type(error) is not self._refresh_error:
                log.warning("metadata could not be refreshed: %s", error)
            if not isinstance(error, BarnabasError):
                report_bug("the metadata refresh failed", error)
        self._refresh_error = None if error is None else type(error)
        if self._age_timer is not None:
            self._age_timer.cancel()
        self._age_timer = asyncio.get_running_loop().call_later(
            self.config.metadata_max_age_ms / 1000, self.request_refresh
        )
        next_refresh, self._next_refresh = self._next_refresh, asyncio.get_running_loop().create_future()
        next_refresh.set_result(None)
        for listener in self._listeners:
            listener()

    async def ask_any(self, message: MetadataRequest) -> MetadataResponse:
        """Ask brokers one after another until one answers. Raises NoBrokerReachable with every reason.

        Raises AuthenticationFailed if one of them refused and none answered.
        Raises Unencodable, as `request`: every broker would close the connection.
        """
        check_values(message)
        upcoming = deque(self._candidates())
        # An idle connection may have been closed meanwhile, which does not mean that its broker is dead.
        worth_asking_twice = set(self._connected())
        reasons: dict[Endpoint, BarnabasError] = {}

        def failed(endpoint: Endpoint, error: BarnabasError) -> None:
            reasons[endpoint] = error
            if isinstance(error, ConnectionClosed) and endpoint in worth_asking_twice:
                worth_asking_twice.remove(endpoint)
                upcoming.append(endpoint)

        try:
            endpoint, answer = await first_answer(
                upcoming,
                lambda endpoint: self._wires.ask(endpoint, message),
                self._hedge,
                failed,
            )
        except ClientClosed:
            raise
        except BarnabasError:
            for reason in reasons.values():
                if isinstance(reason, AuthenticationFailed):
                    raise reason.again() from None
            tried = "; ".join(f"{endpoint} ({reason})" for endpoint, reason in reasons.items())
            raise NoBrokerReachable(f"no broker could be reached: {tried}") from None
        self._keep_only(endpoint)
        return answer

    def _candidates(self) -> list[Endpoint]:
        """The order to ask in: the connected broker, the known ones in any order, the bootstrap servers.

        A broker that answered with stale metadata comes last.
        """
        known = [node.endpoint for node in self.cache.nodes.values()]
        random.shuffle(known)
        bootstrap = list(self.config.endpoints)
        random.shuffle(bootstrap)
        candidates = dict.fromkeys([*self._connected(), *known, *bootstrap])
        return sorted(candidates, key=lambda endpoint: endpoint == self._stale_endpoint)

    def _connected(self) -> list[Endpoint]:
        """The brokers with a connection for metadata."""
        return [endpoint for (endpoint, _), channel in self._control.items() if channel.is_connected]

    def _control_channel(self, endpoint: Endpoint, wire: Wire) -> Channel:
        channel = self._control.get((endpoint, wire))
        if channel is None or channel.is_closed:
            channel = self._control[endpoint, wire] = self._make_channel(endpoint, wire)
        return channel

    def _keep_only(self, endpoint: Endpoint) -> None:
        """Close the other control connections: one is enough, and these failed or were too slow."""
        for other in [other for other in self._control if other != (endpoint, self._wires.chosen)]:
            self._control.pop(other).close("another broker answers metadata requests")

    def _drop_vanished_nodes(self) -> None:
        """Disconnect from brokers that the cluster no longer counts as live.

        Their answers will not come (a stopped process keeps its sockets open), and waiting for them would
        delay partitions that have other leaders by now.
        """
        for (node_id, _), channel in self._channels.items():
            node = self.cache.nodes.get(node_id)
            if node is None or node.endpoint != channel.endpoint:
                channel.disconnect(f"broker {node_id} is not among the live brokers")

    def _watch(self) -> None:
        """Request a refresh if a broker has not answered any of its requests for two rounds."""
        # Only channels with requests in flight, so that closed ones are dropped.
        self._silent_rounds = {
            channel: self._silent_rounds.get(channel, 0) + 1
            for channel in self._channels.values()
            if channel.in_flight
        }
        if any(rounds >= 2 for rounds in self._silent_rounds.values()):
            self.request_refresh()
        self._watch_timer = asyncio.get_running_loop().call_later(_WATCH_INTERVAL_S, self._watch)

    def _make_channel(self, endpoint: Endpoint, wire: Wire) -> Channel:
        self._check_open()
        config = self.config
        return Channel(
            endpoint,
            client_id=config.client_id,
            request_timeout_ms=config.request_timeout_ms,
            connect_timeout_ms=config.socket_connection_setup_timeout_ms,
            reconnect_backoff_ms=config.reconnect_backoff_ms,
            reconnect_backoff_max_ms=config.reconnect_backoff_max_ms,
            connections_max_idle_ms=config.connections_max_idle_ms,
            max_frame_bytes=config.receive_message_max_bytes,
            pool=self._pool,
            wire=wire,
            security=self._security,
            traffic=self._traffic,
        )

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClientClosed("the client is closed")
