"""Batches of a stream against logs in memory: their ends, what is lost between them, restarts, waiting."""

import dataclasses
import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from barnabas.client.admin.peek import BatchSize
from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.record_batch import parse_header
from barnabas.spark_connector.data_source import BarnabasSource
from barnabas.spark_connector.option_kinds import LATEST
from barnabas.spark_connector.options import SourceOptions, parse_options
from barnabas.spark_connector.source import stream_reader
from barnabas.spark_connector.source.batch_reader import RangePartition
from barnabas.spark_connector.source.log_view import Topic
from barnabas.spark_connector.source.schema import source_schema
from barnabas.spark_connector.source.stream_offsets import StreamOffset
from barnabas.spark_connector.source.stream_planner import IDLE_WAIT_MS, StreamPlanner
from barnabas.spark_connector.source.stream_reader import BarnabasStreamReader, check_limits

from .conftest import MemoryView

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))
U0 = TopicPartition("u", 0)


class StreamMemory(MemoryView):
    """Logs in memory with an id for each topic; counts requests."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[str, TopicId] = {}
        self.requests: Counter[str] = Counter()
        self.waits: list[dict[TopicPartition, int]] = []
        self.arrives: bool | None = False
        self.late_ends: list[dict[TopicPartition, int]] = []
        self.committed_to: list[tuple[str, dict[TopicPartition, int]]] = []
        self.commit_error: ApiError | None = None

    def fill(self, partition: TopicPartition, count: int) -> None:
        self.write(partition.topic, partition.partition, [b"v"] * count)

    def make_again(self, topic: str) -> None:
        self.ids[topic] = TopicId(uuid.uuid4())
        for tp in [tp for tp in self.logs if tp.topic == topic]:
            del self.logs[tp], self.starts[tp], self.committed[tp]

    def topics(self, topics: Iterable[str] | None) -> dict[str, Topic]:
        self.requests["topics"] += 1
        existing: dict[str, list[int]] = {}
        for tp in sorted(self.logs):
            existing.setdefault(tp.topic, []).append(tp.partition)
        for name in topics or ():
            if name not in existing:
                raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return {
            name: Topic(self.ids.setdefault(name, TopicId(uuid.uuid4())), existing[name])
            for name in (existing if topics is None else topics)
        }

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self.requests["ends"] += 1
        ends = super().end_offsets(partitions)
        return ends | {tp: at for tp, at in (self.late_ends or [{}]).pop(0).items() if tp in ends}

    def log_start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self.requests["starts"] += 1
        return super().log_start_offsets(partitions)

    def watch(self, topics: Iterable[str]) -> None:
        self.requests["watch"] += 1

    def wait_for_records(self, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> bool | None:
        assert timeout_ms == IDLE_WAIT_MS
        self.waits.append(dict(offsets))
        return self.arrives

    def batch_sizes(
        self, offsets: Mapping[TopicPartition, int], max_bytes: int
    ) -> dict[TopicPartition, list[BatchSize]]:
        headers = {tp: [parse_header(batch) for batch in self.logs[tp]] for tp in offsets}
        return {
            tp: [
                BatchSize(header.base_offset, header.next_offset, header.size_bytes)
                for header in headers[tp]
                if header.next_offset > offset
            ]
            for tp, offset in offsets.items()
        }

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        self.committed_to.append((group_id, dict(offsets)))
        if self.commit_error is not None:
            raise self.commit_error


class Clock:
    """Time that a test advances, and the planner when it waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def view() -> StreamMemory:
    return StreamMemory()


@pytest.fixture
def clock() -> Clock:
    return Clock()


Make = Callable[..., StreamPlanner]


@pytest.fixture
def make(view: StreamMemory, clock: Clock) -> Make:
    """A planner of a new process, with these options."""

    def planner(**given: str) -> StreamPlanner:
        return StreamPlanner(options_of(**given), view, clock, clock.advance)

    return planner


def options_of(**given: str) -> SourceOptions:
    selection = {} if {"assign", "subscribePattern"} & set(given) else {"subscribe": "t"}
    start = {"kafka.bootstrap.servers": "a:1", "startingOffsets": "earliest"}
    return parse_options(start | selection | given, streaming=True)


def places(planner: StreamPlanner, start: StreamOffset, end: StreamOffset) -> list[tuple[str, int, int]]:
    """The partition, first and last offset of each range."""
    return [
        (f"{part.topic}-{part.partition}", part.start_offset, part.end_offset)
        for part in planner.ranges(start, end)
    ]


def test_batches_follow_each_other(view: StreamMemory, make: Make, clock: Clock) -> None:
    view.fill(T0, 5)
    view.fill(T1, 3)
    planner = make()
    start = planner.initial()
    end = planner.latest(start)
    assert places(planner, start, end) == [("t-0", 0, 5), ("t-1", 0, 3)]
    view.fill(T0, 4)
    later = planner.latest(end)
    assert places(planner, end, later) == [("t-0", 5, 9)]
    assert later.topic_ids == view.ids
    assert planner.latest(later) is later


@pytest.mark.parametrize(
    ("given", "offsets"),
    [
        ({"startingOffsets": "earliest"}, {T0: 2, T1: 0}),
        ({"startingOffsets": "latest"}, {T0: 6, T1: 3}),
        ({"startingOffsets": '{"t":{"0":4,"1":-1}}'}, {T0: 4, T1: 3}),
    ],
)
def test_a_new_query_begins_where_it_is_told_to(
    given: dict[str, str], offsets: dict[TopicPartition, int], view: StreamMemory, make: Make
) -> None:
    view.fill(T0, 6)
    view.fill(T1, 3)
    view.starts[T0] = 2
    planner = make(**given)
    assert planner.initial().positions == offsets
    view.fill(T0, 6)
    assert planner.initial().positions == offsets, "Spark asks twice"


def test_starting_offsets_outside_the_log_fail_or_are_moved(view: StreamMemory, make: Make) -> None:
    view.fill(T0, 6)
    given = {"startingOffsets": '{"t":{"0":9}}'}
    with pytest.raises(ApiError, match="startingOffsets has 9 for t-0, which holds 0 to 6"):
        make(**given).initial()
    assert make(**given, failOnDataLoss="false").initial().positions == {T0: 6}


def test_a_missing_topic_stops_a_new_query(make: Make) -> None:
    with pytest.raises(ApiError, match="no topic 't'"):
        make().initial()


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_the_first_batch_is_the_same_when_it_is_planned_again(
    starting: str, view: StreamMemory, make: Make
) -> None:
    view.fill(T0, 5)
    planner = make(startingOffsets=starting)
    start = planner.initial()
    view.fill(T0, 5)
    end = planner.latest(start)
    first = places(planner, start, end)
    assert first == [("t-0", 0 if starting == "earliest" else 5, 10)]
    view.fill(T0, 7)
    view.starts[T0] = 3
    restarted = make(startingOffsets=starting)
    assert places(restarted, restarted.initial(), end) == first


def test_an_empty_first_batch_that_is_planned_again_is_no_loss(view: StreamMemory, make: Make) -> None:
    view.fill(T0, 5)
    planner = make(startingOffsets="latest")
    end = planner.latest(planner.initial())
    assert end == planner.initial()
    view.fill(T0, 7)
    restarted = make(startingOffsets="latest")
    assert places(restarted, restarted.initial(), end) == []
    assert places(restarted, end, restarted.latest(end)) == [("t-0", 5, 12)]


def test_added_partitions_are_read_from_their_start_also_by_a_batch_planned_again(
    view: StreamMemory, make: Make, clock: Clock
) -> None:
    view.fill(T0, 5)
    planner = make(subscribePattern="t|u")
    start = planner.latest(planner.initial())
    view.fill(T1, 2)
    view.fill(U0, 1)
    clock.advance(1)
    end = planner.latest(start)
    assert places(planner, start, end) == [("t-1", 0, 2), ("u-0", 0, 1)]
    assert places(make(subscribePattern="t|u"), start, end) == [("t-1", 0, 2), ("u-0", 0, 1)]


def test_an_added_partition_that_lost_its_start_is_a_loss(
    view: StreamMemory, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    view.fill(T0, 5)
    view.fill(T1, 5)
    view.starts[T1] = 3
    with pytest.raises(ApiError, match=r"t-1 was added .* starts at 3, not at 0.*failOnDataLoss"):
        make().latest(StreamOffset({T0: 5}))
    planner = make(failOnDataLoss="false")
    end = planner.latest(StreamOffset({T0: 5}))
    assert places(planner, StreamOffset({T0: 5}), end) == [("t-1", 3, 5)]
    assert "starts at 3" in caplog.text


def test_the_kafka_sources_checkpoint_learns_topic_ids_with_the_next_offset(
    view: StreamMemory, make: Make
) -> None:
    view.fill(T0, 5)
    planner = make()
    taken_over = StreamOffset({T0: 5})
    assert planner.latest(taken_over) is taken_over
    view.fill(T0, 1)
    view.arrives = True
    end = planner.latest(taken_over)
    assert (end.positions, end.topic_ids, end.starts) == ({T0: 6}, view.ids, {})


def test_a_topic_made_again_is_told_from_retention(
    view: StreamMemory, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    view.fill(T0, 5)
    start = make().latest(make().initial())
    view.make_again("t")
    view.fill(T0, 9)
    with pytest.raises(ApiError, match=r"topic 't' was deleted and made again .*failOnDataLoss to false"):
        make().latest(start)
    planner = make(failOnDataLoss="false")
    end = planner.latest(start)
    assert places(planner, start, end) == [("t-0", 0, 9)], "nothing of the new one is skipped"
    assert "continuing at the start of the new topic" in caplog.text
    assert planner.latest(end) is end

    view.starts[T0] = 20
    view.committed[T0] = 30
    with pytest.raises(ApiError, match=r"t-0 no longer holds offset 9: retention .* took 11 offsets"):
        make().latest(end)
    later = make(failOnDataLoss="false").latest(end)
    assert places(planner, end, later) == [("t-0", 20, 30)]
    assert "took 11 offsets up to 20; continuing at 20" in caplog.text


def test_a_topic_that_is_deleted_ends_the_query_or_its_part(
    view: StreamMemory, make: Make, clock: Clock
) -> None:
    view.fill(T0, 5)
    view.fill(U0, 5)
    planner = make(subscribe="t,u")
    start = planner.latest(planner.initial())
    del view.logs[U0]
    with pytest.raises(ApiError, match=r"u-0: the checkpoint has offsets for partitions that are not read"):
        make(subscribe="t,u").latest(start)
    view.fill(T0, 1)
    lenient = make(subscribe="t,u", failOnDataLoss="false")
    end = lenient.latest(start)
    assert places(lenient, start, end) == [("t-0", 5, 6)]
    assert set(end.positions) == {T0}


def test_a_topic_that_a_new_broker_does_not_know_yet_is_no_loss(
    view: StreamMemory, make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.fill(T0, 5)
    start = make().latest(make().initial())
    log = view.logs.pop(T0)

    def sleep(seconds: float) -> None:
        view.logs[T0] = log

    assert StreamPlanner(options_of(), view, clock, sleep).latest(start) is start


def test_a_truncated_log_is_a_loss_but_not_one_whose_leader_is_late(
    view: StreamMemory, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    view.fill(T0, 5)
    start = make().latest(make().initial())
    view.late_ends = [{T0: 2}, {T0: 3}]
    assert make().latest(start) is start
    view.committed[T0] = 2
    with pytest.raises(ApiError, match="t-0 ends at 2, before offset 5 of the checkpoint"):
        make().latest(start)
    planner = make(failOnDataLoss="false")
    end = planner.latest(start)
    assert places(planner, start, end) == []
    view.committed[T0] = 4
    assert places(planner, end, planner.latest(end)) == [("t-0", 2, 4)], "and no record before is read again"


def test_a_limit_of_offsets_makes_several_batches(view: StreamMemory, make: Make) -> None:
    view.fill(T0, 30)
    view.fill(T1, 10)
    planner = make(maxOffsetsPerTrigger="20")
    end = planner.latest(planner.initial())
    assert end.positions == {T0: 15, T1: 5}
    assert planner.latest(planner.initial(), limited=False).positions == {T0: 30, T1: 10}


def test_a_limit_of_bytes_bounds_a_batch(view: StreamMemory, make: Make) -> None:
    view.fill(T0, 300)
    size = sum(len(batch) for batch in view.logs[T0])
    planner = make(maxBytesPerTrigger=str(size // 3))
    assert 95 <= planner.latest(planner.initial()).positions[T0] <= 105


def test_a_batch_waits_for_its_minimum_but_not_forever(view: StreamMemory, make: Make, clock: Clock) -> None:
    view.fill(T0, 3)
    planner = make(minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    start = planner.latest(planner.initial())
    assert start.positions == {T0: 3}, "the first batch does not wait"
    view.fill(T0, 4)
    began = clock.now
    assert planner.latest(start) is start
    assert planner.latest(start) is start
    assert clock.now > began, "an idle query must not spin"
    assert not view.waits, "there are records"
    clock.advance(60)
    assert planner.latest(start).positions == {T0: 7}


@pytest.mark.parametrize(
    ("count", "since_last_s", "waits"),
    [(4, 0.5, True), (5, 0.5, False), (4, 1, False)],
    ids=["too few", "enough", "too long ago"],
)
def test_a_batch_waits_for_its_minimum(
    view: StreamMemory, make: Make, clock: Clock, count: int, since_last_s: float, waits: bool
) -> None:
    view.fill(T0, 1)
    planner = make(minOffsetsPerTrigger="5", maxTriggerDelay="1s")
    start = planner.latest(planner.initial())
    view.fill(T0, count)
    clock.advance(since_last_s)
    assert (planner.latest(start) is start) is waits


def test_available_now_ends_where_the_log_ended_at_its_start(
    view: StreamMemory, make: Make, clock: Clock
) -> None:
    view.fill(T0, 30)
    planner = make(maxOffsetsPerTrigger="20", minOffsetsPerTrigger="15", maxTriggerDelay="1h")
    planner.fix_end()
    start = planner.initial()
    ends = [start]
    while len(ends) < 9:
        ends.append(planner.latest(ends[-1]))
        view.fill(T0, 100)
        view.fill(T1, 100)
        clock.advance(5)
        if ends[-1] is ends[-2]:
            break
    assert [end.positions[T0] for end in ends] == [0, 20, 30, 30], "the rest does not wait for a minimum"
    assert {tp for end in ends for tp in end.positions} == {T0}
    assert not view.waits


def test_available_now_reads_partitions_that_were_added_before_its_restart(
    view: StreamMemory, make: Make
) -> None:
    view.fill(T0, 30)
    failed = make(maxOffsetsPerTrigger="20")
    failed.fix_end()
    start = failed.initial()
    end = failed.latest(start)
    view.fill(T1, 5)
    restarted = make(maxOffsetsPerTrigger="20")
    restarted.fix_end()
    assert places(restarted, restarted.initial(), end) == [("t-0", 0, 20)]
    ends = [end, restarted.latest(end)]
    assert places(restarted, *ends) == [("t-0", 20, 30), ("t-1", 0, 5)]
    assert restarted.latest(ends[-1]) is ends[-1]


def test_an_idle_query_waits_at_the_brokers_and_asks_nothing(
    view: StreamMemory, make: Make, clock: Clock
) -> None:
    view.fill(T0, 3)
    planner = make()
    start = planner.latest(planner.initial())
    assert planner.latest(start) is start
    before = view.requests.copy()
    for _ in range(5):
        clock.advance(0.01)
        assert planner.latest(start) is start
    assert view.waits == [{T0: 3}] * 5
    assert view.requests == before
    clock.advance(0.2)
    planner.latest(start)
    assert len(view.waits) == 5, "a query with an interval, or whose other source was busy, does not wait"
    view.arrives = True
    view.fill(T0, 1)
    assert planner.latest(start).positions == {T0: 4}


def test_an_idle_query_looks_for_partitions_now_and_then(
    view: StreamMemory, make: Make, clock: Clock
) -> None:
    view.fill(T0, 3)
    planner = make()
    start = planner.latest(planner.initial())
    planner.latest(start)
    before = view.requests.copy()
    for _ in range(30):
        clock.advance(0.04)
        planner.latest(start)
    assert view.requests - before == {"topics": 1}
    view.fill(T1, 1)
    for _ in range(30):
        clock.advance(0.04)
        if (end := planner.latest(start)) is not start:
            break
    assert end.positions == {T0: 3, T1: 1}


def test_a_batch_costs_one_request_for_the_ends(view: StreamMemory, make: Make, clock: Clock) -> None:
    view.fill(T0, 3)
    planner = make()
    start = planner.latest(planner.initial())
    before = view.requests.copy()
    for _ in range(5):
        view.fill(T0, 1)
        start = planner.latest(start)
        clock.advance(0.1)
    assert view.requests - before == {"ends": 5}


# The hooks that Spark calls

Offset = dict[str, Any]


def reader_of(view: StreamMemory, **given: str) -> BarnabasStreamReader:
    def open_view(options: SourceOptions) -> StreamMemory:
        return view(options)

    return BarnabasStreamReader(options_of(**given), source_schema(include_headers=False), open_view)


def test_an_unchanged_offset_goes_back_to_spark_as_it_came(view: StreamMemory) -> None:
    view.fill(T0, 3)
    reader = reader_of(view)
    taken_over: Offset = {"t": {"0": 3}}
    assert reader.latestOffset(taken_over) is taken_over
    view.fill(T0, 1)
    view.arrives = True
    assert reader.latestOffset(taken_over)["t"] == {"0": 4}
    assert reader.reportLatestOffset() == reader.latestOffset(taken_over)


def test_the_reader_is_pickled_and_its_tasks_read(view: StreamMemory) -> None:
    view.fill(T0, 3)
    assert pickle.loads(pickle.dumps(BarnabasStreamReader(options_of(), source_schema(include_headers=True))))
    reader = reader_of(view)
    end = reader.latestOffset(reader.initialOffset())
    [part] = reader.partitions(reader.initialOffset(), end)
    assert isinstance(part, RangePartition)
    view.topic_id = view.ids["t"]
    assert sum(batch.num_rows for batch in reader.read(part)) == 3
    assert reader.partitions(end, end) == []
    reader.stop()
    assert not view.is_open


def test_without_a_start_the_last_planned_batch_is_continued(view: StreamMemory) -> None:
    view.fill(T0, 3)
    reader = reader_of(view)
    end = reader.latestOffset()
    assert reader.latestOffset() == end, "it is not planned yet"
    reader.partitions(reader.initialOffset(), end)
    assert reader.latestOffset() is end
    view.fill(T0, 2)
    view.arrives = True
    assert reader.latestOffset()["t"] == {"0": 5}
    restarted = reader_of(view)
    restarted.partitions(end, end)
    assert restarted.latestOffset()["@barnabas"].get("starts") is None, "it goes on where the last run ended"


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, "ReadAllAvailable()"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "2"}, "ReadMaxRows(max_rows=5)"),
        ({"minOffsetsPerTrigger": "2"}, "ReadMinRows(min_rows=2)"),
        ({"maxBytesPerTrigger": "1k"}, "ReadMaxBytes(max_bytes=1024)"),
    ],
)
def test_limits_are_those_of_the_options(given: dict[str, str], limit: str, view: StreamMemory) -> None:
    assert repr(reader_of(view, **given).getDefaultReadLimit()) == limit


def test_everything_is_read_if_spark_asks_for_that(view: StreamMemory) -> None:
    view.fill(T0, 9)
    reader = reader_of(view, maxOffsetsPerTrigger="5")
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit())["t"] == {"0": 5}
    assert reader.latestOffset(start, reader_of(view).getDefaultReadLimit())["t"] == {"0": 9}


def test_limits_need_a_pyspark_that_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "maxoffsetspertrigger": "5"}
    check_limits(given)
    monkeypatch.setattr(stream_reader, "HAS_LIMITS", False)
    monkeypatch.setattr("pyspark.__version__", "4.0.0")
    with pytest.raises(InvalidConfiguration, match=r"'maxOffsetsPerTrigger' needs PySpark 4\.2 .* 4\.0\.0"):
        BarnabasSource(given).streamReader(source_schema(include_headers=False)).initialOffset()


def test_the_schema_serves_batches_and_streams() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "startingOffsets": "latest"}
    assert "value" in BarnabasSource(given).schema().fieldNames()
    assert dataclasses.replace(options_of(), starting_offsets=LATEST) == parse_options(given, streaming=True)


def test_finished_offsets_are_committed_to_the_group(view: StreamMemory) -> None:
    view.fill(T0, 3)
    reader = reader_of(view, **{"kafka.group.id": "g"})
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    assert view.committed_to == [("g", {T0: 0})], "the batch up to the end is not finished"
    reader.latestOffset(end)
    reader.latestOffset(end)
    reader.commit(end)
    assert view.committed_to[1:] == [("g", {T0: 3})]


def test_older_pysparks_commit_what_spark_says_is_finished(
    view: StreamMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "HAS_LIMITS", False)
    view.fill(T0, 3)
    reader = reader_of(view, **{"kafka.group.id": "g"})
    end = reader.latestOffset()
    reader.latestOffset()
    assert view.committed_to == []
    reader.commit(end)
    assert view.committed_to == [("g", {T0: 3})]


def test_a_failed_commit_to_the_group_is_one_warning(
    view: StreamMemory, caplog: pytest.LogCaptureFixture
) -> None:
    view.fill(T0, 3)
    view.commit_error = api_error(ErrorCode.NON_EMPTY_GROUP, "group 'g' has members: stop them first")
    reader = reader_of(view, **{"kafka.group.id": "g"})
    offset = reader.initialOffset()
    for _ in range(4):
        offset = reader.latestOffset(offset)
        view.fill(T0, 1)
    assert caplog.text.count("could not be committed to group 'g'") == 1
    assert "has members" in caplog.text
