"""The settings of one log: the broker's defaults with the topic's overrides applied. Frozen, any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import TimestampType

_LONG_MAX: Final = (1 << 63) - 1
NEVER_MS: Final = _LONG_MAX
NO_LIMIT: Final = -1
DELETE: Final = "delete"
COMPACT: Final = "compact"

_COMPRESSIONS: Final[Mapping[str, Compression | None]] = {
    "producer": None,
    "uncompressed": Compression.NONE,
    **{member.name.lower(): member for member in Compression},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Kafka's topic settings that a log obeys; `BrokerConfig` declares their defaults.

    Source: https://kafka.apache.org/documentation/#topicconfigs.
    """

    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    preallocate: bool
    retention_ms: int
    """-1 keeps everything."""
    retention_bytes: int
    """-1 keeps everything."""
    max_message_bytes: int
    """The largest batch, its header included."""
    message_timestamp_type: TimestampType
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    """The limits of records' timestamps before and after the broker's time; only with CREATE_TIME."""
    compression_type: Compression | None
    """The compression of stored batches; None keeps the producer's."""
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    cleanup_policy: tuple[str, ...]
    """`DELETE`, `COMPACT` or both."""
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    max_producer_ids: int
    """How many idempotent producers a partition remembers; a setting of the broker, not of topics."""
    flush_messages: int
    flush_ms: int
    compression_level: int | None = field(init=False, compare=False, default=None)
    """The level of `compression_type`; None if it has no levels."""
    stamps_append_time: bool = field(init=False, compare=False, default=False)
    """Whether batches get the broker's time (LogAppendTime)."""
    waits_for_disk: bool = field(init=False, compare=False, default=False)
    """Whether an append may have to wait for an fsync, or for the space of a whole segment."""
    is_compacted: bool = field(init=False, compare=False, default=False)
    """Whether every record must have a key."""
    limits_timestamps: bool = field(init=False, compare=False, default=False)
    max_segment_ms: int = field(init=False, compare=False, default=0)
    """The age at which a segment is rolled. A record is compacted once its segment is rolled, so
    `max.compaction.lag.ms` bounds it too."""
    least_roll_ms: int = field(init=False, compare=False, default=0)
    """The age above which a segment may be rolled, if its jitter is the longest."""

    def __post_init__(self) -> None:
        is_append_time = self.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        levels = {
            Compression.GZIP: self.compression_gzip_level,
            Compression.LZ4: self.compression_lz4_level,
            Compression.ZSTD: self.compression_zstd_level,
        }
        is_compacted = COMPACT in self.cleanup_policy
        most_ms = min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms
        limit_ms = min(self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms)
        computed = {
            "compression_level": None if self.compression_type is None else levels.get(self.compression_type),
            "stamps_append_time": is_append_time,
            "waits_for_disk": self.preallocate or self.flush_messages < _LONG_MAX,
            "is_compacted": is_compacted,
            "limits_timestamps": not is_append_time and limit_ms < _LONG_MAX,
            "max_segment_ms": most_ms,
            "least_roll_ms": max(0, most_ms - self.segment_jitter_ms),
        }
        # Computed once, because every append reads them; a frozen dataclass allows no plain assignment.
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> LogConfig:
        """Make the configuration from topic-level names (``segment.bytes``) and parsed values.

        All of them must be given; other names are ignored.
        """
        values: dict[str, Any] = {
            declared.name: settings[declared.name.replace("_", ".")]
            for declared in fields(cls)
            if declared.init
        }
        is_append_time = values["message_timestamp_type"] == "LogAppendTime"
        values["message_timestamp_type"] = (
            TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
        )
        values["compression_type"] = _COMPRESSIONS[values["compression_type"]]
        # The former setting of both limits counts for the limit that is not set.
        difference = settings["message.timestamp.difference.max.ms"]
        for limit in ("message_timestamp_before_max_ms", "message_timestamp_after_max_ms"):
            if values[limit] == _LONG_MAX:
                values[limit] = difference
        return cls(**values)

    @property
    def is_deleted_by_age(self) -> bool:
        """Whether retention applies; it does not to a topic that is only compacted."""
        return DELETE in self.cleanup_policy
