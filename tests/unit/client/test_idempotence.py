"""The idempotent producer: under any fault, an acknowledged record is written once and in order."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.client.config import ProducerConfig
from barnabas.client.coordinators import ProducerIdAndEpoch
from barnabas.client.errors import ApiError, BarnabasError, DeliveryTimedOut, ErrorCode, InvalidConfiguration
from barnabas.client.producer.batch import ProducerBatch
from barnabas.client.producer.producer import Producer
from barnabas.client.producer.sequences import MAX_EPOCH, Phase, Pipeline
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.produce import InitProducerIdResponse
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.schema import ApiKey
from tests.support.batches import build_batch
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.soak import searched
from tests.support.waiting import DEADLINE_S, until

from .test_producer import QUICK, let_time_pass, refuse, reset_connection

T0 = TopicPartition("t", 0)
SMALL = {**QUICK, "batch_size": 200, "max_request_size": 200}
"""Batches of two of `number`'s records."""


def number(value: int) -> bytes:
    return b"%050d" % value


def headers(cluster: FakeCluster, partition: int = 0) -> list[tuple[int, int]]:
    """Epoch and base sequence of every batch in the log."""
    batch_headers = [parse_header(batch) for batch in cluster.partition("t", partition).batches]
    return [(header.producer_epoch, header.base_sequence) for header in batch_headers]


def pipeline_of(producer: Producer, partition: int = 0) -> Pipeline:
    return producer._topics["t"].by_partition[partition].pipeline


def writing(broker: FakeBroker, outcome: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A scripted answer that comes after the batches were written."""

    def answer(body: Any) -> Any:
        broker.call(body)
        return outcome(body)

    return answer


async def send_numbers(producer: Producer, count: int, first: int = 0) -> list[Any]:
    return [await producer.send("t", number(value), partition=0) for value in range(first, first + count)]


async def send_five_batches(
    producer: Producer, broker: FakeBroker, first_answer: Callable[[Any], Any]
) -> tuple[asyncio.Event, list[Any]]:
    """Five batches are in flight; the broker answers them once the gate is open."""
    gate = broker.gate(ApiKey.PRODUCE)
    broker.script(ApiKey.PRODUCE, first_answer)
    futures = await send_numbers(producer, 10)
    await until(lambda: len(pipeline_of(producer).batches) == 5)
    return gate, futures


async def test_batches_carry_the_producers_id_and_rising_numbers(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        await send_numbers(producer, 6)
    assert headers(cluster) == [(0, 0), (0, 2), (0, 4)]
    assert {parse_header(batch).producer_id for batch in cluster.partition("t").batches} == {1_000}
    assert len(cluster.requests(ApiKey.INIT_PRODUCER_ID)) == 1


async def test_a_lost_answer_writes_nothing_twice(cluster: FakeCluster) -> None:
    broker = cluster.brokers[1]
    broker.script(ApiKey.PRODUCE, writing(broker, reset_connection))
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        assert (await producer.send_and_wait("t", b"1")).offset == 0
    assert cluster.partition("t").values() == [b"1"]
    assert len(cluster.requests(ApiKey.PRODUCE)) == 2


async def test_one_batch_goes_first_and_up_to_five_once_it_is_acknowledged(cluster: FakeCluster) -> None:
    gate = cluster.brokers[1].gate(ApiKey.PRODUCE)
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        await send_numbers(producer, 10)
        await until(lambda: cluster.requests(ApiKey.PRODUCE))
        await producer.partitions_for("t")
        assert len(pipeline_of(producer).batches) == 1
        gate.set()
        await producer.flush()
        gate = cluster.brokers[1].gate(ApiKey.PRODUCE)
        await send_numbers(producer, 20, first=10)
        await until(lambda: len(pipeline_of(producer).batches) == 5)
        await producer.partitions_for("t")
        assert len(pipeline_of(producer).batches) == 5
        gate.set()
    assert cluster.partition("t").values() == [*map(number, range(30))]


async def test_batches_after_a_refused_one_are_retried_in_order(cluster: FakeCluster) -> None:
    broker = cluster.brokers[1]
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        await producer.send_and_wait("t", b"first")
        gate, futures = await send_five_batches(producer, broker, refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
        gate.set()
        assert [(await future).offset for future in futures] == list(range(1, 11))
        assert pipeline_of(producer).phase is Phase.STEADY
    assert cluster.partition("t").values() == [b"first", *map(number, range(10))]
    assert {epoch for epoch, _ in headers(cluster)} == {0}


async def test_a_topic_that_is_recreated_while_batches_are_in_flight_has_all_acknowledged_records(
    cluster: FakeCluster,
) -> None:
    """Its leader knows no producer and takes any number: a later one taken says nothing of those before."""
    broker = cluster.brokers[1]
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        await producer.send_and_wait("t", b"first")
        gate, futures = await send_five_batches(
            producer, broker, refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        )
        cluster.partition("t").truncate(0)
        gate.set()
        offsets = [(await future).offset for future in futures]
        assert (await producer.send_and_wait("t", number(10))).offset == 10
        assert pipeline_of(producer).phase is Phase.STEADY
    written = cluster.partition("t").values()
    assert [written[offset] for offset in offsets] == [*map(number, range(10))]
    assert Counter(written) == Counter(map(number, range(11)))


@pytest.mark.usefixtures("quick_hedges")
async def test_a_broker_that_hangs_is_left_when_another_leads_and_nothing_is_written_twice(
    pair: FakeCluster,
) -> None:
    settings = {**SMALL, "request_timeout_ms": 60_000, "delivery_timeout_ms": 120_000}
    async with Producer(bootstrap_servers=pair.bootstrap, **settings) as producer:
        await producer.send_and_wait("t", b"first")
        gates = [pair.brokers[1].gate(api) for api in (ApiKey.PRODUCE, ApiKey.METADATA)]
        futures = await send_numbers(producer, 10)
        await until(lambda: len(pipeline_of(producer).batches) == 5)
        # It stays among the live brokers.
        pair.move_leader("t", 0, 2)
        assert [(await future).offset for future in futures] == list(range(1, 11))
        for gate in gates:
            gate.set()
        await producer.send_and_wait("t", b"last")
    assert pair.partition("t").values() == [b"first", *map(number, range(10)), b"last"]


async def test_a_batch_that_is_refused_for_good_leaves_no_gap(cluster: FakeCluster) -> None:
    broker = cluster.brokers[1]
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        await producer.send_and_wait("t", b"first")
        gate, futures = await send_five_batches(producer, broker, refuse(ErrorCode.INVALID_RECORD))
        gate.set()
        with pytest.raises(ApiError, match="INVALID_RECORD"):
            await futures[0]
        assert [(await future).offset for future in futures[2:]] == list(range(1, 9))
    assert cluster.partition("t").values() == [b"first", *map(number, range(2, 10))]
    assert headers(cluster)[:2] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("was_written", [False, True])
async def test_a_batch_that_expires_leaves_no_gap(cluster: FakeCluster, was_written: bool) -> None:
    broker = cluster.brokers[1]
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        await producer.send_and_wait("t", b"first")
        outcome = refuse(ErrorCode.REQUEST_TIMED_OUT)
        answer = writing(broker, outcome) if was_written else outcome
        broker.script(ApiKey.PRODUCE, answer, *[outcome] * 200)
        lost = await producer.send("t", b"lost", partition=0)
        await until(lambda: len(cluster.requests(ApiKey.PRODUCE)) > 3)
        let_time_pass(producer)
        with pytest.raises(DeliveryTimedOut, match="delivery_timeout_ms") as failure:
            await lost
        assert isinstance(failure.value, TimeoutError)
        assert isinstance(failure.value.__cause__, ApiError)
        assert failure.value.__cause__.code == ErrorCode.REQUEST_TIMED_OUT
        broker.scripted.clear()
        await producer.send_and_wait("t", b"next")
        await producer.send_and_wait("t", b"last")
    written = [b"lost"] * was_written
    assert cluster.partition("t").values() == [b"first", *written, b"next", b"last"]


async def test_the_answer_to_a_later_batch_decides_about_a_doubtful_one() -> None:
    pipeline, batches = numbered_pipeline(3)
    for batch in batches:
        pipeline.launch(batch, 1)
    first, second, third = batches
    give_up(pipeline, first)
    assert pipeline.phase is Phase.IN_DOUBT
    assert not pipeline.takes_new
    finish(pipeline, second)
    assert pipeline.phase is Phase.STEADY
    finish(pipeline, third)
    assert pipeline.identity is not None
    assert (pipeline.identity.producer_epoch, pipeline.next_sequence) == (0, 8)


async def test_the_numbering_restarts_when_no_answer_can_decide() -> None:
    pipeline, batches = numbered_pipeline(2)
    for batch in batches:
        pipeline.launch(batch, 1)
    give_up(pipeline, batches[0])
    pipeline.put_back(batches[1])
    assert pipeline.retry is batches[1]
    give_up(pipeline, batches[1])
    assert pipeline.identity is not None
    assert (pipeline.phase, pipeline.identity.producer_epoch) == (Phase.UNPROVEN, 1)


async def test_when_the_epochs_are_used_up_another_id_is_asked_for(cluster: FakeCluster) -> None:
    broker = cluster.brokers[1]
    last_epoch = InitProducerIdResponse(error_code=0, producer_id=1, producer_epoch=MAX_EPOCH)
    broker.script(ApiKey.INIT_PRODUCER_ID, lambda body: last_epoch)
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        await producer.send_and_wait("t", b"first")
        broker.script(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_RECORD))
        with pytest.raises(ApiError):
            await producer.send_and_wait("t", b"bad")
        assert (await producer.send_and_wait("t", b"last")).offset == 1
    ids = [parse_header(batch).producer_id for batch in cluster.partition("t").batches]
    assert ids[0] == 1
    assert ids[1] != 1


async def test_a_leader_that_lost_acknowledged_batches_gets_a_new_epoch(
    cluster: FakeCluster,
) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        for value in range(4):
            await producer.send_and_wait("t", number(value), partition=0)
        cluster.partition("t").truncate(2)
        futures = await send_numbers(producer, 10, first=10)
        assert [(await future).offset for future in futures] == list(range(2, 12))
    assert cluster.partition("t").values() == [*map(number, [0, 1, *range(10, 20)])]


async def test_a_batch_known_from_long_ago_counts_as_written(cluster: FakeCluster) -> None:
    cluster.brokers[1].script(ApiKey.PRODUCE, refuse(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        assert (await producer.send_and_wait("t", b"1")).offset == -1


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
async def test_a_broker_that_knows_us_no_more_gets_a_new_epoch(cluster: FakeCluster, code: ErrorCode) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        await producer.send_and_wait("t", b"first")
        cluster.brokers[1].script(ApiKey.PRODUCE, refuse(code))
        futures = await send_numbers(producer, 6)
        assert [(await future).offset for future in futures] == list(range(1, 7))
    assert [epoch for epoch, _ in headers(cluster)] == [0, 1, 1, 1]


async def test_an_epoch_that_is_too_old_fails_the_batch_and_the_next_goes_on(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        cluster.brokers[1].script(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_PRODUCER_EPOCH))
        with pytest.raises(ApiError, match="INVALID_PRODUCER_EPOCH"):
            await producer.send_and_wait("t", b"1")
        assert (await producer.send_and_wait("t", b"2")).offset == 0
    assert headers(cluster) == [(1, 0)]


async def test_without_a_producer_id_records_wait_and_then_go() -> None:
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t")
        busy = InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        for broker in cluster.brokers.values():
            broker.script(ApiKey.INIT_PRODUCER_ID, reset_connection, lambda body: busy)
        async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
            assert (await producer.send_and_wait("t", b"1")).offset == 0


@pytest.mark.usefixtures("quick_hedges")
async def test_a_producer_id_does_not_wait_for_a_broker_that_hangs(pair: FakeCluster) -> None:
    gate = pair.brokers[2].gate(ApiKey.INIT_PRODUCER_ID)
    # Brokers are asked in any order: one of several producers asks the hung one first.
    while not any(api == ApiKey.INIT_PRODUCER_ID for api, _ in pair.brokers[2].received):
        settings = {"request_timeout_ms": 600_000, "delivery_timeout_ms": 600_000}
        async with Producer(bootstrap_servers=pair.bootstrap, **settings) as producer:
            async with asyncio.timeout(DEADLINE_S):
                await producer.send_and_wait("t", b"1")
    gate.set()


async def test_a_refused_producer_id_fails_waiting_records_and_is_requested_again(
    cluster: FakeCluster,
) -> None:
    refused = InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    gate = cluster.brokers[1].gate(ApiKey.INIT_PRODUCER_ID)
    cluster.brokers[1].script(ApiKey.INIT_PRODUCER_ID, lambda body: refused)
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK) as producer:
        future = await producer.send("t", b"1")
        gate.set()
        with pytest.raises(ApiError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await future
        assert (await producer.send_and_wait("t", b"2")).offset == 0


@pytest.mark.parametrize(
    "settings",
    [{"acks": 1}, {"acks": 0}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6}],
)
def test_settings_that_exclude_idempotence_switch_it_off_or_contradict_it(settings: dict[str, Any]) -> None:
    assert ProducerConfig().is_idempotent
    assert not ProducerConfig(**settings).is_idempotent
    with pytest.raises(InvalidConfiguration, match=f"{next(iter(settings))}=.*enable_idempotence=True"):
        ProducerConfig(enable_idempotence=True, **settings)
    assert not ProducerConfig(enable_idempotence=False).is_idempotent


async def test_switched_off_nothing_is_numbered_and_one_batch_goes_at_a_time(cluster: FakeCluster) -> None:
    settings = {**SMALL, "enable_idempotence": False}
    async with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
        await producer.send_and_wait("t", b"first")
        gate = cluster.brokers[1].gate(ApiKey.PRODUCE)
        await send_numbers(producer, 10)
        await until(lambda: len(cluster.requests(ApiKey.PRODUCE)) == 2)
        await producer.partitions_for("t")
        assert len(pipeline_of(producer).batches) == 1
        gate.set()
    assert not cluster.requests(ApiKey.INIT_PRODUCER_ID)
    assert {sequence for _, sequence in headers(cluster)} == {-1}


# Random faults


class Faults:
    """Answers to produce requests that go wrong now and then, in every way that a broker can."""

    def __init__(self, cluster: FakeCluster, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = cluster
        self.rate = 0.3
        cluster.intercept[ApiKey.PRODUCE] = self.answer

    def answer(self, broker: FakeBroker, body: Any) -> Any:
        if self.random.random() > self.rate:
            return None
        refusals = [
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.KAFKA_STORAGE_ERROR,
        ]
        code = self.random.choice(refusals)
        outcome = self.random.choice([refuse(code), reset_connection, reset_connection])
        if code != ErrorCode.NOT_ENOUGH_REPLICAS and self.random.random() < 0.5:
            outcome = writing(broker, outcome)
        if self.random.random() < 0.3:
            for index, _ in enumerate(self.cluster.topics["t"]):
                self.cluster.move_leader("t", index, self.random.choice(list(self.cluster.brokers)))
        return outcome(body)


@pytest.mark.parametrize("seed", range(searched(12, usual=6)))
async def test_through_random_faults_every_acknowledged_record_is_there_once_and_in_order(seed: int) -> None:
    partitions, records = 3, 300
    async with FakeCluster(3) as cluster:
        cluster.add_topic("t", partitions)
        faults = Faults(cluster, seed)
        settings = {**SMALL, "request_timeout_ms": 5_000, "delivery_timeout_ms": 60_000}
        settings |= {"retry_backoff_ms": 1, "retry_backoff_max_ms": 2, "reconnect_backoff_ms": 0}
        if seed % 2:
            # Records that run out of attempts leave gaps and doubtful batches.
            settings["retries"] = 2
        async with Producer(bootstrap_servers=cluster.bootstrap, **settings) as producer:
            futures = []
            for value in range(records):
                futures.append(await producer.send("t", number(value), partition=value % partitions))
                if faults.random.random() < 0.05:
                    await asyncio.sleep(0)
            await producer.flush()
            faults.rate = 0.0
            futures += [await producer.send("t", number(records), partition=p) for p in range(partitions)]
            await producer.flush()
        for partition in range(partitions):
            written = cluster.partition("t", partition).values()
            assert max(Counter(written[:-1]).values(), default=1) == 1, f"seed {seed}: written twice"
            assert written == sorted(written, key=lambda value: value or b""), f"seed {seed}: reordered"
        for value, future in enumerate(futures):
            check_outcome(cluster, future, value, seed)
        assert seed % 2 or not any(failure_of(future) for future in futures)


def failure_of(future: Any) -> BarnabasError | None:
    try:
        future.result()
    except BarnabasError as error:
        return error
    return None


def check_outcome(cluster: FakeCluster, future: Any, value: int, seed: int) -> None:
    if failure_of(future) is None:
        metadata = future.result()
        written = cluster.partition("t", metadata.partition).values()
        expected = number(min(value, 300))
        assert written[metadata.offset] == expected, f"seed {seed}: {value} is not at {metadata.offset}"


# The pipeline by itself


def numbered_pipeline(count: int) -> tuple[Pipeline, list[Any]]:
    """A steady pipeline with so many batches of two records each, after one that was acknowledged."""

    def batch() -> ProducerBatch:
        encoded = bytearray(build_batch([(None, b"a"), (None, b"b")]))
        return ProducerBatch(T0, None, created_at=0.0, encoded=encoded, record_count=2)

    pipeline = Pipeline(5, is_numbered=True)
    pipeline.identify(ProducerIdAndEpoch(7, 0))
    first = batch()
    pipeline.add(first)
    pipeline.launch(first, 1)
    finish(pipeline, first)
    batches = [batch() for _ in range(count)]
    for one in batches:
        for earlier in pipeline.batches:
            if earlier.flight == 0:
                pipeline.launch(earlier, 1)
        pipeline.add(one)
    for one in batches[:-1]:
        pipeline.put_back(one)
        one.flight = 0
    return pipeline, batches


def finish(pipeline: Pipeline, batch: Any) -> None:
    pipeline.acknowledged(batch, -1)
    batch.deliver(-1, -1)


def give_up(pipeline: Pipeline, batch: Any) -> None:
    batch.fail(DeliveryTimedOut("over"))
    pipeline.failed(batch, may_be_written=True)


def test_a_batch_is_numbered_again_in_a_copy() -> None:
    """Its former bytes may still be in a socket's buffer."""
    builder = RecordBatchBuilder(max_bytes=1_000)
    builder.append(None, b"a", None, 0)
    batch = ProducerBatch(T0, builder, created_at=0.0)
    batch.close()
    encoded: Any = batch.encoded
    batch.number(*ProducerIdAndEpoch(7, 0), 0)
    assert batch.encoded is encoded, "the first time its own bytes"
    sent = bytes(encoded)
    batch.number(*ProducerIdAndEpoch(7, 1), 0)
    assert batch.encoded is not encoded
    assert bytes(encoded) == sent


def test_nothing_follows_while_one_that_was_written_lacks_its_answer() -> None:
    """Five more would make the broker forget it, and then call its retry a gap."""
    pipeline, (lost, later) = numbered_pipeline(2)
    pipeline.launch(lost, 1)
    pipeline.launch(later, 1)
    assert pipeline.takes_new
    pipeline.put_back(lost)
    finish(pipeline, later)
    assert lost.is_written
    assert pipeline.retry is lost
    pipeline.launch(lost, 1)
    assert not pipeline.takes_new
    finish(pipeline, lost)
    assert pipeline.takes_new


def test_no_batch_is_written_to_a_connection_before_an_earlier_one_that_came_back() -> None:
    pipeline, (first, second) = numbered_pipeline(2)
    pipeline.launch(first, 1)
    pipeline.launch(second, 1)
    assert pipeline.may_leave(second)
    pipeline.put_back(first)
    assert not pipeline.may_leave(second)
    pipeline.launch(first, 1)
    assert pipeline.may_leave(second)


def test_a_numbering_restarts_only_when_written_batches_have_their_answers() -> None:
    pipeline, (lost, later, gap) = numbered_pipeline(3)
    for one in (lost, later, gap):
        pipeline.launch(one, 1)
    pipeline.put_back(lost)
    finish(pipeline, later)
    number_before = lost.base_sequence
    pipeline.put_back(gap)
    pipeline.restart()
    assert pipeline.phase is Phase.RESTARTING
    assert pipeline.retry is lost
    assert lost.base_sequence == number_before, "under another number it would be written again"
    pipeline.launch(lost, 1)
    finish(pipeline, lost)
    assert pipeline.phase is Phase.UNPROVEN
    assert gap.base_sequence == 0


async def test_a_batch_that_the_broker_has_forgotten_is_delivered_if_a_later_one_was(
    cluster: FakeCluster,
) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap, **SMALL) as producer:
        await producer.send_and_wait("t", number(0))
        broker = cluster.brokers[1]
        broker.script(
            ApiKey.PRODUCE,
            writing(broker, refuse(ErrorCode.REQUEST_TIMED_OUT)),
            refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        )
        future = await producer.send("t", number(1))
        await until(lambda: bool(pipeline_of(producer).batches))
        (batch,) = pipeline_of(producer).batches
        batch.is_written = True
        await producer.flush()
        assert future.result().offset == -1
    assert cluster.partition("t").values() == [number(0), number(1)]
