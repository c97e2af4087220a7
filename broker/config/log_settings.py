"""The settings of logs, records and the cleaner, which most topics may override; see `settings`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from barnabas.common.settings import (
    DERIVED,
    INT_MAX,
    LONG_MAX,
    Boolean,
    Choice,
    Double,
    Integer,
    Text,
    TextList,
    setting,
)

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS
NOT_NEGATIVE = Integer(0, INT_MAX)
NOT_NEGATIVE_LONG = Integer(0, LONG_MAX)
POSITIVE = Integer(1, INT_MAX)
POSITIVE_LONG = Integer(1, LONG_MAX)
LOCAL_SHARE = Integer(-2, LONG_MAX)
_kafka_version = Text("a version of Kafka, such as 3.0-IV1", r"[0-9]+\.[0-9]+(\.[0-9]+)*(-IV[0-9]+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class LogSettings:
    """The part of `BrokerConfig` that concerns logs."""

    # Logs
    log_segment_bytes: int = setting(
        Integer(14), 1_073_741_824, "Size at which a segment is rolled.", topic_name="segment.bytes"
    )
    log_roll_ms: int = setting(
        POSITIVE_LONG,
        WEEK_MS,
        "Age at which a segment is rolled.",
        topic_name="segment.ms",
        coarser=(("log.roll.hours", HOUR_MS),),
    )
    log_roll_jitter_ms: int = setting(
        NOT_NEGATIVE_LONG,
        0,
        "How much earlier a segment may be rolled by its age, at random, so that not all roll at once.",
        topic_name="segment.jitter.ms",
        coarser=(("log.roll.jitter.hours", HOUR_MS),),
    )
    log_preallocate: bool = setting(
        Boolean(),
        False,
        "Whether the first record of a segment takes its whole size on disk; without room it is refused.",
        topic_name="preallocate",
    )
    log_retention_ms: int = setting(
        Integer(-1, LONG_MAX),
        WEEK_MS,
        "Age at which a segment is deleted; -1 keeps all.",
        topic_name="retention.ms",
        coarser=(("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
    )
    log_retention_bytes: int = setting(
        Integer(-1, LONG_MAX),
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 keeps all.",
        topic_name="retention.bytes",
    )
    log_retention_check_interval_ms: int = setting(POSITIVE_LONG, 300_000, "How often retention is checked.")
    log_index_interval_bytes: int = setting(
        NOT_NEGATIVE,
        4_096,
        "Bytes of log per index entry, from the next segment on.",
        topic_name="index.interval.bytes",
    )
    log_index_size_max_bytes: int = setting(
        Integer(12), 10_485_760, "Largest index file.", topic_name="segment.index.bytes"
    )
    log_flush_interval_messages: int = setting(
        POSITIVE_LONG, LONG_MAX, "Records after which a log is forced to disk.", topic_name="flush.messages"
    )
    log_flush_interval_ms: int = setting(
        NOT_NEGATIVE_LONG,
        DERIVED,
        "Time after which a log is forced to disk; the default is log.flush.scheduler.interval.ms.",
        topic_name="flush.ms",
    )
    log_flush_scheduler_interval_ms: int = setting(
        POSITIVE_LONG,
        LONG_MAX,
        "How often that time is checked at the least. Kafka does not check more often; here a shorter "
        "flush.ms of a topic counts.",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        POSITIVE, 60_000, "How often recovery points are saved."
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        POSITIVE, 60_000, "How often log starts are saved."
    )
    log_segment_delete_delay_ms: int = setting(
        Integer(0, LONG_MAX),
        60_000,
        "How long the folder of a deleted partition is kept, unless its broker restarts. A segment that "
        "retention or compaction deletes is removed at once; reads that began keep its bytes.",
        topic_name="file.delete.delay.ms",
    )
    producer_id_expiration_ms: int = setting(
        Integer(1),
        86_400_000,
        "How long a partition remembers an idempotent producer that writes nothing.",
        is_dynamic=True,
    )
    max_producer_ids_per_partition: int = setting(
        Integer(1),
        100_000,
        "How many idempotent producers a partition remembers; the least recent writers are evicted first.",
    )
    transaction_partition_verification_enable: bool = setting(
        Boolean(),
        True,
        "Whether the leader of a partition has the transaction coordinator confirm a transaction before the "
        "transaction's first batch is written.",
        is_dynamic=True,
    )
    producer_id_expiration_check_interval_ms: int = setting(Integer(1), 600_000, "How often that is checked.")
    log_message_timestamp_type: str = setting(
        Choice("CreateTime", "LogAppendTime"),
        "CreateTime",
        "Whether a record has the producer's time or the leader's.",
        topic_name="message.timestamp.type",
    )

    # Records
    compression_type: str = setting(
        Choice("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "producer",
        "The compression of stored batches; producer keeps that of the producer.",
        topic_name="compression.type",
    )
    compression_gzip_level: int = setting(
        Integer(-1, 9, but=0),
        -1,
        "The level of gzip if compression.type is gzip; -1 is the library's own.",
        topic_name="compression.gzip.level",
    )
    compression_lz4_level: int = setting(
        Integer(1, 17),
        9,
        "The level of lz4 if compression.type is lz4; 9 is its fast compressor, as in Kafka.",
        topic_name="compression.lz4.level",
    )
    compression_zstd_level: int = setting(
        Integer(-131_072, 22),
        3,
        "The level of zstd if compression.type is zstd.",
        topic_name="compression.zstd.level",
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        TextList(choices=("delete", "compact")),
        ("delete",),
        "Whether old segments are deleted, compacted or both; with compact, every record needs a key.",
        topic_name="cleanup.policy",
    )
    log_message_timestamp_before_max_ms: int = setting(
        Integer(0, LONG_MAX),
        LONG_MAX,
        "How far a record's time may be before the broker's; only with CreateTime.",
        topic_name="message.timestamp.before.max.ms",
    )
    log_message_timestamp_after_max_ms: int = setting(
        Integer(0, LONG_MAX),
        LONG_MAX,
        "How far a record's time may be after the broker's; only with CreateTime.",
        topic_name="message.timestamp.after.max.ms",
    )
    log_message_timestamp_difference_max_ms: int = setting(
        NOT_NEGATIVE_LONG,
        LONG_MAX,
        "The former setting of both limits; it counts for the limit that is not set.",
        topic_name="message.timestamp.difference.max.ms",
    )
    log_message_format_version: str = setting(
        _kafka_version,
        "3.0-IV1",
        "The record format. Without effect: it is always v2, as in Kafka from 3.0 on.",
        topic_name="message.format.version",
    )
    log_message_downconversion_enable: bool = setting(
        Boolean(),
        True,
        "Whether old consumers get old record formats. Without effect: no consumer gets them.",
        topic_name="message.downconversion.enable",
    )
    log_local_retention_ms: int = setting(
        LOCAL_SHARE,
        -2,
        "How long segments in tiered storage also stay local. Without effect: there is no tiered storage.",
        topic_name="local.retention.ms",
    )
    log_local_retention_bytes: int = setting(
        LOCAL_SHARE,
        -2,
        "How many bytes in tiered storage also stay local. Without effect: there is no tiered storage.",
        topic_name="local.retention.bytes",
    )

    # The cleaner, which compacts logs
    log_cleaner_enable: bool = setting(
        Boolean(), True, "Whether the cleaner runs; without it no log is compacted."
    )
    log_cleaner_threads: int = setting(
        NOT_NEGATIVE,
        1,
        "Threads that compact logs; 0 pauses the cleaner, which Apache Kafka does not offer.",
        is_dynamic=True,
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        POSITIVE_LONG,
        134_217_728,
        "Bytes for the offset maps of all cleaner threads, at least 1 MiB each.",
        is_dynamic=True,
    )
    log_cleaner_io_buffer_size: int = setting(
        NOT_NEGATIVE,
        524_288,
        "Bytes that all cleaner threads together read and write at a time; at most 128 KiB for each.",
        is_dynamic=True,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        Double(0, 1), 0.9, "The share of an offset map that may be filled.", is_dynamic=True
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        Double(0),
        sys.float_info.max,
        "The most bytes that the cleaner reads and writes per second.",
        is_dynamic=True,
    )
    log_cleaner_backoff_ms: int = setting(
        NOT_NEGATIVE_LONG, 15_000, "Pause of the cleaner when no log has to be compacted.", is_dynamic=True
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        Double(0, 1),
        0.5,
        "The share of bytes not compacted so far above which a log is compacted.",
        topic_name="min.cleanable.dirty.ratio",
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        NOT_NEGATIVE_LONG, 0, "Age up to which no record is compacted.", topic_name="min.compaction.lag.ms"
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        POSITIVE_LONG,
        LONG_MAX,
        "Age at which a record is compacted at any share of bytes; bounds the age of a segment too.",
        topic_name="max.compaction.lag.ms",
    )
    log_cleaner_delete_retention_ms: int = setting(
        NOT_NEGATIVE_LONG,
        DAY_MS,
        "How long compaction keeps tombstones and transaction markers after the records that they end.",
        topic_name="delete.retention.ms",
    )
