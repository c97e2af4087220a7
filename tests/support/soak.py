"""How much of a random search a run makes: `make soak` makes all of it, each change a part."""

from __future__ import annotations

import os

IN_SOAK = os.environ.get("ASYNCIO_DEBUG_LOOP") == "1"


def searched(whole: int, *, usual: int) -> int:
    """The number of examples or seeds in this run."""
    return whole if IN_SOAK else usual
