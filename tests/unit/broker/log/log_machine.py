"""The steps of a stateful test of a log that are the same for every model of its records."""

import shutil
import tempfile
from pathlib import Path

from hypothesis.stateful import RuleBasedStateMachine, rule

from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.ids import TopicPartition
from tests.support.defaults import log_config
from tests.support.memory_folder import MEMORY


class LogMachine(RuleBasedStateMachine):
    """A log that is led, rolled, flushed and opened again; a subclass adds records and their model."""

    log: Log

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="log-model-", dir=MEMORY))
        self.log_start = self.end = self.epoch = 0

    def begin(self, segment_bytes: int, interval: int) -> None:
        self.config = log_config(segment_bytes=segment_bytes, index_interval_bytes=interval)
        self.log = self.opened(is_clean=True)

    def opened(self, name: str = "t-0", *, is_clean: bool, recovery_point: int = 0) -> Log:
        loader = LogLoader(
            self.folder / name,
            self.config,
            now_ms=0,
            is_clean=is_clean,
            recovery_point=recovery_point,
            log_start_offset=self.log_start,
        )
        return Log.open(TopicPartition("t", 0), loader)

    @property
    def is_open(self) -> bool:
        return hasattr(self, "log")

    @rule()
    def begin_an_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll(0)

    @rule()
    def flush(self) -> None:
        self.log.flush(0)
        assert self.log.recovery_point == self.end

    @rule()
    def stop_cleanly(self) -> None:
        self.log.close(0)
        self.log = self.opened(is_clean=True, recovery_point=self.log.recovery_point)
        assert self.log.recovery_point == self.end

    @rule()
    def crash(self) -> None:
        """Ends the process; everything that was written stays."""
        self.log.abandon()
        self.log = self.opened(is_clean=False, recovery_point=self.log.recovery_point)

    def teardown(self) -> None:
        if self.is_open:
            self.log.abandon()
        shutil.rmtree(self.folder)
