"""Prepared transactions are completed by any process that has their text."""

from typing import Any

import pytest

from barnabas.client.errors import (
    ApiError,
    ErrorCode,
    IllegalTransactionState,
    InvalidConfiguration,
    UnsupportedVersionError,
)
from barnabas.client.producer.producer import Producer
from barnabas.client.producer.transactions import PreparedTransaction
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.producer_transactions import FakeTransactions
from tests.support.transactional_writes import begin, check_usable, prepare, settings


async def test_a_prepared_transaction_is_completed_by_another_process(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        await begin(producer, b"1")
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


async def test_no_prepared_transaction_is_not_the_running_one(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    async with Producer(**settings(pair)) as producer:
        await begin(producer, b"1")
        nothing: Any = producer.prepared_transaction
        with pytest.raises(TypeError, match="prepared=None: expected a PreparedTransaction"):
            await producer.complete_transaction(nothing)
        assert transactions.of("x").committed == []


@pytest.mark.parametrize("commit", [True, False])
async def test_a_producer_finds_what_was_prepared_before_it(
    pair: FakeCluster, transactions: FakeTransactions, commit: bool
) -> None:
    prepared = await prepare(pair)
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
    producer: Producer, transactions: FakeTransactions
) -> None:
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


async def test_where_nothing_may_be_prepared_the_error_names_the_setting(
    pair: FakeCluster, transactions: FakeTransactions
) -> None:
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    async with Producer(**settings(pair)) as producer:
        await begin(producer, b"1")
        transactions.fail(ApiKey.PREPARE_TXN, refused)
        with pytest.raises(ApiError, match=r"transaction\.two\.phase\.commit\.enable=true"):
            await producer.prepare_transaction()
        # The transaction is open as before.
        await producer.send("t", b"2", partition=0)
        await producer.commit_transaction()
        assert transactions.of("x").committed == [{b"1", b"2"}]
    transactions.fail(ApiKey.INIT_PRODUCER_ID, refused)
    with pytest.raises(ApiError, match=r"transaction\.two\.phase\.commit\.enable=true"):
        await Producer(**settings(pair), keep_prepared=True).start()


@pytest.mark.parametrize("commit", [True, False])
async def test_what_apache_kafka_cannot_prepare_is_still_open(
    pair: FakeCluster, old: FakeTransactions, commit: bool
) -> None:
    async with Producer(**settings(pair, wire="kafka")) as producer:
        await begin(producer, b"1")
        with pytest.raises(UnsupportedVersionError):
            await producer.prepare_transaction()
        assert producer.prepared_transaction is None
        await (producer.commit_transaction() if commit else producer.abort_transaction())
        ended = old.of("x").committed if commit else old.of("x").aborted
        assert ended == [{b"1"}]


async def test_kafkas_protocol_keeps_no_prepared_transaction(pair: FakeCluster) -> None:
    producer = Producer(**settings(pair, wire="kafka", keep_prepared=True))
    with pytest.raises(InvalidConfiguration, match=r"keep_prepared=True: expected brokers of .*KIP-939"):
        await producer.start()
