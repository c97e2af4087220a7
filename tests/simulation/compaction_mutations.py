"""Known mistakes of the cleaner and around gaps in logs, each put into the code on purpose; see `mutations`.

Only histories of the profile "compaction" find them.
"""

from __future__ import annotations

from typing import Any

from barnabas.broker.compaction import choice, cleaning
from barnabas.broker.compaction.batch_filter import GONE
from barnabas.broker.compaction.group_output import GroupOutput
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.log import log
from barnabas.broker.log.storage_errors import UnexpectedAppendOffset
from tests.simulation.planted import SetAttr, found_in


@found_in("compaction", 2)
def a_cleaning_passes_the_high_watermark(setattr_: SetAttr) -> None:
    """A record goes in favour of a later one that may be truncated."""
    cleanable_end = choice.cleanable_end

    def bold(figures: Any, *arguments: Any) -> int:
        return cleanable_end(figures._replace(stable_end_offset=figures.log_end_offset), *arguments)

    setattr_(choice, "cleanable_end", bold)


@found_in("compaction", 5)
def the_last_batch_of_a_cleaned_segment_goes(setattr_: SetAttr) -> None:
    """As in Kafka: a follower never reaches the end of a log whose last records are gone."""
    setattr_(cleaning, "emptied", lambda header: GONE)
    setattr_(GroupOutput, "append", lambda self, header, data: None)


@found_in("compaction", 5)
def the_oldest_value_of_a_key_is_kept(setattr_: SetAttr) -> None:
    put = OffsetMap._put

    def backwards(self: OffsetMap, keys: Any, offsets: Any, offset_bytes: int) -> None:
        fresh = [(key, offset) for key, offset in zip(keys, offsets, strict=True) if key not in self._newest]
        if fresh:
            put(self, *zip(*fresh, strict=True), offset_bytes)

    setattr_(OffsetMap, "_put", backwards)


@found_in("compaction", 7)
def a_follower_refuses_a_gap(setattr_: SetAttr) -> None:
    """Each batch must begin where the one before ends, as in logs that nobody compacts."""
    fetched_batches = log.fetched_batches

    def strict(view: Any, begin: int, newest_epoch: Any) -> Any:
        batches, size = fetched_batches(view, begin, newest_epoch)
        end = begin
        for _, header in batches:
            if header.base_offset != end:
                raise UnexpectedAppendOffset(f"offset {header.base_offset}, expected {end}")
            end = header.next_offset
        return batches, size

    setattr_(log, "fetched_batches", strict)
