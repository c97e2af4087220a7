"""The members of one group: their ids, their protocols, and their waiting requests.

Keeps in step: the members by id, the static ones by instance id (KIP-345), how many support each protocol,
how many wait in a JoinGroup, the ids that are assigned but not used yet (KIP-394), and the leader. Knows no
states and sends nothing. Used under the group's lock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from barnabas.broker.coordinators.state_machine import Token
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.invariants import invariant
from barnabas.protocol.messages.groups import JoinGroupRequestProtocol, JoinGroupResponseMember

MEMBER_BYTES: Final = 2_000
"""About what a member takes without the bytes that it sends, or a member id that is assigned and not used."""
PROTOCOL_BYTES: Final = 200
MAX_PENDING_MEMBERS: Final = 10_000
"""The most member ids that are assigned and not used; one more drops the oldest."""


class Client(NamedTuple):
    """The client of a member, for people to read."""

    client_id: str
    client_host: str


@dataclass(slots=True, eq=False)
class Member:
    """``join_token`` and ``sync_token`` are set while a request of the member waits for its answer."""

    member_id: str
    instance_id: str | None
    client: Client
    protocols: list[JoinGroupRequestProtocol]
    """Assignment strategies with the metadata for them, in the order of preference; never empty."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: bytes = b""
    is_new: bool = False
    """In no generation yet: the client of its waiting JoinGroup may be gone, so waiting proves nothing."""
    join_token: Token = None
    sync_token: Token = None
    expires_at_ms: float = math.inf

    @property
    def deadline_ms(self) -> float:
        """When it counts as failed: never while one of its requests waits here, unless it is new."""
        if not self.is_new and (self.join_token is not None or self.sync_token is not None):
            return math.inf
        return self.expires_at_ms

    @property
    def metadata_bytes(self) -> int:
        return sum(len(protocol.name) + len(protocol.metadata) for protocol in self.protocols)

    @property
    def held_bytes(self) -> int:
        names = len(self.client.client_id) + len(self.instance_id or "")
        protocols = PROTOCOL_BYTES * len(self.protocols) + self.metadata_bytes
        return MEMBER_BYTES + names + protocols + len(self.assignment)

    def metadata(self, protocol_name: str) -> bytes:
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        invariant(False, "member %s does not know the chosen protocol %r", self.member_id, protocol_name)
        return b""


class Members:
    """The members of one group. ``leader_id`` is None exactly when there are no members."""

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()
        self.awaiting_join = 0
        """How many have a waiting JoinGroup."""
        self.metadata_bytes = 0
        """Of the protocols of all members."""
        self._held_bytes = 0
        self.next_deadline_ms = math.inf
        """No later than the first deadline, and exact after `find_deadline`.

        It may be early after a session is extended, so that a heartbeat need not look at all members.
        """
        self.leader_id: str | None = None
        self.pending: dict[str, float] = {}
        """Member ids that are assigned and not used yet, with their expiry."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        """In the order in which they joined; a copy, so that the loop may remove members."""
        return iter(list(self._by_id.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def find(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def id_of_instance(self, instance_id: str) -> str | None:
        return self._static.get(instance_id)

    def error_of(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether a request comes from a member: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if instance_id is not None:
            holder = self._static.get(instance_id)
            if holder is not None and holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self._by_id else ErrorCode.UNKNOWN_MEMBER_ID

    @property
    def have_all_joined(self) -> bool:
        return self.awaiting_join == len(self._by_id) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asks for."""
        return max((member.rebalance_timeout_ms for member in self._by_id.values()), default=0)

    @property
    def held_bytes(self) -> int:
        """About the memory of all members and assigned ids."""
        return self._held_bytes + MEMBER_BYTES * len(self.pending)

    def find_deadline(self) -> None:
        """Make `next_deadline_ms` exact."""
        first = min((member.deadline_ms for member in self._by_id.values()), default=math.inf)
        self.next_deadline_ms = min(first, min(self.pending.values(), default=math.inf))

    def extend_session(self, member: Member, expires_at_ms: float) -> None:
        """Restart a member's session; required whenever the member has no waiting request left."""
        member.expires_at_ms = expires_at_ms
        self.next_deadline_ms = min(self.next_deadline_ms, expires_at_ms)

    def add(self, member: Member) -> None:
        """Add a member; the first one becomes the leader."""
        invariant(member.member_id not in self._by_id, "member %s exists already", member.member_id)
        if member.instance_id is not None:
            invariant(member.instance_id not in self._static, "instance %s is taken", member.instance_id)
            self._static[member.instance_id] = member.member_id
        self._by_id[member.member_id] = member
        self._count(member, 1)
        self.pending.pop(member.member_id, None)
        if self.leader_id is None:
            self.leader_id = member.member_id

    def _count(self, member: Member, sign: int) -> None:
        self._supporters.update(dict.fromkeys((protocol.name for protocol in member.protocols), sign))
        if sign < 0:
            self._supporters += Counter()
        self.metadata_bytes += sign * member.metadata_bytes
        self._held_bytes += sign * member.held_bytes
        self.awaiting_join += sign * (member.join_token is not None)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending id. The caller has answered the member's requests."""
        self.pending.pop(member_id, None)
        member = self._by_id.pop(member_id, None)
        if member is None:
            return
        self._count(member, -1)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self._by_id), None)

    def rename(self, member: Member, new_id: str) -> None:
        """Give a static member another id; it keeps its leadership."""
        invariant(member.instance_id is not None, "member %s is not static", member.member_id)
        invariant(new_id not in self._by_id, "member %s exists already", new_id)
        self._by_id = {
            (new_id if member_id == member.member_id else member_id): other
            for member_id, other in self._by_id.items()
        }
        if self.leader_id == member.member_id:
            self.leader_id = new_id
        self._static[str(member.instance_id)] = new_id
        member.member_id = new_id

    def update(self, member: Member, source: Member) -> None:
        """Give a member the client, the protocols and the timeouts of another."""
        self._count(member, -1)
        member.protocols = source.protocols
        member.client = source.client
        member.session_timeout_ms = source.session_timeout_ms
        member.rebalance_timeout_ms = source.rebalance_timeout_ms
        self._count(member, 1)

    def assign(self, member: Member, assignment: bytes) -> None:
        self._held_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def set_join_token(self, member: Member, token: Token) -> Token:
        """Set the token of the waiting JoinGroup, None for no request; returns the former one."""
        former, member.join_token = member.join_token, token
        self.awaiting_join += (token is not None) - (former is not None)
        return former

    def add_pending(self, member_id: str, expires_at_ms: float) -> None:
        while len(self.pending) >= MAX_PENDING_MEMBERS:
            del self.pending[next(iter(self.pending))]
        self.pending[member_id] = expires_at_ms
        self.next_deadline_ms = min(self.next_deadline_ms, expires_at_ms)

    def support_one_of(self, protocols: Iterable[JoinGroupRequestProtocol]) -> bool:
        return any(self._supporters[protocol.name] == len(self._by_id) for protocol in protocols)

    def choose_protocol(self) -> str:
        """The protocol that all support and most prefer; on a tie, the first that got a vote."""
        count = len(self._by_id)
        votes: Counter[str] = Counter()
        for member in self._by_id.values():
            common = (each.name for each in member.protocols if self._supporters[each.name] == count)
            votes[next(common)] += 1
        return votes.most_common(1)[0][0]

    def elect_joined_leader(self) -> bool:
        """Choose the leader from the members that have joined; False if no member has."""
        if self.leader_id is None:
            return False
        if self._by_id[self.leader_id].join_token is not None:
            return True
        joined = next((m.member_id for m in self._by_id.values() if m.join_token is not None), None)
        if joined is not None:
            self.leader_id = joined
        return joined is not None

    def for_leader(self, protocol_name: str) -> list[JoinGroupResponseMember]:
        """All members with their metadata, which the leader assigns partitions by."""
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(protocol_name),
            )
            for member in self._by_id.values()
        ]
