"""One poller with a pool of workers, and commits that never cover an unfinished record.

For work that is slow compared with reading, and for more threads than partitions. Records of one partition
are processed in any order, so the offset to commit is the one below which all are done. A partition with too
many records under way is paused; before a partition is revoked, its records are finished and committed.

Run: python examples/group_pool.py localhost:9092 greetings
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from barnabas.client import ConsumerRecord, RebalanceListener, TopicPartition
from barnabas.client.blocking import Consumer
from barnabas.client.errors import CommitFailed, RebalanceInProgressError

log = logging.getLogger(__name__)

Work = Callable[[ConsumerRecord], object]

AT_ONCE = 1_000
"""How many records of a partition may be under way."""


class Progress:
    """The records of one partition that are under way or done, in order of their offsets."""

    def __init__(self) -> None:
        self.under_way: dict[int, Future[object]] = {}
        self.safe_offset: int | None = None
        """All records below it are done."""
        self.committed_offset: int | None = None

    def begin(self, offset: int, future: Future[object]) -> None:
        self.under_way[offset] = future

    def advance(self) -> int | None:
        """The offset that may be committed now. Raises the error of a failed record."""
        for offset, future in list(self.under_way.items()):
            if not future.done():
                break
            future.result()
            del self.under_way[offset]
            self.safe_offset = offset + 1
        return self.safe_offset


class Pool(RebalanceListener):
    """Reads in the thread that calls `run`, works in others."""

    def __init__(self, consumer: Consumer, work: Work, workers: int) -> None:
        self.consumer = consumer
        self.work = work
        self.workers = ThreadPoolExecutor(workers)
        self.progress: dict[TopicPartition, Progress] = {}

    def run(self, topic: str, is_over: threading.Event) -> None:
        self.consumer.subscribe([topic], listener=self)
        with self.workers:
            while not is_over.is_set():
                for record in self.consumer.poll(timeout_ms=50):
                    tp = TopicPartition(record.topic, record.partition)
                    progress = self.progress.setdefault(tp, Progress())
                    progress.begin(record.offset, self.workers.submit(self.work, record))
                self.commit_and_pace()
            self.finish(self.progress)

    def commit_and_pace(self) -> None:
        self.commit(self.progress)
        for tp, progress in self.progress.items():
            is_full = len(progress.under_way) >= AT_ONCE
            if is_full != (tp in self.consumer.paused()):
                (self.consumer.pause if is_full else self.consumer.resume)(tp)

    def commit(self, partitions: Iterable[TopicPartition]) -> None:
        known = {tp: self.progress[tp] for tp in partitions if tp in self.progress}
        safe = {tp: progress.advance() for tp, progress in known.items()}
        offsets = {
            tp: offset
            for tp, offset in safe.items()
            if offset is not None and offset != known[tp].committed_offset
        }
        if not offsets:
            return
        try:
            self.consumer.commit(offsets)
        except (CommitFailed, RebalanceInProgressError) as error:
            # The group continues without this commit; the next poll returns records of what remains.
            log.warning("%s", error)
        else:
            for tp, offset in offsets.items():
                known[tp].committed_offset = offset

    def finish(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait for the records under way, and commit them."""
        known = [tp for tp in partitions if tp in self.progress]
        wait([future for tp in known for future in self.progress[tp].under_way.values()])
        self.commit(known)

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        try:
            self.finish(partitions)
        finally:
            self.forget(partitions)

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        self.forget(partitions)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self.progress.pop(tp, None)


def run(bootstrap: str, topic: str, group: str, workers: int, work: Work, is_over: threading.Event) -> None:
    consumer = Consumer(
        bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    with consumer:
        Pool(consumer, work, workers).run(topic, is_over)


def show(record: ConsumerRecord) -> None:
    print(f"{threading.current_thread().name}: {record.topic}-{record.partition}@{record.offset}")


if __name__ == "__main__":
    bootstrap, topic = sys.argv[1:]
    is_over = threading.Event()
    # Records under way are finished and committed first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    run(bootstrap, topic, "group-pool", 8, show, is_over)
