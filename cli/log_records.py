"""The batches and records of a segment as `barnabas log dump` prints them, for scripts and for a person.

Records of control batches are printed as the markers that they are. With the offsets decoder, the records of
``__consumer_offsets`` are printed as committed offsets and groups, including the subscriptions and
assignments of consumers. A record of another kind keeps its bytes, with the reason. Pure functions.
"""

from __future__ import annotations

from typing import Any, Final

from barnabas.broker.coordinators.groups.records import GroupRecord, OffsetRecord, from_bytes
from barnabas.broker.log.checkpoints import encode_topic_id
from barnabas.broker.log.producer_state import MAX_SEQUENCE
from barnabas.cli.output import count, field, iso_time, record_fields, record_line
from barnabas.logtools.entries import DumpedBatch
from barnabas.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
)
from barnabas.protocol.errors import ApiError, MalformedFrame
from barnabas.protocol.messages.groups import NO_GENERATION
from barnabas.protocol.record_batch import DELETE_HORIZON_MASK, BatchHeader
from barnabas.protocol.records import Record, decode_marker, decode_records

NO_SEQUENCE: Final = -1


def batch_fields(batch: DumpedBatch) -> dict[str, Any]:
    header = batch.header
    return {
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "size_bytes": header.size_bytes,
        "record_count": header.record_count,
        "leader_epoch": header.partition_leader_epoch,
        "compression": header.compression.name.lower(),
        "timestamp_type": header.timestamp_type.name,
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "delete_horizon_ms": _delete_horizon_ms(header),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": _sequence(header, header.last_offset),
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "crc": header.crc,
    }


def batch_line(batch: DumpedBatch) -> str:
    header = batch.header
    parts = [
        f"offsets {header.base_offset}..{header.last_offset}",
        f"at {batch.position}",
        f"{header.size_bytes} bytes",
        count(header.record_count, "record"),
        f"epoch {header.partition_leader_epoch}",
        header.compression.name.lower(),
        f"{header.timestamp_type.name} {iso_time(header.max_timestamp)}",
        f"crc {header.crc:08x}",
    ]
    if header.producer_id >= 0:
        producer = f"producer {header.producer_id}/{header.producer_epoch}"
        parts.append(f"{producer} sequence {header.base_sequence}..{_sequence(header, header.last_offset)}")
    parts += ["transactional"] * header.is_transactional + ["control"] * header.is_control
    horizon = _delete_horizon_ms(header)
    if horizon is not None:
        parts.append(f"delete horizon {iso_time(horizon)}")
    return "  ".join(parts)


def deep_records(batch: DumpedBatch, *, decodes_offsets: bool) -> list[tuple[Record, dict[str, Any]]]:
    """Each record with its own fields; `record_text` prints one. Raises ApiError for malformed records."""
    header = batch.header
    entries = []
    for record in decode_records(batch.data, check_crc=False):
        if header.is_control:
            fields = _marker_fields(record)
        elif decodes_offsets:
            fields = _offsets_fields(record)
        else:
            fields = record_fields(record)
        if header.base_sequence >= 0:
            fields["sequence"] = _sequence(header, record.offset)
        entries.append((record, fields))
    return entries


def record_text(record: Record, fields: dict[str, Any]) -> str:
    """A record on one line for a person."""
    if "decoded" in fields:
        return f"{record.offset}  {iso_time(record.timestamp_ms)}  {_decoded_text(fields['decoded'])}"
    line = record_line(record)
    return f"{line}  ({fields['not_decoded']})" if "not_decoded" in fields else line


def _delete_horizon_ms(header: BatchHeader) -> int | None:
    """The time after which tombstones and markers of a cleaned batch may go (KIP-534)."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON_MASK else None


def _sequence(header: BatchHeader, offset: int) -> int:
    if header.base_sequence < 0:
        return NO_SEQUENCE
    return (header.base_sequence + offset - header.base_offset) & MAX_SEQUENCE


def _head(record: Record, kind: str, decoded: dict[str, Any]) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "decoded": {"type": kind} | decoded,
    }


def _marker_fields(record: Record) -> dict[str, Any]:
    marker = decode_marker(record.key, record.value)
    if marker is None:
        return record_fields(record) | {"not_decoded": "a control record that is no marker"}
    return _head(record, marker.type.name.lower(), {"coordinator_epoch": marker.coordinator_epoch})


def _offsets_fields(record: Record) -> dict[str, Any]:
    if record.key is None:
        return record_fields(record) | {"not_decoded": "a record without a key"}
    try:
        read = from_bytes(record.key, record.value, record.headers)
    except MalformedFrame as error:
        return record_fields(record) | {"not_decoded": str(error)}
    if isinstance(read, OffsetRecord):
        return _head(record, "offset", _offset_fields(read))
    return _head(record, "group", _group_fields(read))


def _offset_fields(read: OffsetRecord) -> dict[str, Any]:
    key = {"group": read.group_id, "topic": read.partition.topic, "partition": read.partition.partition}
    value = read.value
    if value is None:
        return key | {"is_deleted": True}
    return key | {
        "committed_offset": value.committed_offset,
        "leader_epoch": value.leader_epoch,
        "metadata": value.metadata,
        "commit_timestamp_ms": value.commit_timestamp_ms,
        "expire_timestamp_ms": value.expire_timestamp_ms,
        "topic_id": None if value.topic_id is None else encode_topic_id(value.topic_id),
    }


def _group_fields(read: GroupRecord) -> dict[str, Any]:
    value = read.value
    if value is None:
        return {"group": read.group_id, "is_deleted": True}
    is_consumers = value.protocol_type == CONSUMER_PROTOCOL_TYPE
    return {
        "group": read.group_id,
        "protocol_type": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
        "current_state_timestamp_ms": value.current_state_timestamp_ms,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "rebalance_timeout_ms": member.rebalance_timeout_ms,
                "session_timeout_ms": member.session_timeout_ms,
            }
            | _subscription_fields(member.subscription, is_consumers)
            | _assignment_fields(member.assignment, is_consumers)
            for member in value.members
        ],
    }


def _subscription_fields(data: bytes, is_consumers: bool) -> dict[str, Any]:
    """The fields of a consumer's subscription; bytes of other protocols, and malformed ones, stay bytes."""
    try:
        subscription = decode_subscription(data) if is_consumers else None
    except ApiError:
        subscription = None
    if subscription is None:
        return field("subscription", data)
    fields: dict[str, Any] = {"topics": list(subscription.topics)}
    if subscription.owned_partitions:
        fields["owned_partitions"] = [str(partition) for partition in subscription.owned_partitions]
    if subscription.generation_id != NO_GENERATION:
        fields["generation_id"] = subscription.generation_id
    if subscription.rack_id is not None:
        fields["rack_id"] = subscription.rack_id
    return {"subscription": fields | (field("user_data", subscription.user_data))}


def _assignment_fields(data: bytes, is_consumers: bool) -> dict[str, Any]:
    try:
        assigned = decode_assignment(data) if is_consumers else None
    except ApiError:
        assigned = None
    if assigned is None:
        return field("assignment", data)
    return {"assignment": [str(partition) for partition in assigned]}


def _decoded_text(decoded: dict[str, Any]) -> str:
    kind = decoded["type"]
    if kind == "offset":
        name = f"offset of group {decoded['group']} in {decoded['topic']}-{decoded['partition']}"
        if "is_deleted" in decoded:
            return f"{name}: deleted"
        note = f" ({decoded['metadata']})" if decoded["metadata"] else ""
        return f"{name}: {decoded['committed_offset']}, epoch {decoded['leader_epoch']}{note}"
    if kind == "group":
        if "is_deleted" in decoded:
            return f"group {decoded['group']}: deleted"
        members = [f"{member['member_id']} {member['assignment']}" for member in decoded["members"]]
        head = f"group {decoded['group']}: {decoded['protocol_type'] or 'no protocol'}"
        return f"{head}, generation {decoded['generation']}, {count(len(members), 'member')}" + "".join(
            f"; {member}" for member in members
        )
    return f"{kind} marker, coordinator epoch {decoded['coordinator_epoch']}"
