"""The protocol of the page's client, found out by one exchange."""

import pytest

from barnabas.ui.context import with_wire
from tests.support.fake_broker import FakeCluster


@pytest.mark.parametrize(("is_kafka", "wire"), [(False, "native"), (True, "kafka")])
async def test_the_page_speaks_the_protocol_of_the_brokers(is_kafka: bool, wire: str) -> None:
    async with FakeCluster() as cluster:
        for broker in cluster.brokers.values():
            broker.is_kafka = is_kafka
        settings = {"bootstrap_servers": cluster.bootstrap, "client_id": "page"}
        assert await with_wire(settings) == {**settings, "wire": wire}
    assert await with_wire(settings) == settings, "nobody answers: it may be of either kind"


async def test_a_protocol_that_was_chosen_is_kept() -> None:
    chosen = {"bootstrap_servers": "127.0.0.1:1", "wire": "kafka"}
    assert await with_wire(chosen) == chosen
