"""A broker's process: the lines of its log, and the limit of open files."""

import logging
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.process import MAX_LINE_LENGTH, set_up_logging

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


def test_a_name_that_a_peer_chose_cannot_begin_a_line(server_log: Path) -> None:
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


LIMIT_PROGRAM = """
import logging, resource, sys
soft, hard = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from barnabas.broker.process import raise_descriptor_limit
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "said"), [(200, "raised from 200 to the hard limit"), (300, "which is the hard limit")]
)
def test_the_soft_limit_becomes_the_hard_one(soft: int, said: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 300:
        pytest.skip("this system allows too few open files")
    lines = subprocess.run(
        [sys.executable, "-c", LIMIT_PROGRAM, str(soft), "300"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert lines[-1] == "300 300 300"
    assert f"open files: at most 300, {said}" in lines[0]
