"""The offsets of a stream in the checkpoint: their form, and their comparison with the cluster.

The form is that of Spark's Kafka source, ``{"topic":{"0":23}}``, so a checkpoint of ``format("kafka")`` is
taken over. One more key, which cannot be a topic, holds a version, the ids of the topics, and the starts of
partitions that the previous offset lacks. The ids distinguish a topic that was made again from one that
retention shortened; the starts give a replayed batch the same records.

Pure functions and frozen data, for any thread.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.spark_connector.source.ranges import OffsetRange

EXTRA_KEY: Final = "@barnabas"
VERSION: Final = 1
_VERSION_KEY: Final = "version"
_IDS_KEY: Final = "topic_ids"
_STARTS_KEY: Final = "starts"
_EXPECTED: Final = 'JSON such as {"topic":{"0":23}}'
_MAX_SHOWN: Final = 300

Positions = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset to read of each partition, at the end of a batch.

    ``topic_ids`` may lack topics, and does for a checkpoint of Spark's Kafka source. ``starts`` has the first
    offset of the batch that ends here, for partitions whose position the offset before it does not tell.
    """

    positions: Positions = field(default_factory=dict)
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    starts: Positions = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The object that `parse_offset` reads; equal offsets have equal texts."""
        extra: dict[str, Any] = {
            _VERSION_KEY: VERSION,
            _IDS_KEY: {
                topic: str(topic_id)
                for topic, topic_id in sorted(self.topic_ids.items())
                if topic_id != NO_TOPIC_ID
            },
        }
        if self.starts:
            extra[_STARTS_KEY] = _nested(self.starts)
        return _nested(self.positions) | {EXTRA_KEY: extra}


def parse_offset(value: object) -> StreamOffset:
    """Read an offset of the checkpoint, given as text or as the object that the text holds.

    Raises InvalidConfiguration for a malformed one, or one of a later version.
    """
    try:
        given = json.loads(value) if isinstance(value, str | bytes) else value
        if not isinstance(given, Mapping):
            raise ValueError("it is not a JSON object")
        extra = given.get(EXTRA_KEY)
        topics = {topic: offsets for topic, offsets in given.items() if topic != EXTRA_KEY}
        if extra is None:
            return StreamOffset(_flat(topics))
        if not isinstance(extra, Mapping) or type(extra.get(_VERSION_KEY)) is not int:
            raise ValueError(f"{EXTRA_KEY!r} names no version")
        if extra[_VERSION_KEY] > VERSION:
            raise InvalidConfiguration(
                f"the checkpoint has offsets of version {extra[_VERSION_KEY]}, written by a newer barnabas; "
                f"this one reads versions up to {VERSION}: upgrade it, or begin with a new checkpoint"
            )
        ids = {topic: TopicId(uuid.UUID(text)) for topic, text in extra.get(_IDS_KEY, {}).items()}
        return StreamOffset(_flat(topics), ids, _flat(extra.get(_STARTS_KEY, {})))
    except InvalidConfiguration:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        shown = value if isinstance(value, str | bytes) else json.dumps(value, default=repr)
        raise InvalidConfiguration(
            f"the offset {shown[:_MAX_SHOWN]!r} of the checkpoint is malformed ({error}); "
            f"expected {_EXPECTED}"
        ) from error


def _nested(positions: Positions) -> dict[str, Any]:
    nested: dict[str, dict[str, int]] = {}
    for tp in sorted(positions):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = positions[tp]
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Raises ValueError and AttributeError for anything but offsets by topic and partition."""
    flat: dict[TopicPartition, int] = {}
    for topic, by_partition in nested.items():
        for partition, offset in by_partition.items():
            if not (partition.isascii() and partition.isdecimal()) or type(offset) is not int or offset < 0:
                raise ValueError(f"partition {partition!r} of {topic!r} has {offset!r}")
            flat[TopicPartition(topic, int(partition))] = offset
    return flat


class Changes(NamedTuple):
    """The differences between an offset and the partitions that the cluster has now."""

    made_again: list[str]
    """Topics whose id is another one."""
    gone: list[TopicPartition]
    """Partitions of the offset that are not read any more, but for those of topics in ``made_again``."""
    added: list[TopicPartition]
    """Partitions that the offset lacks, or that belong to topics in ``made_again``."""


def changes_since(
    offset: StreamOffset, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, TopicId]
) -> Changes:
    present = set(partitions)
    topics = {tp.topic for tp in present}
    made_again = {
        topic
        for topic in topics
        if NO_TOPIC_ID
        not in (
            before := offset.topic_ids.get(topic, NO_TOPIC_ID),
            now := topic_ids.get(topic, NO_TOPIC_ID),
        )
        and before != now
    }
    return Changes(
        sorted(made_again),
        sorted(tp for tp in offset.positions if tp not in present and tp.topic not in made_again),
        sorted(tp for tp in present if tp not in offset.positions or tp.topic in made_again),
    )


def ranges_between(
    start: StreamOffset, end: StreamOffset, earliest: Positions
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """The ranges of a batch, and those whose start is beyond their end, which are lost.

    ``earliest`` has the log start of each partition of `without_start`.
    """
    if start == end:
        # The starts in an end are those of the batch before.
        return [], []
    firsts = {**start.positions, **earliest, **end.starts}
    ranges: list[OffsetRange] = []
    reversed_ranges: list[OffsetRange] = []
    for tp, last in sorted(end.positions.items()):
        topic_id = end.topic_ids.get(tp.topic, NO_TOPIC_ID)
        part = OffsetRange(tp.topic, tp.partition, firsts[tp], last, topic_id)
        if part.start_offset < last:
            ranges.append(part)
        elif part.start_offset > last:
            reversed_ranges.append(part)
    return ranges, reversed_ranges


def without_start(start: StreamOffset, end: StreamOffset) -> list[TopicPartition]:
    """The partitions of a batch whose start no offset tells, as in a checkpoint of Spark's Kafka source."""
    added = changes_since(start, end.positions, end.topic_ids).added
    return [tp for tp in added if tp not in end.starts]
