"""The pages of records over a fake cluster: pages, searches, marks, tail, download, produce."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from starlette.applications import Starlette

from barnabas.client.admin.admin import Admin
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.produce import InitProducerIdResponse
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.schema import ApiKey
from barnabas.ui import message_range, message_scan
from barnabas.ui.app import make_app
from barnabas.ui.context import Context
from tests.support.admins import quick_admin
from tests.support.asgi import Answer, get, post
from tests.support.compaction import keyed_batch
from tests.support.fake_broker import FakeCluster
from tests.support.transaction_log import TransactionLog

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        yield cluster


@pytest.fixture
async def app(cluster: FakeCluster) -> AsyncIterator[Starlette]:
    async with quick_admin(cluster) as admin:
        yield make_app(Context(admin=admin, bootstrap=cluster.bootstrap, settings={}))


def write(cluster: FakeCluster, *values: bytes | None, partition: int = 0, **batch: Any) -> None:
    """One batch; all its records have one key, if any."""
    key = batch.pop("key", None)
    records = [(key, value) for value in values]
    cluster.partition("t", partition).append(memoryview(bytearray(keyed_batch(records, **batch))))


def offsets_of(page: Answer) -> list[tuple[int, int]]:
    """Partition and offset of each row."""
    found = re.findall(r'message\?topic=t&amp;partition=(\d+)&amp;offset=(\d+)"', page.text)
    return [(int(partition), int(offset)) for partition, offset in found]


def link_of(page: Answer, text: str) -> str:
    found = re.search(rf'<a href="([^"]*)">{text}</a>', page.text)
    assert found is not None, f"no link {text!r} in {page.text}"
    return html.unescape(found[1])


async def walk(app: Starlette, url: str, text: str) -> list[tuple[int, int]]:
    """The rows of a page and of those that its links lead to, until one is empty."""
    rows = []
    for _ in range(100):
        page = await get(app, url)
        assert page.status == 200, page.text
        if not (found := offsets_of(page)):
            return rows
        rows += found
        if f">{text}</a>" not in page.text:
            return rows
        url = link_of(page, text)
    raise AssertionError("the pages do not end")


async def test_pages_follow_each_other_without_gap_or_repetition(
    app: Starlette, cluster: FakeCluster
) -> None:
    for first in range(0, 120, 7):
        write(cluster, *(b"%d" % number for number in range(first, min(first + 7, 120))))
    every = [(0, offset) for offset in range(120)]
    assert await walk(app, "messages?topic=t&from=earliest&limit=25", "Newer") == every
    assert await walk(app, "messages?topic=t&limit=25", "Older") == every[::-1]
    older = link_of(await get(app, "messages?topic=t&from=offset:60&limit=25"), "Older")
    assert offsets_of(await get(app, older)) == every[59:34:-1]


async def test_partitions_are_merged_by_time_and_each_keeps_its_order(
    app: Starlette, cluster: FakeCluster
) -> None:
    cluster.add_topic("t", 3)
    times = [(30, 10, 60), (20, 40, 50), (25, 5, 70)]
    for partition, own in enumerate(times):
        write(cluster, b"a", b"b", b"c", partition=partition, timestamps=own)
    forward = await walk(app, "messages?topic=t&from=earliest&limit=2", "Newer")
    backward = await walk(app, "messages?topic=t&limit=2", "Older")
    every = [(partition, offset) for partition in range(3) for offset in range(3)]
    assert sorted(forward) == sorted(backward) == every
    for partition in range(3):
        own = [offset for number, offset in forward if number == partition]
        assert own == [0, 1, 2]
        assert [offset for number, offset in backward if number == partition] == own[::-1]
    whole = offsets_of(await get(app, "messages?topic=t&from=earliest"))
    assert whole[0] == (1, 0), "the record of time 20"
    assert whole[-1] == (2, 2)
    assert offsets_of(await get(app, "messages?topic=t&partition=1")) == [(1, 2), (1, 1), (1, 0)]


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
async def test_a_search_finds_the_records_of_a_key_a_value_or_a_header(
    start: str, compression: Compression, app: Starlette, cluster: FakeCluster
) -> None:
    for number in range(40):
        write(cluster, b"value-%d" % number, key=b"\xff%d" % (number % 4), compression=compression)
    write(cluster, b"key \xff1 of a value", headers=(("trace", b"abc"),), compression=compression)
    for question, expected in (
        ("key=hex:ff31", [number for number in range(40) if number % 4 == 1]),
        ("value=-7", [7]),
        ("header=trace", [40]),
        ("header=trace%3Dabc", [40]),
        ("header=trace%3Dab", []),
        ("header=value", []),
        ("key=absent", []),
    ):
        page = await get(app, f"messages?topic=t&from={start}&{question}")
        offsets = [offset for _, offset in offsets_of(page)]
        assert sorted(offsets) == expected, question
        assert "Searched offsets 0 to 41 of 41" in page.text


async def test_a_search_ends_when_its_page_is_left(app: Starlette, cluster: FakeCluster) -> None:
    write(cluster, b"a", b"b")
    page = await get(app, "messages?topic=t&from=earliest&value=b", has_left=True)
    assert "Searched offsets 0 to 0 of 2" in page.text


async def test_the_link_of_a_key_finds_all_its_records(app: Starlette, cluster: FakeCluster) -> None:
    for number in range(6):
        write(cluster, b"v", key=b"\xff&k=%d" % (number % 2))
    page = await get(app, "messages?topic=t")
    found = re.search(r'<a class="aside" href="([^"]*)" title="All records', page.text)
    assert found is not None
    same = await get(app, html.unescape(found[1]))
    assert offsets_of(same) == [(0, 1), (0, 3), (0, 5)], "in the order of the log"


async def test_a_search_that_reaches_its_bound_says_how_far_it_got_and_continues_there(
    app: Starlette, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        write(cluster, b"%d" % number * 1000, key=b"k%d" % number)
    monkeypatch.setattr("barnabas.ui.message_scan._PIECE_BYTES", 5_000)
    monkeypatch.setattr("barnabas.ui.messages._SEARCH_BYTES", 8_000)
    for start, key, text in (("earliest", b"k29", "offsets 0 to"), ("latest", b"k0", "of 30")):
        url = f"messages?topic=t&from={start}&key={key.decode()}&limit=1"
        page = await get(app, url)
        assert text in page.text
        assert offsets_of(page) == []
        for _ in range(40):
            if offsets_of(page):
                break
            page = await get(app, link_of(page, "Continue"))
        assert offsets_of(page) == [(0, int(key[1:]))]


async def test_records_of_aborted_and_open_transactions_are_marked(
    app: Starlette, cluster: FakeCluster
) -> None:
    log = TransactionLog()
    log.write(7, b"a0")
    log.write(8, b"b1")
    log.write(None, b"p2")
    log.end(7, committed=False)
    log.end(8, committed=True)
    log.write(9, b"c5")
    log.write(7, b"a6")
    log.end(7, committed=False)
    log.write(None, b"p8")
    cluster.partition("t").append_compacted(log.batches)
    for start in ("earliest", "latest"):
        page = await get(app, f"messages?topic=t&markers=on&from={start}")
        states = {
            int(offset): re.findall(r'class="state"[^>]*>([^<]*)<', row)
            for offset, row in re.findall(r"offset=(\d+)\"(.*?)</tr>", page.text, re.S)
        }
        assert states == {
            0: ["aborted"],
            1: ["committed"],
            2: [],
            3: ["abort marker"],
            4: ["commit marker"],
            5: ["open"],
            6: ["aborted", "held back"],
            7: ["abort marker"],
            8: ["held back"],
        }
    assert len(offsets_of(await get(app, "messages?topic=t"))) == 6, "markers are shown if asked for"
    one = await get(app, "message?topic=t&partition=0&offset=6")
    assert "aborted" in one.text
    assert '<th scope="row">Producer id<td>7' in one.text


async def test_texts_of_records_and_parameters_are_escaped(app: Starlette, cluster: FakeCluster) -> None:
    data = SCRIPT.encode()
    write(cluster, data, key=data, headers=((SCRIPT, data),))
    write(cluster, b'{"a": "<script>"}', None, b"\x00\xff<script>")
    pages = ["messages?topic=t", "messages?topic=t&format=hex", "messages?topic=t&format=json"]
    pages += [f"message?topic=t&partition=0&offset={offset}" for offset in range(4)]
    pages += [
        f"{page}?topic={quote(SCRIPT)}&{name}={quote(SCRIPT)}"
        for page in ("messages", "message", "produce")
        for name in ("key", "partition", "from", "offset", "outcome", "value")
    ]
    for url in pages:
        page = await get(app, url)
        assert "<script>" not in page.text.replace('<script type="module"', ""), url
    (event,) = await events(app, "messages/tail?topic=t&from=earliest", 1)
    assert "<script" not in json.loads(event)["html"]


async def events(app: Starlette, url: str, count: int) -> list[str]:
    """The data of the first messages of a stream, after which its reader leaves."""
    answer = await get(app, url, leaves_after=lambda body: body.count(b"data: ") >= count)
    assert answer.status == 200
    return re.findall(r"data: (.*?)\r?\n", answer.text)


async def test_the_tail_begins_where_the_page_ended_and_ends_with_the_topic(
    app: Starlette, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.ui.messages._TAIL_S", 0.01)
    write(cluster, b"before")
    page = await get(app, "messages?topic=t")
    found = re.search(r'data-tail="([^"]*)"', page.text)
    assert found is not None
    tail = html.unescape(found[1])
    write(cluster, *(b"n%d" % number for number in range(70)))
    (event,) = await events(app, tail, 1)
    shown = json.loads(event)
    assert shown["html"].count("<tr") == 50
    assert "20 offsets were passed over" in shown["text"]
    assert "before" not in shown["html"]
    cluster.delete_topic("t")
    answer = await get(app, tail)
    assert "event: end" in answer.text, "and the stream ends by itself"


async def test_a_tail_says_that_its_topic_was_made_again(
    app: Starlette, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.ui.messages._TAIL_S", 0.01)

    def enough(body: bytes) -> bool:
        if b"first" in body and cluster.partition("t").log_end_offset == 1:
            cluster.add_topic("t")
            write(cluster, b"second", b"third")
        return b"third" in body

    write(cluster, b"first")
    answer = await get(app, "messages/tail?topic=t&from=earliest", leaves_after=enough)
    assert "deleted and made again" in answer.text


async def test_the_download_has_the_lines_of_consume(app: Starlette, cluster: FakeCluster) -> None:
    write(cluster, b"\xff", None, key=b"k", headers=(("h", b"1"),))
    write(cluster, b"text")
    answer = await get(app, link_of(await get(app, "messages?topic=t"), "Download from here as JSON lines"))
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["offset"] for line in lines] == [0, 1, 2]
    assert lines[0] == {
        **{"topic": "t", "partition": 0, "offset": 0, "timestamp_ms": lines[0]["timestamp_ms"]},
        **{"key": "k", "value_base64": "/w==", "headers": [{"name": "h", "value": "1"}]},
    }
    filtered = await get(app, "messages.jsonl?topic=t&from=earliest&to=offset:2&key=k")
    assert len(filtered.body.splitlines()) == 2


async def test_a_damaged_batch_is_named_and_the_rest_is_read(app: Starlette, cluster: FakeCluster) -> None:
    for value in (b"first", b"damaged", b"last"):
        write(cluster, value)
    cluster.partition("t").damage(1)
    page = await get(app, "messages?topic=t")
    assert offsets_of(page) == [(0, 2), (0, 0)]
    answer = await get(app, "messages.jsonl?topic=t&from=earliest")
    first, damaged, last = (json.loads(line) for line in answer.body.splitlines())
    assert (first["value"], last["value"], answer.is_whole) == ("first", "last", True)
    assert "offsets 1 to 1 of t-0 cannot be decoded and are left out: CORRUPT_MESSAGE" in damaged["error"]
    assert html.escape(damaged["error"]) in page.text


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_log_that_ends_earlier_under_a_new_leader_is_an_error(
    start: str, app: Starlette, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_range, "_PAUSE_S", 0.0)
    write(cluster, b"kept")
    write(cluster, b"lost")
    listed = message_range._listed

    async def listed_before(admin: Admin, specs: Any) -> Any:
        offsets = await listed(admin, specs)
        return {tp: 4 if specs[tp] == "latest" else offset for tp, offset in offsets.items()}

    monkeypatch.setattr(message_range, "_listed", listed_before)
    page = await get(app, f"messages?topic=t&from={start}")
    said = "t-0 ended before offset 4, now before 2"
    assert said in page.text
    answer = await get(app, "messages.jsonl?topic=t&from=earliest")
    *records, end = (json.loads(line) for line in answer.body.splitlines())
    assert ([record["value"] for record in records], answer.is_whole) == (["kept", "lost"], False)
    assert said in end["error"]


@pytest.mark.parametrize(("headers", "count"), [((), 4), ((("h", b""),) * 4, 1)])
async def test_batches_of_too_many_records_or_headers_are_not_decoded(
    headers: Any, count: int, app: Starlette, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_scan, "MAX_ELEMENTS", 3)
    write(cluster, b"small")
    write(cluster, *[b"v"] * count, headers=headers)
    page = await get(app, "messages?topic=t")
    assert offsets_of(page) == [(0, 0)]
    said = "has more of them than are decoded at once"
    assert said in page.text
    one = await get(app, "message?topic=t&partition=0&offset=1")
    assert said in one.text


async def test_a_download_ends_when_its_reader_leaves(app: Starlette, cluster: FakeCluster) -> None:
    for _ in range(20):
        write(cluster, b"x" * 300_000)
    answer = await get(app, "messages.jsonl?topic=t&from=earliest", leaves_after=lambda body: len(body) > 0)
    assert answer.body.count(b"\n") < 10


async def test_large_values_are_cut_in_the_table_and_whole_as_bytes(
    app: Starlette, cluster: FakeCluster
) -> None:
    value = b"x" * 900_000
    write(cluster, value, b"\x00\x01")
    page = await get(app, "messages?topic=t")
    assert len(page.body) < 50_000
    assert "all 900,000 bytes" in page.text
    assert (await get(app, "message.bin?topic=t&partition=0&offset=0")).body == value
    one = await get(app, "message?topic=t&partition=0&offset=1")
    assert "00000000  00 01" in one.text


@pytest.mark.parametrize(
    ("url", "status", "text"),
    [
        ("messages?topic=absent", 404, "there is no topic"),
        ("messages?topic=t&partition=9", 400, "topic t has 1 partition"),
        ("messages?topic=t&partition=x", 400, "expected a whole number"),
        ("messages?topic=t&from=offset:-1", 400, "expected a whole number from 0"),
        ("messages?topic=t&from=time:never", 400, "expected a time like"),
        ("messages?topic=t&limit=501", 400, "expected a whole number from 1 to 500"),
        ("messages?topic=t&from=offset:99", 200, "Offset 99 is outside"),
        ("messages?topic=t", 200, "No records here"),
        ("message?topic=t&partition=0&offset=5", 404, "has offsets 0 to before 0, not 5"),
        ("message?topic=t&partition=0", 400, "offset"),
        ("message?topic=t&partition=3&offset=0", 400, "topic t has 1 partition"),
        ("messages.jsonl?topic=absent", 404, "there is no topic"),
        ("messages/tail?topic=", 400, "expected the topic"),
    ],
)
async def test_questions_without_an_answer_get_a_sentence(
    url: str, status: int, text: str, app: Starlette
) -> None:
    page = await get(app, url)
    assert (page.status, text in page.text) == (status, True), page.text


async def test_a_compacted_gap_is_named_with_the_next_record(app: Starlette, cluster: FakeCluster) -> None:
    batch = bytearray(keyed_batch([(b"k", b"v")], base_offset=7))
    cluster.partition("t").append_compacted([bytes(batch)])
    assert parse_header(batch).base_offset == 7
    assert offsets_of(await get(app, "messages?topic=t&from=offset:2")) == [(0, 7)]
    page = await get(app, "message?topic=t&partition=0&offset=3")
    assert "no record at offset 3" in page.text
    assert "the next one is at 7" in page.text


async def test_a_partition_without_a_leader_is_named_and_the_others_are_shown(
    app: Starlette, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_range, "TIMEOUT_MS", 300)
    cluster.add_topic("t", 2)
    write(cluster, b"v", partition=1)
    cluster.move_leader("t", 0, -1)
    page = await get(app, "messages?topic=t")
    assert "Partition 0 has no leader" in page.text
    assert offsets_of(page) == [(1, 0)]
    answer = await get(app, "messages.jsonl?topic=t&from=earliest")
    record, missing = (json.loads(line) for line in answer.body.splitlines())
    assert (record["partition"], answer.is_whole) == (1, False)
    assert "Partition 0 has no leader" in missing["error"]
    one = await get(app, "message?topic=t&partition=0&offset=0")
    assert one.status == 502
    assert "no leader" in one.text


async def test_two_hundred_partitions_are_one_page(app: Starlette, cluster: FakeCluster) -> None:
    cluster.add_topic("t", 200)
    for partition in range(200):
        write(cluster, b"v", b"w", partition=partition, timestamps=(1000 + partition, 2000 + partition))
    page = await get(app, "messages?topic=t&limit=3")
    assert offsets_of(page) == [(199, 1), (198, 1), (197, 1)]
    assert len(await walk(app, "messages?topic=t&from=earliest&limit=150", "Newer")) == 400


async def test_a_record_is_written_as_the_form_says(app: Starlette, cluster: FakeCluster) -> None:
    form = {
        "topic": "t",
        "partition": "0",
        "key": "k",
        "value": "a\r\nb",
        "headers": "x=1\r\ny",
        "timestamp": "5",
    }
    answer = await post(app, "produce", **form)
    assert answer.status == 303, answer.text
    assert answer.headers["location"].startswith(
        "message?topic=t&partition=0&offset=0&outcome=Written%20to%20t-0"
    )
    await post(app, "produce", topic="t", key="hex:ff", tombstone="on")
    answer = await get(app, "messages.jsonl?topic=t&from=earliest")
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert (lines[0]["key"], lines[0]["value"], lines[0]["timestamp_ms"]) == ("k", "a\nb", 5)
    assert lines[0]["headers"] == [{"name": "x", "value": "1"}, {"name": "y", "value": None}]
    assert (lines[1]["key_base64"], lines[1]["value"]) == ("/w==", None)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"topic": "absent", "value": "v"}, "there is no topic 'absent'"),
        ({"topic": "t", "partition": "0" * 5_000}, "expected a whole number"),
        ({"topic": "", "value": "v"}, "expected the name of a topic"),
        ({"topic": "t", "partition": "5"}, "partition 5: topic t has 0 to 0"),
        ({"topic": "t", "partition": "-1"}, "partition '-1': expected a whole number from 0"),
        ({"topic": "t", "value": "v", "tombstone": "on"}, "expected none with a tombstone"),
        ({"topic": "t", "value": "hex:zz"}, "expected hexadecimal digits"),
        ({"topic": "t", "headers": "=1"}, "expected name=value"),
        ({"topic": "t", "timestamp": "soon"}, "expected a time like"),
        ({"topic": "t", "timestamp": "1969-12-31T23:59:59Z"}, "expected a time since 1970"),
        ({"topic": "t", "value": "x" * 1_500_000}, "MESSAGE_TOO_LARGE"),
    ],
)
async def test_a_form_that_cannot_be_written_comes_back_with_the_reason(
    form: dict[str, str], text: str, app: Starlette, cluster: FakeCluster
) -> None:
    answer = await post(app, "produce", **form)
    assert answer.status == (404 if "topic 'absent'" in text else 413 if "LARGE" in text else 400)
    assert text in html.unescape(answer.text)
    assert cluster.partition("t").log_end_offset == 0
    assert "absent" not in cluster.topics


async def test_a_user_who_may_not_write_is_told_of_the_topic(app: Starlette, cluster: FakeCluster) -> None:
    refusal = InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    cluster.intercept[ApiKey.INIT_PRODUCER_ID] = lambda broker, body: refusal
    answer = await post(app, "produce", topic="t", value="v")
    assert answer.status == 403
    assert "TOPIC_AUTHORIZATION_FAILED: this user may not write to topic t" in answer.text


async def test_a_page_that_only_sees_has_no_form(cluster: FakeCluster) -> None:
    async with quick_admin(cluster) as admin:
        app = make_app(Context(admin=admin, bootstrap=cluster.bootstrap, settings={}, is_read_only=True))
        assert "<form" not in (await get(app, "produce?topic=t")).text
        assert "produce?" not in (await get(app, "messages?topic=t")).text
