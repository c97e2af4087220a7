"""A transaction is committed with all its records and offsets, or aborted with all of them."""

import asyncio
import logging
from typing import Any

import pytest

from barnabas.client import blocking
from barnabas.client.consumer_record import ConsumerRecord
from barnabas.client.errors import (
    ApiError,
    ErrorCode,
    IllegalTransactionState,
    InvalidConfiguration,
    ProducerFenced,
    TransactionAbortable,
    TransactionAborted,
)
from barnabas.client.offsets import GroupMetadata
from barnabas.client.producer.batch import RecordFuture
from barnabas.client.producer.producer import Producer
from barnabas.protocol.ids import Offset
from barnabas.protocol.record_batch import TimestampType
from barnabas.protocol.schema import ApiKey
from tests.support.batches import build_batch
from tests.support.fake_broker import FakeCluster
from tests.support.producer_transactions import LOST, UNREAD, FakeTransactions
from tests.support.transactional_writes import T0, begin, check_unusable, check_usable, settings, write

# Commit and abort


async def test_a_block_is_committed_with_its_records_and_offsets(
    producer: Producer, pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with producer.transaction():
        await write(producer, b"1", b"2", b"3")
        group = GroupMetadata("g", 4, "member", "instance")
        records = [
            ConsumerRecord("t", 0, Offset(offset), 0, None, b"", (), TimestampType.CREATE_TIME)
            for offset in (5, 6)
        ]
        await producer.send_offsets_to_transaction(records, group)
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
    producer: Producer, pair: FakeCluster, transactions: FakeTransactions
) -> None:
    for number in range(3):
        async with producer.transaction():
            await write(producer, b"%d" % number, b"b")
    assert transactions.of("x").committed == [{b"%d" % number, b"b"} for number in range(3)]
    assert transactions.of("x").sequences == {("t", 0): (2, 1), ("t", 1): (2, 1)}
    assert len(pair.requests(ApiKey.INIT_PRODUCER_ID)) == 1


async def test_encoded_batches_join_the_transaction(
    producer: Producer, transactions: FakeTransactions
) -> None:
    async with producer.transaction():
        await producer.send_batch("t", 0, build_batch([(None, b"1"), (None, b"2")]))
    with pytest.raises(IllegalTransactionState):
        await producer.send_batch("t", 0, build_batch([(None, b"3")]))
    assert transactions.of("x").committed == [{b"1", b"2"}]


async def test_a_transaction_without_records_sends_nothing(
    producer: Producer, transactions: FakeTransactions
) -> None:
    async with producer.transaction():
        await producer.send_offsets_to_transaction({}, "g")
    await producer.begin_transaction()
    await producer.abort_transaction()
    assert transactions.calls == ["FIND_COORDINATOR", "INIT_PRODUCER_ID"]


async def test_records_outside_of_a_transaction_are_refused(
    producer: Producer, transactions: FakeTransactions
) -> None:
    with pytest.raises(IllegalTransactionState, match="begin_transaction"):
        await producer.send("t", b"before", partition=0)
    async with producer.transaction():
        await producer.send("t", b"1", partition=0)
    # A topic that is open, with the batch of the transaction just before.
    with pytest.raises(IllegalTransactionState, match="begin_transaction"):
        await producer.send("t", b"after", partition=0)
    assert transactions.of("x").committed == [{b"1"}]


async def test_calls_in_the_wrong_order_are_refused_and_change_nothing(
    producer: Producer, transactions: FakeTransactions
) -> None:
    for call in (producer.commit_transaction, producer.abort_transaction, producer.prepare_transaction):
        with pytest.raises(IllegalTransactionState, match="without a transaction"):
            await call()
    await begin(producer, b"1")
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
        await begin(producer, b"1")
        await producer.flush()
    assert transactions.of("x").aborted == [{b"1"}]


async def test_a_failed_abort_does_not_hide_the_error_of_the_block(
    producer: Producer, transactions: FakeTransactions, caplog: pytest.LogCaptureFixture
) -> None:

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


# Failed records


async def test_after_a_failed_record_only_an_abort_is_possible(
    producer: Producer, transactions: FakeTransactions
) -> None:
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
    producer: Producer, transactions: FakeTransactions
) -> None:
    transactions.fail(ApiKey.PRODUCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    with pytest.raises(TransactionAbortable):
        async with producer.transaction():
            await producer.send("t", b"1", partition=0)
    assert transactions.of("x").epoch == 1
    await check_usable(producer, transactions)


async def test_records_of_a_dead_leader_are_dropped_by_an_abort(
    producer: Producer, pair: FakeCluster, transactions: FakeTransactions
) -> None:
    await begin(producer, b"1", b"2")
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
    producer: Producer, transactions: FakeTransactions
) -> None:
    for _ in range(3):
        transactions.fail(ApiKey.PRODUCE, LOST, UNREAD, ErrorCode.CONCURRENT_TRANSACTIONS)
        async with producer.transaction():
            await write(producer, b"1", b"2")
    assert transactions.of("x").committed == [{b"1", b"2"}] * 3


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


# Threads


async def test_the_blocking_producer_has_transactions_too(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async def fail(producer: blocking.Producer) -> None:
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
                # The cells of a notebook run within an event loop.
                asyncio.run(fail(producer))
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
