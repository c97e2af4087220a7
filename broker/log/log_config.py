"""The settings of one log: the broker's defaults with the topic's overrides applied. Frozen, any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import TimestampType

_LONG_MAX: Final = (1 << 63) - 1
_WEEK_MS: Final = 7 * 24 * 60 * 60 * 1000
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
    """Kafka's topic settings that a log obeys, with Kafka's defaults.

    Source: https://kafka.apache.org/documentation/#topicconfigs.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = _WEEK_MS
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    retention_ms: int = _WEEK_MS
    """-1 keeps everything."""
    retention_bytes: int = NO_LIMIT
    """-1 keeps everything."""
    max_message_bytes: int = 1_048_588
    """The largest batch, its header included."""
    message_timestamp_type: TimestampType = field(default=TimestampType.CREATE_TIME)
    message_timestamp_before_max_ms: int = _LONG_MAX
    message_timestamp_after_max_ms: int = _LONG_MAX
    """The limits of records' timestamps before and after the broker's time; only with CREATE_TIME."""
    compression_type: Compression | None = None
    """The compression of stored batches; None keeps that of the producer."""
    cleanup_policy: tuple[str, ...] = (DELETE,)
    """`DELETE`, `COMPACT` or both."""
    file_delete_delay_ms: int = 60_000
    max_producer_ids: int = 100_000
    """How many idempotent producers a partition remembers; a setting of the broker, not of topics."""
    flush_messages: int = _LONG_MAX
    flush_ms: int = _LONG_MAX
    looks_into_records: bool = field(init=False, compare=False, default=False)
    """Whether appending needs more than the headers of batches; see `record_checks`."""

    def __post_init__(self) -> None:
        looks = self.is_compacted or self.limits_timestamps or self.compression_type is not None
        # Computed once, because every append reads it; a frozen dataclass allows no plain assignment.
        object.__setattr__(self, "looks_into_records", looks)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> LogConfig:
        """Make the configuration from topic-level names (``segment.bytes``) and parsed values.

        Other names are ignored.
        """
        values: dict[str, Any] = {}
        for declared in fields(cls):
            name = declared.name.replace("_", ".")
            if name in settings:
                values[declared.name] = settings[name]
        kind = values.get("message_timestamp_type")
        if isinstance(kind, str):
            values["message_timestamp_type"] = (
                TimestampType.LOG_APPEND_TIME if kind == "LogAppendTime" else TimestampType.CREATE_TIME
            )
        kept_in = values.get("compression_type")
        if isinstance(kept_in, str):
            values["compression_type"] = _COMPRESSIONS[kept_in]
        return cls(**values)

    @property
    def waits_for_disk(self) -> bool:
        """Whether an append may have to wait for an fsync."""
        return self.flush_messages < _LONG_MAX

    @property
    def is_compacted(self) -> bool:
        """Whether every record must have a key."""
        return COMPACT in self.cleanup_policy

    @property
    def is_deleted_by_age(self) -> bool:
        """Whether retention applies; it does not to a topic that is only compacted."""
        return DELETE in self.cleanup_policy

    @property
    def limits_timestamps(self) -> bool:
        return self.message_timestamp_type is TimestampType.CREATE_TIME and (
            self.message_timestamp_before_max_ms < _LONG_MAX
            or self.message_timestamp_after_max_ms < _LONG_MAX
        )
