"""The pages of groups, and the reset of offsets with its dry run, against brokers in the test's own loop."""

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pytest

from barnabas.client.admin.admin import Admin
from barnabas.client.admin.offset_reset import PlannedOffset
from barnabas.client.consumer.consumer import Consumer
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import ListedGroup, ListGroupsResponse
from barnabas.protocol.schema import ApiKey
from barnabas.ui.app import make_app
from barnabas.ui.context import Context
from barnabas.ui.groups import MAX_GROUPS, Shown, changes_since, effect_of, groups_now, shown_plan, start_of
from tests.support.admins import quick_admin
from tests.support.asgi import Answer, get, post
from tests.support.batches import build_batch
from tests.support.fake_broker import FakeBroker, FakeCluster

T0 = TopicPartition("t", 0)
BAD = '"><script>alert(1)</script>'


class Pages(NamedTuple):
    cluster: FakeCluster
    admin: Admin
    app: Any


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    async with FakeCluster() as cluster, quick_admin(cluster) as admin:
        cluster.add_topic("t", 2)
        cluster.partition("t", 0).append(build_batch([(None, b"v")] * 20))
        await admin.alter_group_offsets("g", {T0: 15})
        context = Context(admin=admin, bootstrap=cluster.bootstrap, settings={})
        yield Pages(cluster, admin, make_app(context))


def field(page: Answer, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page.text)
    assert found, page.text
    return html.unescape(found[1])


def told(answer: Answer) -> str:
    """The sentence that a change redirects to."""
    assert answer.status == 303
    return unquote(answer.location.rpartition("outcome=")[2])


async def test_the_button_of_a_reset_does_what_its_dry_run_showed(pages: Pages) -> None:
    page = await get(pages.app, "group?id=g&to=shift&value=-10")
    assert "10 records redelivered" in page.text
    pages.cluster.partition("t", 0).append(build_batch([(None, b"v")]))
    plan = {"id": "g", "plan": field(page, "plan")}
    answer = await post(pages.app, "reset-offsets", **plan)
    assert told(answer) == "The offsets of 1 partition are set as the dry run showed."
    assert answer.location.startswith("group?id=g&")
    committed = (await pages.admin.group_offsets("g"))[T0]
    assert committed is not None
    assert committed.offset == 5
    again = await post(pages.app, "reset-offsets", **plan)
    assert again.status == 409
    assert "Nothing was changed: since the dry run the committed offset of t-0 was 15 and is 5" in again.text
    assert '<a href="group?id=g">Back</a>' in again.text
    by_script = await post(pages.app, "reset-offsets", accept="application/json", **plan)
    assert by_script.status == 409
    assert json.loads(by_script.body)["error"].startswith("Nothing was changed: since the dry run")


async def test_a_group_with_members_is_shown_but_not_reset(pages: Pages) -> None:
    settings: Any = {"bootstrap_servers": pages.cluster.bootstrap, "client_id": BAD}
    async with Consumer(**settings, group_id=BAD) as consumer:
        consumer.subscribe(["t"])
        async with asyncio.timeout(30):
            while not consumer.assignment():
                await consumer.poll(timeout_ms=100)
        await consumer.commit({T0: 3})
        everything = await get(pages.app, "groups")
        one = await get(pages.app, f"group?id={quote(BAD)}&to=earliest")
        now = await groups_now(pages.admin)
        refused = await post(pages.app, "reset-offsets", id=BAD, plan='[["t", 0, 3, 0]]')
    for page in (everything, one):
        assert "<script>alert" not in page.text
    assert "1 member, which commit offsets of their own: stop them first" in one.text
    assert "Apply exactly" not in one.text
    assert refused.status == 409
    assert "stop them first" in refused.text
    group = now["groups"][BAD]
    assert [member["assignment"] for member in group["members"]] == [["t-0", "t-1"]]
    assert (group["partitions"]["t-0"]["lag"], group["lag"]) == (17, 17)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("id=nosuch", "there is no group"),
        ("id=", "outcome bad"),
        ("id=g&to=offset&value=x", "offset 'x': expected a whole number"),
        ("id=g&to=offset&value=-1", "offset '-1': expected a whole number from 0"),
        ("id=g&to=shift&value=" + "9" * 5000, "9…': expected a whole number"),
        ("id=g&to=latest&topics=t:" + "9" * 5000, "expected partitions from 0 to 1"),
        ("id=g&to=datetime&value=soon", "expected a time"),
        ("id=g&to=sideways", "expected one of earliest"),
        ("id=g&to=latest&topics=nosuch", "there is no topic"),
        ("id=g&to=shift&value=1&topics=t:1", "has committed no offsets there"),
    ],
)
async def test_a_wrong_input_is_a_sentence_in_the_page(query: str, said: str, pages: Pages) -> None:
    page = await get(pages.app, f"group?{query}")
    assert page.status == 200
    assert said in html.unescape(page.text)


async def test_a_refusal_of_the_broker_is_a_sentence_in_the_page(pages: Pages) -> None:
    def refuse(broker: FakeBroker, body: Any) -> ListGroupsResponse:
        return ListGroupsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, groups=[])

    pages.cluster.intercept[ApiKey.LIST_GROUPS] = refuse
    page = await get(pages.app, "groups")
    assert page.status == 200
    assert "CLUSTER_AUTHORIZATION_FAILED" in page.text


async def test_more_groups_than_the_limit_are_counted(pages: Pages) -> None:
    def many(broker: FakeBroker, body: Any) -> ListGroupsResponse:
        names = ["g", *(f"x-{number}" for number in range(MAX_GROUPS + 200))]
        return ListGroupsResponse(groups=[ListedGroup(group_id=name, protocol_type="") for name in names])

    pages.cluster.intercept[ApiKey.LIST_GROUPS] = many
    now = await groups_now(pages.admin)
    said = "the first 500 of 701 groups, by name; 499 groups could not be described"
    assert now["groups"].keys() == {"g"}
    assert now["groups_note"].startswith(said)
    assert len(pages.cluster.requests(ApiKey.DESCRIBE_GROUPS)) == 3


def test_a_plan_is_compared_with_the_present() -> None:
    def shown(before: int | None, after: int) -> list[Shown]:
        return [Shown(T0, before, after)]

    now = [PlannedOffset(T0, 15, 10, 10, 10, 20)]
    assert changes_since(shown(15, 10), now) == []
    assert changes_since(shown(None, 10), now) == ["the committed offset of t-0 was None and is 15"]
    assert changes_since(shown(15, 3), now) == ["t-0 has only offsets 10 to 20 now, not 3"]
    assert changes_since(shown(15, 10), []) == ["there is no partition t-0 any more"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "[1]",
        '[["t", 0, 1]]',
        '[["\\ud800", 0, null, 1]]',
        '[["t", "0", 1, 2]]',
        "[[1, 0, 1, 2]]",
        "[" * 99_999,
    ],
)
def test_a_plan_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="open the dry run again"):
        shown_plan(text)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (None, 12, "8 records to read"),
        (15, 15, "unchanged"),
        (15, 20, "5 records skipped"),
        (4, 12, "8 records skipped, 6 records of them deleted already"),
        (15, 10, "5 records redelivered"),
        (99, 20, "from an offset beyond the end; 0 records to read"),
    ],
)
def test_the_effect_of_a_reset_is_told_in_records(before: int | None, after: int, said: str) -> None:
    assert effect_of(PlannedOffset(T0, before, after, after, 10, 20)) == said


def test_a_start_has_a_kind_and_a_value() -> None:
    assert start_of("earliest", "") == "earliest"
    assert start_of("datetime", " 1970-01-01T00:00:01 ") == 1000
