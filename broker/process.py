"""A broker as a process: run until a signal says stop, and end at once, loudly, when one of its threads dies.

What was acknowledged is safe then, as after a kill. The main thread only waits.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Final, NoReturn

from barnabas.broker.app import Broker
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.logging_setup import set_up_logging
from barnabas.protocol.errors import BarnabasError

logger = logging.getLogger(__name__)

EXIT_FATAL: Final = 70
SWITCH_INTERVAL_S: Final = 0.001
"""How long a computing thread may keep the interpreter lock from a waiting one. Python's default of 5 ms
would be added to each request in the meantime, often twice."""
_HIGHEST_LIMIT: Final = 1 << 20
"""Of open files: the kernel's maximum (fs.nr_open), used if the hard limit is "unlimited"."""


def _die(error: BaseException) -> NoReturn:
    """End the process from whatever thread: a broker with a dead thread may not seem alive."""
    print("barnabas broker: a thread died, so the broker ends", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)
    for handler in [*logging.getLogger("barnabas").handlers, *logging.getLogger().handlers]:
        handler.flush()
    sys.stderr.flush()
    os._exit(EXIT_FATAL)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, as the JVM does; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _HIGHEST_LIMIT if hard == resource.RLIM_INFINITY else hard
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


def run_broker(config: BrokerConfig, logs_dir: Path | None = None) -> int:
    """Run one broker in this process until SIGTERM or SIGINT; returns its exit code."""
    set_up_logging(logs_dir)
    raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    broker = Broker(config, on_fatal=_die)
    try:
        broker.start()
    except (BarnabasError, OSError) as error:
        logger.error("broker %d does not start: %s", config.broker_id, error)
        return 1
    # What start-up made stays for good; the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    stop.wait()
    logger.info("broker %d was told to stop", config.broker_id)
    broker.stop()
    return 0
