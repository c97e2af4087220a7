"""Fetches of uncached records: begun without waiting, finished by a thread that may wait."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.base.purgatory import Cancel
from barnabas.broker.log.log import Log
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.segment import ReadResult
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.broker.replication import delayed_fetch as fetch_wait
from barnabas.broker.replication.delayed_fetch import FetchParams, FetchReader, FetchResult
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from tests.support.batches import build_batch
from tests.support.building import fetch_item, fetch_params, partition_of, state
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.defaults import log_config
from tests.support.logs import append_batches
from tests.support.waiting import DEADLINE_S

NAMES = [TopicPartition("t", number) for number in range(3)]
PARAMS = fetch_params(max_bytes=10_000)


class SlowLog:
    """A log whose records are cold, or fail to be read, as the test sets it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.is_cold = True
        self.error: Exception | None = None
        self.waiting_threads: list[str] = []
        self.may_continue = threading.Event()
        self.may_continue.set()
        self.is_waiting = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def read(self, start_offset: int, max_bytes: int, *, may_wait: bool, **options: Any) -> ReadResult:
        if self.is_cold and not may_wait:
            raise NotCached
        if may_wait:
            self.waiting_threads.append(threading.current_thread().name)
            self.is_waiting.set()
            self.may_continue.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        return self.log.read(start_offset, max_bytes, **options)


class Rig:
    def __init__(self, folder: Path, **bounds: int) -> None:
        self.logs: dict[TopicPartition, SlowLog] = {}
        self.partitions: dict[TopicPartition, Partition] = {}
        self.noted: list[ApiError] = []
        self.answered: list[FetchResult] = []
        self.answers_fail = False
        self.cancel: Cancel | None = None
        self.news = threading.Condition()
        for name in NAMES:
            log = Log.open(name, LogLoader(folder / str(name), log_config(), now_ms=0))
            for _ in range(10):
                append_batches(log, build_batch([(None, b"v" * 1_000)]))
            self.logs[name] = SlowLog(log)
            self.partitions[name] = partition_of(self.logs[name])
            self.partitions[name].make_leader(state(isr=(1,)), now_ms=0)
        self.reader = FetchReader(self.partitions.__getitem__, self.noted.append, on_fatal=raise_it, **bounds)

    def fetch(self, *names: TopicPartition, params: FetchParams = PARAMS) -> FetchResult:
        items = [fetch_item(name, max_bytes=5_000) for name in names]
        result = self.reader.read_all(params, items)
        self.cancel = self.reader.finish(params, result, self.answer)
        return result

    def answer(self, result: FetchResult) -> None:
        with self.news:
            self.answered.append(result)
            self.news.notify()
        if self.answers_fail:
            raise ZeroDivisionError("a bug")

    def wait_for(self, count: int) -> list[FetchResult]:
        with self.news:
            assert self.news.wait_for(lambda: len(self.answered) >= count, DEADLINE_S)
        return self.answered


def raise_it(error: BaseException) -> None:
    raise error


def sizes(result: FetchResult) -> list[int]:
    return [-1 if outcome.read.error else len(outcome.read.records) for outcome in result.outcomes]


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(*, is_running: bool = True, **bounds: int) -> Rig:
        rig = Rig(tmp_path, **bounds)
        if is_running:
            rig.reader.start()
        made.append(rig)
        return rig

    yield make
    for rig in made:
        for log in rig.logs.values():
            log.may_continue.set()
        rig.reader.stop()
        for log in rig.logs.values():
            log.log.abandon()


def test_cold_records_are_read_by_another_thread_and_answered_with_the_rest(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.logs[NAMES[1]].is_cold = False
    begun = rig.fetch(*NAMES)
    assert begun.is_cold
    assert sizes(begun)[0] == 0 < sizes(begun)[1]
    (result,) = rig.wait_for(1)
    assert not result.is_cold
    assert min(sizes(result)) >= 0
    assert result.bytes_read == sum(sizes(result)) <= PARAMS.max_bytes
    for name in (NAMES[0], NAMES[2]):
        assert rig.logs[name].waiting_threads[0].startswith("cold-read-")
    assert rig.logs[NAMES[1]].waiting_threads == []


@pytest.mark.parametrize(
    ("names", "has_records"),
    [((0,), [True]), ((0, 2), [True, False]), ((1, 0), [True, False])],
    ids=["one cold partition", "two", "after a hot one"],
)
def test_a_batch_above_the_limits_is_read_for_the_first_partition_alone(
    make_rig: Callable[..., Rig], names: tuple[int, ...], has_records: list[bool]
) -> None:
    rig = make_rig(is_running=False)
    rig.logs[NAMES[1]].is_cold = False
    rig.fetch(*(NAMES[number] for number in names), params=fetch_params(max_bytes=1))
    assert [size > 0 for size in sizes(rig.answered[0])] == has_records


def test_a_hung_disk_blocks_only_its_own_readers(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(threads=2)
    rig.logs[NAMES[0]].may_continue.clear()
    rig.logs[NAMES[2]].is_cold = False
    rig.fetch(NAMES[0])
    rig.fetch(NAMES[1])
    rig.fetch(NAMES[2])
    assert {result.outcomes[0].item.partition for result in rig.wait_for(2)} == {NAMES[1], NAMES[2]}
    rig.logs[NAMES[0]].may_continue.set()
    assert rig.wait_for(3)[2].outcomes[0].item.partition == NAMES[0]


def test_beyond_the_queue_a_fetch_is_answered_without_cold_records(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(threads=1, max_waiting=2)
    first = rig.logs[NAMES[0]]
    first.may_continue.clear()
    rig.fetch(NAMES[0])
    assert first.is_waiting.wait(DEADLINE_S)
    for _ in range(2):
        rig.fetch(NAMES[1])
    assert rig.answered == []
    rig.fetch(NAMES[1])
    assert sizes(rig.answered[0]) == [0]
    first.may_continue.set()
    assert [sizes(result)[0] > 0 for result in rig.wait_for(4)] == [False, True, True, True]


def test_a_cancelled_fetch_gives_up_its_place_in_the_queue(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(threads=1, max_waiting=1)
    first = rig.logs[NAMES[0]]
    first.may_continue.clear()
    rig.fetch(NAMES[0])
    begun = rig.cancel
    assert first.is_waiting.wait(DEADLINE_S)
    rig.fetch(NAMES[1])
    assert rig.cancel is not None
    rig.cancel()
    rig.fetch(NAMES[2])
    assert begun is not None
    begun()
    first.may_continue.set()
    assert [result.outcomes[0].item.partition for result in rig.wait_for(2)] == [NAMES[0], NAMES[2]]
    assert rig.logs[NAMES[1]].waiting_threads == []


def test_without_memory_a_fetch_waits_and_is_answered_without_its_cold_records(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(threads=1)
    memory = Memory()
    monkeypatch.setattr(fetch_wait, "READ_BUFFERS", memory)
    rig.logs[NAMES[1]].is_cold = False
    memory.short_for = 3
    rig.fetch(*NAMES[:2])
    (result,) = rig.wait_for(1)
    assert (min(sizes(result)) > 0, memory.looks) == (True, 4)
    memory.short_for = 1_000_000
    rig.fetch(*NAMES[:2])
    assert [size > 0 for size in sizes(rig.wait_for(2)[1])] == [False, True]
    assert memory.looks < 100


class Memory:
    """The buffers of the process, of which too many are leased while the next looks come."""

    def __init__(self) -> None:
        self.short_for = 0
        self.looks = 0

    @property
    def is_short(self) -> bool:
        self.looks += 1
        self.short_for -= 1
        return self.short_for >= 0


def test_a_sector_that_cannot_be_read_is_the_answer_for_its_partition(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    failure = LogDirFailure(Path("/logs/t-0"), OSError(5, "Input/output error"))
    rig.logs[NAMES[0]].error = failure
    rig.fetch(*NAMES[:2])
    (result,) = rig.wait_for(1)
    assert [outcome.read.error for outcome in result.outcomes] == [
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NONE,
    ]
    assert sizes(result)[1] > 0
    assert rig.noted == [failure]


def test_an_unforeseen_error_fails_one_partition_or_answer_and_no_thread(
    make_rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    # Bytes on a disk may cause it, so it may recur.
    rig = make_rig(threads=1)
    rig.answers_fail = True
    rig.logs[NAMES[0]].error = ZeroDivisionError("unforeseen")
    rig.logs[NAMES[1]].is_cold = False
    rig.fetch(*NAMES[:2])
    (result,) = rig.wait_for(1)
    assert [outcome.read.error for outcome in result.outcomes] == [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NONE,
    ]
    assert sizes(result)[1] > 0
    rig.fetch(NAMES[2])
    assert sizes(rig.wait_for(2)[1])[0] > 0
    assert "cannot be answered" in caplog.text


def test_a_leader_that_was_deposed_during_the_read_answers_with_the_error(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.logs[NAMES[0]].error = api_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, "others lead")
    rig.fetch(NAMES[0])
    (result,) = rig.wait_for(1)
    assert result.is_urgent
    assert result.outcomes[0].read.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


@PURE_PYTHON_ONLY
def test_the_cold_bytes_of_an_answer_are_bounded_and_partitions_take_turns(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_wait, "MAX_COLD_BYTES", 1_000)
    rig = make_rig(is_running=False)
    for _ in range(3):
        rig.fetch(*NAMES)
    assert [[size > 0 for size in sizes(result)].index(True) for result in rig.answered] == [0, 1, 2]
    assert all([size > 0 for size in sizes(result)].count(True) == 1 for result in rig.answered)
