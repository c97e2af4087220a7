"""Where `barnabas consume` begins and ends, and that its end is one of the topic that it began with."""

import argparse
import asyncio
import io
from collections.abc import Callable

import pytest

from barnabas.cli.consume import Moment, _consume, place
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, USAGE, exit_code_of
from barnabas.cli.main import build_parser, main
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.schema import ApiKey
from tests.support.batches import build_batch
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import until

from ..client.test_consumer import fill


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", "beginning"),
        ("end", "end"),
        ("0", 0),
        ("17", 17),
        ("-5", -5),
        ("-0", "end"),
        ("1970-01-01T00:00:02", Moment(2_000)),
        ("1970-01-01T01:00:02+01:00", Moment(2_000)),
        ("@1970-01-01", Moment(0)),
        ("@1500", Moment(1_500)),
    ],
)
def test_a_place_is_an_offset_a_number_before_the_end_or_a_time(text: str, expected: object) -> None:
    assert place(text) == expected


@pytest.mark.parametrize(
    "text", ["", "-", "@", "--5", "+5", "1_0", "٣", "9" * 19, "-" + "9" * 20, "noon", "1969-01-01"]
)
def test_another_text_is_no_place(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected beginning, end"):
        place(text)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["t", "--from", "-2"], ["t-0 18", "t-0 19", "t-1 8", "t-1 9"]),
        (["t", "--from", "-100", "--until", "2"], ["t-1 0", "t-1 1"]),
        (["t", "--from", "-12", "--until", "-10"], ["t-0 8", "t-0 9"]),
        (["t", "--until", "0"], []),
        (["t", "--partition", "0", "--from", "0", "--max", "1"], ["t-0 5"]),
        (["t", "--from", "19"], ["t-0 19"]),
        (["t", "--from", "1000"], []),
        (["t", "--from", "@8", "--until", "@10"], ["t-0 8", "t-0 9", "t-1 8", "t-1 9"]),
        (["t", "--partition", "1", "--from", "@8", "--until", "@99"], ["t-1 8", "t-1 9"]),
        (["other", "t", "t", "--partition", "0", "--from", "-1"], ["other-0 2", "t-0 19"]),
        (["--pattern", "oth.*|t", "--from", "-1"], ["other-0 2", "t-0 19", "t-1 9"]),
        (["--pattern", "oth"], "no topic has such a name"),
        (["other", "t", "--partition", "1"], "topic other has no partition 1"),
        (["other", "none"], "there is no topic 'none'"),
    ],
)
async def test_places_and_topics_choose_the_records(words: list[str], lines: list[str] | str) -> None:
    out = io.BytesIO()
    options = build_parser("consume").parse_args(["consume", *words, "--template", r"%t-%p %o\n"])
    async with FakeCluster() as cluster:
        cluster.add_topic("t", 2)
        cluster.add_topic("other")
        for topic, partition, count in [("t", 0, 20), ("t", 1, 10), ("other", 0, 3)]:
            for number in range(count):
                batch = build_batch([(None, b"")], timestamp_ms=number)
                cluster.partition(topic, partition).append(memoryview(batch))
        # Offsets below 5 are removed.
        cluster.partition("t", 0).delete_records(5)
        if isinstance(lines, str):
            with pytest.raises(BarnabasError, match=lines):
                await _consume(options, cluster.bootstrap, out)
        else:
            await _consume(options, cluster.bootstrap, out)
            assert sorted(out.getvalue().decode().splitlines()) == sorted(lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name topics, or give --pattern"),
        (["t", "--pattern", "t"], "name topics, or give --pattern"),
        (["t", "--until", "5", "--follow"], "--until: expected neither --follow"),
        (["t", "--until", "5", "--group", "g"], "--until: expected neither --follow"),
        (["t", "--from", "5", "--group", "g"], "the group decides"),
        (["t", "--json", "--template", "%s"], "--template: expected no other format, not json"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["consume", "-b", "127.0.0.1:1", *words]) == USAGE
    assert said in capsys.readouterr().err


async def _consumed_across(change: Callable[[FakeCluster], None]) -> tuple[BarnabasError, list[bytes]]:
    """The error of a `consume` during which the cluster changes, before its first fetch, and its lines."""
    out = io.BytesIO()
    options = build_parser("consume").parse_args(["consume", "t"])
    async with FakeCluster() as cluster:
        cluster.creates_topics = True
        cluster.add_topic("t")
        fill(cluster.partition("t"), 0, 20)

        def before_the_first_fetch(broker: object, request: object) -> None:
            del cluster.intercept[ApiKey.FETCH]
            change(cluster)

        cluster.intercept[ApiKey.FETCH] = before_the_first_fetch
        async with asyncio.timeout(30):
            with pytest.raises(BarnabasError) as ended:
                await _consume(options, cluster.bootstrap, out)
        assert ("t" in cluster.topics) == (exit_code_of(ended.value) != NOT_FOUND), (
            "a reader creates no topic"
        )
    return ended.value, out.getvalue().splitlines()


@pytest.mark.parametrize("records", [0, 30], ids=["shorter", "longer"])
async def test_a_topic_that_is_made_again_meanwhile_is_an_error(records: int) -> None:
    def make_again(cluster: FakeCluster) -> None:
        cluster.add_topic("t")
        fill(cluster.partition("t"), 1_000, 1_000 + records)

    error, lines = await _consumed_across(make_again)
    assert "topic t was deleted and made again while it was read" in str(error)
    assert exit_code_of(error) == FAILED
    assert lines == []


async def test_a_topic_that_is_deleted_meanwhile_is_not_found() -> None:
    error, _ = await _consumed_across(lambda cluster: cluster.delete_topic("t"))
    assert "there is no topic 't'" in str(error)
    assert exit_code_of(error) == NOT_FOUND


async def test_topics_that_come_later_are_followed_from_their_start() -> None:
    out = io.BytesIO()
    words = r"--pattern t.* --follow --from -1 --max 3 --set metadata.max.age.ms=20 --template %t-%p:%o\n"
    options = build_parser("consume").parse_args(["consume", *words.split()])
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        fill(cluster.partition("t"), 0, 20)
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(_consume(options, cluster.bootstrap, out))
            await until(out.getvalue)
            cluster.add_topic("t2")
            fill(cluster.partition("t2"), 0, 2)
    assert out.getvalue().split() == [b"t-0:19", b"t2-0:0", b"t2-0:1"]
