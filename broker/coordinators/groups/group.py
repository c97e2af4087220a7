"""One group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and commits; a pure state machine, see `Machine`.

An unknown group answers as a new one does. But a commit of generation 0 or more gets ILLEGAL_GENERATION,
DeleteGroups and OffsetDelete get GROUP_ID_NOT_FOUND, and it is described as Dead.

The guarantees of `rebalance` hold. A commit is accepted only from a member of the current generation, or
from outside while there are no members; it is valid when it is replicated. A commit in a transaction is
valid when the transaction is committed; from outside it is accepted at any time, because producers of old
versions do not name their member.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from barnabas.broker.base.limits import MAX_GROUP_METADATA_BYTES, MAX_GROUPS_BYTES, MAX_MEMBER_PROTOCOLS
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.groups.members import Client, Member, Members
from barnabas.broker.coordinators.groups.offsets import (
    Commit,
    CommittedOffset,
    GroupOffsets,
    OpenTransactions,
    TransactionEnd,
)
from barnabas.broker.coordinators.groups.rebalance import GroupState, Rebalance, join_refused
from barnabas.broker.coordinators.groups.records import GroupMetadataValue, GroupRecord, Record
from barnabas.broker.coordinators.state_machine import Moment, Outbox, Settled, Token, append_error
from barnabas.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages import groups as wire
from barnabas.protocol.messages.offsets import OffsetFetchResponsePartition

GROUP_BYTES: Final = 3_000
"""About what a group takes without its members."""
GROUP_TYPE: Final = "classic"
_NAME_CHARS_IN_ID: Final = 255
"""How many characters of the client's or the instance's name a member id begins with."""


class JoinOptions(NamedTuple):
    """The options that the version of a JoinGroup request implies.

    ``requires_known_member_id``: a dynamic member first gets an id to join with (version 4, KIP-394).
    ``can_skip_assignment``: a leader understands that the current assignment stays (version 9, KIP-814).
    """

    requires_known_member_id: bool = True
    can_skip_assignment: bool = True


class GroupMemory:
    """The memory that all groups of a broker take, their offsets apart: those are in the log as well.

    A shard counts each of its groups after every event; a group asks before it takes more. Any thread. Events
    that run at the same time may exceed the bound, each by what its request brings.
    """

    def __init__(self, max_bytes: int = MAX_GROUPS_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._lock = threading.Lock()

    def has_room(self, added_bytes: int) -> bool:
        """Whether a group may take so much more; it may always give up some."""
        return added_bytes <= 0 or self.held_bytes + added_bytes <= self.max_bytes

    def change(self, added_bytes: int) -> None:
        if added_bytes:
            with self._lock:
                self.held_bytes += added_bytes


_LATEST: Final = JoinOptions()


@dataclass(slots=True)
class LoadedGroup:
    """The records of one group in the log; ``stored`` is None if the log only has offsets."""

    stored: GroupMetadataValue | None = None
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending: dict[int, dict[TopicPartition, CommittedOffset]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """The offsets of transactions without a marker, by producer id."""


class Group:
    """Sources: Kafka 3.9's classic group coordinator for errors and their order; KIP-345 (static members),
    KIP-389 (group.max.size), KIP-394 (required member ids), KIP-447 (members that commit in transactions),
    KIP-814 (a static leader that skips the assignment).

    ``new_id`` makes a suffix that no other member id has. ``transactions``: see `GroupOffsets`.

    ``memory`` is what all groups hold together; ``counted_bytes`` is what the shard has counted for this one.
    """

    def __init__(
        self,
        group_id: str,
        config: BrokerConfig,
        now: Moment,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        transactions: OpenTransactions | None = None,
        memory: GroupMemory | None = None,
    ) -> None:
        self.group_id = group_id
        self.counted_bytes = 0
        self._memory = memory or GroupMemory()
        self._config = config
        self._new_id = new_id
        self.outbox = Outbox(group_id)
        self._members = Members()
        self._rebalance = Rebalance(group_id, config, self._members, self.outbox, now)
        self.offsets = GroupOffsets(
            group_id,
            config.offset_metadata_max_bytes,
            self.outbox,
            OpenTransactions() if transactions is None else transactions,
        )

    def load(self, loaded: LoadedGroup, coordinator_epoch: int, now: Moment) -> None:
        """Continue with the state in the log; all sessions restart.

        ``coordinator_epoch`` is the leader epoch of the partition of the offsets topic.
        """
        for partition, committed in loaded.offsets.items():
            self.offsets.load(partition, committed)
        for producer_id, of_producer in loaded.pending.items():
            for partition, committed in of_producer.items():
                self.offsets.load_pending(producer_id, partition, committed)
        self.offsets.loaded(now)
        if loaded.stored is not None:
            self._rebalance.load(loaded.stored, coordinator_epoch, now)

    @property
    def state(self) -> GroupState:
        return self._rebalance.state

    @property
    def generation_id(self) -> int:
        return self._rebalance.generation_id

    @property
    def is_dead(self) -> bool:
        """It was deleted, has expired or was unloaded: drop it, but report the outcomes of its appends."""
        return self._rebalance.state is GroupState.DEAD

    @property
    def member_count(self) -> int:
        return len(self._members)

    @property
    def held_bytes(self) -> int:
        """About what the group takes in memory without its offsets."""
        return GROUP_BYTES + len(self.group_id) + self._members.held_bytes

    @property
    def next_deadline_ms(self) -> float:
        return self._rebalance.next_deadline_ms

    def describe(self) -> wire.DescribedGroup:
        """The answer of DescribeGroups; metadata and assignments only while Stable."""
        rebalance = self._rebalance
        protocol = rebalance.protocol_name if rebalance.state is GroupState.STABLE else None
        return wire.DescribedGroup(
            group_id=self.group_id,
            group_state=rebalance.state.value,
            protocol_type=rebalance.protocol_type or "",
            protocol_data=protocol or "",
            members=[
                wire.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client.client_id,
                    client_host=member.client.client_host,
                    member_metadata=member.metadata(protocol) if protocol is not None else b"",
                    member_assignment=member.assignment if protocol is not None else b"",
                )
                for member in self._members
            ],
        )

    def listed(self) -> wire.ListedGroup:
        return wire.ListedGroup(
            group_id=self.group_id,
            protocol_type=self._rebalance.protocol_type or "",
            group_state=self._rebalance.state.value,
            group_type=GROUP_TYPE,
        )

    # ---- JoinGroup

    def join(
        self,
        request: wire.JoinGroupRequest,
        client: Client,
        token: Token,
        now: Moment,
        options: JoinOptions = _LATEST,
    ) -> None:
        """Answered by a JoinGroupResponse; older versions send its ``protocol_name`` None as empty."""
        candidate = Member(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client=client,
            protocols=request.protocols,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms
            if request.rebalance_timeout_ms > 0
            else request.session_timeout_ms,
            is_new=True,
            join_token=token,
        )
        error = self._join_error(candidate, request.protocol_type)
        if error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._turn_away(candidate.member_id, now)
            self.outbox.answer(token, join_refused(error, wire.NO_MEMBER))
        elif error is not ErrorCode.NONE:
            self.outbox.answer(token, join_refused(error, candidate.member_id))
        elif candidate.member_id != wire.NO_MEMBER:
            self._join_again(candidate, request.protocol_type, now)
        elif candidate.instance_id is not None:
            self._join_static(candidate, candidate.instance_id, request.protocol_type, options, now)
        elif options.requires_known_member_id:
            member_id = self._make_member_id(client.client_id)
            self._members.add_pending(member_id, now.monotonic_ms + candidate.session_timeout_ms)
            self.outbox.answer(token, join_refused(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._admit(candidate, self._make_member_id(client.client_id), request.protocol_type, now)
        self._rebalance.complete_join_if_all_have(now)

    def _make_member_id(self, name: str) -> str:
        """People recognise it by the name. The whole name might make it longer than a string may be."""
        return f"{name[:_NAME_CHARS_IN_ID]}-{self._new_id()}"

    def _join_error(self, candidate: Member, protocol_type: str) -> ErrorCode:
        least_ms = self._config.group_min_session_timeout_ms
        most_ms = self._config.group_max_session_timeout_ms
        if not least_ms <= candidate.session_timeout_ms <= most_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if self.is_dead:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if len(candidate.protocols) > MAX_MEMBER_PROTOCOLS:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        former = self._former(candidate)
        metadata_bytes = candidate.metadata_bytes - (0 if former is None else former.metadata_bytes)
        has_room = self._members.metadata_bytes + metadata_bytes <= MAX_GROUP_METADATA_BYTES
        if not has_room or not self._has_room_for(candidate.member_id):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not self._supports(protocol_type, candidate.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not self._memory.has_room(candidate.held_bytes - (0 if former is None else former.held_bytes)):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _former(self, candidate: Member) -> Member | None:
        former_id = candidate.member_id
        if former_id == wire.NO_MEMBER and candidate.instance_id is not None:
            former_id = self._members.id_of_instance(candidate.instance_id) or wire.NO_MEMBER
        return self._members.find(former_id)

    def _has_room_for(self, member_id: str) -> bool:
        """While a rebalance is prepared only members that have joined count, so that a group that is too
        large shrinks to the first ones."""
        state, max_size = self.state, self._config.group_max_size
        if state is GroupState.EMPTY:
            return True
        member = self._members.find(member_id)
        if state is GroupState.PREPARING_REBALANCE:
            has_joined = member is not None and member.join_token is not None
            return has_joined or self._members.awaiting_join < max_size
        return member is not None or len(self._members) < max_size

    def _turn_away(self, member_id: str, now: Moment) -> None:
        member = self._members.find(member_id)
        if member is not None:
            self._rebalance.remove(member, f"there is no room for member {member_id}", now)
        else:
            self._members.remove(member_id)

    def _supports(self, protocol_type: str, protocols: list[wire.JoinGroupRequestProtocol]) -> bool:
        if self.state is GroupState.EMPTY:
            return protocol_type != "" and len(protocols) > 0
        return self._rebalance.protocol_type == protocol_type and self._members.support_one_of(protocols)

    def _admit(self, candidate: Member, member_id: str, protocol_type: str, now: Moment) -> None:
        candidate.member_id = member_id
        self._rebalance.admit(candidate, protocol_type, now)

    def _join_again(self, candidate: Member, protocol_type: str, now: Moment) -> None:
        """The JoinGroup of a member, or the first one with a pending id."""
        member_id = candidate.member_id
        if member_id in self._members.pending and candidate.instance_id is None:
            self._admit(candidate, member_id, protocol_type, now)
            return
        error = self._members.error_of(member_id, candidate.instance_id)
        if error is not ErrorCode.NONE:
            self.outbox.answer(candidate.join_token, join_refused(error, member_id))
            return
        member = self._members[member_id]
        # A member with the same protocols may have missed the answer to its last JoinGroup. But the leader of
        # a Stable group has a reason that its metadata does not show, such as more partitions.
        is_leader = self._members.leader_id == member_id
        if member.protocols == candidate.protocols and (
            self.state is GroupState.COMPLETING_REBALANCE
            or (self.state is GroupState.STABLE and not is_leader)
        ):
            self._rebalance.keep_alive(member, now)
            self.outbox.answer(candidate.join_token, self._rebalance.joined(member))
            return
        self._members.update(member, candidate)
        self._rebalance.wait_for_join(member, candidate.join_token)
        self._rebalance.prepare(f"member {member_id} joins again", now)

    def _join_static(
        self, candidate: Member, instance_id: str, protocol_type: str, options: JoinOptions, now: Moment
    ) -> None:
        new_id = self._make_member_id(instance_id)
        former_id = self._members.id_of_instance(instance_id)
        if former_id is None:
            self._admit(candidate, new_id, protocol_type, now)
        else:
            member = self._members[former_id]
            self._rebalance.replace(member, new_id, candidate, options.can_skip_assignment, now)

    # ---- SyncGroup, Heartbeat, LeaveGroup

    def _caller_error(self, member_id: str, instance_id: str | None, generation_id: int) -> ErrorCode:
        """NONE for a member of the current generation, else the error for the caller."""
        if self.is_dead:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._members.error_of(member_id, instance_id)
        if error is ErrorCode.NONE and generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def sync(self, request: wire.SyncGroupRequest, token: Token, now: Moment) -> None:
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            self.outbox.answer(token, wire.SyncGroupResponse(error_code=error))
        else:
            assignments = {entry.member_id: entry.assignment for entry in request.assignments}
            self._rebalance.sync(self._members[request.member_id], assignments, token, now)

    def _sync_error(self, request: wire.SyncGroupRequest) -> ErrorCode:
        rebalance = self._rebalance
        error = self._caller_error(request.member_id, request.group_instance_id, request.generation_id)
        if error is not ErrorCode.NONE:
            return error
        if request.protocol_type is not None and request.protocol_type != rebalance.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and request.protocol_name != rebalance.protocol_name:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if rebalance.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        former_bytes = sum(len(member.assignment) for member in self._members) if request.assignments else 0
        if not self._memory.has_room(
            sum(len(entry.assignment) for entry in request.assignments) - former_bytes
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def heartbeat(self, request: wire.HeartbeatRequest, now: Moment) -> ErrorCode:
        """Keep a member alive; REBALANCE_IN_PROGRESS tells it to join again."""
        error = self._caller_error(request.member_id, request.group_instance_id, request.generation_id)
        if error is not ErrorCode.NONE:
            return error
        self._rebalance.keep_alive(self._members[request.member_id], now)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def resume(self, now: Moment) -> None:
        """Restart all sessions after a time without heartbeats, as while groups are loaded."""
        for member in self._members:
            self._rebalance.keep_alive(member, now)
        self._members.find_deadline()

    def leave(self, leaving: Sequence[wire.MemberIdentity], token: Token, now: Moment) -> None:
        """Answered by a LeaveGroupResponse with one entry for each leaving member."""
        if self.is_dead:
            response = wire.LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            members = [
                wire.MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=self._leave(identity, now),
                )
                for identity in leaving
            ]
            response = wire.LeaveGroupResponse(error_code=ErrorCode.NONE, members=members)
        self.outbox.answer(token, response)

    def _leave(self, identity: wire.MemberIdentity, now: Moment) -> ErrorCode:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == wire.NO_MEMBER and instance_id is not None:
            # An operator removes a static member without knowing its member id.
            member_id = self._members.id_of_instance(instance_id) or wire.NO_MEMBER
        elif member_id in self._members.pending:
            self._rebalance.remove_pending(member_id, now)
            return ErrorCode.NONE
        error = self._members.error_of(member_id, instance_id)
        if error is ErrorCode.NONE:
            reason = f"member {member_id} leaves ({identity.reason})"
            self._rebalance.remove(self._members[member_id], reason, now)
        return error

    # ---- time, outcomes, the end

    def tick(self, now: Moment) -> None:
        self._rebalance.tick(now)

    def unload(self, now: Moment) -> None:
        """The group has moved to another coordinator: refuse the waiting requests."""
        self._rebalance.die(ErrorCode.NOT_COORDINATOR, now)

    # ---- offsets

    def commit(self, commit: Commit, token: Token, now: Moment) -> None:
        """Answered by a `CommitResponse`: at once if all is refused, else when the log has it."""
        error = self._commit_error(commit)
        if error is not ErrorCode.NONE:
            self.outbox.answer(token, dict.fromkeys(commit.offsets, error))
        else:
            # The producer of a transaction does not show that the member is alive.
            if self.state is not GroupState.EMPTY and commit.producer is None:
                self._rebalance.keep_alive(self._members[commit.member_id], now)
            self.offsets.commit(commit.offsets, token, commit.producer)

    def _commit_error(self, commit: Commit) -> ErrorCode:
        in_transaction = commit.producer is not None
        is_unnamed = commit.member_id == wire.NO_MEMBER and commit.instance_id is None
        may_be_unnamed = self.state is GroupState.EMPTY or (in_transaction and is_unnamed)
        if commit.generation_id < 0 and may_be_unnamed and not self.is_dead:
            return ErrorCode.NONE
        error = self._caller_error(commit.member_id, commit.instance_id, commit.generation_id)
        is_completing = self.state is GroupState.COMPLETING_REBALANCE
        if error is ErrorCode.NONE and is_completing and not in_transaction:
            # The member does not know yet which partitions it owns in the new generation.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def transaction_ended(self, end: TransactionEnd) -> None:
        """The marker of a producer's transaction is replicated in the partition of the offsets topic."""
        self.offsets.transaction_ended(end)

    def fetch(
        self, partitions: Iterable[TopicPartition] | None, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetFetchResponsePartition]:
        """The answer of OffsetFetch, for some partitions or (None) for all committed ones."""
        names = self.offsets if partitions is None else partitions
        return {partition: self.offsets.fetch(partition, require_stable) for partition in names}

    def delete_offsets(self, partitions: Sequence[TopicPartition], token: Token, now: Moment) -> None:
        """OffsetDelete: not of topics that consumers of the group are subscribed to.

        Answered by an error, or by one for each partition when the tombstones are replicated or have failed.
        """
        rebalance = self._rebalance
        if self.is_dead:
            self.outbox.answer(token, ErrorCode.GROUP_ID_NOT_FOUND)
            return
        outcome = dict.fromkeys(partitions, ErrorCode.NONE)
        if rebalance.state is not GroupState.EMPTY:
            if rebalance.protocol_type != CONSUMER_PROTOCOL_TYPE:
                self.outbox.answer(token, ErrorCode.NON_EMPTY_GROUP)
                return
            subscribed = rebalance.subscribed_topics
            for partition in partitions:
                if subscribed is None or partition.topic in subscribed:
                    outcome[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        deleted = [partition for partition, error in outcome.items() if error is ErrorCode.NONE]

        def removed(error: ErrorCode, base_offset: int, now: Moment) -> None:
            self.outbox.answer(token, {**outcome, **dict.fromkeys(deleted, append_error(error))})

        self.remove_offsets(deleted, now, removed)

    def remove_offsets(
        self, partitions: Iterable[TopicPartition], now: Moment, removed: Settled | None = None
    ) -> None:
        """Remove offsets, as of deleted topics; a group without members and offsets dies."""
        if self.is_dead:
            return
        tombstones = self.offsets.remove(partitions)
        if self.state is GroupState.EMPTY and self.offsets.is_empty and not self._members.pending:
            tombstones += self._die(now)
        self.outbox.append_tombstones(tombstones, now, removed)

    def expire_offsets(self, now: Moment, retention_ms: int) -> None:
        """Remove offsets that have exceeded their retention; call it periodically.

        The retention of a group without members counts since it became Empty; of a group that only stores
        offsets, since each commit. A Stable group of consumers loses offsets of topics that it does not read.
        """
        rebalance = self._rebalance
        since_ms, still_read = None, frozenset[str]()
        if rebalance.state is GroupState.EMPTY:
            since_ms = rebalance.state_since_ms if rebalance.protocol_type is not None else None
        elif rebalance.state is GroupState.STABLE and rebalance.subscribed_topics is not None:
            still_read = rebalance.subscribed_topics
        else:
            return
        self.remove_offsets(self.offsets.expired(now, retention_ms, since_ms, still_read), now)

    def delete(self, token: Token, now: Moment) -> None:
        """Answered by an error when the tombstones are replicated or have failed, or at once."""
        if self.is_dead or self.state is not GroupState.EMPTY:
            error = ErrorCode.GROUP_ID_NOT_FOUND if self.is_dead else ErrorCode.NON_EMPTY_GROUP
            self.outbox.answer(token, error)
            return

        def removed(error: ErrorCode, base_offset: int, now: Moment) -> None:
            self.outbox.answer(token, append_error(error))

        tombstones = self.offsets.remove(self.offsets.all_partitions()) + self._die(now)
        self.outbox.append_tombstones(tombstones, now, removed)

    def _die(self, now: Moment) -> list[Record]:
        """Returns the group's own tombstone, unless it only stored offsets and has no record."""
        self._rebalance.die(ErrorCode.COORDINATOR_NOT_AVAILABLE, now)
        return [GroupRecord(self.group_id, None)] if self._rebalance.generation_id > 0 else []
