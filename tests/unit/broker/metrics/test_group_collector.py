"""What the collector reads of live groups."""

from __future__ import annotations

from collections.abc import Collection

from barnabas.broker.coordinators.group_records import OffsetAndMetadata
from barnabas.broker.metrics.group_lag import Ends
from barnabas.broker.metrics.serving import GroupCollector, snapshot_of
from barnabas.protocol.ids import Offset, TopicPartition
from tests.support.grouping import WALL_MS, Rig

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def commit(rig: Rig, member: str, offsets: dict[TopicPartition, int]) -> None:
    rig.commit(member, offsets={tp: OffsetAndMetadata(offset, WALL_MS) for tp, offset in offsets.items()})


def test_a_group_is_read_as_it_is() -> None:
    rig = Rig()
    rig.stable("m", "n")
    commit(rig, "m", {T0: 7, T1: -1})
    assert snapshot_of(rig.group) == ("g", "Stable", 2, {})
    rig.settle()
    assert snapshot_of(rig.group) == ("g", "Stable", 2, {T0: 7})


def test_ends_are_asked_for_what_groups_have_committed_and_dead_groups_are_passed_over() -> None:
    rig, dead = Rig(), Rig()
    rig.stable("m")
    commit(rig, "m", {T0: 7})
    rig.settle()
    dead.do(dead.group.unload(dead.moment()))
    asked: list[Collection[TopicPartition]] = []

    def find(names: Collection[TopicPartition]) -> Ends:
        asked.append(names)
        return {T0: Offset(9)}

    metrics = GroupCollector(lambda: [rig.group, dead.group], find, max_series=100).collect()
    values = {metric.name: [sample.value for sample in metric.samples] for metric in metrics}
    assert asked == [{T0}]
    assert values["kafka_consumergroup_lag"] == [2]
    assert values["kafka_consumergroup_members"] == [1]
