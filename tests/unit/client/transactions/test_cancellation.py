"""A task that is cancelled in a transaction leaves it committed or aborted as a whole."""

import asyncio

import pytest

from barnabas.client import client as lifecycle
from barnabas.client.errors import IllegalTransactionState, TransactionAbortable
from barnabas.client.producer.producer import Producer
from barnabas.client.producer.transactions import State
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster
from tests.support.producer_transactions import FakeTransactions
from tests.support.transactional_writes import T0, begin, check_usable, write
from tests.support.waiting import DEADLINE_S, until


async def cancel_after(task: asyncio.Task[None], steps: int) -> bool:
    """Cancel the task after that many turns of the event loop, and wait; True if it was done before."""
    for _ in range(steps):
        await asyncio.sleep(0)
    was_done = task.done()
    task.cancel()
    await asyncio.wait((task,))
    return was_done


@pytest.mark.parametrize("steps", range(0, 120, 3))
async def test_a_block_that_is_cancelled_anywhere_is_committed_or_aborted_as_a_whole(
    producer: Producer, transactions: FakeTransactions, steps: int
) -> None:
    await check_usable(producer, transactions)

    async def work() -> None:
        async with producer.transaction():
            await write(producer, b"1", b"2", b"3")
            await producer.send_offsets_to_transaction({T0: 7}, "g")

    task = asyncio.create_task(work())
    was_done = await cancel_after(task, steps)
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
    producer: Producer, transactions: FakeTransactions, steps: int
) -> None:
    await begin(producer, b"1", b"2")
    task = asyncio.create_task(producer.commit_transaction())
    was_done = await cancel_after(task, steps)
    assert task.cancelled() or was_done
    if not transactions.of("x").committed:
        try:
            await producer.commit_transaction()
        except IllegalTransactionState:
            # The commit went on without its caller, and has just ended.
            assert transactions.of("x").committed
    await until(lambda: producer._session and producer._session.machine.state is State.READY)
    await check_usable(producer, transactions)
    assert transactions.of("x").committed == [{b"1", b"2"}, {b"again 1", b"again 2"}]
    assert transactions.of("x").aborted == []


async def test_a_second_cancellation_does_not_wait_for_the_abort(
    producer: Producer, pair: FakeCluster, transactions: FakeTransactions
) -> None:
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


async def test_a_cancelled_block_waits_for_its_abort_no_longer_than_a_program_may_take_to_end(
    producer: Producer, pair: FakeCluster, transactions: FakeTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_AFTER_ERROR_S", 0.02)
    gates = [broker.gate(ApiKey.END_TXN) for broker in pair.brokers.values()]

    async def work() -> None:
        async with producer.transaction():
            await write(producer, b"1")
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await until(lambda: transactions.of("x").records)
    task.cancel()
    await asyncio.wait((task,), timeout=DEADLINE_S / 2)
    assert task.cancelled()
    for gate in gates:
        gate.set()
    await check_usable(producer, transactions)
    assert transactions.of("x").aborted == [{b"1"}]


async def test_cancelled_offsets_make_the_transaction_abortable(
    producer: Producer, pair: FakeCluster, transactions: FakeTransactions
) -> None:
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
