"""What the tests of the log layer share: opening a log in a fresh folder, and making batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log.log import Log
from barnabas.broker.log.log_config import LogConfig
from barnabas.protocol.ids import TopicPartition

OpenLog = Callable[..., Log]


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[OpenLog]:
    """Open (again) the one log of the test: ``open_log(LogConfig(…), is_clean=True, recovery_point=…)``."""
    opened: list[Log] = []

    def open_it(config: LogConfig | None = None, **options: Any) -> Log:
        log = Log.open(
            TopicPartition("topic", 0), tmp_path / "topic-0", config or LogConfig(), now_ms=0, **options
        )
        opened.append(log)
        return log

    yield open_it
    for log in opened:
        log.abandon()
