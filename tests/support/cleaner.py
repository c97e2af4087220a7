"""A cleaner over real logs, with a clock of the test and high watermarks at the logs' ends."""

from pathlib import Path
from typing import Any

from barnabas.broker.compaction.cleaner import CleanerSettings, LogCleaner
from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.file_system import FILE_SYSTEM, FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_manager import LogManager
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import BrokerId, TopicPartition
from tests.support.batches import build_batch
from tests.support.defaults import log_config
from tests.support.errors import Fatal
from tests.support.logs import append_batches, crash, get_or_create

NOW = 1_700_000_000_000
SETTINGS = CleanerSettings(
    threads=1,
    dedupe_buffer_bytes=1 << 20,
    io_buffer_bytes=1 << 19,
    load_factor=0.9,
    max_io_bytes_per_second=1e12,
    backoff_ms=10,
)


class CleanerRig:
    def __init__(self, folder: Path, files: FileSystem = FILE_SYSTEM) -> None:
        self.now_ms = NOW
        self.configs: dict[str, TopicConfig] = {}
        self.stable_ends: dict[TopicPartition, int | None] = {}
        """For partitions whose high watermark is not the log's end; None: no role."""
        self.noted: list[ApiError] = []
        self.fatal = Fatal()
        self.folder = folder
        self._files = files
        self.logs = self.open_logs()
        self.cleaner = self.make_cleaner()

    def open_logs(self) -> LogManager:
        return LogManager.open(
            [self.folder / "a", self.folder / "b"],
            broker_id=BrokerId(1),
            cluster_id="cluster",
            config_of=lambda topic: self.configs.get(topic, log_config()),
            now_ms=NOW,
            files=self._files,
        )

    def make_cleaner(self, **changes: Any) -> LogCleaner:
        return LogCleaner(
            self.logs,
            SETTINGS._replace(**changes),
            ends_of=self.ends_of,
            note_error=self.noted.append,
            on_fatal=self.fatal,
            now_ms=lambda: self.now_ms,
        )

    def ends_of(self, name: TopicPartition) -> tuple[int, int] | None:
        log = self.logs.get(name)
        end = self.stable_ends.get(name, None if log is None else log.log_end_offset)
        return None if end is None else (end, end)

    def make_log(self, topic: str, rounds: int = 3, *, keys: int = 4, **settings: Any) -> Log:
        """A compacted log with a sealed segment for each round, in which every key is written once."""
        self.configs[topic] = log_config(**{"cleanup_policy": ("compact",), **settings})
        log = get_or_create(self.logs, TopicPartition(topic, 0), None, NOW)
        for number in range(rounds):
            self.write(log, number, keys)
            log.roll(NOW)
        return log

    def write(self, log: Log, number: int, keys: int = 4) -> None:
        records = [(b"key-%d" % key, b"value-%d" % number) for key in range(keys)]
        append_batches(log, build_batch(records, timestamp_ms=self.now_ms), now_ms=self.now_ms)

    def clean_all(self) -> int:
        """Clean until nothing is due; returns the number of attempts."""
        count = 0
        while self.cleaner.clean_next():
            count += 1
            assert count < 50, "the cleaner finds no end"
        return count

    def restart(self) -> None:
        """Open the logs again after a clean stop."""
        self.logs.close(NOW)
        self.logs = self.open_logs()
        self.cleaner = self.make_cleaner()

    def release(self) -> None:
        self.cleaner.stop()
        crash(self.logs)
        assert self.fatal.errors == []
