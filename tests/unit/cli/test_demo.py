"""The checks of the demo find every fault, and its clock measures the longest silence."""

import json
import uuid
from itertools import islice
from pathlib import Path

import pytest

from barnabas.cli.arguments import new_directory
from barnabas.cli.demo import Failover, faults, find_flights, read_flights
from barnabas.cli.exit_codes import CommandError
from barnabas.client.metadata import PartitionInfo, TopicInfo
from barnabas.protocol.ids import BrokerId, LeaderEpoch, TopicId


@pytest.mark.parametrize(
    ("read", "found"),
    [
        ([(0, 0), (1, 1), (2, 2)], {}),
        ([(0, 0), (1, 1)], {"acknowledged records missing": 1, "acknowledged offsets that hold another": 1}),
        ([(0, 0), (1, 2), (2, 1)], {"acknowledged offsets that hold another": 2, "records out of order": 1}),
        ([(0, 0), (1, 1), (2, 2), (2, 2)], {"duplicate records": 1}),
        ([(0, 0), (1, 1), (2, 2), (3, 2)], {"duplicate records": 1}),
        (
            [(0, 0), (1, -1), (2, 2)],
            {
                "acknowledged records missing": 1,
                "acknowledged offsets that hold another": 1,
                "records out of order": 1,
                "records that were never sent": 1,
            },
        ),
    ],
    ids=["intact", "lost", "other record", "repeated offset", "duplicate", "never sent"],
)
def test_each_fault_is_found(read: list[tuple[int, int]], found: dict[str, int]) -> None:
    """`read` has pairs of an offset and the number of the record found there, in one partition."""
    acknowledged = {(0, number): number for number in range(3)}
    counted = faults([((0, offset), number) for offset, number in read], acknowledged)
    assert {fault.removesuffix(" record"): times for fault, times in counted.items() if times} == found


def test_partitions_are_in_order_by_themselves_and_unacknowledged_records_may_be_there() -> None:
    counted = faults([((0, 0), 1), ((1, 0), 0), ((0, 1), 2)], {(0, 0): 1, (1, 0): 0})
    assert not any(counted.values())


def topic_of(leaders: list[int]) -> TopicInfo:
    partitions = (
        PartitionInfo("t", number, BrokerId(leader), LeaderEpoch(0), (), (), ())
        for number, leader in enumerate(leaders)
    )
    return TopicInfo("t", TopicId(uuid.uuid4()), False, tuple(partitions))


def test_the_failover_time_is_the_longest_silence_not_the_first() -> None:
    failover = Failover(topic_of([0, 1, 1]))
    failover.note_acknowledged(1, 9.0)
    failover.last_s = {1: 10.0, 2: 10.0}
    failover.note_acknowledged(1, 10.001)
    failover.note_acknowledged(0, 10.1)
    assert not failover.is_over
    failover.note_acknowledged(1, 10.5)
    failover.note_acknowledged(2, 10.2)
    failover.note_acknowledged(1, 10.51)
    assert failover.is_over
    assert failover.longest_s == {1: pytest.approx(0.499), 2: pytest.approx(0.2)}


def test_the_victim_leads_most_partitions() -> None:
    assert Failover(topic_of([1, 2, 3, 2])).victim == 2
    failover = Failover(topic_of([3, 1, 1, 3]))
    assert (failover.victim, [*failover.longest_s]) == (1, [1, 2])


def test_departures_are_typed_json_keyed_by_carrier_and_flight() -> None:
    departures = list(islice(read_flights(find_flights()), 900))
    assert departures[0][0] == b"UA1545"
    values = [json.loads(value) for _, value in departures]
    assert values[0]["id"] == 0
    assert (values[0]["carrier"], values[0]["dep_delay"], values[0]["tailnum"]) == ("UA", 2, "N14228")
    assert [value["id"] for value in values] == list(range(900))
    assert any(value["dep_delay"] is None for value in values)


def test_the_directory_has_to_be_new_or_empty(tmp_path: Path) -> None:
    assert new_directory(tmp_path / "new" / "one", "demo-").is_dir()
    (tmp_path / "new" / "file").touch()
    with pytest.raises(CommandError, match="has files"):
        new_directory(tmp_path / "new", "demo-")
