"""Finds the coordinator of a group, sends requests to it, and follows it when it moves.

Requests of one lane leave in the order of the calls, also while the coordinator is being looked up, so that
of two commits the later one counts. Bounded: one attempt per call, except for `leave`, with a time limit that
includes the lookup; repeated calls wait as `Backoff` says. On the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

from barnabas.client.cluster import MAIN_LANE, Cluster
from barnabas.client.consumer.group_membership import Api, Membership, Reaction, reaction_to
from barnabas.protocol.backoff import Backoff
from barnabas.protocol.errors import (
    BarnabasError,
    ConnectionClosed,
    ErrorCode,
    RequestTimedOutLocally,
    api_error,
    raise_for,
)
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest
from barnabas.protocol.messages.join_group import LeaveGroupRequest, MemberIdentity
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

    def backoff(self) -> Backoff:
        return self._cluster.config.make_retry_backoff()

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
        cluster = self._cluster
        request = FindCoordinatorRequest(coordinator_keys=[self.group_id])
        asked, answer = await cluster.ask_any_node(request)
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
        deadline = time.monotonic() + limit_s
        backoff = self.backoff()
        while True:
            left_ms = max(1, int((deadline - time.monotonic()) * 1000))
            try:
                # Not behind a join that waits for its answer on the lane of the group.
                answer = await self.ask(request, timeout_ms=left_ms)
                codes = [answer.error_code, *(one.error_code for one in answer.members)]
                code = next((code for code in codes if code), ErrorCode.NONE)
                if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
                    return
                error: BarnabasError = api_error(code, f"leaving group {self.group_id!r}")
                if reaction_to(Api.HEARTBEAT, code) is Reaction.FIND_COORDINATOR:
                    self._member.coordinator_lost()
            except BarnabasError as failure:
                error = failure
            backoff.failed(time.monotonic())
            pause = backoff.remaining(time.monotonic())
            if not error.retriable or time.monotonic() + pause >= deadline:
                raise error
            await asyncio.sleep(pause)
