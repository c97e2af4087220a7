"""Following in the simulation: the real table and the real decisions, with the world's network for sockets.

Role changes queue their orders, and the fetchers carry them out later, as their thread does. Until then a
fetcher keeps its old state, and answers may arrive in between.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barnabas.broker.handlers import fetch as fetch_handler
from barnabas.broker.network.request import Buffers, Peer
from barnabas.broker.replication.fetcher_state import REFRESHES, FollowedPartition, LeaderFetches
from barnabas.broker.replication.fetcher_thread import FetcherTable, FollowedLeader
from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import LocalError, RequestTimedOutLocally
from barnabas.protocol.ids import BrokerId, Endpoint, TopicPartition
from barnabas.protocol.messages.fetch import PUSHES, FetchRequest, FetchResponse
from tests.simulation.requests import LISTENER, SimRequest

if TYPE_CHECKING:
    from tests.simulation.broker import SimBroker
    from tests.simulation.world import World

REFRESH_MS = 100
_ONE_MEBIBYTE = 1 << 20


@dataclass(slots=True)
class SimFetcherConfig:
    """The settings of a broker that its fetchers read; each step of the world sets them."""

    broker_id: BrokerId
    replica_fetch_wait_max_ms: int = 0
    replica_fetch_min_bytes: int = 1
    replica_fetch_max_bytes: int = _ONE_MEBIBYTE
    replica_fetch_response_max_bytes: int = _ONE_MEBIBYTE
    replica_fetch_backoff_ms: int = REFRESH_MS
    replica_lag_time_max_ms: int = REFRESHES * REFRESH_MS


class _Stream:
    """One direction of a connection: what arrives early waits, and behind a lost message nothing arrives.

    Fetches alone would not need the order, so without pushes it is not kept.
    """

    def __init__(self, is_ordered: bool) -> None:
        self._is_ordered = is_ordered
        self._sent = itertools.count()
        self._next = 0
        self._early: dict[int, Callable[[], None]] = {}

    def in_order(self, act: Callable[[], None]) -> Callable[[], None]:
        if not self._is_ordered:
            return act
        number = next(self._sent)

        def arrive() -> None:
            self._early[number] = act
            while (ready := self._early.pop(self._next, None)) is not None:
                self._next += 1
                ready()

        return arrive


class _Connection:
    def __init__(self, is_ordered: bool) -> None:
        self.peer = Peer("1", "h", LISTENER, 0)
        self.there, self.back = _Stream(is_ordered), _Stream(is_ordered)


class SimFetcher:
    """One connection to one leader, with at most one fetch in flight."""

    def __init__(self, world: World, broker: SimBroker, leader: BrokerId, endpoint: Endpoint) -> None:
        self.leader = leader
        self.endpoint = endpoint
        config: Any = broker.fetchers.config
        self.fetches = LeaderFetches(
            config,
            leader,
            broker.metadata,
            broker_epoch=lambda: broker.replicas.roles.broker_epoch,
            note_error=broker.replicas.disk_failures.note,
            subscribes=world.pushes,
        )
        self._connection = _Connection(world.pushes)
        self._world = world
        self._broker = broker
        self._awaited: object | None = None
        self._paused_until_ms = 0.0
        self._is_nudging = False

    @property
    def is_waiting(self) -> bool:
        return self._awaited is not None

    def add(self, name: TopicPartition, followed: FollowedPartition) -> None:
        self.fetches.followed.add(name, followed)
        self._paused_until_ms = 0.0
        if self.is_waiting and not self._is_nudging:
            self._is_nudging = True
            self._send(self.fetches.nudge(), self._nudged)

    def remove(self, name: TopicPartition) -> None:
        self.fetches.followed.remove(name)

    def close(self) -> None:
        self._awaited = None

    def _nudged(self, response: FetchResponse) -> None:
        self._is_nudging = False

    def step(self) -> bool:
        """Send the next fetch, unless one is in flight or it is not due; returns whether it sent one."""
        now_ms = self._broker.now_ms()
        if self.is_waiting or now_ms < self._paused_until_ms:
            return False
        request, pause_s = self.fetches.next_request(now_ms / 1000)
        if request is None:
            self._pause(pause_s or 0.0)
            return False
        token = self._awaited = object()

        def apply(response: FetchResponse) -> None:
            if self._awaited is token:
                self._awaited = None
                pause_s = self.fetches.answered(response, self._broker.now_ms() / 1000, 0)
                self._report()
                # In a stepped world the caller chooses when it fetches again.
                if self.fetches.is_subscribed and not self._world.is_stepped:
                    pause_s = request.max_wait_ms / 1000
                self._pause(pause_s)

        self._send(request, apply)
        return True

    def lose(self, error: LocalError) -> None:
        """Lose the connection or time out: the answer is ignored, though the leader may still act."""
        self._is_nudging = False
        if self.is_waiting or self.fetches.is_subscribed:
            self._awaited = None
            self._connection = _Connection(self._world.pushes)
            self._pause(self.fetches.failed(error).pause_s)

    def _pause(self, seconds: float) -> None:
        self._paused_until_ms = self._broker.now_ms() + seconds * 1000

    def _report(self) -> None:
        progress = self.fetches.progress(self._broker.now_ms() / 1000)
        self._broker.replicas.wake_consumers(self.fetches.take_moved())
        if progress is not None:
            leader, connection = self._world.brokers[self.leader], self._connection
            request: Any = SimRequest(progress, _no_answer, peer=connection.peer)
            self._send_there(lambda: fetch_handler.handle_progress(leader.services, request))

    def _send_there(self, act: Callable[[], None]) -> None:
        self._world.send(self._broker.id, self.leader, self._connection.there.in_order(act))

    def _send(self, request: FetchRequest, heard: Callable[[FetchResponse], None]) -> None:
        world, follower, leader = self._world, self._broker.id, self._world.brokers[self.leader]
        connection = self._connection

        def answer(response: FetchResponse) -> None:
            # The bytes leave the leader now; later changes of its log do not affect them.
            for topic in response.responses:
                for data in topic.partitions:
                    if isinstance(data.records, memoryview):
                        data.records = memoryview(bytes(data.records))
            world.send(leader.id, follower, connection.back.in_order(lambda: heard(response)))

        def push(buffers: Buffers) -> bool:
            payload = memoryview(b"".join(buffers))[4:]
            world.send(leader.id, follower, connection.back.in_order(lambda: arrive(payload)))
            return True

        def arrive(payload: memoryview) -> None:
            if self._connection is connection:
                opened = codec_msgpack.open_response(payload)
                assert opened.correlation_id == PUSHES
                was_subscribed = self.fetches.is_subscribed
                self.fetches.pushed(opened.body(FetchResponse), self._broker.now_ms() / 1000, 0)
                self._report()
                if was_subscribed and not self.fetches.is_subscribed:
                    self._paused_until_ms = 0.0

        sent: Any = SimRequest(request, answer, peer=connection.peer, push=push)
        self._send_there(lambda: fetch_handler.handle(leader.services, sent))


def _no_answer(response: object) -> None:
    raise AssertionError("progress is answered")


class SimFetchers:
    """The fetchers of one broker, with the interface of `FetcherManager`."""

    def __init__(self, world: World, broker: SimBroker) -> None:
        self.config = SimFetcherConfig(broker.id)
        self.table = FetcherTable(
            lambda name: broker.replicas.roles.partitions.get(name),
            lambda leader, endpoint: SimFetcher(world, broker, leader, endpoint),
        )
        self._orders: deque[Callable[[], None]] = deque()

    def follow(self, leaders: Mapping[TopicPartition, FollowedLeader]) -> None:
        if leaders:
            ordered = dict(leaders)
            self._orders.append(lambda: self.table.follow(ordered))

    def unfollow(self, names: Iterable[TopicPartition]) -> None:
        ordered = list(names)
        if ordered:
            self._orders.append(lambda: self.table.unfollow(ordered))

    def take_orders(self) -> None:
        """Carry out the queued orders, as the fetchers' thread does."""
        while self._orders:
            self._orders.popleft()()

    def step(self, *, max_wait_ms: int, max_bytes: int) -> bool:
        """Send every fetch that is due; returns whether there was one."""
        self.take_orders()
        self.config.replica_fetch_wait_max_ms = max_wait_ms
        self.config.replica_fetch_max_bytes = max_bytes
        sent = [fetcher.step() for fetcher in self.table.fetchers.values()]
        return any(sent)

    def lose_answers(self, error: LocalError | None = None) -> None:
        for fetcher in self.table.fetchers.values():
            fetcher.lose(error or RequestTimedOutLocally("no answer in time"))

    def start(self) -> None:
        return

    def stop(self) -> None:
        return
