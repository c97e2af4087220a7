"""A world whose time runs by itself: a queue of events, for histories of coordinators and their clients.

Messages take time, and all threads of a broker run now and then. One seeded random generator decides
everything, so a seed always gives the same history.
"""

import heapq
import itertools
import random
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final

from barnabas.protocol.errors import RequestTimedOutLocally
from barnabas.protocol.ids import BrokerId
from tests.simulation.broker import SimBroker
from tests.simulation.ends import heal, mend_the_living
from tests.simulation.member import SESSION_TIMEOUT_MS
from tests.simulation.requests import SimRequest
from tests.simulation.world import Message, World

_LONG_POLL_MS: Final = 500
_TICK_MS: Final = 300
_TICKS_TO_CHECK: Final = 4


class Token:
    """A request at a coordinator; it must be answered once. ``about`` is what its client says of it."""

    def __init__(self, request: Any, broker: SimBroker, about: Any) -> None:
        self.request = request
        self.broker = broker
        self.life = broker.life
        self.about = about
        self.since = -1
        """The leader epoch of the broker's shard; -1 without a shard."""
        self.answers = 0


class TimedWorld(World):
    """`judge` checks a broker after each of its events, and every answer.

    Time does not run before the cluster has come to rest for the first time.
    """

    is_stepped = False
    slow_requests = 0.0
    """The part of a controller's requests after which the next one to the broker is late."""

    def __init__(
        self, draw: random.Random, broker_count: int, min_insync_replicas: int, **settings: Any
    ) -> None:
        self.random = draw
        self.trace: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.judge: Any = None
        self.waiting: set[Token] = set()
        self.deaf_until_ms: dict[BrokerId, float] = {}
        """The brokers that the controller cannot reach, and until when."""
        self.may_shrink: Callable[[SimBroker], bool] = lambda broker: True
        self._broken: AssertionError | None = None
        """A broken promise that was seen in an answer."""
        self.is_faulty = False
        self._delivers_itself = False
        self._ticks = 0
        self._turns: set[tuple[BrokerId, int]] = set()
        super().__init__(broker_count, min_insync_replicas, **settings)
        self.is_faulty = self._delivers_itself = True
        self.at(0, self._tick)

    @abstractmethod
    def run_coordinators(self, broker: SimBroker) -> None:
        """Run the threads of a broker's coordinators once."""

    @abstractmethod
    def has_turned(self, broker: SimBroker) -> None:
        """All threads of a broker have run, or a request was handled."""

    @abstractmethod
    def handle(self, token: Token, request: SimRequest) -> None:
        """Call the handler of a request."""

    @abstractmethod
    def delay(self) -> float:
        """The time that a client's message takes."""

    # Time

    def at(self, delay_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._order), action))

    def run_until(self, end_ms: float, is_done: Callable[[], bool] = lambda: False) -> None:
        while self._events and self._events[0][0] <= end_ms and not is_done():
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
            if self._broken is not None:
                raise self._broken
        if not is_done():
            self.now_ms = end_ms

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_ms / 1000:.1f} {text}")

    def chance(self, probability: float) -> bool:
        """Whether a fault happens."""
        return self.is_faulty and self.random.random() < probability

    def end_faults(self) -> None:
        """All faults end, but lost brokers stay down."""
        self.is_faulty = False
        self.deaf_until_ms.clear()
        if any(host.is_lost for host in self.hosts.values()):
            mend_the_living(self)
        else:
            heal(self)

    # Brokers

    def _tick(self) -> None:
        self.zookeeper.expire_silent(SESSION_TIMEOUT_MS)
        for host in self.hosts.values():
            if host.can_act:
                host.member.sentinel()
                host.member.time_passes()
        while self.control():
            continue
        for broker in self.brokers.values():
            if broker.can_act:
                broker.reaper.expire_due(int(broker.now_ms()))
                if self.may_shrink(broker):
                    self.shrink(broker.id)
                self._turn(broker)
        self._ticks += 1
        if self._ticks % _TICKS_TO_CHECK == 0:
            self.check()
        self.at(_TICK_MS, self._tick)

    def turn_soon(self, broker: SimBroker) -> None:
        key = broker.id, broker.life
        if key not in self._turns:
            self._turns.add(key)

            def turn() -> None:
                self._turns.discard(key)
                if broker.life == key[1]:
                    self._turn(broker)

            self.at(self.random.uniform(0, 3), turn)

    def _turn(self, broker: SimBroker) -> None:
        """Run all threads of a broker once."""
        if not broker.can_act:
            return
        while self._hear_control(broker.id):
            continue
        broker.replicas.wake_followers()
        self.fetch(broker.id, max_wait_ms=_LONG_POLL_MS)
        self.work_off(broker.id)
        if self.random.random() < 0.5:
            # Loading takes time.
            self.run_coordinators(broker)
        self.has_turned(broker)

    def _hear_control(self, broker: BrokerId) -> bool:
        """The next request of each controller arrives, unless the broker is deaf; False without any."""
        if self.now_ms < self.deaf_until_ms.get(broker, 0.0):
            return False
        has_heard = [self.deliver_control(channels, broker) for channels in list(self.channels)]
        if any(has_heard) and self.chance(self.slow_requests):
            self.deaf_until_ms[broker] = self.now_ms + self.random.uniform(0, 3_000)
        return any(has_heard)

    def send(self, source: BrokerId, target: BrokerId, act: Callable[[], None]) -> Message:
        message = super().send(source, target, act)
        if self._delivers_itself:
            self.at(self.random.uniform(0, 5), lambda: self._arrive(message))
        return message

    def _arrive(self, message: Message) -> None:
        if message not in self.messages:
            return
        target = self.hosts[message.target]
        if target.is_paused:
            self.at(50, lambda: self._arrive(message))
            return
        self.deliver(self.messages.index(message))
        if target.id in self.brokers:
            self.turn_soon(target)

    def deliver(self, index: int = 0) -> bool:
        if self.messages:
            message = self.messages[index]
            target = self.hosts[message.target]
            is_cut = frozenset((message.source, message.target)) in self.cut
            if is_cut or not target.is_up or target.life != message.target_life:
                self.at(self.random.uniform(100, 1_500), lambda: self._time_out(message))
        return super().deliver(index)

    def _time_out(self, lost: Message) -> None:
        """A fetch, or a request of a controller, gets no answer, and will be sent again."""
        for here, there in ((lost.source, lost.target), (lost.target, lost.source)):
            if here in self.hosts and (fetcher := self.hosts[here].fetchers.table.fetchers.get(there)):
                fetcher.lose(RequestTimedOutLocally("no answer in time"))
            for channels in self.channels:
                if channels.source == here:
                    channels.time_out(there)

    # Clients

    def request(
        self,
        target: SimBroker | None,
        body: Any,
        answered: Callable[[Any], None],
        api_version: int | None = None,
        about: Any = None,
    ) -> None:
        """Send a request to a broker; the request or its answer may get lost."""
        if target is None or self.chance(0.03):
            return
        life = target.life

        def arrive() -> None:
            if target.is_paused:
                self.at(100, arrive)
            elif target.is_up and target.life == life:
                self._arrived(Token(body, target, about), answered, api_version)

        self.at(self.delay(), arrive)

    def _arrived(self, token: Token, answered: Callable[[Any], None], api_version: int | None) -> None:
        broker = token.broker
        self.waiting.add(token)

        def respond(response: Any) -> None:
            token.answers += 1
            assert token.answers == 1, f"answered {token.answers} times: {token.request}: {response}"
            self.waiting.discard(token)
            if broker.life != token.life or not broker.is_up:
                return
            try:
                self.judge.check_answer(token, response)
            except AssertionError as error:
                # A coordinator contains the errors of one answer, to give the others theirs.
                self._broken = error
            if not self.chance(0.03):
                self.at(self.delay(), lambda: answered(response))

        self.handle(token, SimRequest(token.request, respond, api_version))
        self.has_turned(broker)
        self.turn_soon(broker)

    def forget_lost_requests(self) -> None:
        """Forget the requests at processes that have ended."""
        self.waiting = {
            token for token in self.waiting if token.broker.is_up and token.life == token.broker.life
        }
