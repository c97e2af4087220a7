"""The pages of records by both protocols, of groups, transactions and settings, over real brokers."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pytest

from barnabas.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from barnabas.deploy.local import LocalCluster
from barnabas.ui.app import make_app
from barnabas.ui.context import Context
from tests.support.asgi import Answer, get, post
from tests.support.names import fresh_name
from tests.support.waiting import until

from .isolation import TOPIC, Writers, read_decided_and_open_transactions

STATES: Final = {
    **{0: ["aborted"], 1: ["aborted"], 2: ["committed"], 3: [], 4: ["committed"]},
    **{7: ["committed"], 9: ["open"], 10: ["held back"]},
}
"""By offset, without the markers, of the history of `isolation.py`."""


async def test_marks_search_download_and_produce(shared_cluster: LocalCluster) -> None:
    bootstrap = shared_cluster.bootstrap
    async with Writers(bootstrap, "native") as writers:
        await read_decided_and_open_transactions(writers)
        for wire in ("native", "kafka"):
            async with Admin(bootstrap_servers=bootstrap, wire=wire) as admin:
                app = make_app(Context(admin=admin, bootstrap=bootstrap, settings={"wire": wire}))
                page = await get(app, f"messages?topic={TOPIC}&from=earliest&to=offset:11")
                states = {
                    int(offset): re.findall(r'class="state"[^>]*>([^<]*)<', row)
                    for offset, row in re.findall(r'&amp;offset=(\d+)"(.*?)</tr>', page.text, re.DOTALL)
                }
                assert sorted(map(str, states.values())) == sorted(map(str, STATES.values())), states
                found = await get(app, f"messages?topic={TOPIC}&from=earliest&value=p1")
                assert "1 match" in found.text
                written = await post(app, "produce", topic=TOPIC, partition="0", key=wire, value="new")
                assert written.status == 303, written.text
                lines = (await get(app, f"messages.jsonl?topic={TOPIC}&from=earliest&key={wire}")).body
                assert lines.count(b'"value": "new"') == 1


class Pages(NamedTuple):
    app: Any
    admin: Admin
    topic: str
    settings: dict[str, Any]


@pytest.fixture
async def pages(shared_cluster: LocalCluster) -> AsyncIterator[Pages]:
    """The pages of the cluster, with a new topic of one partition."""
    settings: dict[str, Any] = {"bootstrap_servers": shared_cluster.bootstrap}
    async with Admin(**settings) as admin:
        topic = fresh_name("pages")
        await admin.create_topics(NewTopic(topic, 1, 3))
        context = Context(admin=admin, bootstrap=shared_cluster.bootstrap, settings={})
        yield Pages(make_app(context), admin, topic, settings)


def told(answer: Answer) -> str:
    """The sentence that a change redirects to."""
    assert answer.status == 303, answer.text
    return unquote(answer.location.rpartition("outcome=")[2])


def field(page: Answer, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page.text)
    assert found, page.text
    return html.unescape(found[1])


def cells(page: Answer, title: str) -> list[str]:
    return re.findall(rf'<td data-title="{title}">([^<]*)</td>', page.text)


async def write(settings: dict[str, Any], topic: str, records: int) -> None:
    async with Producer(**settings) as producer:
        for number in range(records):
            await producer.send(topic, b"%d" % number, partition=0)


async def test_a_group_is_reset_as_shown_once_its_members_have_left(pages: Pages) -> None:
    app, admin, topic, settings = pages
    tp, group = TopicPartition(topic, 0), fresh_name("group")
    await write(settings, topic, 10)
    dry_run = f"group?id={group}&to=offset&value=2"
    reader = {**settings, "client_id": "reader", "enable_auto_commit": False}
    async with Consumer(**reader, group_id=group) as consumer:
        consumer.subscribe([topic])

        async def is_assigned() -> bool:
            await consumer.poll(timeout_ms=50)
            return bool(consumer.assignment())

        await until(is_assigned)
        await consumer.commit({tp: 7})
        page = await get(app, dry_run)
        assert cells(page, "Assignment") == [f"{topic}-0"]
        assert (cells(page, "Lag"), cells(page, "Client")) == (["3"], ["reader"])
        assert (cells(page, "New"), cells(page, "Records")) == (["2"], ["5 records redelivered"])
        assert "Apply exactly this" not in page.text
        plan = f'[["{topic}", 0, 7, 2]]'
        refused = await post(app, "reset-offsets", id=group, plan=plan)
        assert (refused.status, "stop them first" in refused.text) == (409, True)
    page = await get(app, dry_run)
    assert "No members." in page.text
    assert "Apply exactly this" in page.text
    plan = field(page, "plan")
    await admin.alter_group_offsets(group, {tp: 8})
    moved = await post(app, "reset-offsets", id=group, plan=plan)
    assert f"the committed offset of {topic}-0 was 7 and is 8" in moved.text
    plan = field(await get(app, dry_run), "plan")
    done = told(await post(app, "reset-offsets", id=group, plan=plan))
    assert done == "The offsets of 1 partition are set as the dry run showed."
    committed = (await admin.group_offsets(group))[tp]
    assert committed is not None
    assert committed.offset == 2


@pytest.mark.parametrize("how", ["abort", "prepared"])
async def test_a_transaction_is_ended_and_its_lso_moves(how: str, pages: Pages) -> None:
    app, admin, topic, settings = pages
    tp, name = TopicPartition(topic, 0), fresh_name("transaction")

    async def stable() -> int:
        return (await admin.list_offsets({tp: "latest"}, isolation_level="read_committed"))[tp].offset

    producer = Producer(**settings, transactional_id=name)
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send(topic, b"held", partition=0)
        await producer.flush()
        await write(settings, topic, 4)
        is_prepared = how == "prepared"
        if is_prepared:
            await producer.prepare_transaction()
        rows = (await get(app, "transactions")).text.split("<tr>")
        (row,) = [row for row in rows if f">{name}</th>" in row]
        assert f"{topic}-0: 5 " in row
        assert (", prepared</td>" in row) == is_prepared
        assert await stable() == 0
        end = await post(app, "end-transaction", id=name, outcome="commit" if is_prepared else "abort")
        assert told(end).startswith(
            f"The transaction of {name} is {'committed' if is_prepared else 'aborted'}"
        )

        async def has_moved() -> bool:
            return await stable() == 6

        await until(has_moved)
        assert f">{name}</th>" not in (await get(app, "transactions")).text
    finally:
        await producer.close()
    isolated = {**settings, "isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    async with Consumer(**isolated) as consumer:
        consumer.assign([tp])
        values = []
        while await consumer.position(tp) < 6:
            values += [record.value for record in await consumer.poll()]
    assert values == [b"held"] * is_prepared + [b"0", b"1", b"2", b"3"]


async def test_a_setting_is_changed_and_reset(pages: Pages) -> None:
    app, admin, _, _ = pages
    topic = fresh_name("made")
    await admin.create_topics(NewTopic(topic, 2, configs={"cleanup.policy": "compact"}))

    async def shown(name: str) -> tuple[str, str]:
        page = (await get(app, f"settings?topic={topic}")).text
        row = page.partition(f"<code>{name}</code>")[2].partition("</tr>")[0]
        value, source = re.findall(r'data-title="(?:Value|Source)">([^<]*)<', row)
        return value, source

    assert (await shown("cleanup.policy"))[0] == "compact"
    default = await shown("retention.ms")
    save = {"topic": topic, "name": "retention.ms"}
    assert "is changed" in told(await post(app, "save-setting", **save, value="60000", action="save"))
    changed = await shown("retention.ms")
    assert changed[0] == "60000"
    assert changed[1] != default[1]
    refused = await post(app, "save-setting", **save, value="soon", action="save")
    assert refused.status == 400
    assert "INVALID_CONFIG" in refused.text
    assert 'value="soon"' in refused.text
    assert await shown("retention.ms") == changed
    assert "default" in told(await post(app, "save-setting", **save, action="reset"))
    assert await shown("retention.ms") == default
