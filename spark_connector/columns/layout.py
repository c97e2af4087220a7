"""The tables that the compiled loops and their callers share: which row or column means what.

Plain numbers, for any thread.
"""

from __future__ import annotations

from typing import Final

# Columns of the batch table, one row for each batch of the data.
BATCH_START: Final = 0
BATCH_END: Final = 1
BATCH_BASE_OFFSET: Final = 2
BATCH_LAST_DELTA: Final = 3
BATCH_TIMESTAMP: Final = 4
BATCH_TIMESTAMP_TYPE: Final = 5
BATCH_RECORD_COUNT: Final = 6

# Rows of the field table, one column for each record found. A length of -1 means null.
OFFSET: Final = 0
TIMESTAMP: Final = 1
TIMESTAMP_TYPE: Final = 2
KEY_START: Final = 3
KEY_LENGTH: Final = 4
VALUE_START: Final = 5
VALUE_LENGTH: Final = 6
HEADERS_START: Final = 7
HEADER_COUNT: Final = 8
FIELDS: Final = 9

# Rows of the header table, one column for each header found.
NAME_START: Final = 0
NAME_LENGTH: Final = 1
HEADER_VALUE_START: Final = 2
HEADER_VALUE_LENGTH: Final = 3
HEADER_FIELDS: Final = 4

# Slots of the scan's state: the counts so far, carried from call to call, and the place of a failure.
FOUND_ROWS: Final = 0
FOUND_HEADERS: Final = 1
FAILED_BATCH: Final = 2
FAILED_AT: Final = 3
STATE_SLOTS: Final = 4

OK: Final = 0
BAD_LENGTH: Final = 1
BAD_TIMESTAMP: Final = 2
BAD_DELTA: Final = 3
BAD_KEY: Final = 4
BAD_VALUE: Final = 5
BAD_HEADERS: Final = 6
BAD_END: Final = 7
BAD_REST: Final = 8
FAILURES: Final = (
    "no failure",
    "the length of a record is impossible",
    "the timestamp of a record is cut short or exceeds 64 bits",
    "the offset delta of a record is cut short, does not rise or exceeds the batch's last",
    "the key length of a record is impossible",
    "the value length of a record is impossible",
    "the headers of a record are impossible",
    "a record does not end where its length says",
    "bytes follow the last record of a batch",
)
