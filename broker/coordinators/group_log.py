"""The records of a group in the offsets topic, as plain data; `group_records` encodes them.

A group is the last `GroupRecord` of its id; its offsets are the last `OffsetRecord` of each partition. A
record without a value removes the former one. Frozen data, for any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from barnabas.protocol.ids import NO_LEADER_EPOCH, TopicId, TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """How far a partition was read: ``committed_offset`` is the next to read.

    ``expire_timestamp_ms`` is None unless the client chose the retention itself, as old versions could.
    ``topic_id`` is the topic's id at the commit, None if the record has none; it does not count in
    comparisons.
    """

    committed_offset: int
    commit_timestamp_ms: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    expire_timestamp_ms: int | None = None
    topic_id: TopicId | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member of a stored generation; ``subscription`` is what it said under the protocol in force."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """One generation. ``protocol_name`` and ``leader_id`` are None when it has no members.

    ``state_since_ms`` is by the wall clock; None where an old schema does not say.
    """

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader_id: str | None
    state_since_ms: int | None
    members: tuple[StoredMember, ...]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A value of None is the group's tombstone."""

    group_id: str
    value: StoredGroup | None


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A value of None is the tombstone of what was committed for the partition."""

    group_id: str
    partition: TopicPartition
    value: OffsetAndMetadata | None


Record = GroupRecord | OffsetRecord
