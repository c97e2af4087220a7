"""The clients for threads, against a fake cluster on a thread of its own."""

import asyncio
import concurrent.futures
import gc
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from barnabas.client import blocking
from barnabas.client import client as lifecycle
from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.cluster import Cluster
from barnabas.client.config import ClientConfig
from barnabas.client.consumer import blocking_range_reader
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.errors import (
    ApiError,
    BufferExhausted,
    ClientClosed,
    ErrorCode,
    NoBrokerReachable,
    RecordDeserializationError,
)
from barnabas.client.loop_thread import ClientThread, close_unclosed
from barnabas.client.producer import blocking as blocking_producer
from barnabas.client.producer.partitioners import partition_of_key
from barnabas.client.producer.producer import Producer
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.schema import ApiKey
from tests.support.batches import build_batch
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import DEADLINE_S, wait_for

from .test_consumer import fill
from .test_producer import refuse


class ThreadedCluster:
    """A fake cluster that runs on its own loop thread."""

    def __init__(self) -> None:
        self.thread = ClientThread("fake-cluster")
        self.fake: FakeCluster = self.do(lambda: FakeCluster(2))
        self.thread.call(self.fake.__aenter__)
        self.bootstrap = self.fake.bootstrap

    def do(self, work: Any) -> Any:
        async def run() -> Any:
            return work()

        return self.thread.call(run)

    def stop(self) -> None:
        self.thread.call(self.fake.__aexit__)
        self.thread.stop("the test is over")


@pytest.fixture
def cluster() -> Iterator[ThreadedCluster]:
    """It has the topic "t" of one partition."""
    made = ThreadedCluster()
    made.do(lambda: made.fake.add_topic("t"))
    yield made
    made.stop()


def test_a_client_can_have_subclasses(cluster: ThreadedCluster) -> None:
    class Counting(blocking.Producer):
        sent = 0

        def send_value(self, value: bytes) -> int:
            self.sent += 1
            return self.send_and_wait("t", value).offset

    with Counting(bootstrap_servers=cluster.bootstrap) as producer:
        assert [producer.send_value(b"a"), producer.send_value(b"b")] == [0, 1]
        assert producer.sent == 2
    assert (blocking.Consumer.poll.__doc__ or "").startswith("The next records as soon as they arrive")


def test_a_record_that_cannot_be_read_is_an_error_of_the_iteration_after_those_before_it(
    cluster: ThreadedCluster,
) -> None:
    threads: list[str] = []

    def number(data: bytes) -> int:
        threads.append(threading.current_thread().name)
        return int(data)

    def digits(value: int) -> bytes:
        threads.append(threading.current_thread().name)
        return b"%d" % value if value != 2 else b"two"

    with blocking.Producer(bootstrap_servers=cluster.bootstrap, value_serializer=digits) as producer:
        for value in range(4):
            producer.send("t", value)
    with blocking.Consumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", value_deserializer=number
    ) as consumer:
        consumer.assign([("t", 0)])
        assert [next(consumer).value for _ in range(2)] == [0, 1]
        for attempt in (consumer.getone, consumer.poll):
            with pytest.raises(RecordDeserializationError, match="the value of t-0 at offset 2") as failure:
                attempt()
            assert consumer.position(("t", 0)) == failure.value.offset == 2
        consumer.seek(("t", 0), 3)
        assert next(consumer).value == 3
    assert set(threads[:4]) == {threading.current_thread().name}
    assert set(threads[4:]) == {"barnabas-consumer"}


def test_an_exit_of_a_deserializer_is_raised_by_the_poll_and_loses_no_record(
    cluster: ThreadedCluster,
) -> None:
    cluster.do(lambda: fill(cluster.fake.partition("t"), 0, 4))
    exits = [SystemExit("the end")]

    def number(data: bytes) -> int:
        if data == b"2" and exits:
            raise exits.pop()
        return int(data)

    with blocking.Consumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", value_deserializer=number
    ) as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(SystemExit, match="the end"):
            consumer.poll(10_000)
        assert [consumer.getone().value for _ in range(4)] == [0, 1, 2, 3]


def test_a_call_ends_when_the_thread_of_its_client_dies() -> None:
    """As of an exit in a callback of a delivery."""

    def leave() -> None:
        raise SystemExit("the end")

    thread = ClientThread("dying")
    waiting = thread.begin(lambda: asyncio.Event().wait())
    thread.loop.call_soon_threadsafe(leave)
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(DEADLINE_S)
    for call in (lambda: thread.outcome(waiting), lambda: thread.call_plain(int)):
        with pytest.raises(ClientClosed, match="the client's thread died: SystemExit"):
            call()


def test_records_are_sent_and_read_and_iterated(cluster: ThreadedCluster) -> None:
    cluster.do(lambda: cluster.fake.add_topic("t", 2))
    cluster.do(lambda: cluster.fake.add_topic("keyed", 6))
    with blocking.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        futures = [producer.send("t", b"%d" % number, partition=0) for number in range(1_000)]
        producer.flush()
        assert futures[999].done()
        assert [future.result().offset for future in futures] == list(range(1_000))
        assert producer.send_and_wait("t", b"x", partition=1).offset == 0
        assert producer.send_batch("t", 1, build_batch([(None, b"y")])).result(timeout=10).offset == 1
        assert len(producer.partitions_for("t")) == 2
        for key in (b"a", b"b", b"c", b"d"):
            assert producer.send_and_wait("keyed", b"", key).partition == partition_of_key(key, 6)
    settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 20}
    with blocking.Consumer(bootstrap_servers=cluster.bootstrap, **settings) as consumer:
        consumer.assign([("t", 0)])
        seen = [record.value for record, _ in zip(consumer, range(700), strict=False)]
        assert seen == [b"%d" % number for number in range(700)]
        first_unseen = consumer.position(("t", 0))
        assert first_unseen in (700, 701)
        assert consumer.lag(("t", 0)) == 1_000 - first_unseen
        assert [record.offset for record in consumer.poll(10_000, 1)] == [first_unseen]
        consumer.seek(("t", 0), 5)
        assert consumer.getone().offset == 5
        consumer.pause(("t", 0))
        assert consumer.paused() == {("t", 0)}
        assert consumer.poll(0) == []
        consumer.resume(("t", 0))
        assert consumer.getone().offset == 6
        consumer.seek_to_beginning(("t", 0))
        assert consumer.getone().offset == 0
        consumer.seek_to_end()
        assert consumer.position(("t", 0)) == 1_000
        consumer.seek(("t", 0), 5)
        assert consumer.getone().offset == 5
        consumer.assign([("t", 1)])
        assert consumer.getone().partition == 1
        assert consumer.end_offsets([("t", 1)]) == {("t", 1): 2}
        assert consumer.assignment() == {("t", 1)}


def test_a_partition_that_the_metadata_is_too_old_to_have_is_looked_for(cluster: ThreadedCluster) -> None:
    with blocking.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("t", b"x").result()
        cluster.do(lambda: cluster.fake.grow_topic("t", 9))
        assert producer.send("t", b"y", partition=8).result().partition == 8


def test_records_can_be_waited_for_as_concurrent_futures(cluster: ThreadedCluster) -> None:
    with blocking.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        sent = [producer.send("t", b"%d" % number) for number in range(3)]
        futures = [future.as_future() for future in sent]
        done, pending = concurrent.futures.wait(futures, DEADLINE_S)
        assert (len(done), len(pending)) == (3, 0)
        assert [future.result().offset for future in futures] == [0, 1, 2]
        assert [future.get(DEADLINE_S).offset for future in sent] == [0, 1, 2]
        assert sent[0].exception() is None
        cluster.do(lambda: cluster.fake.brokers[1].script(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_RECORD)))
        error = producer.send("t", b"v").exception(DEADLINE_S)
        assert isinstance(error, ApiError)
        assert error.code == ErrorCode.INVALID_RECORD


def test_callbacks_of_a_record_are_called_when_its_outcome_is_known(cluster: ThreadedCluster) -> None:
    def gate() -> list[asyncio.Event]:
        return [broker.gate(ApiKey.PRODUCE) for broker in cluster.fake.brokers.values()]

    calls: queue.SimpleQueue[tuple[Any, str]] = queue.SimpleQueue()

    def call(future: blocking.RecordFuture) -> None:
        calls.put((future, threading.current_thread().name))

    gates = cluster.do(gate)
    with blocking.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        sent = producer.send("t", b"v")
        sent.add_done_callback(call)
        future = sent.as_future()
        assert not future.cancel()
        assert calls.empty()
        assert repr(sent).endswith(": pending>")
        cluster.do(lambda: [gate.set() for gate in gates])
        assert calls.get(timeout=DEADLINE_S) == (sent, producer._thread.name)
        assert future.result(DEADLINE_S) == sent.result()
        sent.add_done_callback(call)
        assert calls.get_nowait() == (sent, threading.current_thread().name)
        for broker in cluster.fake.brokers.values():
            cluster.do(lambda: broker.script(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_RECORD)))  # noqa: B023 - the loop calls it within this iteration
        refused = producer.send("t", b"v").as_future()
        assert isinstance(refused.exception(DEADLINE_S), ApiError)
    assert sent.as_future().result(0).offset == 0
    assert repr(sent).endswith(": offset 0>")


def test_closing_ends_an_iteration_and_refuses_a_new_one(cluster: ThreadedCluster) -> None:
    cluster.do(lambda: fill(cluster.fake.partition("t"), 0, 10))
    with blocking.Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        seen: list[int] = []
        working = threading.Thread(target=lambda: seen.extend(record.offset for record in consumer))
        working.start()
        wait_for(lambda: len(seen) == 10, "the records")
        consumer.close()
        working.join(DEADLINE_S)
        assert not working.is_alive()
        with pytest.raises(ClientClosed, match="closed"):
            iter(consumer)
        with pytest.raises(ClientClosed, match="closed"):
            consumer.getone()


def test_many_threads_may_send(cluster: ThreadedCluster) -> None:
    cluster.do(lambda: cluster.fake.add_topic("t", 3))
    outcomes: list[int] = []
    settings: dict[str, Any] = {"batch_size": 500, "buffer_memory": 5_000}
    with blocking.Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:

        def work(thread: int) -> None:
            for number in range(500):
                producer.send(
                    "t",
                    b"%d" % number,
                    b"thread-%d" % thread,
                    on_delivery=lambda metadata, error: outcomes.append(metadata.offset if metadata else -1),
                )

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
    assert len(outcomes) == 2_000
    assert -1 not in outcomes
    values = cluster.do(lambda: [partition.values() for partition in cluster.fake.topics["t"]])
    assert sorted(value for each in values for value in each) == sorted(
        [b"%d" % number for number in range(500)] * 4
    )


def become_known(producer: blocking.Producer, topic: str) -> None:
    """Where `max_block_ms` is short, the first answer may come later than that."""
    while True:
        try:
            producer.partitions_for(topic)
        except ApiError:
            continue
        return


def test_a_full_buffer_blocks_and_then_refuses(cluster: ThreadedCluster) -> None:
    gates = cluster.do(lambda: [broker.gate(ApiKey.PRODUCE) for broker in cluster.fake.brokers.values()])
    settings: dict[str, Any] = {"batch_size": 1_000, "buffer_memory": 2_000, "max_block_ms": 50}
    with blocking.Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        become_known(producer, "t")
        for _ in range(2):
            producer.send("t", bytes(900))
        with pytest.raises(BufferExhausted):
            producer.send("t", bytes(900))
        with pytest.raises(TimeoutError):
            producer.flush(timeout_s=0.01)
        cluster.do(lambda: [gate.set() for gate in gates])
        producer.flush()
        assert producer.send_and_wait("t", b"goes on").offset > 0


def test_an_interrupted_wait_for_memory_releases_the_granted_bytes(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = cluster.do(lambda: [broker.gate(ApiKey.PRODUCE) for broker in cluster.fake.brokers.values()])
    settings: dict[str, Any] = {"batch_size": 1_000, "buffer_memory": 2_000}
    with blocking.Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        become_known(producer, "t")
        accumulator = producer._accumulator
        wait_for_memory = accumulator.wait_for_memory
        is_granted, goes_on = threading.Event(), threading.Event()

        async def ends_late(size: int, deadline: float) -> int:
            granted = await wait_for_memory(size, deadline)
            is_granted.set()
            goes_on.wait(DEADLINE_S)
            return granted

        def interrupted(future: Any) -> Any:
            cluster.do(lambda: [gate.set() for gate in gates])
            assert is_granted.wait(DEADLINE_S)
            # As if `outcome` were interrupted just before it gets the outcome.
            future.cancel()
            monkeypatch.undo()
            raise KeyboardInterrupt

        for _ in range(2):
            producer.send("t", bytes(900))
        monkeypatch.setattr(accumulator, "wait_for_memory", ends_late)
        monkeypatch.setattr(producer._thread, "outcome", interrupted)
        try:
            with pytest.raises(KeyboardInterrupt):
                producer.send("t", bytes(900))
        finally:
            goes_on.set()
        producer.flush()
        wait_for(lambda: accumulator.available_bytes == 2_000, "all of the memory")


def test_arguments_of_a_wrong_type_are_named(cluster: ThreadedCluster) -> None:
    with blocking.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        with pytest.raises(TypeError, match="value is str; expected bytes or None"):
            producer.send("t", "text")
        with pytest.raises(TypeError, match="on_delivery=5: expected a callable"):
            producer.send("t", b"text", on_delivery=5)
        assert producer.send_and_wait("t", b"fine").offset == 0


def test_topics_are_administered_and_ranges_read(cluster: ThreadedCluster) -> None:
    with blocking.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics(NewTopic("new", 2, 1))
        assert admin.list_topics() == ["new", "t"]
        assert len(admin.describe_topics("new")["new"].partitions) == 2
        assert admin.describe_cluster().cluster_id == "cluster"
        with blocking.Producer(bootstrap_servers=cluster.bootstrap, batch_size=500) as producer:
            for number in range(300):
                producer.send("new", b"%d" % number, partition=1)
        tp = TopicPartition("new", 1)
        assert admin.list_offsets({tp: "latest"})[tp].offset == 300
        pieces = blocking.read_range(cluster.bootstrap, tp, 0, 300, fetch_max_bytes=600)
        assert sum(header.record_count for piece in pieces for _, header in iter_batches(piece)) == 300
        admin.delete_topics("new")


def test_leaving_a_range_early_ends_its_thread(cluster: ThreadedCluster) -> None:
    with blocking.Producer(bootstrap_servers=cluster.bootstrap, batch_size=500) as producer:
        for number in range(300):
            producer.send("t", b"%d" % number)
    before = set(threading.enumerate())
    pieces = blocking.read_range(cluster.bootstrap, TopicPartition("t", 0), 0, 300, fetch_max_bytes=600)
    next(pieces)
    pieces.close()
    assert set(threading.enumerate()) <= before


def test_a_range_waits_for_a_broker_to_come_back(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send_and_wait("t", b"x")
    failures = [NoBrokerReachable("not yet"), NoBrokerReachable("not yet")]

    class Unreachable(Cluster):
        async def start(self) -> None:
            if failures:
                raise failures.pop()
            await super().start()

    monkeypatch.setattr(blocking_range_reader, "Cluster", Unreachable)
    pieces = blocking.read_range(cluster.bootstrap, TopicPartition("t", 0), 0, 1, retry_backoff_ms=1)
    assert len(list(pieces)) == 1
    assert not failures


def test_a_reader_that_is_kept_finds_new_partitions_and_a_topic_made_again(cluster: ThreadedCluster) -> None:
    def written(admin: blocking.Admin, partitions: int) -> TopicId:
        admin.create_topics(NewTopic("kept", partitions, 1))
        with blocking.Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send_and_wait("kept", b"x", partition=partitions - 1)
        return admin.describe_topics("kept")["kept"].topic_id

    reader = blocking.RangeReader(ClientConfig.of({"bootstrap_servers": cluster.bootstrap}))
    try:
        with blocking.Admin(bootstrap_servers=cluster.bootstrap) as admin:
            for partitions in (1, 2):
                topic_id = written(admin, partitions)
                # The second time with the connections of the first.
                for _ in range(2):
                    tp = TopicPartition("kept", partitions - 1)
                    assert len(list(reader.read(tp, 0, 1, topic_id=topic_id))) == 1
                admin.delete_topics("kept")
    finally:
        reader.close()


def test_a_range_does_not_wait_for_brokers_forever() -> None:
    before = set(threading.enumerate())
    pieces = blocking.read_range("127.0.0.1:1", TopicPartition("t", 0), 0, 1, stall_timeout_ms=200)
    with pytest.raises(NoBrokerReachable, match=r"127\.0\.0\.1:1.* \(asked for 200 ms\)"):
        next(pieces)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("client", [blocking.Producer, blocking.Consumer, blocking.Admin])
def test_a_failed_start_leaves_no_thread(client: Any) -> None:
    before = set(threading.enumerate())
    with pytest.raises(NoBrokerReachable, match=r"127\.0\.0\.1:1"):
        client(bootstrap_servers="127.0.0.1:1")
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("client", [blocking.Producer, blocking.Consumer, blocking.Admin])
def test_after_close_every_call_is_refused(client: Any, cluster: ThreadedCluster) -> None:
    made = client(bootstrap_servers=cluster.bootstrap)
    made.close()
    made.close()
    calls = {
        "Producer": lambda: made.send("t", b""),
        "Consumer": lambda: made.poll(0),
        "Admin": lambda: made.list_topics(),
    }
    with pytest.raises(ClientClosed, match="is closed"):
        calls[client.__name__]()


def test_a_call_from_a_callback_that_could_never_end_is_refused(cluster: ThreadedCluster) -> None:
    refusals: list[BaseException] = []
    with blocking.Producer(bootstrap_servers=cluster.bootstrap) as producer:

        def callback(metadata: object, error: object) -> None:
            try:
                producer.flush()
            except RuntimeError as refusal:
                refusals.append(refusal)

        producer.send("t", b"x", on_delivery=callback)
        producer.flush()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), producer._thread.loop).result()
    assert "own thread" in str(refusals[0])


def test_after_a_fork_a_client_of_the_parent_raises_client_closed(cluster: ThreadedCluster) -> None:
    # In a process of its own: forking one with the test runner's threads would be asking for trouble.
    program = """
import os, sys
from barnabas.client import blocking
from barnabas.client.errors import ClientClosed
admin = blocking.Admin(bootstrap_servers=sys.argv[1])
child = os.fork()
if child == 0:
    try:
        admin.list_topics()
    except ClientClosed as refusal:
        os._exit(7 if "fork" in str(refusal) else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
admin.list_topics()
admin.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, cluster.bootstrap], timeout=150, env=os.environ, check=False
    )
    assert done.returncode == 7


_SENDS_AND_ENDS = """
import sys
from barnabas.client import blocking

producer = blocking.Producer(bootstrap_servers=sys.argv[1], linger_ms=60_000)
for number in range(100):
    producer.send("t", b"%d" % number)
"""


def test_a_program_that_ends_without_closing_its_producer_loses_nothing(cluster: ThreadedCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SENDS_AND_ENDS, cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert cluster.do(lambda: cluster.fake.partition("t").values()) == [b"%d" % n for n in range(100)]
    assert "a producer was not closed" in done.stderr


def test_a_producer_that_is_dropped_unclosed_warns_and_loses_nothing(cluster: ThreadedCluster) -> None:
    producer = blocking.Producer(bootstrap_servers=cluster.bootstrap, linger_ms=60_000)
    future = producer.send("t", b"value")
    with pytest.warns(ResourceWarning, match="unclosed barnabas.client.blocking.Producer"):
        del producer
    wait_for(future.done, "the delivery of the record")
    assert future.result().offset == 0
    wait_for(
        lambda: not any(thread.name.startswith("barnabas-producer") for thread in threading.enumerate()),
        "the end of the producer's threads",
    )


_SENDS_IN_AN_EXIT_FUNCTION = """
import atexit
import sys

from barnabas.client import blocking

producers = [blocking.Producer(bootstrap_servers=sys.argv[1], linger_ms=60_000)]


@atexit.register
def send_last_record():
    producers.pop().send("t", b"last", on_delivery=lambda metadata, error: print(metadata.offset))
"""


def test_the_program_waits_for_a_producer_that_an_exit_function_drops(cluster: ThreadedCluster) -> None:
    gates = cluster.do(lambda: [broker.gate(ApiKey.PRODUCE) for broker in cluster.fake.brokers.values()])
    command = [sys.executable, "-c", _SENDS_IN_AN_EXIT_FUNCTION, cluster.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            wait_for(lambda: program.poll() is not None or cluster.fake.requests(ApiKey.PRODUCE), "a request")
            cluster.do(lambda: [gate.set() for gate in gates])
            output, errors = program.communicate(timeout=DEADLINE_S)
        finally:
            program.kill()
    assert output == "0\n", errors


@pytest.mark.filterwarnings("ignore:unclosed barnabas.client.blocking.Producer:ResourceWarning")
def test_a_producer_that_is_dropped_where_no_thread_can_start_loses_nothing(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Python 3.12 none can when the main thread has ended, while others may still run."""
    producer = blocking.Producer(bootstrap_servers=cluster.bootstrap, linger_ms=60_000)
    future = producer.send("t", b"value")

    def refuse_to_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse_to_start)
    del producer
    assert future.done()


def test_a_log_handler_may_send_with_the_producer_that_is_closed_at_the_end(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = blocking.Producer(bootstrap_servers=cluster.bootstrap, linger_ms=60_000)
    monkeypatch.setattr(blocking_producer, "_producers", weakref.WeakSet([producer]))
    sent = [producer.send("t", b"value")]

    def send(record: logging.LogRecord) -> bool:
        with suppress(RuntimeError):
            # Nothing is known about this topic, so the call would wait for the producer's own thread.
            sent.append(producer.send("another", record.getMessage().encode()))
        return True

    blocking_producer.log.addFilter(send)
    try:
        closing = threading.Thread(target=blocking_producer._close_unclosed_producers, daemon=True)
        closing.start()
        closing.join(DEADLINE_S)
    finally:
        blocking_producer.log.removeFilter(send)
    assert not closing.is_alive()
    assert sent[0].result().offset == 0


def test_a_thread_and_an_error_have_the_public_name_of_a_client(cluster: ThreadedCluster) -> None:
    with blocking.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        assert producer._thread.name == "barnabas-producer"
        with pytest.raises(ClientClosed, match="the producer belongs to the event loop"):
            asyncio.run(producer._client.flush())


@pytest.mark.parametrize("kind", [blocking.Admin, blocking.Consumer])
def test_a_client_that_is_dropped_unclosed_warns_and_ends_its_thread(
    cluster: ThreadedCluster, kind: type[blocking.Admin] | type[blocking.Consumer]
) -> None:
    name = f"barnabas-{kind.__name__.lower()}"
    # A cluster that tests share may have such a client too.
    before = threading.enumerate()
    client = kind(bootstrap_servers=cluster.bootstrap)
    started = [thread for thread in threading.enumerate() if thread not in before]
    (thread,) = [thread for thread in started if thread.name == name]
    with pytest.warns(ResourceWarning, match=f"unclosed barnabas.client.blocking.{kind.__name__}"):
        del client
    wait_for(lambda: not thread.is_alive(), "the end of the client's thread")
    wait_for(
        lambda: not any(broker.connections for broker in cluster.fake.brokers.values()),
        "the end of the client's connections",
    )


@pytest.mark.parametrize(
    ("step", "value"),
    [
        pytest.param("build", bytes(90), id="closing a batch"),
        pytest.param("_note_timestamp", b"", id="adding", marks=PURE_PYTHON_ONLY),
    ],
)
def test_ctrl_c_within_send_leaves_a_producer_that_delivers(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch, step: str, value: bytes
) -> None:
    original = getattr(RecordBatchBuilder, step)
    interrupts = 0

    def interrupted(self: RecordBatchBuilder, *args: Any, **settings: Any) -> Any:
        nonlocal interrupts
        if threading.current_thread() is threading.main_thread() and self.record_count == 2:
            interrupts += 1
            raise KeyboardInterrupt
        return original(self, *args, **settings)

    settings = {"batch_size": 300, "linger_ms": 60_000}
    with blocking.Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        futures = [producer.send("t", b"%d" % n + bytes(90), timestamp_ms=n) for n in range(2)]
        monkeypatch.setattr(RecordBatchBuilder, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.send("t", value, timestamp_ms=2)
        monkeypatch.undo()
        futures += [producer.send("t", b"%d" % n + bytes(90), timestamp_ms=n) for n in range(3, 6)]
        producer.flush(DEADLINE_S)
        accumulator = producer._accumulator
        assert accumulator.available_bytes == producer.config.buffer_memory
    assert interrupts == 1
    assert [future.result().offset for future in futures] == list(range(5))
    values = cluster.do(lambda: cluster.fake.partition("t").values())
    assert [value[:1] for value in values] == [b"0", b"1", b"3", b"4", b"5"]


_SENDS_AND_IS_INTERRUPTED = """
import asyncio, sys, time
from barnabas import client
from barnabas.client import blocking
from barnabas.client import client as lifecycle

lifecycle._AFTER_ERROR_S = 0.3
_, bootstrap, way = sys.argv
settings = {"bootstrap_servers": bootstrap, "linger_ms": 60_000}

def work(producer):
    for number in range(20):
        producer.send("t", b"%d" % number)
    print("sent", flush=True)
    time.sleep(600)

async def work_in_a_task(producer):
    for number in range(20):
        await producer.send("t", b"%d" % number)
    print("sent", flush=True)
    await asyncio.sleep(600)

async def main():
    producer = client.Producer(**settings)
    if way == "async with":
        async with producer:
            await work_in_a_task(producer)
    await producer.start()
    try:
        await work_in_a_task(producer)
    finally:
        await producer.close()

if way.startswith("async"):
    asyncio.run(main())
producer = blocking.Producer(**settings)
if way == "with":
    with producer:
        work(producer)
elif way == "finally":
    try:
        work(producer)
    finally:
        producer.close()
else:
    work(producer)
"""


@pytest.mark.parametrize("way", ["async with", "async finally", "with", "finally", "unclosed"])
def test_ctrl_c_ends_a_program_with_unsent_records_while_the_brokers_are_silent(
    cluster: ThreadedCluster, way: str
) -> None:
    assert 0 < lifecycle._AFTER_ERROR_S < 5
    cluster.do(lambda: [broker.gate(ApiKey.PRODUCE) for broker in cluster.fake.brokers.values()])
    command = [sys.executable, "-c", _SENDS_AND_IS_INTERRUPTED, cluster.bootstrap, way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "sent\n"
            program.send_signal(signal.SIGINT)
            # Without the limit it takes 30 s if it is unclosed, else 120 s.
            _, errors = program.communicate(timeout=20)
        finally:
            program.kill()
    assert "KeyboardInterrupt" in errors


def test_producers_that_are_open_at_the_end_are_closed_side_by_side(
    cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may wait for silent brokers up to its limit; a program with many must still end in time."""
    monkeypatch.setattr(blocking_producer, "_producers", weakref.WeakSet())
    both_close = threading.Barrier(2)
    producers = [blocking.Producer(bootstrap_servers=cluster.bootstrap) for _ in range(2)]
    for producer in producers:
        close = producer._client.close

        async def closes(timeout_ms: int, close: Any = close) -> None:
            both_close.wait(DEADLINE_S)
            await close(timeout_ms)

        monkeypatch.setattr(producer._client, "close", closes)
    blocking_producer._close_unclosed_producers()
    assert all(producer._thread.closed_reason for producer in producers)


def test_a_producer_that_was_closed_meanwhile_does_not_keep_others_open(cluster: ThreadedCluster) -> None:
    closed, unclosed = (blocking.Producer(bootstrap_servers=cluster.bootstrap) for _ in range(2))
    closed.close()
    close_unclosed((producer._thread, producer._closing()) for producer in (closed, unclosed))
    assert unclosed._thread.closed_reason


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(
    ("make", "call"),
    [
        (Producer, lambda client: client.send("t", b"2")),
        (Producer, lambda client: client.flush()),
        (Consumer, lambda client: client.poll(100)),
        (Consumer, lambda client: client.getone()),
        (Admin, lambda client: client.list_topics()),
    ],
    ids=["send", "flush", "poll", "getone", "list_topics"],
)
def test_a_client_is_refused_on_another_event_loop(
    cluster: ThreadedCluster, caplog: pytest.LogCaptureFixture, make: Any, call: Callable[[Any], Any]
) -> None:
    """As in a program that calls `asyncio.run` more than once."""
    client = make(bootstrap_servers=cluster.bootstrap)
    asyncio.run(client.start())
    with pytest.raises(ClientClosed, match="event loop that it was started on"):
        asyncio.run(call(client))
    asyncio.run(client.close())
    assert not caplog.records
    # Within the filter, because the sockets of the first loop are unclosed too.
    del client
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_producer_with_an_open_batch_says_what_is_lost_with_its_event_loop(
    cluster: ThreadedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def first(producer: Producer) -> None:
        await producer.start()
        for _ in range(3):
            await producer.send("t", b"1")

    producer = Producer(bootstrap_servers=cluster.bootstrap, linger_ms=60_000)
    asyncio.run(first(producer))
    with pytest.raises(ClientClosed, match="event loop that it was started on"):
        asyncio.run(producer.send("t", b"2"))
    asyncio.run(producer.close())
    assert "3 records were not delivered: the producer's event loop has ended" in caplog.text
    del producer
    gc.collect()


async def test_an_asyncio_client_that_is_dropped_unclosed_warns() -> None:
    async with FakeCluster() as fake:
        for kind in (Producer, Consumer, Admin):
            client = kind(bootstrap_servers=fake.bootstrap)
            await client.start()
            with pytest.warns(ResourceWarning, match=f"unclosed barnabas.client.*{kind.__name__}"):
                client.__del__()
            await client.close()
            client.__del__()


# The thread at its end


def test_a_call_that_stop_cancels_raises_client_closed() -> None:
    thread = ClientThread("test")
    begun = threading.Event()

    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(thread.call, wait_for_ever)
        assert begun.wait(DEADLINE_S)
        thread.stop("the end")
        error = call.exception(DEADLINE_S)
    assert isinstance(error, ClientClosed)
    assert str(error) == "the end"


def test_no_call_blocks_after_the_end() -> None:
    thread = ClientThread("test")
    ended: list[str] = []

    async def nothing() -> None:
        await asyncio.sleep(0)

    def caller() -> None:
        try:
            while True:
                thread.call(nothing)
        except ClientClosed as closed:
            ended.append(str(closed))

    callers = [threading.Thread(target=caller, daemon=True) for _ in range(4)]
    for one in callers:
        one.start()
    thread.stop("the end")
    for one in callers:
        one.join(DEADLINE_S)
    assert ended == ["the end"] * 4
    with pytest.raises(ClientClosed, match="the end"):
        thread.call(nothing)


def test_the_clients_work_where_there_is_neither_fork_nor_uvloop() -> None:
    """As on Windows."""
    program = """
import os, sys
del os.register_at_fork, os.fork
for name in ("uvloop", "fcntl", "resource"):
    sys.modules[name] = None
from barnabas.client import blocking
from barnabas.client.errors import NoBrokerReachable
try:
    blocking.Producer(bootstrap_servers="127.0.0.1:1")
except NoBrokerReachable:
    print("asked")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.stdout == "asked\n", done.stderr
