"""Kafka's topic settings that have no effect here: accepted, checked, stored and shown.

Tools set them by themselves (MirrorMaker, Connect, Terraform, kafka-reassign-partitions), and would fail if
brokers refused them. Values that enable a missing feature, such as tiered storage, are still refused. A
setting that gets an effect moves to `config_settings`. Pure, for any thread.

Source: org.apache.kafka.common.config.TopicConfig of Apache Kafka 3.9.
"""

from __future__ import annotations

from typing import Any, Final

from barnabas.broker.config.settings import TOPIC_ROWS
from barnabas.broker.config.table import (
    LONG_MAX,
    Boolean,
    Integer,
    KafkaVersion,
    Kind,
    Ratio,
    ReplicaList,
    Row,
)

_DAY_MS: Final = 24 * 3_600_000
_long = Integer(0, LONG_MAX)
_local = Integer(-2, LONG_MAX)
_never = Boolean("false, as there is no tiered storage", may_be_true=False)


def _row(name: str, kind: Kind, default: Any, documentation: str) -> Row:
    return Row(name, kind, default, f"{documentation} Without effect so far.")


STORED_TOPIC_ROWS: Final[dict[str, Row]] = {
    row.name: row
    for row in (
        _row("delete.retention.ms", _long, _DAY_MS, "How long compaction keeps a tombstone."),
        _row(
            "min.cleanable.dirty.ratio",
            Ratio(),
            0.5,
            "The dirty share of a log above which it is compacted.",
        ),
        _row("min.compaction.lag.ms", _long, 0, "The age below which compaction keeps a record."),
        _row(
            "max.compaction.lag.ms", Integer(1, LONG_MAX), LONG_MAX, "The age at which a record is compacted."
        ),
        _row(
            "segment.jitter.ms", _long, 0, "How much earlier than segment.ms a segment may roll, at random."
        ),
        _row("preallocate", Boolean(), False, "Whether a new segment takes its whole size on disk."),
        _row("message.downconversion.enable", Boolean(), True, "Whether old consumers get old formats."),
        _row("message.format.version", KafkaVersion(), "3.0-IV1", "The record format, which is always v2."),
        _row(
            "message.timestamp.difference.max.ms",
            _long,
            LONG_MAX,
            "The former name of message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
        ),
        _row("compression.gzip.level", Integer(-1, 9, but=0), -1, "The level of gzip."),
        _row("compression.lz4.level", Integer(1, 17), 9, "The level of lz4."),
        _row("compression.zstd.level", Integer(-131_072, 22), 3, "The level of zstd."),
        _row(
            "leader.replication.throttled.replicas", ReplicaList(), (), "Leaders whose replication is slowed."
        ),
        _row(
            "follower.replication.throttled.replicas",
            ReplicaList(),
            (),
            "Followers whose replication is slowed.",
        ),
        _row("remote.storage.enable", _never, False, "Tiered storage, which does not exist here."),
        _row("remote.log.copy.disable", _never, False, "Whether no more segments go to tiered storage."),
        _row("remote.log.delete.on.disable", _never, False, "Whether disabling it deletes its data."),
        _row("local.retention.ms", _local, -2, "With tiered storage: how long segments also stay local."),
        _row("local.retention.bytes", _local, -2, "With tiered storage: how many bytes also stay local."),
    )
}
"""Topic-level name → row."""


def topic_row(name: str) -> Row | None:
    """The row of a topic-level name, whether it has an effect or not."""
    return TOPIC_ROWS[name][1] if name in TOPIC_ROWS else STORED_TOPIC_ROWS.get(name)


def topic_names() -> list[str]:
    """Every topic-level name that is accepted."""
    return [*TOPIC_ROWS, *STORED_TOPIC_ROWS]
