"""Reading a log with gaps: the consumer and the range reader."""

import pytest

from barnabas.client.consumer import range_reader
from barnabas.client.consumer.consumer import Consumer
from tests.support.batches import build_batch
from tests.support.fake_broker import FakeCluster
from tests.support.gaps import emptied, keeping, stamped

from .test_cluster import started
from .test_consumer import EARLIEST, T0
from .test_range_reader import ranges

KEPT = [7, 8, 25, 26, 61]


@pytest.fixture
def compacted(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Offsets 5 to 79 in batches of ten with gaps of five; the batches at 35 and 65 are empty."""

    monkeypatch.setattr(range_reader, "_MAX_WAIT_MS", 20)

    def batch(base: int) -> bytearray:
        values = [(b"k", b"%d" % offset) for offset in range(base, base + 10)]
        return keeping(stamped(build_batch(values), base), KEPT)

    cluster.partition("t").append_compacted([batch(5), batch(20), batch(35), batch(55), emptied(batch(65))])
    return cluster


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
@pytest.mark.parametrize("start", [0, 5, 8, 9, 17, 36, 50, 62, 70])
async def test_a_consumer_reaches_the_end_from_every_offset(
    compacted: FakeCluster, start: int, max_bytes: int
) -> None:
    settings = {**EARLIEST, "max_partition_fetch_bytes": max_bytes}
    async with Consumer(bootstrap_servers=compacted.bootstrap, **settings) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, start)
        found: list[int] = []
        while await consumer.position(T0) < 75:
            records = await consumer.poll(200)
            found += [record.offset for record in records]
            assert [record.value for record in records] == [b"%d" % record.offset for record in records]
        assert found == [offset for offset in KEPT if offset >= start]
        assert await consumer.end_offsets([T0]) == {T0: 75}
        assert consumer.metrics()["records-lag-max"] == 0


@pytest.mark.parametrize("fetch_max_bytes", [1, 1 << 20])
@pytest.mark.parametrize(
    ("start", "end", "bases"),
    [
        (0, 75, [5, 20, 55]),
        (0, 3, [5]),
        (15, 20, [20]),
        (16, 21, [20]),
        (35, 45, []),
        (46, 54, [55]),
        (66, 75, []),
    ],
)
async def test_a_range_may_begin_and_end_in_a_gap_and_may_have_no_record(
    compacted: FakeCluster, start: int, end: int, bases: list[int], fetch_max_bytes: int
) -> None:
    async with started(compacted, retry_backoff_ms=5) as client:
        found = await ranges(client, start, end, fetch_max_bytes=fetch_max_bytes)
        with_records = [base for base, _ in found if base not in (35, 65)]
        assert with_records[: len(bases)] == bases
        assert found[-1][1] >= end
