"""Sets up a broker's log: three files, or the terminal.

``controller.log`` has the controller's decisions and their reasons, ``state-change.log`` each change of a
partition's or replica's state, ``server.log`` everything else. Files are rotated, so their size is bounded.

A message is one line of bounded length, also when it quotes names that peers chose.
"""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path
from typing import Final

_FORMAT: Final = "%(asctime)s.%(msecs)03d %(levelname)-7s [%(threadName)s] %(message)s"
_DATE_FORMAT: Final = "%Y-%m-%d %H:%M:%S"
_MAX_BYTES: Final = 20 * 1024 * 1024
_BACKUPS: Final = 4
_FILES: Final = {
    "barnabas": "server.log",
    "barnabas.controller": "controller.log",
    "barnabas.state_change": "state-change.log",
}


MAX_LINE_LENGTH: Final = 4_000
"""Characters of one message; what is longer is cut."""


class _OneLine(logging.Formatter):
    """Writes what would end or hide a line as its escape; a traceback, which follows, stays as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = record.message
        if len(text) > MAX_LINE_LENGTH:
            text = f"{text[:MAX_LINE_LENGTH]}… ({len(text)} characters)"
        if not text.isprintable():
            text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
        record.message = text
        return super().formatMessage(record)


def set_up_logging(logs_dir: Path | None) -> None:
    """Write to files in ``logs_dir`` (made if missing), or to standard error when it is None.

    Warnings and worse go to standard error in either case, so that whoever starts a broker sees why it fails.
    """
    formatter = _OneLine(_FORMAT, _DATE_FORMAT)
    terminal = logging.StreamHandler()
    terminal.setFormatter(formatter)
    root = logging.getLogger("barnabas")
    root.setLevel(logging.INFO)
    root.propagate = False
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    if logs_dir is None:
        root.addHandler(terminal)
        return
    terminal.setLevel(logging.WARNING)
    logs_dir.mkdir(parents=True, exist_ok=True)
    for name, file_name in _FILES.items():
        handler = logging.handlers.RotatingFileHandler(
            logs_dir / file_name, maxBytes=_MAX_BYTES, backupCount=_BACKUPS, encoding="utf-8", delay=True
        )
        handler.setFormatter(formatter)
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.addHandler(handler)
        logger.addHandler(terminal)
