"""Transactions with the protocol before transaction.version 2, and the choice between both."""

import pytest

from barnabas.client.errors import ErrorCode, TransactionAbortable, TransactionAborted
from barnabas.client.producer.producer import Producer
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.producer_transactions import LOST, UNREAD, FakeTransactions
from tests.support.transactional_writes import check_usable, settings, use_every_api
from tests.support.waiting import until


async def test_partitions_that_cannot_be_added_in_time_fail_the_transaction(
    pair: FakeCluster, old: FakeTransactions
) -> None:
    async with Producer(**settings(pair, wire="kafka", max_block_ms=500)) as producer:
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
    # Both transactions have the same epoch, and the sequences continue.
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


async def test_the_transaction_after_a_batch_was_dropped_has_a_new_epoch(
    pair: FakeCluster, old: FakeTransactions
) -> None:
    """The next batch would leave a gap, or pass for a copy of the dropped one, which was written."""
    async with Producer(**settings(pair, wire="kafka")) as producer:
        old.fail(ApiKey.PRODUCE, LOST, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1_000)
        await producer.begin_transaction()
        dropped = await producer.send("t", b"1", partition=0)
        await until(lambda: "PRODUCE" in old.calls)
        await producer.abort_transaction()
        old.faults.clear()
        with pytest.raises(TransactionAborted):
            await dropped
        await check_usable(producer, old)
    assert len(pair.requests(ApiKey.INIT_PRODUCER_ID)) == 2


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
