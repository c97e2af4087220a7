"""What a broker writes into its logs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.logging_setup import MAX_LINE_LENGTH, set_up_logging

NAMES = ("barnabas", "barnabas.controller", "barnabas.state_change")


@pytest.fixture
def server_log(tmp_path: Path) -> Iterator[Path]:
    kept = {
        name: (list(log.handlers), log.propagate, log.level)
        for name in NAMES
        if (log := logging.getLogger(name))
    }
    set_up_logging(tmp_path)
    yield tmp_path / "server.log"
    for name, (handlers, propagates, level) in kept.items():
        log = logging.getLogger(name)
        for handler in set(log.handlers) - set(handlers):
            handler.close()
        log.handlers[:], log.propagate = handlers, propagates
        log.setLevel(level)


def test_what_a_peer_names_cannot_begin_a_line_of_its_own(server_log: Path) -> None:
    logging.getLogger("barnabas.x").info("no topic %s", "a\n2026-01-01 ERROR all is lost\r\x1b[2J\x00\u2028b")
    [line] = server_log.read_text().splitlines()
    assert line.endswith(r"no topic a\n2026-01-01 ERROR all is lost\r\x1b[2J\x00\u2028b")


def test_a_long_name_does_not_fill_the_log(server_log: Path) -> None:
    logging.getLogger("barnabas.x").info("no topic %s", "y" * 32_000)
    [line] = server_log.read_text().splitlines()
    assert len(line) < MAX_LINE_LENGTH + 200
    assert line.endswith("y… (32009 characters)")


def test_a_traceback_keeps_its_lines(server_log: Path) -> None:
    try:
        raise ValueError("of this value")
    except ValueError:
        logging.getLogger("barnabas.x").error("it failed", exc_info=sys.exc_info())
    lines = server_log.read_text().splitlines()
    assert lines[0].endswith("it failed")
    assert lines[-1] == "ValueError: of this value"
    assert len(lines) > 3
