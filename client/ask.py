"""One loop for all requests that are repeated until they have an outcome, and the routes that they take.

A route finds the broker, knows which error codes of an answer are errors of the whole request, and what comes
before the next attempt. The codes are found in the declaration of the answer. A request whose answer was lost
may have been carried out: `Answered.is_doubtful`.

Belongs to the event loop of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from barnabas.client.cluster import Cluster
from barnabas.client.coordinators import CoordinatorLink
from barnabas.client.reactions import REPEATED, Api, Reaction, reaction_to, severity
from barnabas.common.backoff import Retries
from barnabas.protocol.answer_codes import codes_of
from barnabas.protocol.errors import (
    ApiError,
    AuthenticationFailed,
    BarnabasError,
    ConnectionClosed,
    ConnectionRefused,
    ErrorCode,
    LocalError,
    RequestTimedOutLocally,
    api_error,
)
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.schema import RequestOf

K = TypeVar("K")
R = TypeVar("R")
log = logging.getLogger(__name__)

AnswerOfOne = Mapping[TopicPartition, R | BarnabasError]
AskOne = Callable[[BrokerId, Sequence[TopicPartition], int], Awaitable[AnswerOfOne[R]]]
"""Asks one broker about some partitions, within a time in ms; raises what concerns all of them."""

_AT_ONCE: Final = 32
"""The number of parallel requests; enough to hide the round trips."""
_UNMUTED_S: Final = 0.1
"""After a deadline: until then a channel that is not muted has ended the attempt itself."""


class Answered(NamedTuple, Generic[R]):
    """An answer and its broker. Doubtful: an earlier attempt may have carried out the request, or a part."""

    response: R
    node_id: BrokerId
    is_doubtful: bool


@dataclass
class Route(ABC):
    """The way of one request: an object for each call."""

    cluster: Cluster
    subject: str | Callable[[int], str] = ""
    """The subject that errors name; it may depend on the code. If empty, the caller judges the codes."""
    _: KW_ONLY
    is_wanted: Callable[[], bool] = lambda: True
    """When the answer is not wanted any more, the last error is raised."""

    @abstractmethod
    async def find(self, retries: Retries) -> BrokerId:
        """The broker to ask now."""

    async def send(self, message: RequestOf[R], retries: Retries) -> tuple[BrokerId, R]:
        """One attempt."""
        node_id = await self.find(retries)
        limit_ms = retries.left_ms(self.cluster.config.request_timeout_ms)
        return node_id, await self.cluster.request(node_id, message, timeout_ms=limit_ms)

    def check(self, codes: list[int]) -> None:
        """Raise the error of an answer, the most severe one if it has several."""
        subject = self.subject
        errors = [
            api_error(code, subject(code) if callable(subject) else subject)
            for code in codes or [int(ErrorCode.UNKNOWN_SERVER_ERROR)]
            if subject and code != ErrorCode.NONE
        ]
        if errors:
            raise max(errors, key=self.severity_of)

    def severity_of(self, error: ApiError) -> int:
        return 0

    async def before_next(self, error: BarnabasError, retries: Retries) -> None:
        """Wait before the next attempt. Raises the error if it is permanent, or after the deadline."""
        if not self.is_wanted():
            raise error
        await self.cluster.refresh_after(error, retries)


async def ask(route: Route, message: RequestOf[R], retries: Retries) -> Answered[R]:
    """Repeat a request until the route accepts its answer.

    Raises permanent errors, and the last one after the deadline.
    """
    is_doubtful = False
    while True:
        codes: list[int] = []
        try:
            node_id, response = await _within(retries.deadline, route.send(message, retries))
            codes = codes_of(response)
            route.check(codes)
            return Answered(response, node_id, is_doubtful)
        except BarnabasError as failure:
            error = failure
            log.debug("%s: %s", type(message).__name__, error)
        # It may have been the controller for the first of several topics.
        is_doubtful = is_doubtful or ErrorCode.NONE in codes or may_be_done(error)
        await route.before_next(error, retries)


async def _within(deadline: float, attempt: Coroutine[Any, Any, R]) -> R:
    """The channel ends an attempt at the deadline, unless the broker mutes it for longer, by a quota."""
    left_s = deadline - time.monotonic() + _UNMUTED_S
    try:
        async with asyncio.timeout(left_s if left_s < math.inf else None):
            return await attempt
    except TimeoutError:
        text = "no answer in time; a quota of this client may delay it for longer than it waits"
        raise RequestTimedOutLocally(text) from None


def may_be_done(error: BarnabasError) -> bool:
    """Whether the request may have been carried out, although there is no answer."""
    return isinstance(error, RequestTimedOutLocally) or (
        isinstance(error, ConnectionClosed)
        and not isinstance(error, ConnectionRefused | AuthenticationFailed)
    )


class ToController(Route):
    """To the controller. Other codes than NOT_CONTROLLER are for the caller."""

    async def find(self, retries: Retries) -> BrokerId:
        return self.cluster.cache.controller_id

    def check(self, codes: list[int]) -> None:
        if ErrorCode.NOT_CONTROLLER in codes:
            raise api_error(ErrorCode.NOT_CONTROLLER)


@dataclass
class ToBroker(Route):
    """To one broker, or if it is None, to one after the other."""

    node_id: BrokerId | None = None
    _attempt: int = field(default=-1, init=False)

    async def find(self, retries: Retries) -> BrokerId:
        if self.node_id is not None:
            return self.node_id
        self._attempt += 1
        nodes = sorted(self.cluster.cache.nodes)
        return nodes[self._attempt % len(nodes)] if nodes else self.cluster.cache.controller_id


@dataclass
class ToLeader(Route):
    """To the leader of a partition."""

    _: KW_ONLY
    tp: TopicPartition

    async def find(self, retries: Retries) -> BrokerId:
        return (await self.cluster.leader(self.tp, retries.left_ms())).node_id

    async def before_next(self, error: BarnabasError, retries: Retries) -> None:
        self.cluster.invalidate(self.tp)
        await super().before_next(error, retries)


@dataclass
class ToCoordinator(Route):
    """To the coordinator of a group or a transactional id; the table of reactions says what is repeated."""

    cluster: Cluster = field(init=False)
    _: KW_ONLY
    link: CoordinatorLink
    api: Api
    last_version: int | None = None
    """The last version of Kafka's protocol that the request may have."""
    unanswered: Callable[[], None] = lambda: None
    """Called if the request may have been carried out without an answer."""

    def __post_init__(self) -> None:
        self.cluster = self.link.cluster

    async def find(self, retries: Retries) -> BrokerId:
        return await self.link.find(retries.left_ms(self.cluster.config.request_timeout_ms))

    async def send(self, message: RequestOf[R], retries: Retries) -> tuple[BrokerId, R]:
        node_id = await self.find(retries)
        limit_ms = retries.left_ms(self.cluster.config.request_timeout_ms)
        answer = await self.link.ask(message, timeout_ms=limit_ms, last_version=self.last_version)
        return node_id, answer

    def severity_of(self, error: ApiError) -> int:
        return severity(self.api, error)

    async def before_next(self, error: BarnabasError, retries: Retries) -> None:
        if isinstance(error, LocalError) and not isinstance(error, ConnectionRefused):
            self.unanswered()
        reaction = reaction_to(self.api, error)
        if reaction is Reaction.FIND_COORDINATOR:
            self.link.forget()
        if reaction not in REPEATED or not self.is_wanted():
            raise error
        await retries.wait_after(error)


# Several brokers


async def for_each(keys: Iterable[K], work: Callable[[K], Coroutine[Any, Any, R]]) -> dict[K, R]:
    """Do the work for all keys in parallel; returns the results in their order. Raises the first failure."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(key: K) -> R:
        async with turns:
            return await work(key)

    tasks = {key: asyncio.create_task(in_turn(key)) for key in dict.fromkeys(keys)}
    try:
        return dict(zip(tasks, await asyncio.gather(*tasks.values()), strict=True))
    finally:
        for task in tasks.values():
            task.cancel()


async def ask_all(cluster: Cluster, message: RequestOf[R], what: str, timeout_ms: int) -> dict[BrokerId, R]:
    """The answers of all live brokers to a request for a list of what they have.

    Those that die meanwhile are left out: what they coordinated has moved to brokers that are also asked.
    """
    retries = cluster.config.make_retries(timeout_ms)

    async def ask_one(node_id: BrokerId) -> R | None:
        def is_wanted() -> bool:
            return node_id in cluster.cache.nodes or retries.is_over

        route = ToBroker(cluster, f"broker {node_id} did not list {what}", node_id, is_wanted=is_wanted)
        try:
            return (await ask(route, message, retries)).response
        except BarnabasError as error:
            if is_wanted() or not error.retriable:
                raise
            return None

    answers = await for_each(cluster.cache.nodes, ask_one)
    return {node_id: answer for node_id, answer in answers.items() if answer is not None}


def check_alive(cluster: Cluster, broker_ids: Iterable[int]) -> None:
    """Raises BROKER_NOT_AVAILABLE for an id that no live broker has, as far as the metadata tells."""
    missing = set(broker_ids) - {int(node_id) for node_id in cluster.cache.nodes}
    if missing:
        text = f"no live broker has the id {min(missing)}; the live ones are {sorted(cluster.cache.nodes)}"
        raise api_error(ErrorCode.BROKER_NOT_AVAILABLE, text)


async def ask_leaders(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    timeout_ms: int,
    ask_one: AskOne[R],
    at_once: int = sys.maxsize,
) -> dict[TopicPartition, R]:
    """The answer for each partition; leaders that fail or have moved are asked again.

    ``ask_one`` asks a broker once about at most ``at_once`` partitions, within a time in ms. Raises permanent
    errors, and the last one after the timeout.
    """
    results: dict[TopicPartition, R] = {}
    retries = cluster.config.make_retries(timeout_ms)
    with cluster.asking_about({tp.topic for tp in partitions}):
        while True:
            by_leader: dict[BrokerId, list[TopicPartition]] = {}
            for tp in partitions:
                if tp not in results:
                    try:
                        leader = await cluster.leader(tp, retries.left_ms())
                    except BarnabasError as failure:
                        retries.check(failure)
                        raise
                    by_leader.setdefault(leader.node_id, []).append(tp)
            error: BarnabasError | None = None
            limit_ms = retries.left_ms(cluster.config.request_timeout_ms)
            for tp, result in (await ask_brokers(by_leader, ask_one, limit_ms, at_once)).items():
                if not isinstance(result, BarnabasError):
                    results[tp] = result
                elif error is None or not result.retriable:
                    error = result
            if error is None:
                return {tp: results[tp] for tp in partitions}
            await cluster.refresh_after(error, retries)


def results_of(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    answers: Mapping[TopicPartition, Any],
    text: Callable[[TopicPartition], str],
    result: Callable[[TopicPartition, Any], R],
) -> dict[TopicPartition, R | BarnabasError]:
    """The result or the error of each partition in one broker's answer, which may lack some.

    The leader is forgotten after a retriable error, because another broker may lead.
    """
    results: dict[TopicPartition, R | BarnabasError] = {}
    for tp in partitions:
        answer = answers.get(tp)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else answer.error_code
        if answer is not None and code == ErrorCode.NONE:
            results[tp] = result(tp, answer)
            continue
        results[tp] = error = api_error(code, getattr(answer, "error_message", None) or text(tp))
        if error.retriable:
            cluster.invalidate(tp)
    return results


async def ask_brokers(
    by_broker: Mapping[BrokerId, Sequence[K]],
    ask_one: Callable[[BrokerId, Sequence[K], int], Awaitable[Mapping[K, R | BarnabasError]]],
    limit_ms: int,
    at_once: int,
) -> dict[K, R | BarnabasError]:
    """Ask each broker once; the answer or the error of each partition, group or transactional id."""
    requests = [
        (node_id, tuple(keys[first : first + at_once]))
        for node_id, keys in by_broker.items()
        for first in range(0, len(keys), at_once)
    ]

    async def ask_for(request: tuple[BrokerId, tuple[K, ...]]) -> Mapping[K, R | BarnabasError]:
        try:
            return await ask_one(*request, limit_ms)
        except BarnabasError as error:
            return dict.fromkeys(request[1], error)

    answers = await for_each(requests, ask_for)
    return {key: result for answer in answers.values() for key, result in answer.items()}
