"""Produce with acks=all and long-polled fetches: each is answered once, by the event or the deadline."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.replication import sliced_checks
from barnabas.broker.replication.delayed_fetch import FetchResult, FetchSource
from barnabas.broker.replication.partition import PartitionRead
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from tests.support.building import LAG_MS, THREE, TP, TWO, Managed, fetch_item, fetch_params, state
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.memory_log import RECORD, decode, encode

NOWHERE = TopicPartition("nowhere", 0)


@pytest.fixture
def led() -> Managed:
    """Broker 1 leads, brokers 1, 2 and 3 are in sync."""
    managed = Managed()
    managed.know({1: 0, 2: 5, 3: 5})
    assert managed.tell(state()) == []
    return managed


def purgatories_are_empty(managed: Managed) -> bool:
    manager = managed.manager
    waiting = [manager.produce_purgatory, manager.follower_purgatory, manager.consumer_purgatory]
    return all(purgatory.waiting == 0 and not purgatory._watchers for purgatory in waiting)


# Produce


def test_acks_all_is_answered_when_all_replicas_in_sync_have_the_records(led: Managed) -> None:
    answers = led.produce(count=2)
    # The error of another partition does not matter.
    led.fetch(2, replica=TWO, partitions=[NOWHERE, TP])
    assert answers == []
    led.fetch(2, replica=THREE)
    ((outcome,),) = answers
    assert (outcome.error_code, outcome.base_offset, outcome.index) == (ErrorCode.NONE, 0, TP.partition)
    assert outcome.log_start_offset == 0
    led.pass_time(10_000)
    led.fetch(2, replica=THREE)
    assert len(answers) == 1
    assert purgatories_are_empty(led)


def test_at_the_deadline_the_unsettled_partitions_time_out(led: Managed) -> None:
    other = TopicPartition("topic", 1)
    led.tell(state(isr=(1,), index=1))
    answers: list[list[object]] = []
    led.manager.append(-1, 500, [(TP, encode(1)), (other, encode(1))], answers.append)
    led.pass_time(499)
    assert answers == []
    led.pass_time(1)
    assert [(outcome.error_code, outcome.base_offset) for outcome in answers[0]] == [
        (ErrorCode.REQUEST_TIMED_OUT, -1),
        (ErrorCode.NONE, 0),
    ]
    led.fetch(1, replica=TWO)
    led.fetch(1, replica=THREE)
    assert len(answers) == 1


@pytest.mark.parametrize(
    "lose",
    [
        lambda led: led.tell(state(leader=2, epoch=1)),
        lambda led: led.stop_replica(-2, delete=True),
        lambda led: led.tell(state(index=1), is_full=True),
    ],
    ids=["another broker leads", "deleted", "not known to the controller"],
)
def test_a_lost_leadership_answers_at_once(led: Managed, lose: Callable[[Managed], object]) -> None:
    produced, polled = led.produce(), led.fetch(0, max_wait_ms=10_000)
    assert (produced, polled) == ([], [])
    lose(led)
    assert [outcome.error_code for outcome in produced[0]] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert polled[0].outcomes[0].read.error is not ErrorCode.NONE
    led.pass_time(10_000)
    assert (len(produced), len(polled)) == (1, 1)


def test_a_dead_follower_outside_the_isr_delays_no_acknowledgement(led: Managed) -> None:
    answers = led.produce()
    led.fetch(1, replica=TWO)
    assert answers == []
    led.tell(state(epoch=1, isr=(1, 2)))
    assert [outcome.error_code for outcome in answers[0]] == [ErrorCode.NONE]


def test_errors_are_per_partition_and_the_rest_is_written(led: Managed) -> None:
    led.tell(state(isr=(1,), epoch=1))
    answers: list[list[object]] = []
    batches = [(NOWHERE, encode(1)), (TP, encode()), (TP, encode(1))]
    led.manager.append(-1, 500, batches, answers.append)
    assert [outcome.error_code for outcome in answers[0]] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_RECORD,
        ErrorCode.NONE,
    ]
    assert led.manager.partition(TP).log_end_offset == 1


def test_a_too_small_isr_is_an_error_before_anything_is_written() -> None:
    managed = Managed()
    managed.tell(state(isr=(1, 2)), min_insync_replicas=3)
    ((outcome,),) = managed.produce()
    assert outcome.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "min.insync.replicas is 3" in str(outcome.error_message)
    ((outcome,),) = managed.produce(acks=1)
    assert (outcome.error_code, outcome.base_offset) == (ErrorCode.NONE, 0)


def test_a_fenced_broker_writes_nothing(led: Managed) -> None:
    led.manager.roles.registration_lost("the session has expired")
    ((outcome,),) = led.produce(acks=1)
    assert outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert "the session has expired" in str(outcome.error_message)
    assert led.manager.partition(TP).log_end_offset == 0


def test_a_leader_without_zookeeper_writes_with_acks_all_while_its_followers_fetch(led: Managed) -> None:
    led.manager.fence.silent("ZooKeeper is silent")

    def errors(acks: int) -> list[ErrorCode]:
        return [outcome.error_code for (outcome,) in led.produce(acks)]

    assert errors(acks=-1) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    led.fetch(0, replica=TWO, epoch=0)
    assert errors(acks=-1) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    led.fetch(0, replica=THREE, epoch=0)
    assert errors(acks=1) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert errors(acks=-1) == [], "it waits for the followers"
    led.manager.roles.registration_lost("the session has expired")
    assert errors(acks=-1) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert led.manager.partition(TP).log_end_offset == 1


def test_stopping_ends_the_threads_and_answers_the_waiting_requests(led: Managed) -> None:
    others = set(threading.enumerate())
    led.manager.start()
    led.manager.isr_changes.confirm(led.manager.partition(TP))
    threads = set(threading.enumerate()) - others
    assert "isr-changes" in {thread.name for thread in threads}
    assert led.fetchers.is_running
    produced, polled = led.produce(), led.fetch(0, max_wait_ms=10_000)
    led.manager.stop()
    assert not led.fetchers.is_running
    assert not any(thread.is_alive() for thread in threads)
    assert [outcome.error_code for outcome in produced[0]] == [ErrorCode.REQUEST_TIMED_OUT]
    assert len(polled) == 1
    assert led.logs.high_watermarks == {TP: 0}


# Fetch


def commit(managed: Managed, end: int) -> None:
    for follower in (TWO, THREE):
        managed.fetch(end, replica=follower)


def test_a_follower_is_woken_by_the_append_and_consumers_when_the_high_watermark_moves(led: Managed) -> None:
    followed = led.fetch(0, replica=TWO, max_wait_ms=1_000)
    consumed = [led.fetch(0, max_wait_ms=1_000) for _ in range(2)]
    assert followed == []
    led.produce(acks=1)
    assert ([result.bytes_read for result in followed], consumed) == ([RECORD.size], [[], []])
    commit(led, 1)
    for (result,) in consumed:
        assert [offset for offset, _ in decode(result.outcomes[0].read.records)] == [0]
    led.pass_time(10_000)
    assert [len(answers) for answers in consumed] == [1, 1]
    assert purgatories_are_empty(led)


def test_acknowledgements_and_followers_wait_for_no_consumer(led: Managed) -> None:
    """Answering many consumers takes long, and would delay the replication."""
    led.tell(state(isr=(1, 2), epoch=1, index=1))
    other = TopicPartition("topic", 1)
    soon: list[Callable[[], None]] = []
    led.manager.consumer_wakes.call_soon = soon.append
    consumed = [led.fetch(0, max_wait_ms=60_000) for _ in range(40)]
    consumed += [led.fetch(0, max_wait_ms=60_000, partitions=[other, TP]) for _ in range(40)]

    def answered() -> int:
        return sum(map(len, consumed))

    produced = led.produce()
    commit(led, 1)
    assert (len(produced), answered(), len(soon)) == (1, 0, 1)
    soon.pop()()
    assert (answered(), len(soon)) == (16, 1), "a few at a time"
    # What is noted between two slices is not lost, and schedules no second series of them.
    led.manager.append(1, 0, [(other, encode(1))], lambda outcomes: None)
    led.fetch(1, replica=TWO, partitions=[other])
    late = led.fetch(1, max_wait_ms=60_000)
    led.produce(acks=1)
    commit(led, 2)
    assert (answered(), late) == (16, [])
    while soon:
        assert len(soon) == 1
        soon.pop()()
    assert (answered(), len(late)) == (80, 1)
    assert purgatories_are_empty(led)
    led.fetch(2, max_wait_ms=60_000)
    led.produce(acks=1)
    commit(led, 3)
    assert len(soon) == 1, "the next record schedules the next slice"


@PURE_PYTHON_ONLY
def test_no_network_thread_checks_many_partitions_in_a_row(
    led: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sliced_checks, "SLICE_PARTITIONS", 6)
    monkeypatch.setattr(sliced_checks, "MAX_ON_NETWORK_THREAD", 3)
    names = [TopicPartition("topic", index) for index in range(4)]
    led.tell(*(state(isr=(1,), epoch=1, index=name.partition) for name in names[1:]))
    wakes, soon = led.manager.consumer_wakes, list[Callable[[], None]]()
    wakes.call_soon = soon.append
    large = [
        led.fetch(0, max_wait_ms=60_000, min_bytes=records * RECORD.size, partitions=names)
        for records in (1, 2)
    ]
    small = [led.fetch(0, max_wait_ms=60_000, partitions=names[:3]) for _ in range(4)]
    counts = []
    for end in (1, 2):
        led.produce(acks=1)
        commit(led, end)
        while soon:
            soon.pop()()
            counts.append(sum(map(len, small)))
        assert [len(answers) for answers in large] == [end - 1, 0]
        for _ in large:
            wakes.check_large()
        assert [len(answers) for answers in large] == [1, end - 1]
    assert counts[:2] == [2, 4]
    assert purgatories_are_empty(led)


@PURE_PYTHON_ONLY
def test_a_large_fetch_is_ended_where_it_is_checked(led: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of all deadlines, and that of a lost connection, would do it for milliseconds."""
    monkeypatch.setattr(sliced_checks, "MAX_ON_NETWORK_THREAD", 1)
    names = [TopicPartition("topic", index) for index in range(2)]
    led.tell(state(isr=(1,), epoch=1, index=1))
    wakes, purgatory = led.manager.consumer_wakes, led.manager.consumer_purgatory
    late, small = (led.fetch(0, max_wait_ms=1_000, partitions=names[:count]) for count in (2, 1))
    led.pass_time(1_000)
    assert ([len(answers) for answers in (late, small)], purgatory.waiting) == ([0, 1], 1)
    wakes.check_large()
    assert (len(late), purgatory.waiting) == (1, 0)

    lost = led.fetch(0, max_wait_ms=1_000, partitions=names)
    (waiting,) = purgatory.watchers(names[0])
    waiting.cancel()
    assert purgatory.waiting == 1
    wakes.check_large()
    assert purgatories_are_empty(led)

    begun = led.fetch(0, max_wait_ms=1_000, partitions=names)
    led.manager.stop()
    assert (lost, len(begun)) == ([], 1), "there is no such thread any more"


@pytest.mark.parametrize("replica", [-1, TWO])
@pytest.mark.parametrize(
    ("records", "limits", "min_records", "answered"),
    [
        pytest.param([2], {}, 2, [2], id="min_bytes are reached"),
        pytest.param([1], {}, 2, None, id="min_bytes are not reached"),
        pytest.param([5], {"max_bytes": 2.5}, 2.5, [2], id="the request's limit is reached"),
        pytest.param([1, 4], {"max_bytes": 2.5}, 2.5, [1, 1], id="two partitions reach it"),
        pytest.param([3, 4], {"max_bytes": 3.5}, 3.5, [3, 0], id="nothing fits for the second partition"),
        pytest.param([5], {"partition_max_bytes": 2.5}, 2.5, [2], id="the partition's limit is reached"),
        pytest.param([5], {"max_bytes": 0.5}, 0.5, [1], id="the first batch exceeds the limit"),
        pytest.param([5], {"partition_max_bytes": 0}, 1, [1], id="the partition's limit is zero"),
        pytest.param([5, 0], {"partition_max_bytes": 2.5}, 3, None, id="the other partition may fill it"),
        pytest.param([5, 1], {"partition_max_bytes": 2.5}, 3.5, [2, 1], id="both partitions fill it"),
        pytest.param([2], {"max_bytes": 2.5}, 2.5, None, id="everything is read"),
        pytest.param([0], {"max_bytes": 2.5}, 0.5, None, id="there are no records"),
    ],
)
def test_a_fetch_does_not_wait_for_more_than_its_answer_may_hold(
    led: Managed,
    replica: int,
    records: list[int],
    limits: dict[str, float],
    min_records: float,
    answered: list[int] | None,
) -> None:
    """As in Kafka. Sizes are in records; an answer holds whole batches of one record."""
    names = [TopicPartition("topic", index) for index in range(len(records))]
    for name in names:
        led.tell(state(isr=(1,), epoch=1, index=name.partition))
    request: dict[str, Any] = {limit: int(size * RECORD.size) for limit, size in limits.items()}
    request |= {"min_bytes": int(min_records * RECORD.size), "partitions": names, "replica": replica}
    parked = led.fetch(0, max_wait_ms=1_000, **request)
    assert parked == []
    for name, count in zip(names, records, strict=True):
        for _ in range(count):
            led.manager.append(1, 0, [(name, encode(1))], lambda outcomes: None)
            led.manager.wake_followers()
    assert len(parked) == (answered is not None)
    begun = led.fetch(0, max_wait_ms=1_000, **request)
    if answered is None:
        assert begun == []
    else:
        assert [len(outcome.read.records) // RECORD.size for outcome in begun[0].outcomes] == answered


def test_enough_is_answered_at_once_and_so_is_an_error(led: Managed) -> None:
    led.produce(acks=1)
    commit(led, 1)
    assert [result.bytes_read for result in led.fetch(0, max_wait_ms=1_000)] == [RECORD.size]
    assert [result.bytes_read for result in led.fetch(1, max_wait_ms=1_000, min_bytes=0)] == [0]
    (result,) = led.fetch(7, max_wait_ms=1_000)
    assert result.outcomes[0].read.error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert result.outcomes[0].read.log_start_offset == 0
    (result,) = led.fetch(1, max_wait_ms=1_000, partitions=[NOWHERE, TP])
    assert [outcome.read.error for outcome in result.outcomes] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]
    (result,) = led.fetch(0, max_wait_ms=1_000, epoch=4)
    assert result.outcomes[0].read.error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert result.outcomes[0].read.log_start_offset == -1
    # So is a follower with another history.
    answers: list[FetchResult] = []
    diverging = fetch_item(TP, 5)._replace(last_fetched_epoch=0)
    led.manager.fetch(fetch_params(TWO, max_wait_ms=1_000), FetchSource([diverging]), answers.append)
    read = answers[0].outcomes[0].read
    assert read is not None
    assert read.diverging == (0, 1)
    assert purgatories_are_empty(led)


@pytest.mark.parametrize(
    ("epoch", "leader", "code"),
    [(-1, 2, ErrorCode.NOT_LEADER_OR_FOLLOWER), (0, 1, ErrorCode.FENCED_LEADER_EPOCH)],
)
@pytest.mark.parametrize("replica", [-1, TWO])
def test_a_change_of_leadership_answers_the_waiting_fetches(
    led: Managed, replica: int, epoch: int, leader: int, code: ErrorCode
) -> None:
    answers = led.fetch(0, replica=replica, max_wait_ms=1_000, epoch=epoch)
    assert answers == []
    led.tell(state(leader=leader, epoch=1))
    (result,) = answers
    assert result.outcomes[0].read.error is code


def test_a_newer_fetch_of_a_follower_answers_its_older_long_poll_even_without_partitions(
    led: Managed,
) -> None:
    first, other, second = (led.fetch(0, replica=broker, max_wait_ms=1_000) for broker in (TWO, THREE, TWO))
    assert [len(answers) for answers in (first, other, second)] == [1, 0, 0]
    nudged = led.fetch(0, replica=TWO, partitions=[])
    assert [len(answers) for answers in (first, other, second, nudged)] == [1, 0, 1, 1]


def test_at_a_fenced_broker_a_consumer_reads_committed_records_but_does_not_wait(led: Managed) -> None:
    led.produce(count=2)
    commit(led, 2)
    waiting = led.fetch(2, max_wait_ms=500)
    led.manager.roles.registration_lost("the session has expired")
    ((outcome,),) = [result.outcomes for result in waiting]
    assert outcome.read == PartitionRead.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    ((outcome,),) = [result.outcomes for result in led.fetch(0, max_wait_ms=500)]
    assert len(decode(outcome.read.records)) == 2
    ((outcome,),) = [result.outcomes for result in led.fetch(2, max_wait_ms=500)]
    assert outcome.read == PartitionRead.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    # A limit that is used up is no wait.
    ((outcome,),) = [result.outcomes for result in led.fetch(1, partition_max_bytes=0, max_wait_ms=500)]
    assert outcome.read.error is ErrorCode.NONE
    # A follower learns its leader from the controller, so it may wait.
    assert led.fetch(2, replica=TWO, max_wait_ms=500) == []


# The ISR and the high watermark


def test_a_fetch_with_an_earlier_broker_epoch_is_answered_and_not_counted(led: Managed) -> None:
    led.produce(acks=1)
    led.fetch(1, replica=TWO)
    led.know({1: 0, 2: 5, 3: 6})
    led.fetch(1, replica=THREE, broker_epoch=5)
    assert led.manager.partition(TP).high_watermark == 0
    led.fetch(1, replica=THREE, broker_epoch=6)
    assert led.manager.partition(TP).high_watermark == 1


def test_a_follower_that_has_caught_up_is_proposed_for_the_isr(led: Managed) -> None:
    led.produce(acks=1)
    led.tell(state(epoch=1, isr=(1, 2)))
    partition = led.manager.partition(TP)
    led.fetch(0, replica=THREE)
    assert partition.isr.maximal == {1, 2}
    led.fetch(1, replica=THREE)
    assert partition.isr.maximal == {1, 2, 3}
    assert partition.isr.in_sync_replicas == {1, 2}
    assert not led.manager.isr_changes.work_off(), "ZooKeeper is out of reach"


def test_a_broker_without_a_replica_cannot_follow_here(led: Managed) -> None:
    (result,) = led.fetch(0, replica=8, max_wait_ms=1_000)
    assert result.outcomes[0].read.error is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_laggards_are_proposed_to_leave(led: Managed) -> None:
    led.produce(acks=1)
    led.pass_time(LAG_MS)
    led.fetch(1, replica=TWO)
    led.manager.shrink_isrs()
    led.pass_time(1)
    partition = led.manager.partition(TP)
    assert partition.isr.maximal == {1, 2, 3}
    led.manager.shrink_isrs()
    assert partition.isr.proposed == {1, 2}
    assert not led.manager.isr_changes.work_off()


def test_the_high_watermark_waits_for_a_hung_replica_outside_the_isr_no_longer_than_the_lag() -> None:
    """Without appends and fetches only the ISR check moves the high watermark."""
    managed = Managed()
    managed.know({1: 0, 2: 5})
    managed.tell(state(isr=(1,), replicas=(1, 2)))
    managed.produce(acks=1)
    # It has everything, but it does not join with an earlier broker epoch.
    managed.know({1: 0})
    managed.fetch(1, replica=TWO)
    answers = managed.produce(timeout_ms=60_000)
    consumed = managed.fetch(1, max_wait_ms=60_000)
    managed.pass_time(LAG_MS)
    managed.manager.shrink_isrs()
    assert answers == consumed == []
    managed.pass_time(1)
    managed.manager.shrink_isrs()
    ((outcome,),) = answers
    assert outcome.error_code == ErrorCode.NONE
    assert [result.bytes_read for result in consumed] == [RECORD.size]


def test_answers_are_counted_by_topic_and_those_to_followers_as_replication(led: Managed) -> None:
    led.produce(count=2)
    commit(led, 2)
    traffic, size_bytes = led.manager.traffic, 2 * RECORD.size
    counts, replicated = traffic.of(TP.topic), traffic.replication_bytes_out
    fetches = counts.fetch_requests
    led.fetch(0)
    assert (counts.bytes_out, traffic.replication_bytes_out) == (size_bytes, replicated)
    led.fetch(0, replica=TWO)
    assert (counts.bytes_out, traffic.replication_bytes_out) == (size_bytes, replicated + size_bytes)
    assert counts.fetch_requests == fetches + 2
    led.fetch(0, partitions=[TopicPartition("elsewhere", 0)])
    assert traffic.others.fetch_requests == 1
    assert "elsewhere" not in traffic.topics()
