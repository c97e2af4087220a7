"""The overview, the topics, a partition and the events, rendered from a state of the sampler."""

import re
from typing import Any

import pytest

from barnabas.client.admin.admin import Admin
from barnabas.ui.app import make_app
from barnabas.ui.cluster_pages import topics_of
from barnabas.ui.context import Context
from tests.support.asgi import get


@pytest.fixture
def app() -> Any:
    admin = Admin(bootstrap_servers="127.0.0.1:9092")
    return make_app(Context(admin=admin, bootstrap="", settings={}))


def _partition(topic: str, number: int, **changes: Any) -> dict[str, Any]:
    replicas = {"1": {"size_bytes": 10}, "2": {"size_bytes": None}}
    partition = {
        **{"topic": topic, "partition": number, "is_internal": topic.startswith("__"), "leader": 1},
        **{"isr": [1, 2], "is_under_min_isr": False, "records_per_s": 2.0, "replicas": replicas},
    }
    return partition | changes


def test_a_topic_sums_its_partitions_and_shows_each_by_its_number() -> None:
    partitions = [
        _partition("t", 10, leader=None),
        _partition("t", 2, isr=[1]),
        _partition("__offsets", 0, isr=[1], is_under_min_isr=True),
    ]
    (own,), (internal,) = topics_of({str(place): each for place, each in enumerate(partitions)})
    assert (own["topic"], own["rate"], own["size_bytes"]) == ("t", 4.0, 20)
    assert [(square["partition"], square["kind"]) for square in own["squares"]] == [
        (2, "under"),
        (10, "offline"),
    ]
    assert own["squares"][0]["words"] == "t-2: leader 1, in sync 1, not in sync 2"
    assert internal["squares"][0]["kind"] == "under-min"


@pytest.mark.parametrize("path", ["", "topics", "partition?topic=t&partition=0&replica=x", "events"])
async def test_a_page_is_there_before_the_first_look(app: Any, path: str) -> None:
    assert (await get(app, path)).status == 200


async def test_events_are_filtered_and_the_newest_is_first(app: Any) -> None:
    history = app.state.sampler.history
    history.mark("fault", "broker 1 was killed", broker=1, time_ms=1_000)
    history.mark("isr", "broker 1 left the ISR", broker=1, time_ms=2_000)
    history.mark("election", "leader 2", broker=2, time_ms=3_000)

    async def texts(query: str) -> list[str]:
        page = await get(app, f"events?{query}")
        return re.findall(r'<td class="mono">([^<:]*)</td></tr>', page.text)

    assert await texts("") == ["leader 2", "broker 1 left the ISR", "broker 1 was killed"]
    assert await texts("source=broker-1&text=LEFT") == ["broker 1 left the ISR"]
