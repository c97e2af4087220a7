"""A bug of ours in the sender ends the records that it met, with that error; all others are delivered."""

from collections.abc import Callable
from typing import Any

import pytest

from barnabas.client.errors import BarnabasError, ErrorCode
from barnabas.client.producer import accumulator as accumulator_module
from barnabas.client.producer.accumulator import Accumulator
from barnabas.client.producer.batch import ProducerBatch
from barnabas.client.producer.producer import Producer
from barnabas.client.producer.sender import Sender
from barnabas.client.producer.sequences import Pipeline
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import until

from .test_idempotence import SMALL, headers, number, pipeline_of, send_numbers
from .test_producer import refuse


def fails_if(condition: Callable[..., bool], original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **settings: Any) -> Any:
        if condition(*args, **settings):
            raise KeyError("a bug")
        return original(*args, **settings)

    return wrapped


def accumulator_of(producer: Producer) -> Accumulator:
    assert producer._accumulator is not None
    return producer._accumulator


def assert_nothing_is_left(accumulator: Accumulator) -> None:
    assert accumulator.available_bytes == accumulator.config.buffer_memory
    assert not accumulator.incomplete
    assert not accumulator.active


async def outcomes(futures: list[Any]) -> list[Any]:
    """The offset of each record, or the text of its error."""
    results: list[Any] = []
    for future in futures:
        try:
            results.append((await future).offset)
        except BarnabasError as error:
            results.append(str(error))
    return results


BUG = "KeyError: 'a bug'"


@pytest.mark.parametrize("is_idempotent", [True, False])
@pytest.mark.parametrize("count", [10, 6], ids=["amidst", "the last one of a close"])
async def test_a_batch_that_cannot_be_encoded_fails_alone_and_leaves_no_gap(
    monkeypatch: pytest.MonkeyPatch,
    is_idempotent: bool,
    count: int,
    caplog: pytest.LogCaptureFixture,
    cluster: FakeCluster,
) -> None:
    def is_broken(builder: RecordBatchBuilder) -> bool:
        return any(number(4) in part for part in builder._parts)

    monkeypatch.setattr(RecordBatchBuilder, "build", fails_if(is_broken, RecordBatchBuilder.build))
    cluster.add_topic("t", 2)
    settings = {**SMALL, "enable_idempotence": is_idempotent, "linger_ms": 60_000}
    producer = Producer(bootstrap_servers=cluster.bootstrap, **settings)
    async with producer:
        futures = await send_numbers(producer, count)
        futures.append(await producer.send("t", b"other", partition=1))
        accumulator = accumulator_of(producer)
    assert await outcomes(futures) == [*[0, 1, 2, 3, BUG, BUG, 4, 5, 6, 7][:count], 0]
    assert_nothing_is_left(accumulator)
    kept = [number(value) for value in range(count) if value not in (4, 5)]
    assert cluster.partition("t").values() == kept
    if is_idempotent:
        assert headers(cluster) == [(0, sequence) for sequence in range(0, len(kept), 2)]
    assert "sending records failed" in caplog.text


async def test_a_batch_that_cannot_be_numbered_fails_alone_and_leaves_no_gap(
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_third(batch: ProducerBatch, producer_id: int, producer_epoch: int, *place: int) -> bool:
        return batch.encoded is not None and number(4) in batch.encoded

    monkeypatch.setattr(ProducerBatch, "number", fails_if(is_third, ProducerBatch.number))
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        futures = await send_numbers(producer, 10)
        assert await outcomes(futures) == [0, 1, 2, 3, BUG, BUG, 4, 5, 6, 7]
        assert_nothing_is_left(accumulator_of(producer))
    assert headers(cluster) == [(0, 0), (0, 2), (0, 4), (0, 6)]


async def test_a_batch_that_cannot_be_halved_fails_alone(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulator_module, "decode_fields", fails_if(lambda *_, **__: True, print))
    cluster.brokers[1].script(ApiKey.PRODUCE, refuse(ErrorCode.MESSAGE_TOO_LARGE))
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        assert await outcomes(await send_numbers(producer, 6)) == [BUG, BUG, 0, 1, 2, 3]
        assert_nothing_is_left(accumulator_of(producer))


async def test_a_bug_in_a_partitions_state_ends_its_records_and_a_new_epoch_fences_those_in_flight(
    monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster
) -> None:
    cluster.add_topic("t", 2)
    broker = cluster.brokers[1]
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        await producer.send_and_wait("t", b"first", partition=0)
        await producer.send_and_wait("t", b"first", partition=1)
        gate = broker.gate(ApiKey.PRODUCE)
        futures = await send_numbers(producer, 20)
        before = pipeline_of(producer)
        await until(lambda: len(before.batches) == 5)
        with monkeypatch.context() as patch:
            patch.setattr(
                Pipeline, "takes_new", property(fails_if(lambda pipeline: pipeline is before, print))
            )
            later = await producer.send("t", b"other", partition=1)
            await until(lambda: all(future.done() for future in futures))
        assert await outcomes(futures) == [BUG] * 20
        next_ones = [await producer.send("t", b"next", partition=0) for _ in range(6)]
        gate.set()
        # The batches in flight may have been written: an error never says that a record was not.
        await producer.flush()
        offsets = [(await future).offset for future in next_ones]
        assert (await later).offset == 1
        assert offsets == list(range(offsets[0], offsets[0] + 6))
        assert cluster.partition("t").values()[offsets[0] :] == [b"next"] * 6
        assert {epoch for epoch, _ in headers(cluster)} == {0, 1}
        assert_nothing_is_left(accumulator_of(producer))


async def test_a_bug_in_settling_a_partition_keeps_no_outcome_from_others(
    monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster
) -> None:
    cluster.add_topic("t", 2)
    async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=60_000, **SMALL) as producer:
        futures = [await producer.send("t", b"0", partition=partition) for partition in (0, 1)]
        first = pipeline_of(producer)
        with monkeypatch.context() as patch:
            broken = fails_if(lambda pipeline, *_: pipeline is first, Pipeline.acknowledged)
            patch.setattr(Pipeline, "acknowledged", broken)
            await producer.flush()
        assert len(cluster.requests(ApiKey.PRODUCE)) == 1
        assert await outcomes(futures) == [BUG, 0]
        # The broker has the lost one, under the number 0 of the old epoch.
        later = await producer.send("t", b"1", partition=0)
        await producer.flush()
        assert later.result().offset == 1
        assert headers(cluster) == [(0, 0), (1, 0)]
        assert_nothing_is_left(accumulator_of(producer))


@pytest.mark.parametrize("step", ["_collect", "_request"])
async def test_a_bug_in_a_round_or_request_ends_its_records(
    monkeypatch: pytest.MonkeyPatch, step: str, cluster: FakeCluster
) -> None:
    cluster.add_topic("t", 2)
    async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=60_000, **SMALL) as producer:
        await producer.partitions_for("t")
        with monkeypatch.context() as patch:
            futures = [await producer.send("t", b"0", partition=partition) for partition in (0, 1)]
            patch.setattr(Sender, step, fails_if(lambda *_: True, print))
            await producer.flush()
        assert await outcomes(futures) == [BUG, BUG]
        assert_nothing_is_left(accumulator_of(producer))
        later = [await producer.send("t", b"1", partition=partition) for partition in (0, 1)]
        await producer.flush()
        assert await outcomes(later) == [0, 0]
