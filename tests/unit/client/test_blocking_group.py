"""The blocking consumer in a group, against a fake coordinator on a thread of its own."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.client import blocking
from barnabas.client.consumer.consumer import RebalanceListener
from barnabas.client.errors import ClientClosed, LocalError
from barnabas.client.offsets import OffsetAndMetadata
from barnabas.protocol.ids import TopicPartition
from tests.support.coordinator import Coordinator
from tests.support.waiting import DEADLINE_S, wait_for

from .test_blocking import ThreadedCluster
from .test_consumer import fill, values

P0 = TopicPartition("t", 0)
QUICK = {
    "auto_offset_reset": "earliest",
    "retry_backoff_ms": 5,
    "heartbeat_interval_ms": 15,
    "fetch_max_wait_ms": 20,
    "group_id": "g",
    "partition_assignment_strategy": "cooperative-sticky",
}


class Group:
    """A cluster with a coordinator, and its view of the one group."""

    def __init__(self) -> None:
        self.cluster = ThreadedCluster()
        self.cluster.do(lambda: self.cluster.fake.add_topic("t", 2))
        self.coordinator: Coordinator = self.cluster.do(lambda: Coordinator(self.cluster.fake))

    def consumer(self, **settings: Any) -> blocking.Consumer:
        return blocking.Consumer(bootstrap_servers=self.cluster.bootstrap, **{**QUICK, **settings})

    def fill(self, start: int, end: int) -> None:
        self.cluster.do(lambda: fill(self.cluster.fake.partition("t"), start, end))

    def committed(self) -> int:
        return self.coordinator.group("g").offsets.get(("t", 0), (-1,))[0]

    def evict_one(self) -> None:
        members = self.coordinator.group("g").members
        self.cluster.do(lambda: self.coordinator.kick("g", members[0]))


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.cluster.stop()


def poll_until(condition: Callable[[], object], *consumers: blocking.Consumer) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        for consumer in consumers:
            consumer.poll(5)


def poll_records(consumer: blocking.Consumer, count: int) -> None:
    """The next records as one list."""
    records: list[Any] = []
    poll_until(lambda: records or records.extend(consumer.poll(10_000, count)))
    assert len(records) == count


def test_a_commit_covers_only_records_that_were_handed_out(group: Group) -> None:
    group.fill(0, 30)
    with group.consumer(enable_auto_commit=False) as consumer:
        consumer.subscribe("t")
        for record in consumer:
            if record.offset == 7:
                break
        consumer.commit()
        assert group.committed() == 8
        assert consumer.committed([P0])[P0] is not None
        record = next(consumer)
        assert record.offset == 8
        consumer.commit(record)
        assert group.committed() == 9
        assert next(consumer).offset == 9
        assert consumer.seek_to_committed()[P0] == (9, "", -1)
        assert next(consumer).offset == 9


def test_a_consumer_without_a_group_reads_all_partitions(group: Group) -> None:
    threads: list[threading.Thread] = []

    class Noting(RebalanceListener):
        def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            threads.append(threading.current_thread())

    group.fill(0, 10)
    with group.consumer(group_id=None, metadata_max_age_ms=20) as consumer:
        consumer.subscribe("t", listener=Noting())
        assert [next(consumer).value for _ in range(5)] == values(0, 5)
        group.cluster.do(lambda: group.cluster.fake.grow_topic("t", 3))
        group.cluster.do(lambda: fill(group.cluster.fake.partition("t", 2), 10, 20))
        assert sorted(int(next(consumer).value or b"") for _ in range(15)) == list(range(5, 20))
    assert threads == [threading.current_thread()] * 2


@pytest.mark.parametrize("way", ["close", "unsubscribe"])
def test_a_member_that_leaves_commits_the_records_that_were_handed_out(group: Group, way: str) -> None:
    group.fill(0, 30)
    with group.consumer() as consumer:
        consumer.subscribe("t")
        assert [next(consumer).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        getattr(consumer, way)()
    assert group.committed() == 5
    assert group.coordinator.group("g").members == []


@pytest.mark.parametrize("stops_at", [4, 29])
def test_a_stopped_member_finishes_its_record_commits_and_leaves(group: Group, stops_at: int) -> None:
    """By a thread, while it works on a record, or at the last one while it waits for more."""
    group.fill(0, 30)
    seen: list[int] = []
    with group.consumer(auto_commit_interval_ms=600_000) as consumer:
        consumer.subscribe("t")

        def stop() -> None:
            if stops_at == 29:
                wait_for(lambda: len(seen) == 30 and consumer._polls.arrived._waiters, "a waiting poll")
            consumer.stop()

        stopper = threading.Thread(target=stop)
        for record in consumer:
            if record.offset == stops_at:
                stopper.start()
                if stops_at < 29:
                    stopper.join()
            seen.append(record.offset)
        assert list(consumer) == []
        assert consumer.is_stopped
        if stops_at < 29:
            assert consumer.poll() == []
        with pytest.raises(ClientClosed, match="stopped"):
            consumer.poll()
        with pytest.raises(ClientClosed, match="stopped"):
            consumer.getone()
    assert seen == list(range(stops_at + 1))
    assert (group.committed(), group.coordinator.group("g").members) == (stops_at + 1, [])


def test_a_signal_handler_may_stop_whatever_its_thread_does(group: Group) -> None:
    with group.consumer() as consumer:
        consumer.subscribe("t")
        before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
        try:
            # As between two lines of a call.
            with consumer._thread._handing_over:
                signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert list(consumer) == []
    consumer.stop()


@pytest.mark.filterwarnings("ignore:unclosed barnabas.client.blocking.Consumer:ResourceWarning")
def test_a_consumer_that_is_dropped_unclosed_leaves_its_group_and_commits_nothing(group: Group) -> None:
    group.fill(0, 30)
    consumer = group.consumer()
    consumer.subscribe("t")
    assert next(consumer).offset == 0
    assert group.coordinator.group("g").members
    del consumer
    wait_for(lambda: not group.coordinator.group("g").members, "the member's departure")
    assert group.committed() == -1


def test_commit_callbacks_run_in_the_thread_of_the_user(group: Group) -> None:
    calls: list[tuple[Any, Any, threading.Thread]] = []

    def on_commit(offsets: Any, error: Any) -> None:
        calls.append((offsets, error, threading.current_thread()))

    with group.consumer(enable_auto_commit=False) as consumer:
        consumer.subscribe("t")
        poll_until(lambda: len(consumer.assignment()) == 2, consumer)
        consumer.commit_nowait({P0: 3}, on_commit)
        poll_until(lambda: calls, consumer)
        consumer.commit_nowait({P0: 4}, on_commit)
        consumer.commit({P0: 5})
        assert [offsets[P0].offset for offsets, _, _ in calls] == [3, 4]
        assert consumer.commit_nowait({P0: 6}, on_commit).result(DEADLINE_S) is None
        assert consumer.committed(P0) == consumer.committed([P0])[P0] == OffsetAndMetadata(6)
    assert [offsets[P0].offset for offsets, _, _ in calls] == [3, 4, 6]
    assert {(error, thread) for _, error, thread in calls} == {(None, threading.current_thread())}
    assert group.committed() == 6


@pytest.mark.parametrize(
    ("way", "committed"),
    [
        ("iterates", 4),
        ("closes after iterating", 4),
        ("unsubscribes after iterating", 4),
        ("polls", 0),
        ("polls twice", 10),
        ("polls after iterating", 5),
    ],
)
def test_a_failure_in_the_body_commits_the_records_before_those_in_hand(
    group: Group, way: str, committed: int
) -> None:
    group.fill(0, 30)

    def body() -> None:
        with group.consumer(auto_commit_interval_ms=600_000) as consumer:
            consumer.subscribe("t")
            if "iterat" in way:
                assert [next(consumer).offset for _ in range(5)] == list(range(5))
            if way.startswith("polls"):
                poll_records(consumer, 10)
            if way == "polls twice":
                poll_records(consumer, 10)
            try:
                raise ZeroDivisionError
            finally:
                if way == "closes after iterating":
                    consumer.close()
                elif way == "unsubscribes after iterating":
                    consumer.unsubscribe()

    with pytest.raises(ZeroDivisionError):
        body()
    assert max(group.committed(), 0) == committed
    assert group.coordinator.group("g").members == []


def test_ctrl_c_while_waiting_commits_handed_out_records(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll ends later, in the consumer's own thread and with an error of its own."""
    group.fill(0, 3)

    def body() -> None:
        with group.consumer(auto_commit_interval_ms=600_000) as consumer:
            consumer.subscribe("t")
            assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
            goes_on = threading.Event()

            def interrupted(future: Any) -> Any:
                consumer._thread.loop.call_soon_threadsafe(goes_on.wait)
                future.cancel()
                monkeypatch.undo()
                raise KeyboardInterrupt

            monkeypatch.setattr(consumer._thread, "outcome", interrupted)
            try:
                next(consumer)
            finally:
                goes_on.set()
                # The consumer's thread cancels the poll before it has answered both.
                consumer.assignment()
                consumer.assignment()

    with pytest.raises(KeyboardInterrupt):
        body()
    assert group.committed() == 3
    assert group.coordinator.group("g").members == []


def test_iterating_notices_a_rebalance_and_loses_no_record(group: Group) -> None:
    written = 400
    group.fill(0, written)
    with group.consumer() as consumer, group.consumer() as other:
        consumer.subscribe("t")
        seen = [next(consumer).offset for _ in range(5)]
        other.subscribe("t")
        waiting = threading.Thread(target=poll_until, args=(other.assignment, other))
        waiting.start()
        while waiting.is_alive() and P0 in consumer.assignment():
            # Working on a record takes its time.
            time.sleep(0.005)
            seen.append(next(consumer).offset)
            if len(seen) == written - 100:
                # The other one takes longer than that to join.
                group.fill(written, written + 400)
                written += 400
        waiting.join()
        while len(seen) < written and P0 in consumer.assignment():
            seen.append(next(consumer).offset)
        assert len(other.assignment()) == 1
    assert seen == list(range(len(seen)))


def test_a_listener_is_called_in_the_polling_thread_and_may_use_the_consumer(group: Group) -> None:
    calls: list[tuple[str, threading.Thread]] = []

    class Listener(RebalanceListener):
        def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            calls.append(("assigned", threading.current_thread()))
            assert consumer.assignment() == partitions

        def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
            calls.append(("revoked", threading.current_thread()))
            consumer.commit({P0: 17})

        def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
            calls.append(("lost", threading.current_thread()))

    with group.consumer(enable_auto_commit=False) as consumer:
        consumer.subscribe("t", listener=Listener())
        poll_until(lambda: calls, consumer)
        group.evict_one()
        poll_until(lambda: len(calls) == 3, consumer)
    assert [what for what, _ in calls] == ["assigned", "lost", "assigned", "revoked"]
    assert {thread for _, thread in calls} == {threading.current_thread()}
    assert group.committed() == 17


def test_poll_raises_the_exception_of_a_listener(group: Group) -> None:
    class Failing(RebalanceListener):
        def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            raise ZeroDivisionError

    with group.consumer() as consumer:
        consumer.subscribe("t", listener=Failing())
        with pytest.raises(ZeroDivisionError):
            poll_until(lambda: False, consumer)
        consumer.unsubscribe()
        assert consumer.subscription() == set()


def test_records_come_by_partition_also_while_an_iteration_holds_some_back(group: Group) -> None:
    group.fill(0, 30)
    group.cluster.do(lambda: fill(group.cluster.fake.partition("t", 1), 0, 30))
    with group.consumer() as consumer:
        consumer.subscribe("t")
        iterated = next(consumer).tp
        other = TopicPartition("t", 1 - iterated.partition)
        lists = consumer.getmany(other, timeout_ms=10_000, max_records=10)
        assert list(lists) == [other]
        offsets = {iterated: [0], other: [record.offset for record in lists[other]]}
        assert offsets[other] == list(range(10))
        offsets[iterated].append(consumer.getone(iterated).offset)
        while sum(map(len, offsets.values())) < 60:
            record = next(consumer)
            offsets[record.tp].append(record.offset)
        assert offsets == {iterated: list(range(30)), other: list(range(30))}


@pytest.mark.parametrize("comes", ["before the interrupt", "after the interrupt"])
@pytest.mark.parametrize("listens", [False, True])
def test_records_of_an_interrupted_poll_come_with_the_next_one(
    group: Group, monkeypatch: pytest.MonkeyPatch, comes: str, listens: bool
) -> None:
    """Ctrl-C after or just before the consumer's thread gets records."""
    group.fill(0, 30)
    with group.consumer() as consumer:
        consumer.subscribe("t", listener=RebalanceListener() if listens else None)
        assert next(consumer).offset == 0
        consumer.seek(P0, 10)
        begin = consumer._thread.begin
        begun: list[Any] = []

        def interrupted(work: Any) -> Any:
            future = begin(work)
            begun.append(future)
            if comes == "before the interrupt":
                future.result()
            raise KeyboardInterrupt

        monkeypatch.setattr(consumer._thread, "begin", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(1_000)
        monkeypatch.undo()
        begun[-1].result()
        assert consumer.position(P0) == 10
        assert next(consumer).offset == 10
    assert group.committed() == 11


def test_records_of_an_interrupted_poll_are_not_in_hand(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error puts back what is in hand, and must not undo a seek to a later offset."""
    group.fill(0, 30)

    def use(consumer: Any) -> None:
        outcome = consumer._thread.outcome

        def interrupted(future: Any) -> Any:
            outcome(future)
            raise KeyboardInterrupt

        consumer.subscribe("t")
        assert next(consumer).offset == 0
        consumer.seek(P0, 10)
        monkeypatch.setattr(consumer._thread, "outcome", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(1_000)
        monkeypatch.undo()
        consumer.seek(P0, 20)
        raise ArithmeticError

    with pytest.raises(ArithmeticError), group.consumer() as consumer:
        use(consumer)
    assert group.committed() == 20


@pytest.mark.parametrize("act", ["poll", "unsubscribe", "close"])
def test_a_listener_that_would_wait_for_itself_is_refused(group: Group, act: str) -> None:
    class Wrong(RebalanceListener):
        def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            getattr(consumer, act)()

    with group.consumer() as consumer:
        consumer.subscribe("t", listener=Wrong())
        with pytest.raises(LocalError, match="rebalance listener"):
            poll_until(lambda: False, consumer)
        assert len(consumer.assignment()) == 2
        consumer.poll(0)
    assert group.coordinator.group("g").members == []


def test_a_listener_without_a_method_is_refused(group: Group) -> None:
    listener: Any = object()
    with group.consumer() as consumer, pytest.raises(ValueError, match="has no on_partitions_revoked"):
        consumer.subscribe("t", listener=listener)


def test_a_listener_may_subscribe_with_another_one(group: Group) -> None:
    calls: list[str] = []

    class Second(RebalanceListener):
        def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            calls.append("second")

    class First(RebalanceListener):
        def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            calls.append("first")
            consumer.subscribe(["t", "u"], listener=Second())

    with group.consumer() as consumer:
        consumer.subscribe("t", listener=First())
        poll_until(lambda: "second" in calls, consumer)
    assert calls == ["first", "second"]


# The example of a poller with workers


def test_records_of_a_topic_that_was_made_again_are_not_committed_to_the_new_one(group: Group) -> None:
    """The first ten were polled, and the iteration has handed out only five of them."""
    group.fill(0, 10)
    with group.consumer(auto_commit_interval_ms=600_000) as consumer:
        consumer.subscribe("t")
        for record in consumer:
            if record.offset == 4:
                break
        group.cluster.do(lambda: group.cluster.fake.add_topic("t", 2))
        wait_for(lambda: consumer._client._assignment.states[P0].restarts == 1)
        consumer.commit()
        assert group.committed() <= 0
