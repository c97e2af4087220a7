"""The producer against brokers that fail on command."""

import asyncio
import re
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

from barnabas.client.errors import (
    ApiError,
    BarnabasError,
    BufferExhausted,
    ClientClosed,
    DeliveryTimedOut,
    ErrorCode,
    InvalidConfiguration,
    InvalidTopicError,
)
from barnabas.client.producer import sender
from barnabas.client.producer.batch import BatchState, ProducerBatch, RecordFuture, RecordMetadata
from barnabas.client.producer.partitioners import partition_of_key
from barnabas.client.producer.producer import Producer
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.records import decode_records
from barnabas.protocol.schema import ApiKey
from tests.support.batches import build_batch
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import until

QUICK = {"retry_backoff_ms": 5}


def refuse(code: int) -> Any:
    """A scripted answer: this error for every partition of the request."""

    def answer(body: Any) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        PartitionProduceResponse(index=data.index, error_code=code)
                        for data in topic.partition_data
                    ],
                )
                for topic in body.topic_data
            ]
        )

    return answer


def answer_from_the_log(body: Any) -> ProduceResponse:
    """A scripted answer: written at offset 5, at the time 0 of the log."""
    answer = refuse(ErrorCode.NONE)(body)
    (partition,) = answer.responses[0].partition_responses
    partition.base_offset, partition.log_append_time_ms = 5, 0
    return cast("ProduceResponse", answer)


def reset_connection(body: Any) -> Any:
    raise ConnectionResetError


def let_time_pass(producer: Producer) -> None:
    """End the delivery timeout of the batches of partition 0 of `t`."""
    oldest = producer._topics["t"].by_partition[0].oldest
    assert oldest is not None
    oldest.created_at -= 3_600
    assert producer._sender is not None
    producer._sender.wake()


async def become_known(producer: Producer, topic: str) -> None:
    """Where `max_block_ms` is short, the first answer may come later than that."""
    while True:
        try:
            await producer.partitions_for(topic)
        except ApiError:
            continue
        return


async def test_a_record_is_written_and_its_future_says_where(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 3)
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        future = await producer.send(
            "t", b"value", b"key", headers=[("h", b"1"), ("n", None)], timestamp_ms=1234
        )
        metadata = await future
    partition = partition_of_key(b"key", 3)
    assert metadata == RecordMetadata("t", partition, 0, 1234)
    (record,) = decode_records(cluster.partition("t", partition).batches[0])
    assert (record.key, record.value, record.timestamp_ms) == (b"key", b"value", 1234)
    assert record.headers == (("h", b"1"), ("n", None))


async def test_the_time_of_the_log_replaces_that_of_the_record(cluster: FakeCluster) -> None:
    cluster.brokers[1].script(ApiKey.PRODUCE, answer_from_the_log)
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        metadata = await producer.send_and_wait("t", b"1", timestamp_ms=1234)
    assert (metadata.offset, metadata.timestamp_ms) == (5, 0)


async def test_batches_end_at_batch_size(cluster: FakeCluster) -> None:
    settings = {"batch_size": 1_000, "max_request_size": 1_000}
    async with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        for number in range(100):
            await producer.send("t", b"%050d" % number)
    partition = cluster.partition("t")
    assert partition.values() == [b"%050d" % number for number in range(100)]
    assert len(partition.batches) > 5
    assert all(len(batch) <= 1_000 for batch in partition.batches)


async def test_a_batch_grows_while_the_one_before_is_in_flight(cluster: FakeCluster) -> None:
    gate = cluster.brokers[1].gate(ApiKey.PRODUCE)
    async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=1_000) as producer:
        await producer.send("t", b"first")
        await until(lambda: cluster.requests(ApiKey.PRODUCE))
        for number in range(100):
            await producer.send("t", b"%050d" % number)
        gate.set()
    batches = cluster.partition("t").batches
    assert len(batches) == 2
    assert parse_header(batches[1]).record_count == 100


async def test_lingering_waits_for_more_until_flushed(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=60_000) as producer:
        first = await producer.send("t", b"1")
        for _ in range(5):
            await producer.partitions_for("t")
            await asyncio.sleep(0)
        second = await producer.send("t", b"2")
        assert not cluster.requests(ApiKey.PRODUCE)
        await producer.flush()
        assert (first.result().offset, second.result().offset) == (0, 1)
    assert len(cluster.requests(ApiKey.PRODUCE)) == 1


async def test_lingering_ends_by_itself(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=20) as producer:
        assert (await producer.send_and_wait("t", b"1")).offset == 0


async def test_a_full_batch_does_not_linger(cluster: FakeCluster) -> None:
    settings = {"linger_ms": 60_000, "batch_size": 500}
    async with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        first = await producer.send("t", bytes(400))
        await producer.send("t", bytes(400))
        assert (await first).offset == 0


async def test_one_request_has_all_partitions_of_a_leader() -> None:
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", 6)
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for partition in range(6):
                await producer.send("t", b"x", partition=partition)
        requests = cluster.requests(ApiKey.PRODUCE)
        assert len(requests) == 2
        assert sorted(len(request.topic_data[0].partition_data) for request in requests) == [3, 3]


async def test_records_without_a_key_stick_to_a_partition_per_batch_and_reach_all(
    cluster: FakeCluster,
) -> None:
    cluster.add_topic("t", 4)
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for _ in range(100):
            futures = [await producer.send("t", b"x") for _ in range(3)]
            assert len({(await future).partition for future in futures}) == 1
    assert all(partition.log_end_offset for partition in cluster.topics["t"])


async def test_the_result_of_a_custom_partitioner_is_checked(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 4)
    wanted = [2, 9, None]
    settings: dict[str, Any] = {"partitioner": lambda key, count: wanted.pop(0)}
    async with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        assert (await producer.send_and_wait("t", b"x")).partition == 2
        for wrong in ("9", "None"):
            with pytest.raises(InvalidConfiguration, match=f"partition {wrong}"):
                await producer.send("t", b"x")


async def test_a_wrong_leader_is_replaced_by_the_right_one(pair: FakeCluster) -> None:
    async with Producer(bootstrap_servers=pair.bootstrap, **QUICK) as producer:
        await producer.send_and_wait("t", b"1")
        pair.move_leader("t", 0, 2)
        assert (await producer.send_and_wait("t", b"2")).offset == 1
    refused = [body for api, body in pair.brokers[1].received if api == ApiKey.PRODUCE]
    assert len(refused) == 2


async def test_the_first_record_of_a_topic_asks_about_it_once(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        await producer.send_and_wait("t", b"value")
        about = [[topic.name for topic in request.topics] for request in cluster.requests(ApiKey.METADATA)]
        assert about == [[], ["t"]]


@pytest.mark.usefixtures("quick_hedges")
async def test_requests_to_a_stopped_broker_end_when_the_cluster_drops_it(pair: FakeCluster) -> None:
    settings = {"request_timeout_ms": 60_000, "retry_backoff_ms": 5}
    async with Producer(bootstrap_servers=pair.bootstrap, **settings) as producer:
        await producer.send_and_wait("t", b"1")
        for api in (ApiKey.PRODUCE, ApiKey.METADATA):
            pair.brokers[1].gate(api)
        future = await producer.send("t", b"2")
        await until(lambda: len(pair.requests(ApiKey.PRODUCE)) == 2)
        pair.hide(1)
        pair.move_leader("t", 0, 2)
        assert (await future).offset == 1
    assert pair.partition("t").values() == [b"1", b"2"]


async def test_an_error_that_no_retry_cures_reaches_the_future_at_once_and_the_log(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.brokers[1].script(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_RECORD))
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        with pytest.raises(ApiError) as refusal:
            await producer.send_and_wait("t", b"1")
        assert refusal.value.code == ErrorCode.INVALID_RECORD
        assert "t-0" in str(refusal.value)
        assert (await producer.send_and_wait("t", b"2")).offset == 0
    assert "1 records for t-0 were not delivered: INVALID_RECORD" in caplog.text


async def test_retries_are_bounded_by_number(cluster: FakeCluster) -> None:
    cluster.brokers[1].script(ApiKey.PRODUCE, *[refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 3)
    async with Producer(bootstrap_servers=cluster.bootstrap, retries=2, **QUICK) as producer:
        with pytest.raises(ApiError, match="NOT_ENOUGH_REPLICAS"):
            await producer.send_and_wait("t", b"1")
    assert len(cluster.requests(ApiKey.PRODUCE)) == 3


async def test_only_attempts_that_waited_make_the_next_wait_longer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_ms: list[float] = []

    def noted(wait_ms: float) -> float:
        waits_ms.append(wait_ms)
        return 0.0

    monkeypatch.setattr(sender, "jittered", noted)
    codes = [
        *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3,
        *[ErrorCode.NOT_ENOUGH_REPLICAS] * 2,
        *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    ]
    cluster.brokers[1].script(ApiKey.PRODUCE, *map(refuse, codes))
    async with Producer(bootstrap_servers=cluster.bootstrap, retry_backoff_ms=100) as producer:
        await producer.send_and_wait("t", b"1")
    assert waits_ms == [100, 200, 80, 100, 100, 1_000]


async def test_delivery_times_out_while_the_answer_is_awaited_and_later_records_go_on(
    cluster: FakeCluster,
) -> None:
    gate = cluster.brokers[1].gate(ApiKey.PRODUCE)
    settings = {"request_timeout_ms": 100, **QUICK}
    async with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        future = await producer.send("t", b"1")
        await until(lambda: len(cluster.requests(ApiKey.PRODUCE)) > 1)
        let_time_pass(producer)
        with pytest.raises(DeliveryTimedOut):
            await future
        gate.set()
        await producer.send_and_wait("t", b"2")
    assert cluster.partition("t").values()[-1] == b"2"


async def test_without_a_leader_records_wait_for_one(cluster: FakeCluster) -> None:
    cluster.move_leader("t", 0, -1)
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        future = await producer.send("t", b"1")
        before = len(cluster.requests(ApiKey.METADATA))
        await until(lambda: len(cluster.requests(ApiKey.METADATA)) > before)
        cluster.move_leader("t", 0, 1)
        assert (await future).offset == 0


async def test_a_full_buffer_refuses_after_max_block(cluster: FakeCluster) -> None:
    gate = cluster.brokers[1].gate(ApiKey.PRODUCE)
    settings = {"buffer_memory": 2_000, "batch_size": 1_000, "max_block_ms": 200}
    async with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        await become_known(producer, "t")
        for _ in range(2):
            await producer.send("t", bytes(900))
        with pytest.raises(BufferExhausted, match="max_block_ms"):
            await producer.send("t", bytes(900))
        gate.set()
        await producer.flush()
        assert (await producer.send_and_wait("t", b"goes on")).offset > 0
        assert producer._accumulator.available_bytes == 2_000


async def test_a_waiting_send_continues_when_memory_is_free(cluster: FakeCluster) -> None:
    gate = cluster.brokers[1].gate(ApiKey.PRODUCE)
    settings = {"buffer_memory": 2_000, "batch_size": 1_000}
    async with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:

        async def send_many() -> None:
            for number in range(10):
                await producer.send("t", b"%0900d" % number)

        sending = asyncio.create_task(send_many())
        await until(lambda: producer._accumulator.is_short_of_memory)
        gate.set()
        await sending
    assert cluster.partition("t").values() == [b"%0900d" % number for number in range(10)]


async def test_callbacks_get_success_and_failure_and_may_raise(
    cluster: FakeCluster,
) -> None:
    outcomes: list[tuple[RecordMetadata | None, BarnabasError | None]] = []
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

    def broken(metadata: object, error: object) -> None:
        raise ValueError("the user's own fault")

    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        await producer.send("t", b"1", on_delivery=broken)
        await producer.send("t", b"2", on_delivery=lambda *outcome: outcomes.append(outcome))
        await producer.flush()
        cluster.brokers[1].script(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_RECORD))
        await producer.send("t", b"3", on_delivery=lambda *outcome: outcomes.append(outcome))
    (metadata, no_error), (no_metadata, error) = outcomes
    assert metadata is not None
    assert metadata.offset == 1
    assert no_error is None
    assert no_metadata is None
    assert isinstance(error, ApiError)
    assert [str(context["exception"]) for context in reported] == ["the user's own fault"]


@pytest.mark.parametrize("limit", ["max_message_bytes", "segment_bytes"])
async def test_a_batch_that_is_too_large_is_split_and_every_future_and_callback_follows(
    cluster: FakeCluster,
    limit: str,
) -> None:
    cluster.configure_logs("t", **{limit: 400})
    outcomes: list[int] = []
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        futures = [
            await producer.send(
                "t",
                b"%050d" % number,
                timestamp_ms=1000 + number,
                on_delivery=lambda metadata, _: outcomes.append(metadata.offset if metadata else -1),
            )
            for number in range(33)
        ]
        called: list[RecordFuture] = []
        for future in futures:
            future.call_when_done(partial(called.append, future))
        found = [await future for future in futures]
    assert [metadata.offset for metadata in found] == list(range(33))
    assert [metadata.timestamp_ms for metadata in found] == [1000 + number for number in range(33)]
    assert sorted(outcomes) == list(range(33))
    assert set(called) == set(futures)
    partition = cluster.partition("t")
    assert partition.values() == [b"%050d" % number for number in range(33)]
    assert {parse_header(batch).producer_epoch for batch in partition.batches} == {0}, "the numbers stay"


async def test_a_future_is_not_done_while_the_loop_splits_its_batch(cluster: FakeCluster) -> None:
    """A thread that has found the batch without parts looks next whether it is done."""

    class SplitMeanwhile(ProducerBatch):
        @property
        def is_done(self) -> bool:
            if not self.parts:
                self.split_into([ProducerBatch(self.tp, None, created_at=0.0, record_count=1)] * 2)
            return super().is_done

    def future() -> RecordFuture:
        batch = SplitMeanwhile(TopicPartition("t", 0), None, created_at=0.0, record_count=2)
        batch.move(BatchState.IN_FLIGHT)
        return RecordFuture(batch, 1, 0)

    assert not future().done()
    with pytest.raises(asyncio.InvalidStateError):
        future().result()


async def test_one_record_that_is_too_large_for_the_broker_fails_alone(cluster: FakeCluster) -> None:
    cluster.configure_logs("t", max_message_bytes=400)
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        futures = [await producer.send("t", value) for value in (b"a", bytes(1_000), b"c")]
        await producer.flush()
        with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
            futures[1].result()
    assert cluster.partition("t").values() == [b"a", b"c"]


async def test_a_record_above_max_request_size_is_refused_by_send(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, max_request_size=20_000) as producer:
        with pytest.raises(ApiError, match=r"max_request_size \(20000\)"):
            await producer.send("t", bytes(20_000))
        assert producer._accumulator.available_bytes == producer.config.buffer_memory


def view_of_words(data: bytes) -> memoryview:
    return memoryview(bytearray(data)).cast("h")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, view_of_words])
async def test_encoded_batches_go_out_numbered_and_the_callers_bytes_stay(
    cluster: FakeCluster, kind: Callable[[bytes], Any]
) -> None:
    batch = kind(bytes(build_batch([(b"k", b"1"), (None, b"2")], timestamp_ms=99)))
    before = bytes(batch)
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        await producer.send("t", b"0", partition=0)
        metadata = await (await producer.send_batch("t", 0, batch))
        assert (metadata.offset, metadata.timestamp_ms) == (1, 99)
        with pytest.raises(ApiError, match="INVALID_RECORD"):
            await producer.send_batch("t", 0, batch[:-1])
        with pytest.raises(TypeError, match="encoded is str; expected bytes"):
            await producer.send_batch("t", 0, cast("Any", "text"))
        await producer.send("t", b"3", partition=0)
    assert bytes(batch) == before
    partition = cluster.partition("t")
    assert partition.values() == [b"0", b"1", b"2", b"3"]
    assert [parse_header(batch).base_sequence for batch in partition.batches] == [0, 1, 3]


async def test_a_batch_that_is_handed_over_is_halved_and_its_future_is_that_of_all_records(
    cluster: FakeCluster,
) -> None:
    cluster.configure_logs("t", max_message_bytes=400)
    values = [b"%050d" % number for number in range(33)]
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        future = await producer.hand_over_batch("t", 0, build_batch([(None, value) for value in values]))
        assert not future.done()
        assert (await future).offset == 0
        assert future.done()
        # The last part alone is too large: the future of the first record would not tell.
        future = await producer.hand_over_batch("t", 0, build_batch([(None, b"a"), (None, bytes(1_000))]))
        with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
            await future
        with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
            future.result()
    assert cluster.partition("t").values() == [*values, b"a"]


async def test_a_batch_that_is_handed_over_is_numbered_in_place(cluster: FakeCluster) -> None:
    batch = build_batch([(None, b"1")])
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        await (await producer.hand_over_batch("t", 0, batch))
    assert parse_header(batch).base_sequence == 0


async def test_acks_0_is_sent_without_an_answer(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, acks=0) as producer:
        assert (await producer.send_and_wait("t", b"1")).offset == -1
        await until(lambda: cluster.partition("t").log_end_offset == 1)


async def test_compressed_batches_are_read_back(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, compression_type="lz4") as producer:
        for number in range(1_000):
            await producer.send("t", b"%010d" % number)
    assert cluster.partition("t").values() == [b"%010d" % number for number in range(1_000)]
    assert sum(map(len, cluster.partition("t").batches)) < 12_000


async def test_cancelling_one_waiter_leaves_the_others(cluster: FakeCluster) -> None:
    gate = cluster.brokers[1].gate(ApiKey.PRODUCE)
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        futures = [await producer.send("t", b"x") for _ in range(2)]

        async def wait(index: int) -> int:
            return (await futures[index]).offset

        impatient, patient = asyncio.create_task(wait(0)), asyncio.create_task(wait(1))
        await until(lambda: cluster.requests(ApiKey.PRODUCE))
        impatient.cancel()
        with pytest.raises(asyncio.InvalidStateError):
            futures[0].result()
        gate.set()
        assert await patient == 1
        assert futures[0].result().offset == 0


@pytest.mark.parametrize("is_late", [False, True])
async def test_records_can_be_waited_for_as_futures(cluster: FakeCluster, is_late: bool) -> None:
    """Several of one batch, before and after the answer, and one that is not waited for any more."""
    gate = cluster.brokers[1].gate(ApiKey.PRODUCE)
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        futures = [await producer.send("t", b"%d" % number) for number in range(3)]
        if is_late:
            gate.set()
            await producer.flush()
        else:
            done, pending = await asyncio.wait(futures, timeout=0.01)
            assert (len(done), pending) == (0, set(futures))
            assert all(not future._batch.callbacks for future in futures)
            assert not futures[0].cancel()
            with pytest.raises(asyncio.InvalidStateError):
                futures[0].exception()
        calls: list[RecordFuture] = []
        removed: list[RecordFuture] = []
        futures[1].add_done_callback(calls.append)
        if not is_late:
            futures[1].add_done_callback(removed.append)
            assert futures[1].remove_done_callback(removed.append) == 1
            asyncio.get_running_loop().call_later(0.01, gate.set)
        done, pending = await asyncio.wait(futures, return_when=asyncio.ALL_COMPLETED)
        assert (done, pending) == (set(futures), set())
        await until(lambda: calls == [futures[1]])
        assert not removed
        assert [future.exception() for future in futures] == [None] * 3


async def test_the_exception_of_a_failed_record_is_returned(cluster: FakeCluster) -> None:
    cluster.brokers[1].script(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_RECORD))
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        future = await producer.send("t", b"v")
        (done,), _ = await asyncio.wait([future], return_when=asyncio.FIRST_EXCEPTION)
        error = done.exception()
        assert isinstance(error, ApiError)
        assert error.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": "text"}, "value is str; expected bytes or None"),
        ({"value": b"", "key": "text"}, "key is str; expected bytes or None"),
        ({"value": b"", "key": 5}, "key is int; expected bytes or None"),
        ({"value": array("i", [1])}, "value is array; expected bytes or None"),
        ({"value": b"", "key": array("i", [1])}, "key is array; expected bytes or None"),
        ({"value": b"", "headers": [("a", array("i", [1]))]}, "header 'a' is array; expected bytes or None"),
        ({"value": b"", "headers": [("a", "b")]}, "header 'a' is str; expected bytes or None"),
        ({"value": b"", "headers": {b"a": b"b"}}, "header b'a': expected a str"),
        ({"value": b"", "on_delivery": 5}, "on_delivery=5: expected a callable"),
        ({"value": b"", "topic": ""}, "topic name '' is invalid: it is empty"),
        ({"value": b"", "topic": ["t"]}, "topic=['t']: expected a str"),
        ({"value": b"", "headers": ["abc"]}, "expected pairs of a str and bytes or None"),
        ({"value": b"", "headers": 5}, "expected pairs of a str and bytes or None"),
        ({"topic": 5, "value": b""}, "topic=5: expected a str"),
        ({"topic": None, "value": b""}, "topic=None: expected a str"),
        ({"value": b"", "timestamp_ms": "5"}, "timestamp_ms='5': expected milliseconds, 0 or more"),
        ({"value": b"", "timestamp_ms": -1}, "timestamp_ms=-1: expected milliseconds, 0 or more"),
        ({"value": b"", "timestamp_ms": 2**63}, f"timestamp_ms={2**63}: expected milliseconds, 0 or more"),
    ],
)
async def test_arguments_of_a_wrong_type_are_named(
    cluster: FakeCluster, arguments: dict[str, Any], message: str
) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for _ in range(2):
            with pytest.raises((TypeError, ValueError, InvalidTopicError), match=re.escape(message)):
                await producer.send(**{"topic": "t", **arguments})
        assert (await producer.send_and_wait("t", b"fine")).offset == 0
        assert producer._accumulator.available_bytes == producer.config.buffer_memory


async def test_the_bytes_of_a_view_are_sent_whatever_its_items_are(cluster: FakeCluster) -> None:
    view = memoryview(array("i", range(8)))
    for content in (view, view[::2], view.cast("B").cast("i", (2, 4))):
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("t", content, content, headers=[("a", content)])
        (record,) = decode_records(cluster.partition("t").batches[-1])
        expected = content.tobytes()
        assert (record.key, record.value, record.headers) == (expected, expected, (("a", expected),))


async def test_headers_may_be_a_mapping(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        await producer.send_and_wait("t", bytearray(b"v"), headers={"a": b"1", "b": None})
    (batch,) = cluster.partition("t").batches
    (record,) = decode_records(batch)
    assert (record.value, record.headers) == (b"v", (("a", b"1"), ("b", None)))


async def test_an_unknown_topic_is_refused_after_max_block_by_name() -> None:
    async with FakeCluster() as cluster:
        settings = {"max_block_ms": 30, "retry_backoff_ms": 5}
        async with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
            with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION: topic 'nowhere'"):
                await producer.send("nowhere", b"x")
            with pytest.raises(ApiError):
                await producer.partitions_for("nowhere")


async def test_a_topic_that_appears_while_sending_waits_is_used() -> None:
    async with FakeCluster() as cluster:
        async with Producer(bootstrap_servers=cluster.bootstrap, retry_backoff_ms=5) as producer:
            sending = asyncio.create_task(producer.send_and_wait("late", b"x"))
            before = len(cluster.requests(ApiKey.METADATA))
            await until(lambda: len(cluster.requests(ApiKey.METADATA)) > before)
            cluster.add_topic("late")
            assert (await sending).offset == 0


async def test_after_close_and_before_start_sending_is_refused(cluster: FakeCluster) -> None:
    producer = Producer(bootstrap_servers=cluster.bootstrap)
    with pytest.raises(ClientClosed, match="not started"):
        await producer.send("t", b"x")
    await producer.start()
    await producer.send_and_wait("t", b"x")
    await producer.close()
    await producer.close()
    with pytest.raises(ClientClosed, match="closed"):
        await producer.send("t", b"x")
    with pytest.raises(ClientClosed, match="closed"):
        await producer.flush()


async def test_close_with_a_timeout_fails_the_remaining_records(cluster: FakeCluster) -> None:
    cluster.brokers[1].gate(ApiKey.PRODUCE)
    producer = Producer(bootstrap_servers=cluster.bootstrap)
    await producer.start()
    future = await producer.send("t", b"x")
    await producer.close(timeout_ms=20)
    with pytest.raises(ClientClosed, match="closed before the record was delivered"):
        await future


async def test_a_broker_that_leaves_a_partition_out_of_its_answer_fails_that_batch(
    cluster: FakeCluster,
) -> None:
    cluster.brokers[1].script(ApiKey.PRODUCE, lambda body: ProduceResponse(responses=[]))
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        with pytest.raises(ApiError, match="did not answer for t-0"):
            await producer.send_and_wait("t", b"1")


@pytest.mark.parametrize("as_batch", [False, True])
async def test_a_partition_that_the_metadata_is_too_old_to_have_is_looked_for(
    cluster: FakeCluster, as_batch: bool
) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        await producer.send_and_wait("t", b"x")
        cluster.grow_topic("t", 5)
        if as_batch:
            future = await producer.send_batch("t", 4, build_batch([(None, b"y")]))
        else:
            future = await producer.send("t", b"y", partition=4)
        assert (await future).partition == 4
        with pytest.raises(InvalidConfiguration, match="expected a number from 0 to 4"):
            await producer.send("t", b"y", partition=5)


async def test_records_go_to_the_partitions_that_a_topic_has_now(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        await producer.send_and_wait("t", b"1")
        cluster.grow_topic("t", 8)
        await producer._cluster.refresh()
        assert (await producer.send_and_wait("t", b"2", partition=7)).partition == 7
        # It is made again, with fewer partitions.
        keys = [None, *(b"%d" % number for number in range(20))]
        for key in keys:
            await producer.send_and_wait("t", b"before", key=key)
        cluster.add_topic("t", 1)
        await producer._cluster.refresh()
        for key in keys:
            assert (await producer.send_and_wait("t", b"after", key=key)).partition == 0
        with pytest.raises(InvalidConfiguration, match="from 0 to 0"):
            await producer.send("t", b"after", partition=7)
