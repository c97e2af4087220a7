"""confluent-kafka, kafka-python and aiokafka as members of one group."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from .clients import Unavailable
from .features import Bench
from .group_features import Member, all_of, wait_read, wait_shared, written

pytestmark = pytest.mark.timeout(420)
CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")
PARTITIONS = 6

with_reference = pytest.mark.parametrize("bench", ["confluent-kafka"], indirect=True)


@contextmanager
def one_of_each(bench: Bench, group: str, topic: str) -> Iterator[list[Member]]:
    """A member of each client, which all have a share."""
    with ExitStack() as stack:
        members = []
        for client in CLIENTS:
            try:
                member = Member(bench, group, client, topics=[topic], auto_commit=True)
            except Unavailable as error:
                pytest.skip(f"{client}: {error}")
            members.append(stack.enter_context(member))
        wait_shared(members, all_of(topic, PARTITIONS))
        yield members


@with_reference
def test_members_of_three_clients_share_a_topic_and_replace_each_other(bench: Bench) -> None:
    topic = bench.topic(PARTITIONS)
    with one_of_each(bench, bench.name(), topic) as members:
        wait_read(members, written(bench, topic, PARTITIONS, 20))
        members[0].stop()
        wait_shared(members[1:], all_of(topic, PARTITIONS))
        wait_read(members, written(bench, topic, PARTITIONS, 20))


@with_reference
def test_a_client_begins_where_another_committed(bench: Bench) -> None:
    topic, group = bench.topic(PARTITIONS), bench.name()
    for client in CLIENTS:
        places = written(bench, topic, PARTITIONS, 20)
        with Member(bench, group, client, topics=[topic], auto_commit=True) as member:
            wait_read([member], places)
        assert set(member.read) == places, f"{client} read committed records"
