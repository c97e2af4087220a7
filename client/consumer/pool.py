"""One consumer with a pool of working threads, and commits that never cover an unfinished record.

For work that is slow compared with reading, and for more threads than partitions. Records of one partition
are processed in any order, so the offset to commit is the one below which all are done. A partition with too
many records under way is paused. Before a partition is revoked, and at the end, records in work are finished
and committed; those that wait for a thread are left to the partition's next owner.

`WorkerPool.run` belongs to one thread, which polls; the work runs in others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, Generic, TypeVar

from barnabas.client.arguments import check_number
from barnabas.client.consumer.blocking import Consumer
from barnabas.client.consumer.subscription import RebalanceListener
from barnabas.client.consumer_record import ConsumerRecord
from barnabas.client.errors import CommitFailed, RebalanceInProgressError
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import TopicPartition

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

_POLL_MS: Final = 50
"""How soon a finished record is committed if none arrives."""


class _Progress:
    """The records of one partition that are under way, in order of their offsets."""

    def __init__(self) -> None:
        self.under_way: dict[int, Future[object]] = {}
        self.safe_offset: int | None = None
        """All records below it are done."""
        self.committed_offset: int | None = None

    def advance(self) -> None:
        """Forget the records at the beginning that are done."""
        for offset, future in list(self.under_way.items()):
            if not future.done() or future.cancelled() or future.exception() is not None:
                break
            del self.under_way[offset]
            self.safe_offset = offset + 1

    def check(self) -> None:
        """Raise the error of the first record under way, if it has one."""
        first = next(iter(self.under_way.values()), None)
        if first is not None and first.done() and not first.cancelled():
            first.result()


class WorkerPool(RebalanceListener, Generic[K, V]):
    """Calls ``work`` with each record of a consumer, in several threads; commits what is done."""

    def __init__(
        self,
        consumer: Consumer[K, V],
        work: Callable[[ConsumerRecord[K, V]], object],
        workers: int,
        *,
        max_records_under_way: int = 1_000,
    ) -> None:
        """A partition is not polled while ``max_records_under_way`` of its records, or more, are under way.

        Raises InvalidConfiguration without a group, and if the consumer commits by itself, which would cover
        unfinished records.
        """
        check_number("workers", workers, 1)
        check_number("max_records_under_way", max_records_under_way, 1)
        if consumer.config.group_id is None:
            raise InvalidConfiguration("group_id=None: expected a group, in which the pool commits")
        if consumer.config.enable_auto_commit:
            raise InvalidConfiguration("enable_auto_commit=True: expected False, since the pool commits")
        self._consumer = consumer
        self._work = work
        self._threads = ThreadPoolExecutor(workers, "barnabas-worker")
        self._limit = max_records_under_way
        self._progress: dict[TopicPartition, _Progress] = {}

    def run(self, topics: Collection[str] | str) -> None:
        """Work until `Consumer.stop`, once; then finish and commit the records in work.

        Raises the error of a record, after the commit of all before it; records that wait are dropped.
        """
        self._consumer.subscribe(topics, listener=self)
        try:
            while not self._consumer.is_stopped:
                for record in self._consumer.poll(timeout_ms=_POLL_MS):
                    progress = self._progress.setdefault(record.tp, _Progress())
                    progress.under_way[record.offset] = self._threads.submit(self._work, record)
                self._commit(self._progress)
                self._pace()
            self._finish(self._progress)
        finally:
            self._threads.shutdown(cancel_futures=True)
            # The consumer's `close` calls the listener, which must not raise the error again.
            self._progress.clear()

    def _pace(self) -> None:
        paused = self._consumer.paused()
        for tp, progress in self._progress.items():
            is_full = len(progress.under_way) >= self._limit
            if is_full != (tp in paused):
                (self._consumer.pause if is_full else self._consumer.resume)(tp)

    def _commit(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit what is done, and raise the error of a record that comes next."""
        chosen = {tp: self._progress[tp] for tp in partitions if tp in self._progress}
        offsets = {}
        for tp, progress in chosen.items():
            progress.advance()
            if progress.safe_offset is not None and progress.safe_offset != progress.committed_offset:
                offsets[tp] = progress.safe_offset
        if offsets:
            try:
                self._consumer.commit(offsets)
            except (CommitFailed, RebalanceInProgressError) as error:
                # The group continues without this commit; the next poll returns records of what remains.
                log.warning("%s", error)
            else:
                for tp, offset in offsets.items():
                    chosen[tp].committed_offset = offset
        for progress in chosen.values():
            progress.check()

    def _finish(self, partitions: Iterable[TopicPartition]) -> None:
        """Finish the records in work, and commit them."""
        chosen = [tp for tp in partitions if tp in self._progress]
        under_way = [future for tp in chosen for future in self._progress[tp].under_way.values()]
        # All records that wait for a thread are cancelled before the first thread is free again.
        wait([future for future in under_way if not future.cancel()])
        self._commit(chosen)

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        """Finish and commit their records, so that the next owner begins after them."""
        try:
            self._finish(partitions)
        finally:
            self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        """Commit nothing: the records are another member's."""
        for tp in partitions:
            self._progress.pop(tp, None)
