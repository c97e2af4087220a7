"""Calls whose unforeseen errors concern one of many: the others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from barnabas.protocol.invariants import InvariantViolation

logger = logging.getLogger(__name__)


def contained(
    failure: str,
    call: Callable[..., object],
    *arguments: Any,
    expected: tuple[type[Exception], ...] = (),
) -> bool:
    """Call; an unforeseen error is logged with the text ``failure``, and False returned.

    So is an ``expected`` error, but only as a warning. A violated invariant is raised.
    """
    try:
        call(*arguments)
    except InvariantViolation:
        raise
    except expected as error:
        logger.warning("%s: %s", failure, error)
        return False
    except Exception:
        logger.critical("%s", failure, exc_info=True)
        return False
    return True
