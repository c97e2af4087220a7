"""Requests to the coordinator of a group: finding it, asking it, and noticing that it is another one now.

Bounded: one attempt per call; who calls again waits as `Backoff` says. On the consumer's event loop.
"""

from __future__ import annotations

import random
import time
from typing import TypeVar

from barnabas.client.cluster import MAIN_LANE, Cluster
from barnabas.client.group_membership import Membership
from barnabas.protocol.backoff import Backoff
from barnabas.protocol.errors import (
    ConnectionClosed,
    ErrorCode,
    RequestTimedOutLocally,
    api_error,
    raise_for,
)
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")


class GroupCalls:
    """The way to the coordinator of one group, for one member."""

    def __init__(self, cluster: Cluster, group_id: str, member: Membership) -> None:
        self.group_id = group_id
        self._cluster = cluster
        self._member = member
        self._failed: BrokerId | None = None
        """Whom not to ask first the next time."""

    def backoff(self) -> Backoff:
        config = self._cluster.config
        return Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random.uniform)

    async def coordinator(self, timeout_ms: int | None = None) -> BrokerId:
        """Who coordinates the group. Raises what a broker said, ConnectionClosed, RequestTimedOutLocally."""
        if (known := self._member.coordinator) is not None:
            return known
        cluster = self._cluster
        if not cluster.nodes:
            await cluster.refresh()
        nodes = [node_id for node_id in cluster.nodes if node_id != self._failed] or list(cluster.nodes)
        if not nodes:
            raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no broker is known to be alive")
        asked = self._failed = random.choice(nodes)
        answer = await cluster.request(
            asked, FindCoordinatorRequest(coordinator_keys=[self.group_id]), timeout_ms=timeout_ms
        )
        self._failed = None
        if not answer.coordinators:
            raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"broker {asked} named no coordinator")
        found = answer.coordinators[0]
        raise_for(found.error_code, found.error_message or f"of group {self.group_id!r}")
        node_id = BrokerId(found.node_id)
        if node_id not in cluster.nodes:
            await cluster.refresh()
        if node_id not in cluster.nodes:
            raise api_error(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"broker {node_id}, who coordinates group {self.group_id!r}, is not among the live brokers",
            )
        self._member.coordinator_found(node_id, time.monotonic())
        return node_id

    async def ask(self, message: RequestOf[R], *, timeout_ms: int | None = None, lane: str = MAIN_LANE) -> R:
        """Ask the coordinator once. Raises as `coordinator`; a broker that cannot be reached is none."""
        node_id = await self.coordinator(timeout_ms)
        try:
            return await self._cluster.request(node_id, message, timeout_ms=timeout_ms, lane=lane)
        except (ConnectionClosed, RequestTimedOutLocally):
            if self._member.coordinator == node_id:
                self._member.coordinator_lost()
                self._failed = node_id
            raise
