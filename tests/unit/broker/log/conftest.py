"""Fixtures of the log layer's tests: one log, or the logs of a broker, in a fresh folder."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.ids import BrokerId, TopicPartition
from tests.support.defaults import log_config
from tests.support.logs import OpenLog, crash
from tests.support.memory_folder import MEMORY


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[OpenLog]:
    """Open (again) the one log of the test: ``open_log(log_config(…), is_clean=True, recovery_point=…)``."""
    opened: list[Log] = []

    def open_it(config: TopicConfig | None = None, **options: Any) -> Log:
        log = Log.open(
            TopicPartition("topic", 0),
            LogLoader(tmp_path / "topic-0", config or log_config(), now_ms=0, **options),
        )
        opened.append(log)
        if "topic_id" in options:
            log.assign_topic_id(options["topic_id"])
        return log

    yield open_it
    for log in opened:
        log.abandon()


class Managers:
    """Opens managers on the test's two log dirs and releases them at the end."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / "a", folder / "b"]
        self.configs: dict[str, TopicConfig] = {}
        self._opened: list[LogManager] = []

    def open(
        self,
        *,
        broker_id: int = 1,
        cluster_id: str = "cluster",
        paths: list[Path] | None = None,
        **options: Any,
    ) -> LogManager:
        manager = LogManager.open(
            paths or self.paths,
            broker_id=BrokerId(broker_id),
            cluster_id=cluster_id,
            config_of=lambda topic: self.configs.get(topic, log_config()),
            now_ms=0,
            **options,
        )
        self._opened.append(manager)
        return manager


@pytest.fixture
def managers(tmp_path: Path) -> Iterator[Managers]:
    made = Managers(tmp_path)
    yield made
    for manager in made._opened:
        crash(manager)


@pytest.fixture
def manager(managers: Managers) -> LogManager:
    return managers.open()


@pytest.fixture
def fast_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="barnabas-") as folder:
        yield Path(folder)


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Switch threads often: more interleavings, and no reader delays the writer for long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0001)
    yield
    sys.setswitchinterval(before)
