"""Offsets that are committed in transactions, while the coordinator of their group dies."""

import pytest

from barnabas.client.blocking import Admin, Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.waiting import wait_for

from .tools import ClusterView

TOPIC = "input"
GROUP = "copiers"
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
PLACE = TopicPartition(TOPIC, 0)


pytestmark = pytest.mark.brokers(settings=SETTINGS)


@pytest.fixture
def cluster(cluster: LocalCluster) -> LocalCluster:
    ClusterView(cluster).create_topic(TOPIC, 1, 3)
    return cluster


def committed(admin: Admin) -> int | None:
    """The committed offset, when no transaction can change it any more."""
    offset = admin.group_offsets(GROUP, [PLACE], require_stable=True, timeout_ms=20_000)[PLACE]
    return None if offset is None else offset.offset


def is_pending(admin: Admin) -> bool:
    try:
        admin.group_offsets(GROUP, [PLACE], require_stable=True, timeout_ms=1_000)
    except BarnabasError:
        # Either it was unstable all the time, or the group had no coordinator yet: that answers below.
        return admin.group_offsets(GROUP, [PLACE], timeout_ms=20_000)[PLACE] is not None
    return False


def test_pending_offsets_survive_the_death_of_their_coordinator(cluster: LocalCluster) -> None:
    view, bootstrap = ClusterView(cluster), cluster.bootstrap
    with (
        Producer(bootstrap_servers=bootstrap, transactional_id="copier") as producer,
        Admin(bootstrap_servers=bootstrap) as admin,
    ):
        with producer.transaction():
            producer.send_offsets_to_transaction({PLACE: 5}, GROUP)
        assert committed(admin) == 5
        for offset, end in ((6, producer.commit_transaction), (7, producer.abort_transaction)):
            producer.begin_transaction()
            producer.send_offsets_to_transaction({PLACE: offset}, GROUP)
            leader = view.leader(OFFSETS_TOPIC)
            cluster.kill(leader)
            # The next coordinator finds in the log that the offset is pending.
            wait_for(lambda: is_pending(admin), "the offset is not pending")
            end()
            assert committed(admin) == 6
            cluster.start_broker(leader)
            view.wait_isr(OFFSETS_TOPIC, 3)
