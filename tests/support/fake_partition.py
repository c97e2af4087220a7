"""The log of one partition in memory, by Kafka's rules for offsets, epochs and sequence numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.record_batch import BatchHeader, check_produced_batch, parse_header, stamp
from barnabas.protocol.records import decode_records


@dataclass
class FakePartition:
    """A log as a list of batches; ``high_watermark`` None means: all of it."""

    leader: int
    leader_epoch: int = 0
    log_start_offset: int = 0
    batches: list[bytes] = field(default_factory=list)
    log_end_offset: int = 0
    high_watermark: int | None = None

    @property
    def visible_end(self) -> int:
        return self.log_end_offset if self.high_watermark is None else self.high_watermark

    def append(self, records: memoryview) -> int:
        """Write a batch and return its base offset: the old one for what a producer has sent before."""
        data = bytearray(records)
        header = check_produced_batch(data)
        if header.producer_id >= 0 and (known := self._known(header)) is not None:
            return known
        base = self.log_end_offset
        stamp(data, 0, base, self.leader_epoch)
        self.batches.append(bytes(data))
        self.log_end_offset = base + header.record_count
        return base

    def _known(self, header: BatchHeader) -> int | None:
        """Kafka's rules for sequence numbers. Raises OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH."""
        written = [parse_header(batch) for batch in self.batches]
        mine = [found for found in written if found.producer_id == header.producer_id]
        if not mine:
            return None
        last = mine[-1]
        if header.producer_epoch < last.producer_epoch:
            raise api_error(ErrorCode.INVALID_PRODUCER_EPOCH)
        if header.producer_epoch > last.producer_epoch:
            expected = 0
        else:
            for found in mine[-5:]:
                same = (found.base_sequence, found.record_count, found.producer_epoch)
                if same == (header.base_sequence, header.record_count, header.producer_epoch):
                    return found.base_offset
            expected = (last.base_sequence + last.record_count) % (1 << 31)
        if header.base_sequence != expected:
            raise api_error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above this one and where it ends; -1, -1 when there is none."""
        headers = [parse_header(batch) for batch in self.batches]
        known = [
            header.partition_leader_epoch for header in headers if header.partition_leader_epoch <= epoch
        ]
        if epoch == self.leader_epoch:
            return epoch, self.log_end_offset
        if not known:
            return -1, -1
        later = [header.base_offset for header in headers if header.partition_leader_epoch > epoch]
        return max(known), min(later, default=self.log_end_offset)

    def truncate(self, end_offset: int) -> None:
        """Lose the batches from an offset on, as an unclean election does."""
        self.batches = [batch for batch in self.batches if parse_header(batch).base_offset < end_offset]
        self.log_end_offset = end_offset

    def values(self) -> list[bytes | None]:
        return [record.value for batch in self.batches for record in decode_records(batch)]
