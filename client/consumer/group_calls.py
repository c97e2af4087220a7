"""Finds the coordinator of a group, sends requests to it, and follows it when it moves.

Requests of one lane leave in the order of the calls, also while the coordinator is being looked up, so that
of two commits the later one counts. Bounded: one attempt per call, except for `leave`, with a time limit that
includes the lookup. On the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

from barnabas.client.cluster import MAIN_LANE, Cluster
from barnabas.client.consumer.group_membership import Api, Membership, Reaction, reaction_to
from barnabas.client.coordinators import find_coordinator
from barnabas.common.backoff import Retries
from barnabas.protocol.errors import (
    BarnabasError,
    ConnectionClosed,
    ErrorCode,
    RequestTimedOutLocally,
    raise_for,
)
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.find_coordinator import CoordinatorType
from barnabas.protocol.messages.groups import LeaveGroupRequest, MemberIdentity
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")


class GroupCalls:
    """The requests of one member to the coordinator of its group."""

    def __init__(self, cluster: Cluster, group_id: str, member: Membership) -> None:
        self.group_id = group_id
        self._cluster = cluster
        self._member = member
        self._looking = asyncio.Lock()
        """Held while the coordinator is looked up; the lock is fair, so no call overtakes a waiting one."""

    def make_retries(self, limit_s: float) -> Retries:
        """The attempts of one call, within a time limit."""
        return Retries(self._cluster.config.make_retry_backoff(), limit_s)

    async def coordinator(self, timeout_ms: int | None = None) -> BrokerId:
        """The coordinator's id. Raises a broker's error, ConnectionClosed or RequestTimedOutLocally."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000), self._looking:
                return (
                    self._member.coordinator if self._member.coordinator is not None else await self._look()
                )
        except TimeoutError:
            raise RequestTimedOutLocally(
                f"the coordinator of group {self.group_id!r} was not found in {timeout_ms} ms"
            ) from None

    async def _look(self) -> BrokerId:
        node_id = await find_coordinator(self._cluster, CoordinatorType.GROUP, self.group_id)
        self._member.coordinator_found(node_id, time.monotonic())
        return node_id

    async def ask(self, message: RequestOf[R], *, timeout_ms: int, lane: str = MAIN_LANE) -> R:
        """Ask the coordinator once. Raises as `coordinator`; if unreachable, it is looked up again later."""
        deadline = time.monotonic() + timeout_ms / 1000
        node_id = await self.coordinator(timeout_ms)
        left_ms = max(1, int((deadline - time.monotonic()) * 1000))
        try:
            return await self._cluster.request(node_id, message, timeout_ms=left_ms, lane=lane)
        except (ConnectionClosed, RequestTimedOutLocally):
            if self._member.coordinator == node_id:
                self._member.coordinator_lost()
            raise

    async def leave(self, member_id: str, reason: str, limit_s: float) -> None:
        """Remove a member from the group, also if the coordinator moves; an unknown member has left already.

        Retries after retriable errors. Raises the last error after ``limit_s``.
        """
        request = LeaveGroupRequest(
            group_id=self.group_id, members=[MemberIdentity(member_id=member_id, reason=reason)]
        )
        retries = self.make_retries(limit_s)
        while True:
            try:
                # Not on the group's lane, where it would wait for the answer to a join.
                answer = await self.ask(request, timeout_ms=retries.left_ms())
                codes = [answer.error_code, *(member.error_code for member in answer.members)]
                code = next((code for code in codes if code), ErrorCode.NONE)
                if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
                    return
                if reaction_to(Api.HEARTBEAT, code) is Reaction.FIND_COORDINATOR:
                    self._member.coordinator_lost()
                raise_for(code, f"leaving group {self.group_id!r}")
            except BarnabasError as error:
                await retries.wait_after(error)
