"""One join of a member: JoinGroup, the assignment if we lead, SyncGroup, and the offsets to begin from.

`GroupJoin.run` retries after retriable errors, with growing pauses, until the member has its assignment. If
the coordinator does not know the member, it returns without one, so that the listener first learns that the
partitions are lost. A cancelled member can join again. On the consumer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from barnabas.client.cluster import GROUP_LANE
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.assignors import ASSIGNORS, Member, subscription_for
from barnabas.client.consumer.group_membership import Identity, MemberState
from barnabas.client.consumer.group_offsets import CommittedOffsets
from barnabas.client.errors import NoBrokerReachable
from barnabas.client.offsets import OffsetAndMetadata
from barnabas.client.reactions import REPEATED, Api, Reaction, reaction_to
from barnabas.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages import groups as wire

log = logging.getLogger(__name__)

_JOIN_GRACE_MS = 5_000
"""The time to wait for the answer to a join beyond the limit of the rebalance."""
_OFFSETS_WITHIN_MS = 5_000
"""The time that a join waits for committed offsets that are not available yet."""
_MAX_REASON = 255
_MEMBER_ID_S = 1.0
"""How long the end of a member waits for the id that the coordinator gives it."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The outcome of a join, with the identity and the subscription that it was made with."""

    identity: Identity
    topics: frozenset[str]
    partitions: frozenset[TopicPartition]
    offsets: dict[TopicPartition, OffsetAndMetadata | None] | None
    """The offsets of newly assigned partitions; None if they were not available in time."""


@dataclass(slots=True)
class Holdings:
    """The partitions that a member owns, or owned before it revoked all of them, with their generation."""

    owned: set[TopicPartition] = field(default_factory=set)
    remembered: set[TopicPartition] = field(default_factory=set)
    generation_id: int = wire.NO_GENERATION


class GroupJoin:
    """Joins for one member; ``led_counts`` has the partition counts of our last assignment as leader."""

    def __init__(self, config: ConsumerConfig, offsets: CommittedOffsets) -> None:
        self._link = link = offsets.link
        self._cluster = link.cluster
        self._config = config
        self._member = offsets.member
        self._offsets = offsets
        self._timeout_ms = max(config.request_timeout_ms, config.max_poll_interval_ms + _JOIN_GRACE_MS)
        self.led_topics: frozenset[str] = frozenset()
        """Empty unless we lead the group."""
        self.led_counts: dict[str, int] = {}

    async def run(self, topics_now: Callable[[], frozenset[str]], holdings: Holdings) -> Joined | None:
        """Join; None if the member must start again as a new one. Raises permanent errors."""
        backoff = self._config.make_retry_backoff()
        while True:
            try:
                outcome = await self._attempt(topics_now(), holdings)
            except BarnabasError as error:
                if not error.retriable:
                    raise
                log.debug("joining group %r: %s", self._link.key, error)
                self._member.rejoin_reason = str(error)
            else:
                if isinstance(outcome, Joined):
                    return outcome
                if outcome in (Reaction.TAKE_MEMBER_ID, Reaction.REJOIN):
                    continue
            finally:
                # The attempt can be repeated after any outcome, also after a cancellation.
                if self._member.state in (MemberState.JOINING, MemberState.SYNCING):
                    self._member.unjoin(self._member.rejoin_reason)
            if self._member.has_lost_partitions or self._member.is_over:
                return None
            await asyncio.sleep(backoff.failed(time.monotonic()))

    async def _attempt(self, topics: frozenset[str], holdings: Holdings) -> Joined | Reaction:
        member = self._member
        await self._link.find(self._config.request_timeout_ms)
        if member.has_lost_partitions or member.is_over:
            return Reaction.FORGET_MEMBER
        member.join_sent()
        sent_as = member.identity
        request = self._join_request(topics, holdings)
        response = await self._ask_to_join(request)
        reaction = reaction_to(Api.JOIN, response.error_code)
        if reaction is not Reaction.GO_ON:
            return self._refused(Api.JOIN, reaction, response.error_code, sent_as, response.member_id)
        self.led_topics, self.led_counts = frozenset(), {}
        member.joined(
            response.member_id, response.generation_id, response.protocol_name or "", time.monotonic()
        )
        assignments: Mapping[str, list[TopicPartition]] = {}
        if response.members:
            assignments = await self._lead(response)
        return await self._sync(topics, assignments, holdings)

    async def _ask_to_join(self, request: wire.JoinGroupRequest) -> wire.JoinGroupResponse:
        """Ask; a first attempt that is cancelled waits for the member id, to leave with it.

        Else the other members would wait for a member with that id until its session ends.
        """
        asking = asyncio.ensure_future(self._link.ask(request, timeout_ms=self._timeout_ms, lane=GROUP_LANE))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            if self._member.member_id == wire.NO_MEMBER:
                await asyncio.wait((asking,), timeout=_MEMBER_ID_S)
                if asking.done() and not asking.cancelled() and asking.exception() is None:
                    self._member.member_id = asking.result().member_id
            raise
        finally:
            asking.cancel()

    def _join_request(self, topics: frozenset[str], holdings: Holdings) -> wire.JoinGroupRequest:
        config, member = self._config, self._member
        protocols = []
        for name in config.assignors:
            subscription = subscription_for(
                ASSIGNORS[name],
                topics,
                holdings.owned,
                holdings.owned or holdings.remembered,
                holdings.generation_id,
                config.client_rack,
            )
            protocols.append(
                wire.JoinGroupRequestProtocol(name=name, metadata=encode_subscription(subscription))
            )
        return wire.JoinGroupRequest(
            group_id=self._link.key,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocols=protocols,
            reason=member.rejoin_reason[:_MAX_REASON],
        )

    def _refused(
        self, api: Api, reaction: Reaction, code: int, sent_as: Identity, given_member_id: str = ""
    ) -> Reaction:
        """React to an error code. Raises it, unless the reaction changes the next attempt."""
        error = api_error(code, f"{api.value} of group {self._link.key!r}")
        self._member.react(api, reaction, str(error), sent_as, given_member_id)
        if reaction in REPEATED or reaction in (Reaction.FENCED, Reaction.FAIL):
            raise error
        log.debug("%s", error)
        return reaction

    async def _lead(self, response: wire.JoinGroupResponse) -> Mapping[str, list[TopicPartition]]:
        """Assign the partitions, as the leader of this generation."""
        assignor = ASSIGNORS.get(self._member.protocol)
        if assignor is None:
            raise api_error(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the coordinator chose {self._member.protocol!r}; supported are {', '.join(ASSIGNORS)}",
            )
        members = [
            Member(member.member_id, decode_subscription(member.metadata), member.group_instance_id)
            for member in response.members
        ]
        topics = frozenset(topic for member in members for topic in member.subscription.topics)
        counts = await self._partition_counts(topics)
        self.led_topics, self.led_counts = topics, counts
        if response.skip_assignment:
            return {}
        assignments = assignor.assign(members, counts)
        log.info(
            "leading generation %d of group %r: %s assigns %d partitions to %d members",
            response.generation_id,
            self._link.key,
            assignor.name,
            sum(map(len, assignments.values())),
            len(members),
        )
        return assignments

    async def _partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Partitions by existing topic. When a missing one is created, the group joins again."""
        all_topics = set(topics)
        self._cluster.watch_topics(*all_topics)
        if not all_topics <= set(self._cluster.cache.topics):
            try:
                # The first may have begun before the topics were added.
                await self._cluster.refresh(at_once=True)
                if not all_topics <= set(self._cluster.cache.topics):
                    await self._cluster.refresh(at_once=True)
            except NoBrokerReachable as error:
                log.warning("assigning partitions without fresh metadata: %s", error)
        return self.counts(all_topics)

    def counts(self, topics: Collection[str]) -> dict[str, int]:
        """The number of partitions of each topic in the metadata."""
        cached = self._cluster.cache.topics
        return {topic: len(cached[topic].partitions) for topic in topics if topic in cached}

    async def _sync(
        self, topics: frozenset[str], assignments: Mapping[str, list[TopicPartition]], holdings: Holdings
    ) -> Joined | Reaction:
        member = self._member
        sent_as = member.identity
        request = wire.SyncGroupRequest(
            group_id=self._link.key,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=member.protocol,
            assignments=[
                wire.SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(assigned))
                for member_id, assigned in assignments.items()
            ],
        )
        response = await self._link.ask(request, timeout_ms=self._timeout_ms, lane=GROUP_LANE)
        reaction = reaction_to(Api.SYNC, response.error_code)
        if reaction is not Reaction.GO_ON:
            return self._refused(Api.SYNC, reaction, response.error_code, sent_as)
        partitions = frozenset(decode_assignment(response.assignment))
        member.synced()
        added = partitions - holdings.owned
        offsets: dict[TopicPartition, OffsetAndMetadata | None] | None = None
        try:
            offsets = await self._offsets.fetch(
                added, min(self._config.default_api_timeout_ms, _OFFSETS_WITHIN_MS)
            )
        except BaseException as error:
            if not isinstance(error, BarnabasError) or not error.retriable:
                # The assignment is not taken over, so the member must rejoin to get it again.
                member.want_rejoin(f"the committed offsets are not known: {error}")
                raise
            # Another rebalance would not help: take the partitions over; they wait for their offsets.
            log.warning("%s; retrying", error)
        return Joined(sent_as, topics, partitions, offsets)
