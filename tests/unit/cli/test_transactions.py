"""`barnabas transactions` against brokers with scripted answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError, exit_code_of
from barnabas.cli.main import build_parser
from barnabas.client.errors import ApiError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeBroker, FakeCluster
from tests.support.operator_answers import Transactions, active

T0 = TopicPartition("t", 0)
HOUR_MS = 3_600_000


@pytest.fixture
async def transactions() -> AsyncIterator[Transactions]:
    async with FakeCluster(2) as cluster:
        cluster.add_topic("t", leaders=[1])
        yield Transactions(cluster)


async def run(transactions: Transactions, *words: str) -> int:
    options = build_parser("transactions").parse_args(
        ["transactions", *words, "-b", transactions.cluster.bootstrap]
    )
    code: int = await asyncio.to_thread(options.run, options)
    return code


async def printed(transactions: Transactions, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert await run(transactions, *words, "--json") == OK
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "action", [["describe-producers"], ["abort", "--start-offset", "0"], ["find-hanging"]]
)
async def test_a_topic_that_does_not_exist_is_not_waited_for(
    transactions: Transactions, action: list[str]
) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(ApiError, match="there is no topic 'nosuch'") as refused:
            await run(transactions, *action, "--topic", "nosuch", "--partition", "0")
    assert exit_code_of(refused.value) == NOT_FOUND


async def test_prepared_transactions_are_listed_first_and_the_oldest_on_top(
    transactions: Transactions, capsys: pytest.CaptureFixture[str]
) -> None:
    transactions.add("open-1", 1, "Ongoing", 0)
    transactions.add("young-1", 2, "Ongoing", 0, is_prepared=True)
    transactions.add("old-2", 3, "Ongoing", 0, is_prepared=True)
    transactions.add("idle-2", 4, "CompleteCommit")
    transactions.described["old-2"].transaction_start_time_ms = 500
    rows = await printed(transactions, capsys, "list")
    assert [row["transactional_id"] for row in rows] == ["old-2", "young-1", "idle-2", "open-1"]
    assert rows[0]["age_ms"] - rows[1]["age_ms"] == 500
    assert rows[2] == {
        "transactional_id": "idle-2",
        "coordinator": 2,
        "producer_id": 4,
        "state": "CompleteCommit",
        "is_prepared": False,
        "age_ms": None,
    }
    rows = await printed(transactions, capsys, "list", "--prepared")
    assert [row["transactional_id"] for row in rows] == ["old-2", "young-1"]
    assert await run(transactions, "list", "--state", "completecommit", "--producer-id", "4") == OK
    table = capsys.readouterr().out
    assert "idle-2" in table
    assert "old-2" not in table
    assert await run(transactions, "list") == OK
    assert "Ongoing, prepared" in capsys.readouterr().out
    sent = transactions.cluster.requests(ApiKey.LIST_TRANSACTIONS)
    assert (["CompleteCommit"], [4]) in [
        (request.state_filters, request.producer_id_filters) for request in sent
    ]


async def test_a_list_during_a_move_of_a_coordinator_fails(transactions: Transactions) -> None:
    """A row without its state would hide a prepared transaction from `--prepared`."""
    transactions.add("a-1", 1, "Ongoing", 0, is_prepared=True)
    describe = transactions.describe

    def moved(broker: FakeBroker, body: Any) -> Any:
        transactions.moved_to = 2
        return describe(broker, body)

    transactions.cluster.intercept[ApiKey.DESCRIBE_TRANSACTIONS] = moved
    with pytest.raises(ApiError, match="NOT_COORDINATOR"):
        await run(transactions, "list", "--prepared")


async def test_a_transaction_is_described(
    transactions: Transactions, capsys: pytest.CaptureFixture[str]
) -> None:
    transactions.add("open-1", 1, "Ongoing", 0, 2)
    (row,) = await printed(transactions, capsys, "describe", "open-1")
    assert (row["partitions"], row["producer_epoch"], row["timeout_ms"]) == (["t-0", "t-2"], 5, 60_000)
    assert await run(transactions, "describe", "open-1") == OK
    assert "1970-01-01T00:00:01.000Z" in capsys.readouterr().out
    with pytest.raises(ApiError) as failure:
        await run(transactions, "describe", "no-1")
    assert exit_code_of(failure.value) == NOT_FOUND


async def test_the_producers_of_a_partition_are_shown(
    transactions: Transactions, capsys: pytest.CaptureFixture[str]
) -> None:
    transactions.producers = {T0: [active(7, 10), active(8)]}
    place = ("--topic", "t", "--partition", "0")
    rows = await printed(transactions, capsys, "describe-producers", *place)
    assert [(row["producer_id"], row["transaction_start_offset"]) for row in rows] == [(7, 10), (8, None)]
    transactions.producers = {}
    assert await run(transactions, "describe-producers", *place) == OK
    assert capsys.readouterr().out == "no producers of t-0\n"


async def test_hanging_transactions_are_found_and_aborted(
    transactions: Transactions, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run(transactions, "find-hanging") == OK
    assert capsys.readouterr().out == "no hanging transactions\n"
    transactions.producers = {T0: [active(7, 10, age_ms=HOUR_MS)]}
    for scope in ((), ("--topic", "t"), ("--topic", "t", "--partition", "0"), ("--broker-id", "1")):
        assert await run(transactions, "find-hanging", *scope, "--json") == FAILED
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["topic"], row["partition"], row["transaction_start_offset"]) == ("t", 0, 10)
        assert row["silent_for_ms"] >= HOUR_MS
    assert await run(transactions, "find-hanging", "--max-transaction-timeout", "61") == OK
    assert await run(transactions, "find-hanging") == FAILED
    assert "1h 0min" in capsys.readouterr().out
    place = ("--topic", "t", "--partition", "0")
    assert await run(transactions, "abort", *place, "--start-offset", "10") == OK
    assert capsys.readouterr().out == "aborted in t-0\n"
    assert (
        await run(transactions, "abort", *place, "--producer-id", "9", "--producer-epoch", "3", "--json")
        == OK
    )
    sent = [request.markers[0] for request in transactions.cluster.requests(ApiKey.WRITE_TXN_MARKERS)]
    assert [(marker.producer_id, marker.producer_epoch) for marker in sent] == [(7, 2), (9, 3)]


@pytest.mark.parametrize(
    "words",
    [
        ("find-hanging", "--partition", "0"),
        ("abort", "--topic", "t", "--partition", "0"),
        ("abort", "--topic", "t", "--partition", "0", "--producer-id", "1"),
        ("abort", "--topic", "t", "--partition", "0", "--start-offset", "1", "--producer-id", "1"),
    ],
)
async def test_incomplete_options_are_wrong_usage(words: tuple[str, ...], transactions: Transactions) -> None:
    with pytest.raises(CommandError, match="expected") as refused:
        await run(transactions, *words)
    assert refused.value.exit_code == USAGE


@pytest.mark.parametrize(
    "words",
    [("complete", "a-1"), ("complete", "a-1", "--commit", "--abort"), ("list", "--state", "Ongoin"), ()],
)
def test_other_options_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as refused:
        build_parser("transactions").parse_args(["transactions", *words])
    assert refused.value.code == USAGE


@pytest.mark.parametrize("outcome", ["commit", "abort"])
async def test_a_prepared_transaction_is_completed(
    outcome: str, transactions: Transactions, capsys: pytest.CaptureFixture[str]
) -> None:
    transactions.add("a-1", 7, "Ongoing", 0, is_prepared=True)
    shown = await printed(transactions, capsys, "complete", "a-1", f"--{outcome}")
    assert shown == {"transactional_id": "a-1", "outcome": "committed" if outcome == "commit" else "aborted"}
    (end,) = transactions.cluster.requests(ApiKey.END_TXN)
    assert end.committed is (outcome == "commit")


async def test_an_id_is_terminated_only_if_it_exists(
    transactions: Transactions, capsys: pytest.CaptureFixture[str]
) -> None:
    transactions.add("a-1", 7, "Ongoing", 0)
    shown = await printed(transactions, capsys, "force-terminate", "a-1")
    assert shown == {"transactional_id": "a-1", "producer_id": 77, "producer_epoch": 3}
    with pytest.raises(ApiError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        await run(transactions, "force-terminate", "b-1")
    assert len(transactions.cluster.requests(ApiKey.INIT_PRODUCER_ID)) == 1
