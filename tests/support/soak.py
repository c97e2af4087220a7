"""How much of a random search a run makes, and with which seeds.

`make soak` makes all of it, each change a part. The seeds of that part follow from the day.
"""

import os
from datetime import UTC, datetime
from typing import Final

IN_SOAK: Final = os.environ.get("ASYNCIO_DEBUG_LOOP") == "1"
DAY: Final = int(os.environ.get("TEST_DAY") or f"{datetime.now(UTC):%Y%m%d}")
"""Such as 20261231. `tests/conftest.py` sets the variable, so that all workers of a run have the same day."""


def searched(whole: int, *, usual: int) -> int:
    """The number of examples or seeds in this run."""
    return whole if IN_SOAK else usual
