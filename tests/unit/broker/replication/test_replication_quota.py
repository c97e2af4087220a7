"""The throttles of replication: the rule, and a leader that holds records back."""

import pytest

from barnabas.broker.replication.delayed_fetch import FetchReader
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replication_quota import ReplicationQuota
from barnabas.common.settings import LONG_MAX
from tests.support.building import ME, THREE, TP, TWO, fatal, fetch_item, fetch_params, leader_of

ALL = ("*",)
SLOW_BYTES = 10
"""Per second: a batch takes longer than a test."""


def quota(*listed: str, rate: int = SLOW_BYTES) -> ReplicationQuota:
    made = ReplicationQuota(ME, lambda topic: listed, lambda: 0.0)
    made.set_rate(rate)
    return made


# The rule


@pytest.mark.parametrize(
    ("listed", "is_throttled"),
    [
        (ALL, True),
        ((f"{TP.partition}:1",), True),
        ((f"{TP.partition}:2",), False),
        (("7:1",), False),
        ((), False),
    ],
)
def test_a_topic_lists_its_throttled_replicas(listed: tuple[str, ...], is_throttled: bool) -> None:
    assert quota(*listed).applies_to(TP) == is_throttled


def test_nothing_is_throttled_without_a_rate() -> None:
    unbounded = quota(*ALL, rate=LONG_MAX)
    assert not unbounded.applies_to(TP)
    assert not ReplicationQuota(ME, lambda topic: ALL).applies_to(TP)
    unbounded.set_rate(SLOW_BYTES)
    assert unbounded.applies_to(TP)


# The leader


def reader_of(partition: Partition, *listed: str) -> FetchReader:
    reader = FetchReader(lambda name: partition, lambda error: None, on_fatal=fatal)
    reader.quota = quota(*listed)
    return reader


def read_by(reader: FetchReader, follower: int, max_wait_ms: int = 0) -> int:
    """The bytes of an answer to a follower."""
    params = fetch_params(follower, max_wait_ms=max_wait_ms)
    result = reader.read_all(params, [fetch_item()])
    reader.finish(params, result, lambda result: None)
    return result.bytes_read


def test_a_leader_holds_back_a_throttled_replica_that_is_not_in_sync() -> None:
    reader = reader_of(leader_of(1, 2, records=3), *ALL)
    # The first answer is sent, and must be paid for.
    assert read_by(reader, THREE) > 0
    assert read_by(reader, THREE) == 0
    reader.quota.set_rate(LONG_MAX)
    assert read_by(reader, THREE) > 0


@pytest.mark.parametrize(("reading", "isr"), [(TWO, (1, 2)), (-1, (1,))], ids=["in sync", "consumer"])
def test_others_are_not_held_back(reading: int, isr: tuple[int, ...]) -> None:
    reader = reader_of(leader_of(*isr, records=3), *ALL)
    reader.quota.note(TP, 1_000)
    assert read_by(reader, reading) > 0


def test_a_debt_that_is_paid_within_a_fetch_is_sent_at_once() -> None:
    """Otherwise a follower would get one answer for each wait, however high the rate."""
    reader = reader_of(leader_of(1, 2, records=3), *ALL)
    reader.quota.set_rate(1_000)
    reader.quota.note(TP, 400)
    assert read_by(reader, THREE, max_wait_ms=399) == 0
    assert read_by(reader, THREE, max_wait_ms=400) > 0
