"""The process's limit of open files, raised as far as the system allows, as the JVM does for Kafka."""

from __future__ import annotations

import logging
import resource
from typing import Final

logger = logging.getLogger(__name__)

_HIGHEST: Final = 1 << 20
"""The kernel's maximum (fs.nr_open), used if the hard limit is "unlimited"."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one and log it; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _HIGHEST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        logger.info("open files: at most %d, which is the hard limit", soft)
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        logger.warning("open files: at most %d; the limit could not be raised to %d: %s", soft, wanted, error)
        return soft
    logger.info("open files: at most %d, raised from %d to the hard limit", wanted, soft)
    return wanted
