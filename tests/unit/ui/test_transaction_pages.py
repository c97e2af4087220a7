"""The pages of transactions against brokers with scripted answers."""

import html
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pytest

from barnabas.client.admin.admin import Admin
from barnabas.client.admin.transactions import TransactionListing
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.schema import ApiKey
from barnabas.ui.app import make_app
from barnabas.ui.context import Context
from barnabas.ui.transactions import MAX_TRANSACTIONS, losses_of, note_of, transactions_now
from tests.support.admins import quick_admin
from tests.support.asgi import get, post
from tests.support.fake_broker import FakeCluster
from tests.support.operator_answers import Transactions, active

T0 = TopicPartition("t", 0)
HOUR_MS = 3_600_000
BAD = "<script>alert(1)</script>-1"


class Pages(NamedTuple):
    transactions: Transactions
    admin: Admin
    app: Any


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    async with FakeCluster(2) as cluster, quick_admin(cluster) as admin:
        cluster.add_topic("t", leaders=[1])
        context = Context(admin=admin, bootstrap=cluster.bootstrap, settings={})
        yield Pages(Transactions(cluster), admin, make_app(context))


async def test_open_transactions_are_shown_by_urgency(pages: Pages) -> None:
    transactions = pages.transactions
    transactions.add(BAD, 1, "Ongoing", 0)
    transactions.add("prepared-2", 2, "Ongoing", is_prepared=True)
    transactions.add("idle-2", 3, "CompleteCommit")
    now = await transactions_now(pages.admin)
    assert list(now["transactions"]) == ["prepared-2", BAD]
    assert now["transactions"][BAD]["holds_back"] == [{"partition": "t-0", "records": 0}]
    assert now["transactions_note"] == "Not open: 1 CompleteCommit."
    page = await get(pages.app, "transactions")
    assert "Ongoing, prepared" in page.text
    assert "<script>alert" not in page.text
    assert f"transaction?id={quote(BAD, safe='/')}" in page.text
    # Each coordinator gets one request for all its ids.
    assert len(transactions.cluster.requests(ApiKey.DESCRIBE_TRANSACTIONS)) == 4


@pytest.mark.parametrize(
    ("name", "how", "api", "said"),
    [
        (
            "open-1",
            "abort",
            ApiKey.INIT_PRODUCER_ID,
            "open-1 is aborted, its producer is fenced.",
        ),
        ("prepared-1", "abort", ApiKey.END_TXN, "The transaction of prepared-1 is aborted."),
        ("prepared-1", "commit", ApiKey.END_TXN, "The transaction of prepared-1 is committed."),
        ("open-1", "commit", None, "Nothing was changed: INVALID_TXN_STATE"),
        (
            "ended-1",
            "abort",
            None,
            "Nothing was changed: INVALID_TXN_STATE: no transaction of ended-1 is open",
        ),
        ("nosuch-1", "abort", None, "Nothing was changed: TRANSACTIONAL_ID_NOT_FOUND"),
        ("open-1", "rollback", None, "Nothing was changed: outcome 'rollback': expected commit or abort"),
    ],
)
async def test_a_transaction_is_ended_after_a_page_that_says_what_is_lost(
    name: str, how: str, api: ApiKey | None, said: str, pages: Pages
) -> None:
    pages.transactions.add("open-1", 1, "Ongoing", 0)
    pages.transactions.add("prepared-1", 1, "Ongoing", 0, is_prepared=True)
    pages.transactions.add("ended-1", 1, "CompleteAbort")
    confirm = await get(pages.app, f"transaction?id={name}")
    can_end = name in ("open-1", "prepared-1")
    assert ("never read by a read_committed consumer" in confirm.text) == can_end
    assert ("Abort the transaction" in confirm.text) == can_end
    assert ("Commit the transaction" in confirm.text) == (name == "prepared-1")
    answer = await post(pages.app, "end-transaction", id=name, outcome=how)
    status = 303 if api is not None else 404 if name == "nosuch-1" else 400 if how == "rollback" else 409
    assert answer.status == status
    assert said in (unquote(answer.location) if status == 303 else html.unescape(answer.text))
    ends = {
        api: len(pages.transactions.cluster.requests(api))
        for api in (ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID)
    }
    assert [ended for ended, requests in ends.items() if requests] == ([] if api is None else [api])


async def test_hanging_transactions_are_found_on_demand_and_aborted(pages: Pages) -> None:
    pages.transactions.producers = {T0: [active(7, 10, age_ms=HOUR_MS)]}
    assert "Look for them" in (await get(pages.app, "transactions")).text
    page = await get(pages.app, "transactions?hanging=1")
    assert "hanging-transaction?topic=t&amp;partition=0&amp;start=10" in page.text
    assert (
        "begins at offset 10"
        in (await get(pages.app, "hanging-transaction?topic=t&partition=0&start=10")).text
    )
    wrong = await post(pages.app, "abort-hanging", topic="t", partition="0", start="x")
    assert wrong.status == 400
    assert "start 'x': expected a whole number" in html.unescape(wrong.text)
    answer = await post(pages.app, "abort-hanging", topic="t", partition="0", start="10")
    assert "begins at offset 10 of t-0 is aborted there" in unquote(answer.location)
    (sent,) = pages.transactions.cluster.requests(ApiKey.WRITE_TXN_MARKERS)
    assert sent.markers[0].producer_id == 7


def test_the_note_counts_what_is_not_shown() -> None:
    open_ones = MAX_TRANSACTIONS + 1
    states = ["Ongoing"] * open_ones + ["Empty"] * 1200 + ["CompleteAbort"]
    assert note_of(states, open_ones) == (
        "The first 1,000 of 1,001 open ones, by name. Not open: 1 CompleteAbort, 1,200 Empty."
    )
    assert note_of(["Ongoing"], 1) == ""


def test_an_abort_of_committed_offsets_reads_the_input_again() -> None:
    held = [{"partition": "__consumer_offsets-3", "records": 1}]
    losses = losses_of({"holds_back": held, "is_prepared": True})
    assert losses[0].startswith("The group offsets that it commits are dropped")
    assert len(losses) == 2


def test_a_listing_names_its_coordinator() -> None:
    assert TransactionListing("a", BrokerId(1), 1, "Empty").coordinator == 1


async def test_a_partition_without_a_leader_keeps_no_other_waiting(pages: Pages) -> None:
    pages.transactions.add("open-1", 1, "Ongoing", 0, 7)
    page = await get(pages.app, "transactions")
    assert "did not answer" not in page.text
    assert re.search(r'"Holds back">t-0: 0 </td>', page.text)
