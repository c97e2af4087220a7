"""`barnabas log dump`: prints the files of a log, entry by entry (`logtools/entries.py`).

A folder stands for all files in it that belong to a log, in order. A damaged entry ends the dump of its file;
the others are still printed, and the exit code is 1. Files are only read, so a broker may be running.

Records of control batches are printed as the markers that they are. With the offsets decoder, the records of
``__consumer_offsets`` are printed as committed offsets and groups, including the subscriptions and
assignments of consumers. A record of another kind keeps its bytes, with the reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from barnabas.broker.coordinators.groups.records import GroupRecord, OffsetRecord, from_bytes
from barnabas.broker.log.checkpoints import encode_topic_id
from barnabas.broker.log.producer_state import MAX_SEQUENCE
from barnabas.cli.action import pick
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.output import print_json
from barnabas.client.record_texts import field, record_fields, record_line
from barnabas.common.texts import count, iso_time
from barnabas.logtools.entries import (
    BATCHES,
    FILE_TYPES,
    KNOWN_FILES,
    Damage,
    DumpedBatch,
    base_offset_of,
    file_type,
    read_batches,
    read_entries,
)
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


def run(options: argparse.Namespace) -> int:
    """Dump each file; returns FAILED when one of them is damaged."""
    options.deep = options.deep or options.offsets_decoder
    files = [file for path in options.files for file in _files_at(path)]
    code = OK
    for path, is_listed in files:
        if len(files) > 1 and not options.json:
            print(f"{path}:")
        try:
            damage = _dump(path, options)
        except FileNotFoundError:
            if not is_listed:
                raise
            # The broker that uses the folder has removed it since.
            continue
        if damage is not None:
            at = "" if damage.position is None else f" at byte {damage.position}"
            print(f"{path}: damaged{at}: {damage.reason}", file=sys.stderr)
            if options.json:
                print_json({"file": str(path), "type": "damage"} | damage._asdict())
            code = FAILED
    return code


def _files_at(path: Path) -> Iterator[tuple[Path, bool]]:
    """The files that an argument names, each with whether it was listed in a folder."""
    if not path.is_dir():
        if not path.exists():
            raise CommandError(f"{path}: there is no such file or folder", NOT_FOUND)
        if file_type(path) is None:
            raise CommandError(f"{path}: expected a file ending in {', '.join(KNOWN_FILES)}", USAGE)
        yield path, False
        return
    files = [file for file in path.iterdir() if file_type(file) is not None and file.is_file()]
    if not files:
        raise CommandError(f"{path}: the folder has no file of a log", USAGE)
    for file in sorted(files, key=_place):
        yield file, True


def _place(file: Path) -> tuple[bool, int, int, str]:
    """Where a file comes in the order of a folder: by segment, then by kind; names without an offset last."""
    base = base_offset_of(file)
    return base is None, base or 0, FILE_TYPES.index(file_type(file) or ""), file.name


def _dump(path: Path, options: argparse.Namespace) -> Damage | None:
    kind = file_type(path) or ""
    if kind == BATCHES:
        return _dump_batches(path, options)
    shown = 0
    for entry in read_entries(path):
        if isinstance(entry, Damage):
            return entry
        if shown == options.max:
            break
        shown += 1
        if options.json:
            print_json({"file": str(path), "type": kind} | entry)
        else:
            print("  ".join(f"{name} {_text(value)}" for name, value in entry.items()))
    if not options.json:
        print(count(shown, "entry", "entries"))
    return None


def _text(value: object) -> str:
    """A field's value for a person; a producer's batches as their last sequences and offsets."""
    if isinstance(value, list):
        return ", ".join(f"{batch['last_sequence']} at {batch['last_offset']}" for batch in value) or "-"
    return "-" if value is None else str(value)


def _dump_batches(path: Path, options: argparse.Namespace) -> Damage | None:
    """Offsets that do not rise are damage too, but do not keep the batches after them from being read."""
    batches = records = size = 0
    damage: Damage | None = None
    expected = base_offset_of(path) or 0
    for batch in read_batches(path):
        if isinstance(batch, Damage):
            return batch
        if batches == options.max:
            break
        batches += 1
        if batch.header.base_offset < expected and damage is None:
            reason = f"a batch has offset {batch.header.base_offset}, expected at least {expected}"
            damage = Damage(batch.position, reason)
        expected = batch.header.next_offset
        records += batch.header.record_count
        size += batch.header.size_bytes
        try:
            content = _deep_records(batch, decodes_offsets=options.offsets_decoder) if options.deep else []
        except ApiError as error:
            return Damage(batch.position, str(error))
        if options.json:
            fields = {"file": str(path), "type": BATCHES} | _batch_fields(batch)
            print_json(fields | ({"records": [entry for _, entry in content]} if options.deep else {}))
        else:
            print(_batch_line(batch))
            for record, entry in content:
                print(f"    {_record_text(record, entry)}")
    if not options.json:
        rest = path.stat().st_size - size
        tail = f"; {rest:,} bytes follow" if rest > 0 and options.max is None else ""
        print(f"{count(batches, 'batch', 'batches')}, {count(records, 'record')}{tail}")
    return damage


# -- batches and records -------------------------------------------------------------------------------------


def _batch_fields(batch: DumpedBatch) -> dict[str, Any]:
    header = batch.header
    return {
        "position": batch.position,
        **pick(header, "base_offset last_offset size_bytes record_count"),
        "leader_epoch": header.partition_leader_epoch,
        "compression": header.compression.name.lower(),
        "timestamp_type": header.timestamp_type.name,
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "delete_horizon_ms": _delete_horizon_ms(header),
        **pick(header, "producer_id producer_epoch base_sequence"),
        "last_sequence": _sequence(header, header.last_offset),
        **pick(header, "is_transactional is_control crc"),
    }


def _batch_line(batch: DumpedBatch) -> str:
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


def _deep_records(batch: DumpedBatch, *, decodes_offsets: bool) -> list[tuple[Record, dict[str, Any]]]:
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


def _record_text(record: Record, fields: dict[str, Any]) -> str:
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
    if read.value is None:
        return key | {"is_deleted": True}
    topic_id = read.value.topic_id
    return key | asdict(read.value) | {"topic_id": None if topic_id is None else encode_topic_id(topic_id)}


def _group_fields(read: GroupRecord) -> dict[str, Any]:
    if read.value is None:
        return {"group": read.group_id, "is_deleted": True}
    is_consumers = read.value.protocol_type == CONSUMER_PROTOCOL_TYPE
    members = [
        _plain(member)
        | _subscription_fields(member.subscription, is_consumers)
        | _assignment_fields(member.assignment, is_consumers)
        for member in read.value.members
    ]
    return {"group": read.group_id} | _plain(read.value) | {"members": members}


def _plain(value: Any) -> dict[str, Any]:
    """The fields of a message; those of bytes are printed by the caller."""
    return {name: item for name, item in structs.asdict(value).items() if not isinstance(item, bytes)}


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
