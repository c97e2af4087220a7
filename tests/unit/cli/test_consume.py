"""Where `barnabas consume` begins, and that its end is one of the topic that it began with."""

import asyncio
import io
from collections.abc import Callable

import pytest

from barnabas.cli.consume import _consume, _seek
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, exit_code_of
from barnabas.cli.main import build_parser
from barnabas.client.consumer.consumer import Consumer
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeCluster

from ..client.test_consumer import fill

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize(("start", "position"), [(0, 5), (7, 7), (20, 20), (1_000, 20)])
async def test_an_offset_outside_the_log_means_its_nearest_end(start: int, position: int) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        fill(cluster.partition("t"), 0, 20)
        cluster.partition("t").delete_records(5)
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([T0])
            await _seek(consumer, [T0], start)
            assert await consumer.position(T0) == position


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
                await _consume(options, "beginning", cluster.bootstrap, out)
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
