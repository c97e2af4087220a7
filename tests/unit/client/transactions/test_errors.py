"""Errors of coordinators and leaders are retried, or raised as errors that say if an abort is possible.

The expectations are those of Java's TransactionManager.
"""

import asyncio
import inspect
from typing import Any

import pytest

from barnabas.client.errors import (
    ApiError,
    BarnabasError,
    DeliveryTimedOut,
    ErrorCode,
    IllegalTransactionState,
    ProducerFenced,
    TransactionAbortable,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from barnabas.client.producer import transaction_session
from barnabas.client.producer.producer import Producer
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.producer_transactions import LOST, UNREAD, FakeTransactions
from tests.support.transactional_writes import (
    T0,
    begin,
    check_unusable,
    check_usable,
    settings,
    use_every_api,
    write,
)
from tests.support.waiting import until

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
    producer: Producer, transactions: FakeTransactions, sent_later: str
) -> None:
    await begin(producer, b"1")
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


async def test_sending_offsets_to_silent_brokers_is_bounded(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async def stay_silent(broker: FakeBroker, body: Any) -> Any:
        await asyncio.Event().wait()

    async with Producer(**settings(pair, max_block_ms=400)) as producer:
        await begin(producer, b"1")
        answers = dict(pair.intercept)
        pair.intercept[ApiKey.TXN_OFFSET_COMMIT] = pair.intercept[ApiKey.METADATA] = stay_silent
        async with asyncio.timeout(2):
            with pytest.raises(BarnabasError):
                await producer.send_offsets_to_transaction({T0: 7}, "g")
        pair.intercept.clear()
        pair.intercept.update(answers)
        await producer.abort_transaction()


@pytest.mark.parametrize("is_new", [False, True])
async def test_an_offset_of_a_partition_that_does_not_exist_is_named(
    producer: Producer,
    pair: FakeCluster,
    transactions: FakeTransactions,
    monkeypatch: pytest.MonkeyPatch,
    is_new: bool,
) -> None:
    """A partition that was created just now is waited for until the group's coordinator knows it."""
    monkeypatch.setattr(transaction_session, "_DOUBT_MS", 50)
    commit = pair.intercept[ApiKey.TXN_OFFSET_COMMIT]
    is_known = False

    async def refuse(broker: FakeBroker, body: Any) -> Any:
        answer = commit(broker, body)
        answer = await answer if inspect.isawaitable(answer) else answer
        for topic in answer.topics:
            for partition in topic.partitions:
                if not is_known and partition.partition_index == 9:
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer

    pair.intercept[ApiKey.TXN_OFFSET_COMMIT] = refuse
    if is_new:
        pair.grow_topic("t", 10)
    await begin(producer, b"1")
    offsets = {T0: 7, TopicPartition("t", 9): 5}
    sending = asyncio.create_task(producer.send_offsets_to_transaction(offsets, "g"))
    if is_new:
        refused = len(pair.requests(ApiKey.TXN_OFFSET_COMMIT))
        await until(lambda: len(pair.requests(ApiKey.TXN_OFFSET_COMMIT)) > refused + 5)
        is_known = True
        await sending
        await producer.commit_transaction()
    else:
        with pytest.raises(TransactionAbortable, match="there is no partition t-9"):
            await sending
        await producer.abort_transaction()
    await check_usable(producer, transactions)


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
        await begin(producer, b"1", b"2")
        await producer.send_offsets_to_transaction({T0: 7}, "g")
        await producer.prepare_transaction()
        await producer.commit_transaction()
        await check_usable(producer, transactions)
    assert transactions.of("x").committed[0] == {b"1", b"2"}
    assert transactions.of("x").aborted == []


@pytest.mark.parametrize("commit", [True, False])
async def test_an_end_without_an_answer_in_time_is_continued_by_the_same_call(
    pair: FakeCluster, transactions: FakeTransactions, commit: bool
) -> None:
    async with Producer(**settings(pair, max_block_ms=500)) as producer:
        end, other = producer.commit_transaction, producer.abort_transaction
        if not commit:
            end, other = other, end
        await begin(producer, b"1")
        await producer.flush()
        transactions.fail(ApiKey.END_TXN, LOST, *[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 100)
        with pytest.raises(TransactionOutcomeUnknown) as unknown:
            await end()
        assert unknown.value.retriable
        for call in (other, producer.begin_transaction):
            with pytest.raises(IllegalTransactionState, match=end.__name__):
                await call()
        with pytest.raises(IllegalTransactionState):
            await producer.send("t", b"2", partition=0)
        transactions.faults.clear()
        await end()
        await check_usable(producer, transactions)
    state = transactions.of("x")
    assert (state.committed[0] if commit else state.aborted[0]) == {b"1"}


async def test_batches_that_get_no_answer_do_not_keep_an_abort_for_ever(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair, max_block_ms=500)) as producer:
        gate = pair.brokers[2].gate(ApiKey.PRODUCE)
        await begin(producer, b"1")
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
