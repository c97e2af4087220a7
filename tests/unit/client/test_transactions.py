"""The transactional producer against coordinators and leaders that fail on command.

Checked throughout: a transaction is committed as a whole or not at all, after whatever failed; an error says
what the user can do, and the producer can be used again exactly when it says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from barnabas.client import blocking
from barnabas.client.errors import (
    ApiError,
    BarnabasError,
    DeliveryTimedOut,
    ErrorCode,
    IllegalTransactionState,
    InvalidConfiguration,
    ProducerFenced,
    TransactionAbortable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from barnabas.client.offsets import GroupMetadata
from barnabas.client.producer.batch import RecordFuture
from barnabas.client.producer.producer import Producer
from barnabas.client.producer.transactions import PreparedTransaction, State
from barnabas.protocol.batch_builder import build_batch
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.producer_transactions import LOST, UNREAD, FakeTransactions
from tests.support.waiting import until

QUICK = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 20, "reconnect_backoff_ms": 1}
T0 = TopicPartition("t", 0)


@pytest.fixture
async def pair() -> AsyncIterator[FakeCluster]:
    """Two brokers that lead a partition each."""
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", 2, leaders=[1, 2])
        yield cluster


@pytest.fixture
def transactions(pair: FakeCluster) -> Iterator[FakeTransactions]:
    fake = FakeTransactions(pair)
    yield fake
    assert fake.wrong == []


@pytest.fixture
def old(pair: FakeCluster) -> Iterator[FakeTransactions]:
    """Brokers of Apache Kafka 3.9."""
    fake = FakeTransactions(pair, is_new=False)
    fake.speak_kafka(last_produce=11, last_end=4, level=0)
    yield fake
    assert fake.wrong == []


def settings(cluster: FakeCluster, **changes: Any) -> dict[str, Any]:
    return {"bootstrap_servers": cluster.bootstrap, "transactional_id": "x", **QUICK, **changes}


async def write(producer: Producer, *values: bytes) -> None:
    """Send each value to both partitions in turn."""
    for number, value in enumerate(values):
        await producer.send("t", value, partition=number % 2)


async def check_usable(producer: Producer, transactions: FakeTransactions) -> None:
    """The producer can commit another transaction."""
    async with producer.transaction():
        await write(producer, b"again 1", b"again 2")
    assert transactions.of("x").committed[-1] == {b"again 1", b"again 2"}


async def check_unusable(producer: Producer, kind: type[BarnabasError]) -> None:
    calls = [
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send("t", b"v"),
        lambda: producer.send_offsets_to_transaction({T0: 1}, "g"),
    ]
    for call in calls:
        with pytest.raises(kind):
            await call()


# Commit and abort


async def test_a_block_is_committed_with_its_records_and_offsets(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        async with producer.transaction():
            await write(producer, b"1", b"2", b"3")
            group = GroupMetadata("g", 4, "member", "instance")
            await producer.send_offsets_to_transaction({T0: 7}, group)
    state = transactions.of("x")
    assert (state.committed, state.aborted) == ([{b"1", b"2", b"3"}], [])
    assert state.committed_offsets == {T0: 7}
    (request,) = pair.requests(ApiKey.TXN_OFFSET_COMMIT)
    assert (request.generation_id, request.member_id) == (4, "member")
    assert request.group_instance_id == "instance"
    assert "ADD_PARTITIONS_TO_TXN" not in transactions.calls
    assert transactions.calls[-1] == "END_TXN"


async def test_a_block_that_fails_is_aborted(pair: FakeCluster, transactions: FakeTransactions) -> None:
    async with Producer(**settings(pair, linger_ms=10_000)) as producer:
        unsent: list[RecordFuture] = []

        async def fail() -> None:
            async with producer.transaction():
                await write(producer, b"1", b"2")
                await producer.flush()
                unsent.append(await producer.send("t", b"3", partition=0))
                raise KeyError

        with pytest.raises(KeyError):
            await fail()
        with pytest.raises(TransactionAborted):
            await unsent[0]
        await check_usable(producer, transactions)
    assert transactions.of("x").aborted == [{b"1", b"2"}]


async def test_each_transaction_has_its_epoch_and_numbers_from_0(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        for number in range(3):
            async with producer.transaction():
                await write(producer, b"%d" % number, b"b")
    assert transactions.of("x").committed == [{b"%d" % number, b"b"} for number in range(3)]
    assert transactions.of("x").sequences == {("t", 0): (2, 1), ("t", 1): (2, 1)}
    assert len(pair.requests(ApiKey.INIT_PRODUCER_ID)) == 1


async def test_encoded_batches_join_the_transaction(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        async with producer.transaction():
            await producer.send_batch("t", 0, build_batch([(None, b"1"), (None, b"2")]))
        with pytest.raises(IllegalTransactionState):
            await producer.send_batch("t", 0, build_batch([(None, b"3")]))
    assert transactions.of("x").committed == [{b"1", b"2"}]


async def test_a_transaction_without_records_sends_nothing(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        async with producer.transaction():
            await producer.send_offsets_to_transaction({}, "g")
        await producer.begin_transaction()
        await producer.abort_transaction()
    assert transactions.calls == ["FIND_COORDINATOR", "INIT_PRODUCER_ID"]


async def test_records_outside_of_a_transaction_are_refused(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        with pytest.raises(IllegalTransactionState, match="begin_transaction"):
            await producer.send("t", b"before", partition=0)
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
        # A topic that is open, with the batch of the transaction just before.
        with pytest.raises(IllegalTransactionState, match="begin_transaction"):
            await producer.send("t", b"after", partition=0)
    assert transactions.of("x").committed == [{b"1"}]


async def test_calls_in_the_wrong_order_are_refused_and_change_nothing(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        for call in (producer.commit_transaction, producer.abort_transaction, producer.prepare_transaction):
            with pytest.raises(IllegalTransactionState, match="without a transaction"):
                await call()
        await producer.begin_transaction()
        await producer.send("t", b"1", partition=0)
        with pytest.raises(IllegalTransactionState, match="in a transaction"):
            await producer.begin_transaction()
        with pytest.raises(ValueError, match="expected 0 or more"):
            await producer.send_offsets_to_transaction({T0: -1}, "g")
        await producer.commit_transaction()
    assert transactions.of("x").committed == [{b"1"}]


async def test_a_producer_without_an_id_has_no_transactions(cluster: FakeCluster) -> None:
    async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        with pytest.raises(IllegalTransactionState, match="transactional_id"):
            await producer.begin_transaction()
        with pytest.raises(IllegalTransactionState, match="transactional_id"):
            async with producer.transaction():
                pass


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"acks": 1}, "acks"),
        ({"retries": 0}, "retries"),
        ({"enable_idempotence": False}, "enable_idempotence"),
        ({"max_in_flight_requests_per_connection": 6}, "max_in_flight"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms"),
        ({"keep_prepared": True, "wire": "kafka"}, "keep_prepared"),
        ({"keep_prepared": True, "transactional_id": None}, "keep_prepared"),
        ({"transactional_id": ""}, "transactional_id"),
    ],
)
def test_settings_that_exclude_transactions_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidConfiguration, match=named):
        Producer(**{"transactional_id": "x", **changes})


async def test_an_open_transaction_is_aborted_by_close(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        await producer.begin_transaction()
        await producer.send("t", b"1", partition=0)
        await producer.flush()
    assert transactions.of("x").aborted == [{b"1"}]


# Failed records


async def test_a_failed_record_fails_the_commit_and_the_block_is_aborted(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        transactions.fail(ApiKey.PRODUCE, ErrorCode.INVALID_RECORD)
        with pytest.raises(TransactionAbortable) as failure:
            async with producer.transaction():
                await write(producer, b"1", b"2")
        assert isinstance(failure.value.__cause__, ApiError)
        assert failure.value.__cause__.code == ErrorCode.INVALID_RECORD
        await check_usable(producer, transactions)
    assert b"1" not in transactions.of("x").committed[0]


async def test_after_a_failed_record_only_an_abort_is_possible(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        await producer.begin_transaction()
        transactions.fail(ApiKey.PRODUCE, ErrorCode.INVALID_RECORD)
        sent = await producer.send("t", b"1", partition=0)
        with pytest.raises(ApiError):
            await sent
        with pytest.raises(TransactionAbortable):
            await producer.send("t", b"2", partition=0)
        with pytest.raises(TransactionAbortable):
            await producer.send_offsets_to_transaction({T0: 1}, "g")
        for _ in range(2):
            with pytest.raises(TransactionAbortable):
                await producer.commit_transaction()
        await producer.abort_transaction()
        await check_usable(producer, transactions)


async def test_a_gap_in_the_numbers_ends_the_transaction_and_raises_no_epoch(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        transactions.fail(ApiKey.PRODUCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        with pytest.raises(TransactionAbortable):
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)
        assert transactions.of("x").epoch == 1
        await check_usable(producer, transactions)


async def test_records_of_a_dead_leader_are_dropped_by_an_abort(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        await producer.begin_transaction()
        await write(producer, b"1", b"2")
        await producer.flush()
        pair.move_leader("t", 1, -1)
        stuck = await producer.send("t", b"3", partition=1)
        await producer.abort_transaction()
        with pytest.raises(TransactionAborted):
            await stuck
        pair.move_leader("t", 1, 2)
        await check_usable(producer, transactions)
    assert transactions.of("x").aborted == [{b"1", b"2"}]


async def test_lost_answers_of_leaders_are_repeated_under_the_same_numbers(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        for _ in range(3):
            transactions.fail(ApiKey.PRODUCE, LOST, UNREAD, ErrorCode.CONCURRENT_TRANSACTIONS)
            async with producer.transaction():
                await write(producer, b"1", b"2")
    assert transactions.of("x").committed == [{b"1", b"2"}] * 3


# Errors of coordinators: API by error. The expectations are those of Java's TransactionManager.

RETRIED = [
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
    LOST,
    UNREAD,
]
ABORTABLE = {
    ApiKey.ADD_PARTITIONS_TO_TXN: [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
    ApiKey.ADD_OFFSETS_TO_TXN: [
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
    ApiKey.TXN_OFFSET_COMMIT: [
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ],
    ApiKey.PRODUCE: [
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ],
    ApiKey.END_TXN: [
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
}
FENCING = [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH]
FATAL = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
OLD_APIS = [
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
]


async def use_every_api(producer: Producer) -> None:
    async with producer.transaction():
        await write(producer, b"1", b"2")
        await producer.flush()
        await producer.send_offsets_to_transaction({T0: 7}, "g")


@pytest.mark.parametrize("fault", RETRIED)
@pytest.mark.parametrize("api", [*OLD_APIS, ApiKey.INIT_PRODUCER_ID, ApiKey.FIND_COORDINATOR])
async def test_a_passing_fault_is_retried(
    pair: FakeCluster, old: FakeTransactions, api: ApiKey, fault: int | str
) -> None:
    old.fail(api, fault, fault)
    async with Producer(**settings(pair, wire="kafka")) as producer:
        await use_every_api(producer)
        await check_usable(producer, old)
    state = old.of("x")
    assert state.committed[0] == {b"1", b"2"}
    assert state.committed_offsets == {T0: 7}
    assert state.aborted == []


@pytest.mark.parametrize(("api", "code"), [(api, code) for api in ABORTABLE for code in ABORTABLE[api]])
async def test_after_an_abortable_error_the_producer_goes_on(
    pair: FakeCluster, old: FakeTransactions, api: ApiKey, code: ErrorCode
) -> None:
    async with Producer(**settings(pair, wire="kafka")) as producer:
        old.fail(api, code)
        with pytest.raises(TransactionAbortable) as failure:
            await use_every_api(producer)
        assert isinstance(failure.value.__cause__, ApiError)
        assert failure.value.__cause__.code == code
        assert not old.of("x").is_ongoing, "the next epoch is requested when the transaction has ended"
        await check_usable(producer, old)
    assert old.of("x").committed == [{b"again 1", b"again 2"}]
    assert old.of("x").committed_offsets == {}


@pytest.mark.parametrize("code", FENCING)
@pytest.mark.parametrize("api", [*OLD_APIS, ApiKey.PRODUCE])
async def test_a_fenced_producer_cannot_be_used_any_more(
    pair: FakeCluster, old: FakeTransactions, api: ApiKey, code: ErrorCode
) -> None:
    async with Producer(**settings(pair, wire="kafka")) as producer:
        old.fail(api, code)
        if api in (ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT):
            # The refusal of a leader may come from a time-out: the answer of the coordinator decides.
            old.fail(ApiKey.END_TXN, code)
        with pytest.raises((ProducerFenced, TransactionAbortable)):
            await use_every_api(producer)
        await check_unusable(producer, ProducerFenced)
    assert old.of("x").committed == []


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize("api", [*OLD_APIS, ApiKey.PRODUCE])
async def test_after_a_fatal_error_every_call_raises_it(
    pair: FakeCluster, old: FakeTransactions, api: ApiKey, code: ErrorCode
) -> None:
    async with Producer(**settings(pair, wire="kafka")) as producer:
        old.fail(api, code)
        with pytest.raises(ApiError) as failure:
            await use_every_api(producer)
        assert failure.value.code == code
        await check_unusable(producer, ApiError)
    assert old.of("x").committed == []


@pytest.mark.parametrize("code", [*FENCING, *FATAL, ErrorCode.INVALID_TRANSACTION_TIMEOUT])
async def test_a_producer_that_gets_no_id_does_not_start(
    pair: FakeCluster, transactions: FakeTransactions, code: ErrorCode
) -> None:
    transactions.fail(ApiKey.INIT_PRODUCER_ID, code)
    with pytest.raises(BarnabasError, match=code.name):
        async with Producer(**settings(pair)):
            pass


@pytest.mark.parametrize("sent_later", ["nothing", "records", "offsets"])
async def test_after_its_transaction_timed_out_a_producer_goes_on(
    pair: FakeCluster, transactions: FakeTransactions, sent_later: str
) -> None:
    async with Producer(**settings(pair)) as producer:
        await producer.begin_transaction()
        await write(producer, b"1")
        await producer.flush()
        transactions.of("x").time_out()
        if sent_later == "records":
            await write(producer, b"2")
        if sent_later == "offsets":
            with pytest.raises(TransactionAbortable):
                await producer.send_offsets_to_transaction({T0: 7}, "g")
        with pytest.raises(TransactionAbortable):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await check_usable(producer, transactions)
    assert transactions.of("x").aborted == [{b"1"}]


# The coordinator is lost or moves at every step


@pytest.mark.parametrize(
    "api", ["INIT_PRODUCER_ID", "PRODUCE", "TXN_OFFSET_COMMIT", "END_TXN", "PREPARE_TXN"]
)
@pytest.mark.parametrize("fault", [None, LOST, UNREAD])
async def test_a_coordinator_that_moves_is_followed(
    pair: FakeCluster, transactions: FakeTransactions, api: str, fault: str | None
) -> None:
    def move() -> None:
        transactions.coordinator = 3 - transactions.coordinator
        transactions.before.clear()

    transactions.before[ApiKey[api]] = move
    if fault is not None:
        transactions.fail(ApiKey[api], fault)
    async with Producer(**settings(pair)) as producer:
        await producer.begin_transaction()
        await write(producer, b"1", b"2")
        await producer.send_offsets_to_transaction({T0: 7}, "g")
        await producer.prepare_transaction()
        await producer.commit_transaction()
        await check_usable(producer, transactions)
    assert transactions.of("x").committed[0] == {b"1", b"2"}
    assert transactions.of("x").aborted == []


async def test_a_commit_without_an_answer_in_time_is_continued_by_the_same_call(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair, max_block_ms=150)) as producer:
        await producer.begin_transaction()
        await producer.send("t", b"1", partition=0)
        transactions.fail(ApiKey.END_TXN, LOST, *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 100)
        with pytest.raises(TransactionOutcomeUnknown) as unknown:
            await producer.commit_transaction()
        assert unknown.value.retriable
        for call in (producer.abort_transaction, producer.begin_transaction):
            with pytest.raises(IllegalTransactionState, match="commit_transaction"):
                await call()
        with pytest.raises(IllegalTransactionState):
            await producer.send("t", b"2", partition=0)
        transactions.faults.clear()
        await producer.commit_transaction()
        await check_usable(producer, transactions)
    assert transactions.of("x").committed[0] == {b"1"}


async def test_an_abort_without_an_answer_in_time_is_continued_by_the_same_call(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair, max_block_ms=150)) as producer:
        await producer.begin_transaction()
        await producer.send("t", b"1", partition=0)
        await producer.flush()
        transactions.fail(ApiKey.END_TXN, *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 100)
        with pytest.raises(TransactionOutcomeUnknown):
            await producer.abort_transaction()
        with pytest.raises(IllegalTransactionState, match="abort_transaction"):
            await producer.commit_transaction()
        transactions.faults.clear()
        await producer.abort_transaction()
        await check_usable(producer, transactions)
    assert transactions.of("x").aborted == [{b"1"}]


async def test_batches_that_get_no_answer_do_not_keep_an_abort_for_ever(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair, max_block_ms=150)) as producer:
        gate = pair.brokers[2].gate(ApiKey.PRODUCE)
        await producer.begin_transaction()
        await producer.send("t", b"1", partition=0)
        stuck = await producer.send("t", b"2", partition=1)
        await until(lambda: any(key == ApiKey.PRODUCE for key, _ in pair.brokers[2].received))
        await producer.abort_transaction()
        with pytest.raises(TransactionAborted):
            await stuck
        # The late answer concerns no batch any more.
        gate.set()
        await check_usable(producer, transactions)


async def test_a_send_that_waits_for_memory_is_refused_when_its_transaction_ends(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    small = {"buffer_memory": 1_000, "batch_size": 1_000, "max_block_ms": 60_000}
    async with Producer(**settings(pair, **small)) as producer:
        gate = pair.brokers[1].gate(ApiKey.PRODUCE)
        await producer.begin_transaction()
        await producer.send("t", bytes(800), partition=0)
        waiting = asyncio.create_task(producer.send("t", bytes(800), partition=1))
        await until(lambda: producer._accumulator and producer._accumulator.is_short_of_memory)
        aborting = asyncio.create_task(producer.abort_transaction())
        with pytest.raises(IllegalTransactionState, match="aborting"):
            await waiting
        gate.set()
        await aborting
        await check_usable(producer, transactions)


async def test_a_record_that_times_out_fails_its_transaction(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    short = {"delivery_timeout_ms": 150, "request_timeout_ms": 100}
    async with Producer(**settings(pair, **short)) as producer:
        await producer.begin_transaction()
        pair.move_leader("t", 1, -1)
        await write(producer, b"1", b"2")
        with pytest.raises(TransactionAbortable) as failure:
            await producer.commit_transaction()
        assert isinstance(failure.value.__cause__, DeliveryTimedOut)
        await producer.abort_transaction()
        pair.move_leader("t", 1, 2)
        await check_usable(producer, transactions)
    assert transactions.of("x").aborted == [{b"1"}]


# The old protocol


async def test_partitions_that_cannot_be_added_in_time_fail_the_transaction(
    pair: FakeCluster, old: FakeTransactions
) -> None:
    async with Producer(**settings(pair, wire="kafka", max_block_ms=150)) as producer:
        old.fail(ApiKey.ADD_PARTITIONS_TO_TXN, *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 100)
        await producer.begin_transaction()
        sent = await producer.send("t", b"1", partition=0)
        with pytest.raises(TransactionAbortable, match="COORDINATOR_NOT_AVAILABLE"):
            await producer.commit_transaction()
        with pytest.raises(TransactionAbortable):
            await sent
        old.faults.clear()
        # The coordinator never had this transaction, and refuses its end.
        await producer.abort_transaction()
        await check_usable(producer, old)


async def test_with_the_old_protocol_partitions_and_offsets_are_added_first(
    pair: FakeCluster, old: FakeTransactions
) -> None:
    async with Producer(**settings(pair, wire="kafka")) as producer:
        await use_every_api(producer)
        await use_every_api(producer)
    calls = [call for call in old.calls if call not in ("FIND_COORDINATOR", "INIT_PRODUCER_ID")]
    assert calls[0] == "ADD_PARTITIONS_TO_TXN"
    assert calls.index("ADD_OFFSETS_TO_TXN") + 1 == calls.index("TXN_OFFSET_COMMIT")
    assert old.of("x").committed == [{b"1", b"2"}] * 2
    # One epoch, and numbers that go on.
    assert old.of("x").sequences == {("t", 0): (0, 2), ("t", 1): (0, 2)}


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_the_finalized_feature_decides_on_the_protocol(pair: FakeCluster, level: int) -> None:
    is_new = level == 2
    fake = FakeTransactions(pair, is_new=is_new)
    fake.speak_kafka(last_produce=12, last_end=5, level=level)
    async with Producer(**settings(pair, wire="kafka")) as producer:
        for _ in range(2):
            await use_every_api(producer)
    assert fake.of("x").committed == [{b"1", b"2"}] * 2
    versions = {version for broker in pair.brokers.values() for version in broker.versions}
    expected = {(ApiKey.PRODUCE, 12), (ApiKey.END_TXN, 5), (ApiKey.TXN_OFFSET_COMMIT, 5)}
    if not is_new:
        expected = {(ApiKey.PRODUCE, 11), (ApiKey.END_TXN, 4), (ApiKey.TXN_OFFSET_COMMIT, 4)}
    assert versions >= expected
    assert ("ADD_PARTITIONS_TO_TXN" in fake.calls) is not is_new
    assert fake.of("x").epoch == (2 if is_new else 0)
    assert fake.wrong == []


@pytest.mark.parametrize("fault", [LOST, UNREAD])
async def test_no_late_copy_of_an_end_can_end_the_next_transaction(
    pair: FakeCluster, old: FakeTransactions, fault: str
) -> None:
    """The torn transaction: with the old protocol both transactions would have the same epoch."""
    async with Producer(**settings(pair, wire="kafka")) as producer:
        old.fail(ApiKey.END_TXN, fault)
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
        late_copy = pair.requests(ApiKey.END_TXN)[0]
        async with producer.transaction():
            await producer.send("t", b"2", partition=0)
            await producer.flush()
            assert old._end(late_copy).error_code == ErrorCode.PRODUCER_FENCED
            await producer.send("t", b"3", partition=0)
    assert old.of("x").committed == [{b"1"}, {b"2", b"3"}]


async def test_an_answered_end_costs_no_new_epoch(pair: FakeCluster, old: FakeTransactions) -> None:
    async with Producer(**settings(pair, wire="kafka")) as producer:
        for _ in range(3):
            await check_usable(producer, old)
    assert len(pair.requests(ApiKey.INIT_PRODUCER_ID)) == 1


async def test_the_first_transaction_of_the_new_protocol_has_a_new_epoch(
    pair: FakeCluster, old: FakeTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker of the former transaction, which had the same epoch, would end this one."""
    async with Producer(**settings(pair, wire="kafka")) as producer:
        await check_usable(producer, old)
        monkeypatch.setattr(producer._cluster, "finalized_level", lambda feature: 2)
        await producer.begin_transaction()
        assert len(pair.requests(ApiKey.INIT_PRODUCER_ID)) == 2
        await producer.abort_transaction()


# Fencing


async def test_a_second_producer_fences_the_first(pair: FakeCluster, transactions: FakeTransactions) -> None:
    async with Producer(**settings(pair)) as zombie:
        await zombie.begin_transaction()
        await zombie.send("t", b"zombie", partition=0)
        await zombie.flush()
        async with Producer(**settings(pair)) as producer:
            with pytest.raises(ProducerFenced):
                await zombie.commit_transaction()
            await check_unusable(zombie, ProducerFenced)
            await check_usable(producer, transactions)
    assert transactions.of("x").committed == [{b"again 1", b"again 2"}]
    assert transactions.of("x").aborted == [{b"zombie"}]


# Prepared transactions


async def test_a_prepared_transaction_is_completed_by_another_process(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        await producer.begin_transaction()
        await producer.send("t", b"1", partition=0)
        prepared = await producer.prepare_transaction()
        assert producer.prepared_transaction == prepared
        assert await producer.prepare_transaction() == prepared
        with pytest.raises(IllegalTransactionState):
            await producer.send("t", b"2", partition=0)
    # The producer was closed, and the transaction stays.
    assert transactions.of("x").aborted == []
    text = str(prepared)
    async with Producer(bootstrap_servers=pair.bootstrap) as other:
        await other.complete_transaction(PreparedTransaction.parse(text))
        await other.complete_transaction(PreparedTransaction.parse(text))
    assert transactions.of("x").committed == [{b"1"}]


@pytest.mark.parametrize("commit", [True, False])
async def test_a_producer_finds_what_was_prepared_before_it(
    pair: FakeCluster, transactions: FakeTransactions, commit: bool
) -> None:
    async with Producer(**settings(pair)) as producer:
        await producer.begin_transaction()
        await producer.send("t", b"1", partition=0)
        prepared = await producer.prepare_transaction()
    async with Producer(**settings(pair, keep_prepared=True)) as producer:
        assert producer.prepared_transaction == prepared
        with pytest.raises(IllegalTransactionState, match="prepared"):
            await producer.begin_transaction()
        await producer.complete_transaction(prepared, commit=commit)
        assert producer.prepared_transaction is None
        await check_usable(producer, transactions)
    ended = transactions.of("x").committed if commit else transactions.of("x").aborted
    assert ended[0] == {b"1"}


async def test_without_keep_prepared_a_start_aborts_it(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
            # The block leaves what it has prepared alone.
            await producer.prepare_transaction()
    assert (transactions.of("x").committed, transactions.of("x").aborted) == ([], [])
    async with Producer(**settings(pair)) as producer:
        assert producer.prepared_transaction is None
    assert transactions.of("x").aborted == [{b"1"}]


async def test_nothing_to_prepare_is_refused_and_changes_nothing(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        await producer.begin_transaction()
        with pytest.raises(IllegalTransactionState, match="neither records nor offsets"):
            await producer.prepare_transaction()
        await producer.send("t", b"1", partition=0)
        await producer.commit_transaction()
    assert transactions.of("x").committed == [{b"1"}]


@pytest.mark.parametrize("text", ["", "1:2", "1:2:", "a:2:x", "1:-2:x", "1:2 x", "1_0:2:x"])
def test_a_malformed_text_of_a_prepared_transaction_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="producer_id:epoch:transactional_id"):
        PreparedTransaction.parse(text)


def test_a_prepared_transaction_survives_its_text() -> None:
    prepared = PreparedTransaction("a:b\n", 7, 32_766)
    assert PreparedTransaction.parse(str(prepared)) == prepared


# Cancellation


@pytest.mark.parametrize("steps", range(0, 120, 3))
async def test_a_block_that_is_cancelled_anywhere_is_committed_or_aborted_as_a_whole(
    pair: FakeCluster, transactions: FakeTransactions, steps: int
) -> None:
    async with Producer(**settings(pair)) as producer:
        await check_usable(producer, transactions)

        async def work() -> None:
            async with producer.transaction():
                await write(producer, b"1", b"2", b"3")
                await producer.send_offsets_to_transaction({T0: 7}, "g")

        task = asyncio.create_task(work())
        for _ in range(steps):
            await asyncio.sleep(0)
        was_done = task.done()
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled() or was_done
        assert producer._session is not None
        assert producer._session.machine.state is State.READY
        await check_usable(producer, transactions)
    state = transactions.of("x")
    assert state.committed[1:-1] in ([], [{b"1", b"2", b"3"}])
    assert all(aborted <= {b"1", b"2", b"3"} for aborted in state.aborted)
    assert (state.committed_offsets == {T0: 7}) is (len(state.committed) == 3)


@pytest.mark.parametrize("steps", range(0, 60, 4))
async def test_a_cancelled_commit_can_be_continued(
    pair: FakeCluster, transactions: FakeTransactions, steps: int
) -> None:
    async with Producer(**settings(pair)) as producer:
        await producer.begin_transaction()
        await write(producer, b"1", b"2")
        task = asyncio.create_task(producer.commit_transaction())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        if not transactions.of("x").committed:
            try:
                await producer.commit_transaction()
            except IllegalTransactionState:
                # The commit went on without its caller, and has just ended.
                assert transactions.of("x").committed
        await until(lambda: producer._session and producer._session.machine.state is State.READY)
        await check_usable(producer, transactions)
    assert transactions.of("x").committed[0] == {b"1", b"2"}
    assert transactions.of("x").aborted == []


async def test_a_second_cancellation_does_not_wait_for_the_abort(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        gates = [broker.gate(ApiKey.END_TXN) for broker in pair.brokers.values()]

        async def work() -> None:
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)
                await producer.flush()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await until(lambda: transactions.of("x").records)
        await asyncio.sleep(0)
        task.cancel()
        await until(lambda: pair.requests(ApiKey.END_TXN))
        assert not task.done()
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        for gate in gates:
            gate.set()
        await until(lambda: producer._session and producer._session.machine.state is State.READY)
        await check_usable(producer, transactions)
    assert transactions.of("x").aborted == [{b"1"}]


async def test_cancelled_offsets_make_the_transaction_abortable(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        pair.brokers[1].gate(ApiKey.TXN_OFFSET_COMMIT)
        await producer.begin_transaction()
        task = asyncio.create_task(producer.send_offsets_to_transaction({T0: 7}, "g"))
        await until(lambda: pair.requests(ApiKey.TXN_OFFSET_COMMIT))
        task.cancel()
        await asyncio.wait((task,))
        with pytest.raises(TransactionAbortable):
            await producer.commit_transaction()
        pair.brokers[1].gates.clear()
        pair.brokers[1].drop_connections()
        await producer.abort_transaction()
        await check_usable(producer, transactions)
    assert transactions.of("x").committed_offsets == {}


async def test_a_failed_abort_does_not_hide_the_error_of_the_block(
    pair: FakeCluster, transactions: FakeTransactions, caplog: pytest.LogCaptureFixture
) -> None:
    async with Producer(**settings(pair)) as producer:

        async def fail() -> None:
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)
                await producer.flush()
                transactions.fail(ApiKey.END_TXN, ErrorCode.PRODUCER_FENCED)
                raise KeyError

        with caplog.at_level(logging.WARNING), pytest.raises(KeyError) as failure:
            await fail()
        assert "fenced" in "".join(failure.value.__notes__)
        assert "could not be ended" in caplog.text
        await check_unusable(producer, ProducerFenced)


# Threads


async def test_the_blocking_producer_has_transactions_too(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    def fail(producer: blocking.Producer) -> None:
        with producer.transaction():
            producer.send("t", b"2", partition=0)
            producer.flush()
            raise KeyError

    def work() -> None:
        with blocking.Producer(**settings(pair)) as producer:
            with producer.transaction():
                producer.send("t", b"1", partition=0)
                producer.send_offsets_to_transaction({T0: 7}, "g")
            with pytest.raises(KeyError):
                fail(producer)
            with pytest.raises(IllegalTransactionState):
                producer.send("t", b"3", partition=0)
            producer.begin_transaction()
            producer.send("t", b"4", partition=0)
            prepared = producer.prepare_transaction()
            assert producer.prepared_transaction == prepared
            producer.complete_transaction(prepared)

    await asyncio.to_thread(work)
    state = transactions.of("x")
    assert (state.committed, state.aborted) == ([{b"1"}, {b"4"}], [{b"2"}])
    assert state.committed_offsets == {T0: 7}


async def test_where_nothing_may_be_prepared_the_error_names_the_setting(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    async with Producer(**settings(pair)) as producer:
        await producer.begin_transaction()
        await write(producer, b"1")
        transactions.fail(ApiKey.PREPARE_TXN, refused)
        with pytest.raises(TransactionAbortable, match=r"transaction\.two\.phase\.commit\.enable=true"):
            await producer.prepare_transaction()
        await producer.abort_transaction()
        await check_usable(producer, transactions)
    transactions.fail(ApiKey.INIT_PRODUCER_ID, refused)
    with pytest.raises(ApiError, match=r"transaction\.two\.phase\.commit\.enable=true"):
        await Producer(**settings(pair), keep_prepared=True).start()
