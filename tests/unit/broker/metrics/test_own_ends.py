"""The ends of partitions that a broker knows by itself."""

import pytest

from barnabas.broker.metrics.groups import Ends, own_ends
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.inter_broker import (
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from tests.support.building import ME, TOPIC_ID, TP, TWO, Managed, follow, led_by, state


class EndsRig:
    """Broker 1 with real replicas."""

    def __init__(self) -> None:
        self.managed = Managed()

    def know(self, *partitions: UpdateMetadataPartition) -> None:
        topic = UpdateMetadataTopic(topic_name=TP.topic, topic_id=TOPIC_ID, partition_states=list(partitions))
        self.managed.metadata.update(
            UpdateMetadataRequest(
                controller_id=2,
                controller_epoch=1,
                broker_epoch=0,
                topic_states=[topic],
                live_brokers=[],
                is_full=False,
            )
        )

    def find(self, *names: TopicPartition) -> Ends:
        return own_ends(names, self.managed.manager, self.managed.metadata.current)


@pytest.fixture
def rig() -> EndsRig:
    return EndsRig()


def test_the_end_at_a_local_leader_is_its_high_watermark(rig: EndsRig) -> None:
    rig.know(led_by(1))
    rig.managed.tell(state(isr=(1, 2)))
    rig.managed.produce(count=3)
    assert rig.find(TP) == {TP: 0}
    rig.managed.fetch(3, replica=TWO)
    assert rig.find(TP) == {TP: 3}


def test_a_new_leader_without_a_certain_high_watermark_has_an_unknown_end(rig: EndsRig) -> None:
    rig.know(led_by(2))
    rig.managed.tell(state(leader=2))
    follow(rig.managed.manager.partition(TP), 0, 3)
    rig.know(led_by(1, epoch=1))
    rig.managed.tell(state(leader=1, epoch=1))
    assert rig.find(TP) == {TP: None}


def test_only_a_follower_in_sync_knows_the_end(rig: EndsRig) -> None:
    rig.managed.tell(state(leader=2))
    in_sync, out = led_by(2), led_by(2)
    assert ME in in_sync.isr
    rig.know(in_sync)
    assert rig.find(TP) == {TP: 0}
    out.isr = [2]
    rig.know(out)
    assert rig.find(TP) == {TP: None}


def test_the_end_of_a_partition_on_other_brokers_is_unknown(rig: EndsRig) -> None:
    rig.know(led_by(2))
    assert rig.find(TP) == {TP: None}


def test_an_unknown_partition_has_no_entry(rig: EndsRig) -> None:
    rig.know(led_by(2))
    assert rig.find(TopicPartition("gone", 0), TopicPartition(TP.topic, 9)) == {}
