"""The output of filtering a group of adjacent segments: the cleaned segment that is to replace them.

Nothing is written while every batch so far is one of the group's first segment as it was, because a segment
that does not change and is joined with no other one stays. The batches of a chunk are written with one call;
those that stay as they were are not copied before, if all of the chunk's do. One thread.
"""

from __future__ import annotations

from barnabas.broker.compaction.batch_chunks import Chunk, Pause, read_chunks
from barnabas.broker.compaction.batch_filter import Filtered
from barnabas.broker.log.log import Log
from barnabas.broker.log.segment import Segment
from barnabas.broker.log.segment_swap import CleanedSegment
from barnabas.broker.log.transaction_index import AbortedTransaction
from barnabas.protocol.compression import Buffer
from barnabas.protocol.record_batch import BatchHeader


class GroupOutput:
    """`close` discards what the log has not taken."""

    def __init__(self, log: Log, first: Segment, now_ms: int, read_bytes: int, pause: Pause) -> None:
        self._log = log
        self._first = first
        self._now_ms = now_ms
        self._read_bytes = read_bytes
        self._pause = pause
        self.cleaned: CleanedSegment | None = None
        """None while everything is as it was."""
        self.aborted: list[AbortedTransaction] = []
        """The transactions whose abort markers stay, for the index of the cleaned segment."""
        self.bytes_written = 0
        self.base_offset = self.next_offset = first.base_offset
        """The end of the last batch."""
        self._same_bytes = 0
        """While nothing is written: the end of the first segment's batches that stay."""
        self._chunk = Chunk(b"", [], 0)
        # Of the chunk: the pieces to write, and their batches with their positions in the output.
        self._pieces: list[Buffer] = []
        self._batches: list[tuple[int, BatchHeader]] = []
        self._size = 0
        self._has_changed = False
        self._kept_from = -1
        """The start in the chunk of the run of batches that stay; -1: none."""

    @property
    def size(self) -> int:
        """Bytes of all batches added so far."""
        written = self._same_bytes if self.cleaned is None else self.cleaned.size
        return written + self._size

    @property
    def index_entries(self) -> int:
        """The entries of the larger index."""
        segment = self._first if self.cleaned is None else self.cleaned.segment
        return max(segment.offset_index.count, segment.time_index.count)

    def join(self) -> None:
        """Another segment of the group follows."""
        self._ensure_started()

    def begin_chunk(self, chunk: Chunk) -> None:
        self._chunk = chunk

    def add(self, position: int, header: BatchHeader, outcome: Filtered) -> None:
        """Add what stays of a batch of the chunk."""
        kept, data = outcome
        if kept is None:
            self._end_run(position)
            self._has_changed = True
            return
        if data is None:
            if self._kept_from < 0:
                self._kept_from = position
            size = header.size_bytes
        else:
            self._end_run(position)
            self._has_changed = True
            self._pieces.append(data)
            size = len(data)
        self._batches.append((self._size, kept))
        self._size += size

    def end_chunk(self) -> None:
        """Write what stays of the chunk, unless nothing has changed so far."""
        chunk, batches = self._chunk, self._batches
        self._end_run(len(chunk.data))
        if self.cleaned is None and not self._has_changed:
            self._same_bytes = chunk.end
        else:
            cleaned = self._ensure_started()
            if batches:
                data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                self._write(cleaned, data, batches)
        if batches:
            self.next_offset = batches[-1][1].next_offset
        self._pieces, self._batches, self._size, self._has_changed = [], [], 0, False

    def append(self, header: BatchHeader, data: Buffer) -> None:
        """Write one more batch, which is in no chunk."""
        self._write(self._ensure_started(), data, [(0, header)])
        self.next_offset = header.next_offset

    def finish(self) -> None:
        """Finish the cleaned segment; nothing may be added after this."""
        cleaned = self._ensure_started()
        for transaction in self.aborted:
            cleaned.segment.add_aborted(transaction)
        cleaned.finish()

    def _end_run(self, position: int) -> None:
        if self._kept_from >= 0:
            self._pieces.append(memoryview(self._chunk.data)[self._kept_from : position])
            self._kept_from = -1

    def _ensure_started(self) -> CleanedSegment:
        """The cleaned segment, which begins with the batches that have stayed so far."""
        if self.cleaned is None:
            log, first = self._log, self._first
            self.cleaned = CleanedSegment.create(
                log.folder, first.base_offset, log.config, log.files, self._now_ms
            )
            for chunk in read_chunks(first, 0, self._same_bytes, self._read_bytes, self._pause):
                self._write(self.cleaned, chunk.data, chunk.batches)
        return self.cleaned

    def _write(self, cleaned: CleanedSegment, data: Buffer, batches: list[tuple[int, BatchHeader]]) -> None:
        cleaned.append(data, batches)
        self.bytes_written += len(data)
        self._pause(len(data))

    def close(self) -> None:
        if self.cleaned is not None:
            self.cleaned.close()
