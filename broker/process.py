"""A broker as a process: its log, its limits, and its end.

It runs until SIGTERM or SIGINT, and ends at once if one of its threads dies. As after a kill, acknowledged
records are not lost. The main thread only waits.
"""

from __future__ import annotations

import gc
import logging
import logging.handlers
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Final, NoReturn

from barnabas.broker.app import Broker
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.loading import without_collection
from barnabas.broker.security.authorizer import AUTHORIZER_LOG
from barnabas.common import compiled_core
from barnabas.protocol.errors import BarnabasError

logger = logging.getLogger(__name__)

EXIT_FATAL: Final = 70
SWITCH_INTERVAL_S: Final = 0.001
"""How long a computing thread may keep the interpreter lock while another waits for it. Python's default of
5 ms would delay each request meanwhile, often twice."""
COLLECT_AFTER_OBJECTS: Final = 50_000
"""The collector looks for reference cycles after so many more objects. Each of thousands of waiting requests
is some objects, which Python's default of 700 made it scan all the time, for up to 84 ms at once."""
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_HIGHEST_LIMIT: Final = 1 << 20
"""Of open files: the kernel's maximum (fs.nr_open), used if the hard limit is "unlimited"."""
_OPEN_MAX: Final = 10_240
"""As above on macOS, where the hard limit is "unlimited" by default, and the kernel refuses more than this or
than ``kern.maxfilesperproc``."""

_LOG_FORMAT: Final = "%(asctime)s.%(msecs)03d %(levelname)-7s [%(threadName)s] %(message)s"
_DATE_FORMAT: Final = "%Y-%m-%d %H:%M:%S"
_MAX_LOG_BYTES: Final = 20 * 1024 * 1024
_LOG_BACKUPS: Final = 4
_LOG_FILES: Final = {
    "barnabas": "server.log",
    AUTHORIZER_LOG: "kafka-authorizer.log",
    "barnabas.controller": "controller.log",
    "barnabas.state_change": "state-change.log",
}
MAX_LINE_LENGTH: Final = 4_000
"""Characters of one message; a longer one is cut."""


def _die(error: BaseException) -> NoReturn:
    """End the process from any thread: a broker without one of its threads must not seem alive."""
    print("barnabas broker: a thread died, so the broker ends", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)
    for handler in [*logging.getLogger("barnabas").handlers, *logging.getLogger().handlers]:
        handler.flush()
    sys.stderr.flush()
    os._exit(EXIT_FATAL)


class _OneLine(logging.Formatter):
    """Bounds a message and escapes its control characters, since peers choose the names in it.

    A traceback follows the message unchanged.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = record.message
        if len(text) > MAX_LINE_LENGTH:
            text = f"{text[:MAX_LINE_LENGTH]}… ({len(text)} characters)"
        if not text.isprintable():
            text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
        record.message = text
        return super().formatMessage(record)


def set_up_logging(logs_dir: Path | None) -> None:
    """Write to files in ``logs_dir`` (created if missing), or to standard error if it is None.

    ``controller.log`` has the controller's decisions and their reasons, ``state-change.log`` each change of a
    partition's or replica's state, ``kafka-authorizer.log`` the denials of peers, and ``server.log``
    everything else. Files are rotated, so their size is bounded. Warnings and errors also go to standard
    error, so that a user who starts a broker sees them.
    """
    formatter = _OneLine(_LOG_FORMAT, _DATE_FORMAT)
    terminal = logging.StreamHandler()
    terminal.setFormatter(formatter)
    roots = [logging.getLogger(name) for name in ("barnabas", AUTHORIZER_LOG)]
    for root in roots:
        root.setLevel(logging.INFO)
        root.propagate = False
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    if logs_dir is None:
        for root in roots:
            root.addHandler(terminal)
        return
    terminal.setLevel(logging.WARNING)
    logs_dir.mkdir(parents=True, exist_ok=True)
    for name, file_name in _LOG_FILES.items():
        handler = logging.handlers.RotatingFileHandler(
            logs_dir / file_name,
            maxBytes=_MAX_LOG_BYTES,
            backupCount=_LOG_BACKUPS,
            encoding="utf-8",
            delay=True,
        )
        handler.setFormatter(formatter)
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.addHandler(handler)
        logger.addHandler(terminal)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, as the JVM does; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = _HIGHEST_LIMIT if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= highest:
        logger.info("open files: at most %d, which is the hard limit", soft)
        return soft
    try:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        except (OSError, ValueError):
            if hard != resource.RLIM_INFINITY or soft >= _OPEN_MAX:
                raise
            highest = _OPEN_MAX
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    except (OSError, ValueError) as error:
        logger.warning(
            "open files: at most %d; the limit could not be raised to %d: %s", soft, highest, error
        )
        return soft
    logger.info("open files: at most %d, raised from %d to the hard limit", highest, soft)
    return highest


def run_broker(config: BrokerConfig, logs_dir: Path | None = None) -> int:
    """Run one broker in this process until SIGTERM or SIGINT; returns its exit code."""
    set_up_logging(logs_dir)
    logger.info("core: %s", compiled_core.describe())
    raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(COLLECT_AFTER_OBJECTS)
    # Before any thread starts, since it inherits this. A handler would run only once the main thread wakes,
    # but any thread may get the signal: when a paused process continues, the first that runs takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    broker = Broker(config, on_fatal=_die)
    try:
        # The objects of the start live as long as the broker. With thousands of segments the collector took a
        # fifth of the start to scan them again and again.
        with without_collection():
            broker.start()
    except (BarnabasError, OSError) as error:
        logger.error("broker %d does not start: %s", config.broker_id, error)
        return 1
    # The collector need not scan them later, either.
    gc.collect()
    gc.freeze()
    signal.sigwait(_STOPS)
    logger.info("broker %d received a signal to stop", config.broker_id)
    broker.stop()
    return 0
