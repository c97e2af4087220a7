"""Fixtures of the tests of compaction: logs in a fresh folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.ids import TopicPartition
from tests.support.defaults import log_config
from tests.support.logs import OpenLog


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[OpenLog]:
    """Open the log of a compacted topic: ``open_log(segment_bytes=…)``."""
    opened: list[Log] = []

    def open_it(**settings: Any) -> Log:
        config = log_config(**{"cleanup_policy": ("compact",), **settings})
        loader = LogLoader(tmp_path / f"topic-{len(opened)}", config, now_ms=0)
        opened.append(Log.open(TopicPartition("topic", len(opened)), loader))
        return opened[-1]

    yield open_it
    for log in opened:
        log.abandon()
