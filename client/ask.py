"""One loop for all requests that are repeated until they have an outcome, and the routes that they take.

A route finds the broker, knows which error codes of an answer are errors of the whole request, and what comes
before the next attempt. The codes are found in the declaration of the answer. A request whose answer was lost
may have been carried out: `Answered.is_doubtful`.

Belongs to the event loop of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from barnabas.client.cluster import Cluster
from barnabas.client.coordinators import CoordinatorLink
from barnabas.client.reactions import REPEATED, Api, Reaction, reaction_to, severity
from barnabas.common.backoff import Retries
from barnabas.protocol.answer_codes import codes_of
from barnabas.protocol.errors import (
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


class Answered(NamedTuple, Generic[R]):
    """An answer and its broker. Doubtful: an earlier attempt may have carried out the request, or a part."""

    response: R
    node_id: BrokerId
    is_doubtful: bool


class Route(ABC):
    """The way of a request. ``subject`` says in errors what was asked for."""

    def __init__(self, cluster: Cluster, subject: str = "") -> None:
        self.cluster = cluster
        self.subject = subject

    @abstractmethod
    async def find(self, retries: Retries) -> BrokerId:
        """The broker to ask now."""

    async def send(self, message: RequestOf[R], retries: Retries) -> tuple[BrokerId, R]:
        """One attempt."""
        node_id = await self.find(retries)
        limit_ms = retries.left_ms(self.cluster.config.request_timeout_ms)
        return node_id, await self.cluster.request(node_id, message, timeout_ms=limit_ms)

    def check(self, codes: list[int]) -> None:  # noqa: B027 - many routes have nothing to check
        """Raise the error of an answer. By default its codes are for the caller."""

    async def before_next(self, error: BarnabasError, retries: Retries) -> None:
        """Wait before the next attempt. Raises the error if it is permanent, or after the deadline."""
        await self.cluster.refresh_after(error, retries)

    def _raise_first(self, codes: list[int]) -> None:
        code = next(filter(None, codes or [int(ErrorCode.UNKNOWN_SERVER_ERROR)]), ErrorCode.NONE)
        if code != ErrorCode.NONE:
            raise api_error(code, self.subject)


async def ask(route: Route, message: RequestOf[R], retries: Retries) -> Answered[R]:
    """Repeat a request until the route accepts its answer.

    Raises permanent errors, and the last one after the deadline.
    """
    is_doubtful = False
    while True:
        codes: list[int] = []
        try:
            node_id, response = await route.send(message, retries)
            codes = codes_of(response)
            route.check(codes)
            return Answered(response, node_id, is_doubtful)
        except BarnabasError as failure:
            error = failure
            log.debug("%s: %s", type(message).__name__, error)
        # It may have been the controller for the first of several topics.
        is_doubtful = is_doubtful or ErrorCode.NONE in codes or may_be_done(error)
        await route.before_next(error, retries)


def may_be_done(error: BarnabasError) -> bool:
    """Whether the request may have been carried out, although there is no answer."""
    return isinstance(error, RequestTimedOutLocally) or (
        isinstance(error, ConnectionClosed) and not isinstance(error, ConnectionRefused)
    )


class ToController(Route):
    """To the controller. Other codes than NOT_CONTROLLER are for the caller."""

    async def find(self, retries: Retries) -> BrokerId:
        return self.cluster.cache.controller_id

    def check(self, codes: list[int]) -> None:
        if ErrorCode.NOT_CONTROLLER in codes:
            raise api_error(ErrorCode.NOT_CONTROLLER)


class ToBroker(Route):
    """To one broker, or if it is None, to one after the other."""

    def __init__(self, cluster: Cluster, node_id: BrokerId | None) -> None:
        super().__init__(cluster)
        self._node_id = node_id
        self._attempt = -1

    async def find(self, retries: Retries) -> BrokerId:
        if self._node_id is not None:
            return self._node_id
        self._attempt += 1
        nodes = sorted(self.cluster.nodes)
        return nodes[self._attempt % len(nodes)] if nodes else self.cluster.cache.controller_id


class ToLeader(Route):
    """To the leader of a partition."""

    def __init__(self, cluster: Cluster, tp: TopicPartition, subject: str) -> None:
        super().__init__(cluster, subject)
        self._tp = tp

    async def find(self, retries: Retries) -> BrokerId:
        leader = self.cluster.leader_for(self._tp) or await self.cluster.leader(self._tp, retries.left_ms())
        return leader.node_id

    def check(self, codes: list[int]) -> None:
        self._raise_first(codes)

    async def before_next(self, error: BarnabasError, retries: Retries) -> None:
        self.cluster.invalidate(self._tp)
        await super().before_next(error, retries)


class ToCoordinator(Route):
    """To the coordinator of a group or a transactional id; the table of reactions says what is repeated."""

    def __init__(
        self,
        link: CoordinatorLink,
        api: Api,
        subject: str | Callable[[int], str],
        *,
        last_version: int | None = None,
        unanswered: Callable[[], None] = lambda: None,
        is_wanted: Callable[[], bool] = lambda: True,
        ignored: Collection[int] = (),
    ) -> None:
        """``subject`` may depend on the code; ``last_version`` is the last of Kafka's protocol to use.

        ``unanswered`` is called if the request may have been carried out without an answer. When the answer
        is not ``is_wanted`` any more, the last error is raised. ``ignored`` codes are no errors.
        """
        super().__init__(link.cluster)
        self.api = api
        self._link = link
        self._text = subject if callable(subject) else lambda code: subject
        self._last_version = last_version
        self._unanswered = unanswered
        self._is_wanted = is_wanted
        self._ignored = ignored

    async def find(self, retries: Retries) -> BrokerId:
        return await self._link.find(retries.left_ms(self.cluster.config.request_timeout_ms))

    async def send(self, message: RequestOf[R], retries: Retries) -> tuple[BrokerId, R]:
        node_id = await self.find(retries)
        limit_ms = retries.left_ms(self.cluster.config.request_timeout_ms)
        answer = await self._link.ask(message, timeout_ms=limit_ms, last_version=self._last_version)
        return node_id, answer

    def check(self, codes: list[int]) -> None:
        errors = [
            api_error(code, self._text(code))
            for code in codes or [int(ErrorCode.UNKNOWN_SERVER_ERROR)]
            if code != ErrorCode.NONE and code not in self._ignored
        ]
        if errors:
            raise max(errors, key=lambda error: severity(reaction_to(self.api, error)))

    async def before_next(self, error: BarnabasError, retries: Retries) -> None:
        if isinstance(error, LocalError) and not isinstance(error, ConnectionRefused):
            self._unanswered()
        reaction = reaction_to(self.api, error)
        if reaction is Reaction.FIND_COORDINATOR:
            self._link.forget()
        if reaction not in REPEATED or not self._is_wanted():
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


class _Gone(Exception):
    """The broker is not alive any more."""


class _ToOneOfAll(ToBroker):
    def __init__(self, cluster: Cluster, node_id: BrokerId, what: str) -> None:
        super().__init__(cluster, node_id)
        self.subject = f"broker {node_id} did not list {what}"

    def check(self, codes: list[int]) -> None:
        self._raise_first(codes)

    async def before_next(self, error: BarnabasError, retries: Retries) -> None:
        if error.retriable and self._node_id not in self.cluster.nodes and not retries.is_over:
            raise _Gone
        await super().before_next(error, retries)


async def ask_all(cluster: Cluster, message: RequestOf[R], what: str, timeout_ms: int) -> dict[BrokerId, R]:
    """The answers of all live brokers to a request for a list of what they have.

    Those that die meanwhile are left out: what they coordinated has moved to brokers that are also asked.
    """
    retries = cluster.config.make_retries(timeout_ms)

    async def ask_one(node_id: BrokerId) -> R | None:
        try:
            return (await ask(_ToOneOfAll(cluster, node_id, what), message, retries)).response
        except _Gone:
            return None

    answers = await for_each(cluster.nodes, ask_one)
    return {node_id: answer for node_id, answer in answers.items() if answer is not None}


def check_alive(cluster: Cluster, broker_ids: Iterable[int]) -> None:
    """Raises BROKER_NOT_AVAILABLE for an id that no live broker has, as far as the metadata tells."""
    missing = set(broker_ids) - {int(node_id) for node_id in cluster.nodes}
    if missing:
        text = f"no live broker has the id {min(missing)}; the live ones are {sorted(cluster.nodes)}"
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
                        leader = cluster.leader_for(tp) or await cluster.leader(tp, retries.left_ms())
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


async def ask_brokers(
    by_broker: Mapping[BrokerId, list[TopicPartition]], ask_one: AskOne[R], limit_ms: int, at_once: int
) -> dict[TopicPartition, R | BarnabasError]:
    """Ask each broker once; the answer or the error of each partition."""
    requests = [
        (node_id, tuple(tps[first : first + at_once]))
        for node_id, tps in by_broker.items()
        for first in range(0, len(tps), at_once)
    ]

    async def ask_for(request: tuple[BrokerId, tuple[TopicPartition, ...]]) -> AnswerOfOne[R]:
        try:
            return await ask_one(*request, limit_ms)
        except BarnabasError as error:
            return dict.fromkeys(request[1], error)

    answers = await for_each(requests, ask_for)
    return {tp: result for answer in answers.values() for tp, result in answer.items()}
