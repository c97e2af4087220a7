"""The tables that the bulk encoder's engines share: which row or column of them means what.

Headers are laid out as in `layout`. Plain numbers, for any thread.
"""

from __future__ import annotations

from typing import Final

# Rows of the row table, one column for each row of the input. A length of -1 means null.
KEY_START: Final = 0
KEY_LENGTH: Final = 1
VALUE_START: Final = 2
VALUE_LENGTH: Final = 3
HEADERS_START: Final = 4
HEADER_COUNT: Final = 5
TIMESTAMP: Final = 6
TOPIC: Final = 7
# The requested partition; -1 leaves the choice to the key.
PARTITION: Final = 8
# The plan's: the length of the record after its length, and its batch.
BODY_LENGTH: Final = 9
BATCH: Final = 10
ROW_FIELDS: Final = 11

# Rows of the topic table, one column for each topic. Each partition of each topic has a slot.
FIRST_SLOT: Final = 0
PARTITION_COUNT: Final = 1
FIRST_CANDIDATE: Final = 2
CANDIDATE_COUNT: Final = 3
# The candidate that gets the rows without a key; the plan changes it.
STICKY: Final = 4
TOPIC_FIELDS: Final = 5

# Rows of the batch table, one column for each batch of a group. The size is in bytes, header included.
BATCH_TOPIC: Final = 0
BATCH_PARTITION: Final = 1
BATCH_SIZE: Final = 2
BATCH_RECORD_COUNT: Final = 3
BATCH_BASE_TIMESTAMP: Final = 4
BATCH_MAX_TIMESTAMP: Final = 5
# The position of the next record, and the number of the records before it.
BATCH_POSITION: Final = 6
BATCH_WRITTEN: Final = 7
BATCH_FIELDS: Final = 8

# Slots of the plan's state.
NEXT_ROW: Final = 0
BATCH_COUNT: Final = 1
PLANNED_BYTES: Final = 2
FAILED_SIZE: Final = 3
STATE_SLOTS: Final = 4

# Outcomes of the plan. After all but OK it has stopped before the row NEXT_ROW.
OK: Final = 0
GROUP_FULL: Final = 1
TABLE_FULL: Final = 2
RECORD_TOO_LARGE: Final = 3
NO_SUCH_PARTITION: Final = 4
