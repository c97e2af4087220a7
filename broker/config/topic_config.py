"""The settings of a topic, declared once: its log's, its replicas', and those without effect.

Most have a broker-level name, under which a broker declares the default of its topics. The others, which have
none, are throttles, and settings that tools set by themselves (MirrorMaker, Connect, Terraform): these are
checked, stored and shown, and values that enable a missing feature are refused. Frozen, for any thread.

Source: ``TopicConfig.java``, ``QuotaConfig.java`` and ``TopicConfig.java`` of Apache Kafka 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from barnabas.common.settings import (
    DERIVED,
    INT_MAX,
    LONG_MAX,
    AlwaysFalse,
    Boolean,
    Choice,
    Double,
    Integer,
    Setting,
    Text,
    TextList,
    setting,
    settings_of,
)
from barnabas.protocol.compression import Compression

SettingValue = int | float | bool | str | tuple[str, ...]
"""The type of a topic-level setting."""

NEVER_MS: Final = LONG_MAX
NO_LIMIT: Final = -1
DELETE: Final = "delete"
COMPACT: Final = "compact"
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS
NOT_NEGATIVE = Integer(0, INT_MAX)
NOT_NEGATIVE_LONG = Integer(0, LONG_MAX)
POSITIVE = Integer(1, INT_MAX)
POSITIVE_LONG = Integer(1, LONG_MAX)

_COMPRESSIONS: Final[Mapping[str, Compression | None]] = {
    "producer": None,
    "uncompressed": Compression.NONE,
    **{member.name.lower(): member for member in Compression if member is not Compression.NONE},
}
_kafka_version = Text("a version of Kafka, such as 3.0-IV1", r"[0-9]+\.[0-9]+(\.[0-9]+)*(-IV[0-9]+)?")
_local_share = Integer(-2, LONG_MAX)
_never = AlwaysFalse("there is no tiered storage")


class ReplicaList(TextList):
    """Replicas of a topic: nothing, all of them (``*``), or a list of ``partition:broker``."""

    def __init__(self) -> None:
        super().__init__("nothing, * or a comma separated list of partition:broker")
        self.config_type = "LIST"

    def parse(self, text: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in text.split(",")) if text.strip() else ()
        if words != ("*",) and not all(re.fullmatch("[0-9]+:[0-9]+", word) for word in words):
            raise ValueError(text)
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic: its overrides, else the broker's defaults."""

    # Segments and retention
    segment_bytes: int = setting(
        Integer(14), 1_073_741_824, "Size at which a segment is rolled.", name="log.segment.bytes"
    )
    segment_ms: int = setting(
        POSITIVE_LONG,
        WEEK_MS,
        "Age at which a segment is rolled.",
        name="log.roll.ms",
        coarser=(("log.roll.hours", HOUR_MS),),
    )
    segment_jitter_ms: int = setting(
        NOT_NEGATIVE_LONG,
        0,
        "How much earlier a segment may be rolled by its age, at random, so that not all roll at once.",
        name="log.roll.jitter.ms",
        coarser=(("log.roll.jitter.hours", HOUR_MS),),
    )
    preallocate: bool = setting(
        Boolean(),
        False,
        "Whether the first record of a segment takes its whole size on disk; without room it is refused.",
        name="log.preallocate",
    )
    retention_ms: int = setting(
        Integer(-1, LONG_MAX),
        WEEK_MS,
        "Age at which a segment is deleted; -1 keeps all.",
        name="log.retention.ms",
        coarser=(("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
    )
    retention_bytes: int = setting(
        Integer(-1, LONG_MAX),
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 keeps all.",
        name="log.retention.bytes",
    )
    index_interval_bytes: int = setting(
        NOT_NEGATIVE,
        4_096,
        "Bytes of log per index entry, from the next segment on.",
        name="log.index.interval.bytes",
    )
    segment_index_bytes: int = setting(
        Integer(12), 10_485_760, "Largest index file.", name="log.index.size.max.bytes"
    )
    flush_messages: int = setting(
        POSITIVE_LONG,
        LONG_MAX,
        "Records after which a log is forced to disk.",
        name="log.flush.interval.messages",
    )
    flush_ms: int = setting(
        NOT_NEGATIVE_LONG,
        DERIVED,
        "Time after which a log is forced to disk; the default is log.flush.scheduler.interval.ms.",
        name="log.flush.interval.ms",
    )
    file_delete_delay_ms: int = setting(
        Integer(0, LONG_MAX),
        60_000,
        "How long the folder of a deleted partition is kept, unless its broker restarts. A segment that "
        "retention or compaction deletes is removed at once; reads that began keep its bytes.",
        name="log.segment.delete.delay.ms",
    )

    # Records
    message_timestamp_type: str = setting(
        Choice("CreateTime", "LogAppendTime"),
        "CreateTime",
        "Whether a record has the producer's time or the leader's.",
        name="log.message.timestamp.type",
    )
    compression_type: str = setting(
        Choice(*_COMPRESSIONS),
        "producer",
        "The compression of stored batches; producer keeps that of the producer.",
        name="compression.type",
    )
    compression_gzip_level: int = setting(
        Integer(-1, 9, but=0),
        -1,
        "The level of gzip if compression.type is gzip; -1 is the library's own.",
        name="compression.gzip.level",
    )
    compression_lz4_level: int = setting(
        Integer(1, 17),
        9,
        "The level of lz4 if compression.type is lz4; 9 is its fast compressor, as in Kafka.",
        name="compression.lz4.level",
    )
    compression_zstd_level: int = setting(
        Integer(-131_072, 22),
        3,
        "The level of zstd if compression.type is zstd.",
        name="compression.zstd.level",
    )
    message_timestamp_before_max_ms: int = setting(
        Integer(0, LONG_MAX),
        LONG_MAX,
        "How far a record's time may be before the broker's; only with CreateTime.",
        name="log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms: int = setting(
        Integer(0, LONG_MAX),
        LONG_MAX,
        "How far a record's time may be after the broker's; only with CreateTime.",
        name="log.message.timestamp.after.max.ms",
    )
    message_timestamp_difference_max_ms: int = setting(
        NOT_NEGATIVE_LONG,
        LONG_MAX,
        "The former setting of both limits; it counts for the limit that is not set.",
        name="log.message.timestamp.difference.max.ms",
    )
    max_message_bytes: int = setting(
        NOT_NEGATIVE, 1_048_588, "The largest record batch accepted.", name="message.max.bytes"
    )

    # Compaction
    cleanup_policy: tuple[str, ...] = setting(
        TextList(choices=(DELETE, COMPACT)),
        (DELETE,),
        "Whether old segments are deleted, compacted or both; with compact, every record needs a key.",
        name="log.cleanup.policy",
    )
    min_cleanable_dirty_ratio: float = setting(
        Double(0, 1),
        0.5,
        "The share of bytes not compacted so far above which a log is compacted.",
        name="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = setting(
        NOT_NEGATIVE_LONG,
        0,
        "Age up to which no record is compacted.",
        name="log.cleaner.min.compaction.lag.ms",
    )
    max_compaction_lag_ms: int = setting(
        POSITIVE_LONG,
        LONG_MAX,
        "Age at which a record is compacted at any share of bytes; bounds the age of a segment too.",
        name="log.cleaner.max.compaction.lag.ms",
    )
    delete_retention_ms: int = setting(
        NOT_NEGATIVE_LONG,
        DAY_MS,
        "How long compaction keeps tombstones and transaction markers after the records that they end.",
        name="log.cleaner.delete.retention.ms",
    )

    # Replication
    min_insync_replicas: int = setting(
        POSITIVE, 1, "In-sync replicas without which acks=all is refused.", name="min.insync.replicas"
    )
    unclean_leader_election_enable: bool = setting(
        Boolean(),
        False,
        "Whether a replica out of sync may lead if no other is alive; records may be lost.",
        name="unclean.leader.election.enable",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        ReplicaList(), (), "Leaders that send to replicas out of sync at leader.replication.throttled.rate."
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        ReplicaList(),
        (),
        "Replicas that are fetched at follower.replication.throttled.rate while they are not in sync.",
    )

    # Without effect
    message_format_version: str = setting(
        _kafka_version,
        "3.0-IV1",
        "The record format. Without effect: it is always v2, as in Kafka from 3.0 on.",
        name="log.message.format.version",
    )
    message_downconversion_enable: bool = setting(
        Boolean(),
        True,
        "Whether old consumers get old record formats. Without effect: no consumer gets them.",
        name="log.message.downconversion.enable",
    )
    local_retention_ms: int = setting(
        _local_share,
        -2,
        "How long segments in tiered storage also stay local. Without effect: there is no tiered storage.",
        name="log.local.retention.ms",
    )
    local_retention_bytes: int = setting(
        _local_share,
        -2,
        "How many bytes in tiered storage also stay local. Without effect: there is no tiered storage.",
        name="log.local.retention.bytes",
    )
    remote_storage_enable: bool = setting(
        _never, False, "Tiered storage, which does not exist here. Without effect so far."
    )
    remote_log_copy_disable: bool = setting(
        _never, False, "Whether no more segments go to tiered storage. Without effect so far."
    )
    remote_log_delete_on_disable: bool = setting(
        _never, False, "Whether disabling it deletes its data. Without effect so far."
    )

    # Settings of the broker alone
    max_producer_ids: int
    """How many idempotent producers a partition remembers."""
    is_min_isr_strict: bool

    # Computed once, because every append or fetch reads them
    compression: Compression | None = field(init=False, compare=False)
    """The compression of stored batches; None keeps the producer's."""
    compression_level: int | None = field(init=False, compare=False)
    """The level of `compression`; None if it has no levels."""
    waits_for_disk: bool = field(init=False, compare=False)
    """Whether an append may have to wait for an fsync, or for the space of a whole segment."""
    is_compacted: bool = field(init=False, compare=False)
    """Whether every record must have a key."""
    stamps_append_time: bool = field(init=False, compare=False)
    """Whether batches get the broker's time (LogAppendTime)."""
    timestamp_before_max_ms: int = field(init=False, compare=False)
    timestamp_after_max_ms: int = field(init=False, compare=False)
    """The limits of records' timestamps before and after the broker's time."""
    limits_timestamps: bool = field(init=False, compare=False)
    max_segment_ms: int = field(init=False, compare=False)
    """The age at which a segment is rolled. A record is compacted once its segment is rolled, so
    `max.compaction.lag.ms` bounds it too."""
    least_roll_ms: int = field(init=False, compare=False)
    """The age above which a segment may be rolled, if its jitter is the longest."""
    throttled_leaders: frozenset[str] = field(init=False, compare=False)
    """``*``, or ``partition:broker`` for each leader whose replication is throttled."""
    throttled_followers: frozenset[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        compression = _COMPRESSIONS[self.compression_type]
        levels = {
            Compression.GZIP: self.compression_gzip_level,
            Compression.LZ4: self.compression_lz4_level,
            Compression.ZSTD: self.compression_zstd_level,
        }
        is_compacted = COMPACT in self.cleanup_policy
        most_ms = min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms
        stamps = self.message_timestamp_type == "LogAppendTime"
        before_ms, after_ms = (
            self.message_timestamp_difference_max_ms if limit_ms == LONG_MAX else limit_ms
            for limit_ms in (self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms)
        )
        for name, value in {
            "compression": compression,
            "compression_level": None if compression is None else levels.get(compression),
            "waits_for_disk": self.preallocate or self.flush_messages < LONG_MAX,
            "is_compacted": is_compacted,
            "stamps_append_time": stamps,
            "timestamp_before_max_ms": before_ms,
            "timestamp_after_max_ms": after_ms,
            "limits_timestamps": not stamps and min(before_ms, after_ms) < LONG_MAX,
            "max_segment_ms": most_ms,
            "least_roll_ms": max(0, most_ms - self.segment_jitter_ms),
            "throttled_leaders": frozenset(self.leader_replication_throttled_replicas),
            "throttled_followers": frozenset(self.follower_replication_throttled_replicas),
        }.items():
            # A frozen dataclass allows no plain assignment.
            object.__setattr__(self, name, value)

    @property
    def is_deleted_by_age(self) -> bool:
        """Whether retention applies; it does not to a topic that is only compacted."""
        return DELETE in self.cleanup_policy

    def value(self, name: str) -> Any:
        """By topic-level name."""
        return getattr(self, TOPIC_SETTINGS[name].attribute)

    def overridden(self, values: Mapping[str, SettingValue]) -> TopicConfig:
        """With these values, by topic-level name."""
        changes: dict[str, Any] = {TOPIC_SETTINGS[name].attribute: value for name, value in values.items()}
        return replace(self, **changes) if changes else self


TOPIC_SETTINGS: Final[Mapping[str, Setting]] = {
    name: replace(declared, topic_name=name, is_dynamic=True)
    for attribute, declared in settings_of(TopicConfig, lambda attribute: "").items()
    for name in [attribute.replace("_", ".")]
}
"""Topic-level name → declaration; its name is the broker-level one, "" if brokers have no default."""
