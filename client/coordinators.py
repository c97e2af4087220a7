"""Finds the coordinator of a group or of a transactional id, and sends requests to it.

A `CoordinatorLink` remembers its coordinator until an attempt shows that it has moved or cannot be reached;
the next request looks it up again. One attempt per call: `ask` repeats them.
Requests of one lane leave in the order of the calls, also while the coordinator is being looked up, so that
of two commits the later one counts. On the event loop of the cluster.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple, TypeVar

from barnabas.client.cluster import MAIN_LANE, Cluster
from barnabas.protocol.errors import (
    ConnectionClosed,
    ErrorCode,
    RequestTimedOutLocally,
    api_error,
    raise_for,
)
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.find_coordinator import CoordinatorType, FindCoordinatorRequest
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")

_NAMES = {CoordinatorType.GROUP: "group", CoordinatorType.TRANSACTION: "transactional id"}


class ProducerIdAndEpoch(NamedTuple):
    """The result of InitProducerId; an idempotent producer raises the epoch since then in one partition.

    The epoch of a transactional producer is raised by its coordinator alone.
    """

    producer_id: int
    producer_epoch: int


class KnownCoordinator:
    """The client's memory of a coordinator; a group's member has one too."""

    coordinator: BrokerId | None = None

    def coordinator_found(self, node_id: BrokerId, now: float) -> None:
        self.coordinator = node_id

    def coordinator_lost(self) -> None:
        self.coordinator = None


async def find_coordinator(cluster: Cluster, kind: CoordinatorType, key: str) -> BrokerId:
    """The coordinator's id. Raises a broker's error, ConnectionClosed or RequestTimedOutLocally."""
    subject = f"{_NAMES[kind]} {key!r}"
    request = FindCoordinatorRequest(key_type=kind.value, coordinator_keys=[key])
    answered_by, answer = await cluster.ask_any_node(request)
    if not answer.coordinators:
        raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {answered_by} named no coordinator")
    coordinator = answer.coordinators[0]
    raise_for(coordinator.error_code, coordinator.error_message or f"of {subject}")
    node_id = BrokerId(coordinator.node_id)
    if node_id not in cluster.cache.nodes:
        await cluster.refresh()
    if node_id not in cluster.cache.nodes:
        text = f"broker {node_id}, the coordinator of {subject}, is not alive"
        raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
    return node_id


class CoordinatorLink:
    """The way to the coordinator of one key."""

    def __init__(
        self, cluster: Cluster, kind: CoordinatorType, key: str, known: KnownCoordinator | None = None
    ) -> None:
        self.cluster = cluster
        self.kind = kind
        self.key = key
        self._known = KnownCoordinator() if known is None else known
        self._looking = asyncio.Lock()
        """Held while the coordinator is looked up; the lock is fair, so no call overtakes a waiting one."""

    def forget(self) -> None:
        """Look the coordinator up before the next request."""
        self._known.coordinator_lost()

    async def find(self, timeout_ms: int) -> BrokerId:
        """The coordinator's id. Raises as `find_coordinator`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._looking:
                if (node_id := self._known.coordinator) is None:
                    node_id = await find_coordinator(self.cluster, self.kind, self.key)
                    self._known.coordinator_found(node_id, time.monotonic())
                return node_id
        except TimeoutError:
            text = f"the coordinator of {_NAMES[self.kind]} {self.key!r} was not found in {timeout_ms} ms"
            raise RequestTimedOutLocally(text) from None

    async def ask(
        self,
        message: RequestOf[R],
        *,
        timeout_ms: int,
        lane: str = MAIN_LANE,
        last_version: int | None = None,
    ) -> R:
        """Ask the coordinator once, in at most ``last_version`` of Kafka's protocol.

        Raises as `find_coordinator`. After ConnectionClosed or RequestTimedOutLocally the request may have
        been carried out.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        node_id = await self.find(timeout_ms)
        left_ms = max(1, int((deadline - time.monotonic()) * 1000))
        try:
            return await self.cluster.request(
                node_id, message, timeout_ms=left_ms, lane=lane, last_version=last_version
            )
        except (ConnectionClosed, RequestTimedOutLocally):
            if self._known.coordinator == node_id:
                self.forget()
            raise
