"""Transactions as operators ask about them, against brokers with scripted answers."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from barnabas.client.admin.admin import Admin
from barnabas.client.admin.transactions import (
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
    hanging_transactions,
    silent_transactions,
)
from barnabas.client.errors import ApiError, ConnectionClosed, ErrorCode, InvalidConfiguration
from barnabas.client.producer.transactions import PreparedTransaction
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.describe_transactions import (
    DescribedTransaction,
    DescribeProducersPartitionResponse,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    DescribeTransactionsResponse,
    ListTransactionsResponse,
)
from barnabas.protocol.schema import ApiKey
from tests.support.admins import quick_admin
from tests.support.fake_broker import FakeCluster
from tests.support.operator_answers import Transactions, active

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def transactions() -> AsyncIterator[Transactions]:
    """Two brokers that each lead one partition of the topic "t"."""
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", leaders=[1, 2])
        yield Transactions(cluster)


def connected(transactions: Transactions, **settings: Any) -> Admin:
    return quick_admin(transactions.cluster, **settings)


async def test_the_transactions_of_all_coordinators_are_listed_by_name(transactions: Transactions) -> None:
    transactions.add("b-1", 7, "Ongoing", 0)
    transactions.add("a-2", 8, "Empty")
    async with connected(transactions) as admin:
        assert await admin.list_transactions() == [
            TransactionListing("a-2", BrokerId(2), 8, "Empty"),
            TransactionListing("b-1", BrokerId(1), 7, "Ongoing"),
        ]
        found = await admin.list_transactions(states=["Ongoing"], producer_ids=[7, 9], duration_ms=500)
        assert [listing.transactional_id for listing in found] == ["b-1"]
        sent = transactions.cluster.requests(ApiKey.LIST_TRANSACTIONS)[-1]
        assert (sent.state_filters, sent.producer_id_filters, sent.duration_filter) == (
            ["Ongoing"],
            [7, 9],
            500,
        )
        with pytest.raises(InvalidConfiguration, match=r"state 'Ongoin': expected one of Empty, Ongoing"):
            await admin.list_transactions(states=["Ongoin"])


async def test_a_coordinator_that_loads_is_asked_again(transactions: Transactions) -> None:
    transactions.add("a-1", 7, "Ongoing", 0)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker = transactions.cluster.brokers[1]
    broker.script(ApiKey.LIST_TRANSACTIONS, lambda body: ListTransactionsResponse(error_code=loading))
    broker.script(
        ApiKey.DESCRIBE_TRANSACTIONS,
        lambda body: DescribeTransactionsResponse(
            transaction_states=[DescribedTransaction(transactional_id="a-1", error_code=loading)]
        ),
    )
    async with connected(transactions) as admin:
        assert len(await admin.list_transactions()) == 1
        assert (await admin.describe_transactions("a-1"))["a-1"].producer_id == 7


async def test_a_description_follows_the_coordinator(transactions: Transactions) -> None:
    transactions.add("a-1", 7, "Ongoing", 1, 0, is_prepared=True)
    broker = transactions.cluster.brokers[1]

    def moved(body: Any) -> Any:
        transactions.moved_to = 2
        return transactions.describe(broker, body)

    broker.script(ApiKey.DESCRIBE_TRANSACTIONS, moved)
    async with connected(transactions) as admin:
        found = await admin.describe_transactions(["a-1"])
        assert found == {
            "a-1": TransactionDescription(
                "a-1", BrokerId(2), "Ongoing", 7, 5, 60_000, 1_000, (T0, T1), is_prepared=True
            )
        }
        with pytest.raises(ApiError, match="transactional id 'none-1'") as failure:
            await admin.describe_transactions("none-1")
        assert failure.value.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_the_producers_of_partitions_come_from_their_leaders(transactions: Transactions) -> None:
    producers = [active(9), active(8, 40, coordinator_epoch=-1), active(10, 0, coordinator_epoch=0)]
    transactions.producers = {T0: producers, T1: []}
    transactions.cluster.brokers[2].script(
        ApiKey.DESCRIBE_PRODUCERS,
        lambda body: DescribeProducersResponse(topics=[]),
        lambda body: DescribeProducersResponse(
            topics=[
                DescribeProducersTopicResponse(
                    name="t",
                    partitions=[
                        DescribeProducersPartitionResponse(
                            partition_index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER
                        )
                    ],
                )
            ]
        ),
    )
    async with connected(transactions) as admin:
        with pytest.raises(ApiError, match="the producers of t-1 on broker 2"):
            await admin.describe_producers([T0, T1])
        found = await admin.describe_producers([T0, T1])
        assert [
            (one.producer_id, one.coordinator_epoch, one.transaction_start_offset) for one in found[T0]
        ] == [(8, None, 40), (9, 4, None), (10, 0, 0)]
        assert found[T1] == []
        with pytest.raises(ApiError, match="NOT_LEADER_OR_FOLLOWER"):
            await admin.describe_producers([T0], broker_id=2)
        with pytest.raises(ApiError, match=r"no live broker has the id 9; the live ones are \[1, 2\]"):
            await admin.describe_producers([T0], broker_id=9)


async def test_a_leader_that_is_lost_is_asked_again_for_its_producers(transactions: Transactions) -> None:
    transactions.producers = {T0: [active(9)], T1: [active(8)]}
    leader = transactions.cluster.brokers[2]

    def lose(body: Any) -> Any:
        leader.drop_connections()
        return DescribeProducersResponse(topics=[])

    leader.script(ApiKey.DESCRIBE_PRODUCERS, lose, lose)
    async with connected(transactions) as admin:
        with pytest.raises(ConnectionClosed):
            await admin.describe_producers([T1], broker_id=2)
        found = await admin.describe_producers([T0, T1])
    assert [one.producer_id for tp in (T0, T1) for one in found[tp]] == [9, 8]
    asked = transactions.cluster.requests(ApiKey.DESCRIBE_PRODUCERS)
    assert len(asked) == 4, "once for one broker, once for T0, twice for T1"


async def test_a_transaction_is_aborted_by_its_start_offset(transactions: Transactions) -> None:
    transactions.producers = {T0: [active(8, 40, coordinator_epoch=-1), active(9, 50, coordinator_epoch=6)]}
    async with connected(transactions) as admin:
        await admin.abort_transaction(T0, start_offset=50)
        await admin.abort_transaction(T0, start_offset=40)
        await admin.abort_transaction(T1, producer_id=3, producer_epoch=4, coordinator_epoch=-1)
        sent = [request.markers[0] for request in transactions.cluster.requests(ApiKey.WRITE_TXN_MARKERS)]
        assert [(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) for marker in sent] == [
            (9, 2, 6),
            (8, 2, 0),
            (3, 4, 0),
        ]
        assert not any(marker.transaction_result for marker in sent)
        with pytest.raises(
            ApiError, match=r"of t-0 begins at offset 41; those that are open begin at \[40, 50\]"
        ):
            await admin.abort_transaction(T0, start_offset=41)
        with pytest.raises(ApiError, match="none is open there"):
            await admin.abort_transaction(T1, start_offset=0)
        with pytest.raises(ValueError, match="expected a start_offset"):
            await admin.abort_transaction(T0, producer_id=3)


async def test_an_abort_follows_the_leader(transactions: Transactions) -> None:
    cluster = transactions.cluster

    def moved(body: Any) -> Any:
        cluster.move_leader("t", 0, 2)
        return transactions.write(cluster.brokers[1], body)

    cluster.brokers[1].script(ApiKey.WRITE_TXN_MARKERS, moved)
    async with connected(transactions) as admin:
        await admin.abort_transaction(T0, producer_id=3, producer_epoch=4)
    assert len(cluster.requests(ApiKey.WRITE_TXN_MARKERS)) == 2


async def test_hanging_transactions_are_those_that_no_coordinator_will_end(
    transactions: Transactions,
) -> None:
    hour = 3_600_000
    transactions.producers = {
        T0: [active(7, 10, age_ms=hour), active(8, 20, age_ms=hour), active(9, 30)],
        T1: [active(7, 11, age_ms=hour), active(6, -1, age_ms=hour), active(5, 12, age_ms=hour)],
    }
    transactions.add("known-1", 7, "Ongoing", 1)
    transactions.add("ended-2", 5, "CompleteAbort")
    async with connected(transactions) as admin:
        found = await admin.find_hanging_transactions()
        assert [(entry.partition, entry.producer.producer_id, entry.transactional_id) for entry in found] == [
            (T0, 7, "known-1"),
            (T0, 8, None),
            (T1, 5, "ended-2"),
        ]
        assert [entry.partition for entry in await admin.find_hanging_transactions([T1])] == [T1]
        assert await admin.find_hanging_transactions(max_transaction_timeout_ms=2 * hour) == []
        assert await admin.find_hanging_transactions([T0], broker_id=1) == found[:2]


async def test_a_transaction_that_ends_meanwhile_does_not_hang(transactions: Transactions) -> None:
    hour = 3_600_000
    transactions.producers = {T0: [active(7, 10, age_ms=hour), active(8, 20, age_ms=hour)]}
    transactions.add("ended-1", 7, "CompleteCommit")

    def ended(body: Any) -> Any:
        answer = transactions.describe(transactions.cluster.brokers[1], body)
        transactions.producers = {T0: [active(7, 30), active(8, 20, age_ms=hour)]}
        return answer

    transactions.cluster.brokers[1].script(ApiKey.DESCRIBE_TRANSACTIONS, ended)
    async with connected(transactions) as admin:
        found = await admin.find_hanging_transactions([T0])
        assert [entry.producer.producer_id for entry in found] == [8]


def test_an_id_that_expires_meanwhile_leaves_its_transaction_hanging() -> None:
    producer = ProducerState(7, 0, 0, 100, None, 3)
    assert silent_transactions({T0: [producer]}, 100) == []
    silent = silent_transactions({T0: [producer]}, 101)
    assert silent == [(T0, producer)]
    assert hanging_transactions(silent, {7: "a"}, {"a": None}) == [HangingTransaction(T0, producer, "a")]


async def test_producers_are_fenced(transactions: Transactions) -> None:
    async with connected(transactions) as admin:
        assert await admin.fence_producers(["a-1", "b-2"]) == {"a-1": (77, 3), "b-2": (77, 3)}
    sent = transactions.cluster.requests(ApiKey.INIT_PRODUCER_ID)
    assert {(request.transactional_id, request.producer_id) for request in sent} == {("a-1", -1), ("b-2", -1)}


@pytest.mark.parametrize("commit", [True, False])
async def test_a_prepared_transaction_is_completed_by_anybody(
    commit: bool, transactions: Transactions
) -> None:
    transactions.add("a-1", 7, "Ongoing", 0, is_prepared=True)
    transactions.add("b-1", 8, "Ongoing", 0)
    async with connected(transactions) as admin:
        await admin.complete_transaction("a-1", commit=commit)
        await admin.complete_transaction(PreparedTransaction("c-2", 20, 1), commit=commit)
        with pytest.raises(ApiError, match="'b-1' is not prepared, its state is Ongoing"):
            await admin.complete_transaction("b-1", commit=commit)
        with pytest.raises(ApiError, match="TRANSACTIONAL_ID_NOT_FOUND"):
            await admin.complete_transaction("d-1", commit=commit)
    sent = transactions.cluster.requests(ApiKey.END_TXN)
    assert [(end.transactional_id, end.producer_id, end.producer_epoch, end.committed) for end in sent] == [
        ("a-1", 7, 5, commit),
        ("c-2", 20, 1, commit),
    ]
