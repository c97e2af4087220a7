"""The logs that benchmarks write without a broker are logs like any other."""

from pathlib import Path

import pytest

from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.records import decode_records
from tests.support.defaults import log_config
from tests.support.logs import headers_of
from tests.support.segments import FIRST_MS, records_batch, sparse_batch, write_segments


@pytest.mark.parametrize(
    "batch", [records_batch(4_000, 300, 7), sparse_batch(15, 16_384)], ids=["full", "sparse"]
)
@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_log_written_by_a_benchmark_is_whole(tmp_path: Path, batch: bytearray, is_sealed: bool) -> None:
    config = log_config(segment_bytes=100_000)
    folder, size = tmp_path / "topic-0", 250_000
    sealed = config if is_sealed else None
    written, end = write_segments(folder, batch, size, 100_000, ms_per_batch=10, sealed=sealed)
    log = Log.open(TopicPartition("topic", 0), LogLoader(folder, config, now_ms=0, is_clean=is_sealed))
    assert size <= written < size + len(batch)
    assert (log.log_end_offset, len(log.segments)) == (end, 3)
    for number, header in enumerate(headers_of(log)):
        records = decode_records(log.read(header.base_offset, 1).records)
        assert len(records) == header.record_count
        assert {record.timestamp_ms for record in records} == {FIRST_MS + 10 * number}
        found = log.offset_for_timestamp(FIRST_MS + 10 * number)
        assert found is not None
        assert found.offset == header.base_offset
    log.abandon()
