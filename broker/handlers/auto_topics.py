"""Creates unknown topics that clients request (``auto.create.topics.enable``).

The request gets LEADER_NOT_AVAILABLE at once, and the client retries as with Apache Kafka. Meanwhile a thread
creates the topic through the controller, in this process or over its inter-broker listener. A topic has at
most one creation in progress, a result is remembered for a second, and the number of creations in progress is
bounded. An error that a retry would not change (too few brokers for ``default.replication.factor``) answers
all requests within that second.

The brokers' own topics are created in the same way, but only when a broker asks, regardless of
``auto.create.topics.enable``. Clients cannot create them by name: Metadata does not ask for them.

Any thread may ask; no call waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from barnabas.broker.base.limited_log import LimitedLog
from barnabas.broker.base.slow_work import SlowWork
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.internal_topic import new_topic
from barnabas.common.channel import Channel
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.common.workers import WorkRefused
from barnabas.protocol.errors import ApiError, ErrorCode, LocalError, is_retriable
from barnabas.protocol.ids import BrokerId, Endpoint
from barnabas.protocol.messages.topics import CreatableTopic, CreatableTopicResult, CreateTopicsRequest

logger = logging.getLogger(__name__)

MAX_IN_PROGRESS: Final = 1_000
_REMEMBERED_MS: Final = 1_000
_REQUEST_TIMEOUT_MS: Final = 10_000

Create = Callable[[Sequence[str]], Mapping[str, ErrorCode]]
"""Creates topics with the brokers' defaults; blocks. Raises LocalError if no controller could be reached."""


class _Answer(NamedTuple):
    code: ErrorCode
    until_ms: float = math.inf


class AutoTopicCreation:
    def __init__(
        self, create: Create, work: SlowWork, *, now_ms: Callable[[], float], is_enabled: bool
    ) -> None:
        self.is_enabled = is_enabled
        self._create = create
        self._work = work
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._answers: dict[str, _Answer] = {}
        """Without a time limit while the creation is in progress."""
        self._report = LimitedLog(logger, logging.WARNING, now_ms)

    def ask(
        self, names: Collection[str], on_new: Callable[[int], None] = lambda count: None
    ) -> dict[str, ErrorCode]:
        """Have unknown topics created; returns LEADER_NOT_AVAILABLE or a lasting error for each.

        The names are valid. ``on_new`` is called with the number of creations that begin, unless none does.
        """
        answers: dict[str, ErrorCode] = {}
        new_names: list[str] = []
        now_ms = self._now_ms()
        with self._lock:
            self._answers = {name: each for name, each in self._answers.items() if now_ms < each.until_ms}
            for name in names:
                if name not in self._answers and len(self._answers) < MAX_IN_PROGRESS:
                    self._answers[name] = _Answer(ErrorCode.LEADER_NOT_AVAILABLE)
                    new_names.append(name)
                answer = self._answers.get(name)
                answers[name] = ErrorCode.LEADER_NOT_AVAILABLE if answer is None else answer.code
        if new_names:
            on_new(len(new_names))
            try:
                self._work.submit(lambda error: self._done(new_names, {}), self._run, new_names)
            except WorkRefused as error:
                self._failed(new_names, error)
        return answers

    def _run(self, names: list[str]) -> None:
        try:
            self._done(names, self._create(names))
        except (ApiError, LocalError) as error:
            self._failed(names, error)

    def _failed(self, names: list[str], error: Exception) -> None:
        self._report("topic %s and others, %d in all, are not created now: %s", names[0], len(names), error)
        self._done(names, {})

    def _done(self, names: Sequence[str], results: Mapping[str, ErrorCode]) -> None:
        """Remember each result; a topic without a lasting result may be asked for again."""
        until_ms = self._now_ms() + _REMEMBERED_MS
        with self._lock:
            for name in names:
                self._answers.pop(name, None)
                code = results.get(name)
                if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT):
                    self._answers[name] = _Answer(ErrorCode.LEADER_NOT_AVAILABLE, until_ms)
                elif code is not None and not is_retriable(code):
                    self._report("topic %s is not created: %s", name, code.name)
                    self._answers[name] = _Answer(code, until_ms)


def make_creator(
    config: BrokerConfig,
    create_here: Callable[[Sequence[CreatableTopic]], list[CreatableTopicResult]],
    is_controller: Callable[[], bool],
    controller_endpoint: Callable[[], Endpoint | None],
    security: ChannelSecurity = PLAINTEXT,
) -> Create:
    """Creates topics through ``create_here`` on the controller's broker, elsewhere by a request to it."""

    def create(names: Sequence[str]) -> Mapping[str, ErrorCode]:
        topics = [new_topic(name, config) for name in names]
        if is_controller():
            results = create_here(topics)
        elif (endpoint := controller_endpoint()) is not None:
            results = asyncio.run(_request_creation(config.broker_id, endpoint, topics, security))
        else:
            return {}
        return {result.name: ErrorCode(result.error_code) for result in results}

    return create


async def _request_creation(
    broker_id: BrokerId, controller: Endpoint, topics: Sequence[CreatableTopic], security: ChannelSecurity
) -> list[CreatableTopicResult]:
    channel = Channel(
        controller,
        client_id=f"broker-{broker_id}-topics",
        request_timeout_ms=_REQUEST_TIMEOUT_MS,
        security=security,
    )
    try:
        # The answer must not wait for the leaders: one slow topic would delay the next.
        response = await channel.request(CreateTopicsRequest(topics=list(topics), timeout_ms=0))
    finally:
        channel.close()
    return response.topics
