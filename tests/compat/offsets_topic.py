"""Creates the offsets topic before the first group: it takes a while, and admin clients do not wait for it.

The first request for a coordinator creates it. Until every broker has loaded its partitions of the topic, a
list of all groups is refused, by Apache Kafka too, and most admin clients raise that error.
"""

from __future__ import annotations

from tests.support.waiting import wait_for

from .wire import FIND_COORDINATOR, LIST_GROUPS, Connection, request, string

NAME = "__consumer_offsets"


def have_offsets_topic_made(bootstrap: str) -> None:
    """Have it made, and wait until each of these brokers knows all leaders and can list its groups."""
    for address in bootstrap.split(","):
        wait_for(lambda address=address: _is_ready(address), f"{address} is not ready to coordinate groups")


def _is_ready(address: str) -> bool:
    with Connection(address) as broker:
        if broker.ask(request(FIND_COORDINATOR, 0, string("any"))).take("h"):
            return False
        leaders = broker.metadata(NAME).leaders[NAME]
        if not leaders or -1 in leaders.values():
            return False
        return bool(broker.ask(request(LIST_GROUPS, 0, b"")).take("h") == 0)
