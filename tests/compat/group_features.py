"""Rows of the table in docs/compatibility.md about consumer groups; see `features`.

A member is a consumer in a process of its own (`drivers/member.py`); its topic is written by the reference.
A wait that fails shows the state of all members.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from tests.support.waiting import wait_for

from .features import Bench, feature, record, refused

GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP = 69, 68
Place = tuple[str, int, int]
"""Topic, partition and offset."""


class Member:
    """A consumer of a group, of the client under test or another; a context manager that lets it leave."""

    def __init__(self, bench: Bench, group: str, client: str | None = None, **settings: Any) -> None:
        self._bench = bench
        self._driver = bench.lend(client or bench.driver.name)
        self._left: dict[str, Any] | None = None
        try:
            self._driver.ask("member_start", bootstrap=bench.bootstrap, group=group, **settings)
        except BaseException:
            bench.give_back(self._driver)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._left or self._driver.ask("member_status")
        assert found["errors"] == []
        return found

    @property
    def assigned(self) -> list[tuple[str, int]]:
        return [(topic, partition) for topic, partition in self.status()["assigned"]]

    @property
    def taken(self) -> list[tuple[str, int]]:
        return [(topic, partition) for topic, partition in self.status()["taken"]]

    @property
    def read(self) -> list[Place]:
        return [(topic, partition, offset) for topic, partition, offset in self.status()["read"]]

    def ask(self, command: str, **arguments: Any) -> Any:
        """Another command to the member's process."""
        return self._driver.ask(command, **arguments)

    def commit(self, how: str) -> None:
        self._driver.ask("member_commit", how=how)

    def stop(self) -> None:
        """Leave, or be closed as a static member."""
        if self._left is None:
            self._left = {"assigned": [], "taken": [], "read": [], "errors": []}
            try:
                self._left = self._driver.ask("member_stop") | {"assigned": []}
            finally:
                self._bench.give_back(self._driver)

    def kill(self) -> None:
        """SIGKILL to the member's process."""
        self._left = self.status() | {"assigned": []}
        os.kill(self._driver.ask("member_pid"), signal.SIGKILL)
        self._driver.__exit__()


def written(bench: Bench, topic: str, partitions: int, count: int) -> set[Place]:
    """Write ``count`` new records to each partition; returns their places."""
    sent = [record(topic, f"{number}", number % partitions) for number in range(count * partitions)]
    return {(topic, at["partition"], at["offset"]) for at in bench.produce_by_reference(sent)}


def wait(members: Sequence[Member], condition: Callable[[], bool], what: str) -> None:
    wait_for(condition, lambda: f"{what}: {[(member.assigned, len(member.read)) for member in members]}")


def wait_shared(members: Sequence[Member], wanted: Sequence[tuple[str, int]]) -> None:
    """Wait until each has a part, and all together have these partitions, each once."""

    def are_shared() -> bool:
        parts = [member.assigned for member in members]
        return all(parts) and sorted(one for part in parts for one in part) == sorted(wanted)

    wait(members, are_shared, f"{wanted} is not shared")


def wait_read(members: Sequence[Member], places: set[Place]) -> None:
    def are_read() -> bool:
        return places <= {place for member in members for place in member.read}

    wait(members, are_read, f"{len(places)} records are not all read")


@contextmanager
def joined(bench: Bench, count: int, group: str, **settings: Any) -> Iterator[list[Member]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Member(bench, group, **settings)) for _ in range(count)]


def all_of(topic: str, partitions: int) -> list[tuple[str, int]]:
    return [(topic, partition) for partition in range(partitions)]


def committed(bench: Bench, group: str, topic: str) -> dict[str, int]:
    """The group's offset of each partition, read by the reference."""
    found: dict[str, int] = bench.ask_reference("group_offsets", group=group, topic=topic)
    return found


@feature("groups: subscribe, and go on where the last one ended", is_core=True)
def subscribe(bench: Bench) -> None:
    topic, group = bench.topic(3), bench.name()
    first = written(bench, topic, 3, 20)
    with Member(bench, group, topics=[topic], auto_commit=True) as member:
        wait_read([member], first)
    assert set(member.read) == first
    assert committed(bench, group, topic) == {"0": 20, "1": 20, "2": 20}
    second = written(bench, topic, 3, 5)
    with Member(bench, group, topics=[topic], auto_commit=True) as member:
        wait_read([member], second)
    assert set(member.read) == second, "it read what was committed before it"


@feature("groups: commits, sync and async", is_core=True)
def commits(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.name()
    with Member(bench, group, topics=[topic]) as member:
        for end, how in ((5, "sync"), (10, "async")):
            wait_read([member], written(bench, topic, 2, 5))
            member.commit(how)
            assert committed(bench, group, topic) == {"0": end, "1": end}
        wait_read([member], written(bench, topic, 2, 1))
    assert committed(bench, group, topic) == {"0": 10, "1": 10}


@feature("groups: members share, leave and are killed (-9); eager")
def eager(bench: Bench) -> None:
    topic, group = bench.topic(4), bench.name()
    # Apache Kafka, as it is set, accepts no shorter session than six seconds.
    session_ms = 3_000 if bench.is_barnabas else 6_000
    with (
        Member(bench, group, topics=[topic], auto_commit=True, session_ms=session_ms) as one,
        joined(bench, 2, group, topics=[topic], auto_commit=True) as (two, three),
    ):
        wait_shared([one, two, three], all_of(topic, 4))
        first = written(bench, topic, 4, 10)
        wait_read([one, two, three], first)
        assert sum(len(member.read) for member in (one, two, three)) == len(first), "some were read twice"
        two.stop()
        wait_shared([one, three], all_of(topic, 4))
        one.kill()
        wait_shared([three], all_of(topic, 4))
        wait_read([three], written(bench, topic, 4, 5))


@feature("groups: cooperative rebalancing")
def cooperative(bench: Bench) -> None:
    topic, group = bench.topic(4), bench.name()
    settings = {"topics": [topic], "strategy": "cooperative-sticky"}
    with Member(bench, group, **settings) as first:
        wait_shared([first], all_of(topic, 4))
        with Member(bench, group, **settings) as second:
            wait_shared([first, second], all_of(topic, 4))
            # Only the partitions of the other member were revoked.
            assert sorted(first.taken) == sorted(second.assigned)
            wait_read([first, second], written(bench, topic, 4, 5))
            kept = first.assigned
        wait_shared([first], all_of(topic, 4))
        assert not set(kept) & set(first.taken)


@feature("groups: static members", is_core=True)
def static(bench: Bench) -> None:
    topic, group = bench.topic(4), bench.name()
    with (
        Member(bench, group, topics=[topic], instance="one") as one,
        Member(bench, group, topics=[topic], instance="two") as two,
    ):
        wait_shared([one, two], all_of(topic, 4))
        had, taken = one.assigned, two.taken
        one.stop()
        with Member(bench, group, topics=[topic], instance="one") as again:
            wait_shared([again, two], all_of(topic, 4))
            assert again.assigned == had
            assert two.taken == taken, "the other member had to rejoin"


@feature("groups: a pattern, and a topic that is made later")
def pattern(bench: Bench) -> None:
    prefix, group = bench.name(), bench.name()
    topics = [f"{prefix}-{number}" for number in range(2)]

    def make(topic: str) -> set[Place]:
        bench.ask_reference("create_topic", topic=topic, partitions=2, replicas=min(3, len(bench.brokers)))
        bench.wait_led(topic, 2)
        return written(bench, topic, 2, 5)

    first = make(topics[0])
    with Member(bench, group, pattern=f"{prefix}-.*") as member:
        wait_read([member], first)
        wait_read([member], make(topics[1]))
        wait_shared([member], [*all_of(topics[0], 2), *all_of(topics[1], 2)])


@feature("groups: partitions that are added later")
def added(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.name()
    with Member(bench, group, topics=[topic]) as member:
        wait_shared([member], all_of(topic, 2))
        wait_read([member], written(bench, topic, 2, 5))
        bench.ask_reference("create_partitions", topic=topic, total=4)
        bench.wait_led(topic, 4)
        places = written(bench, topic, 4, 5)
        wait_shared([member], all_of(topic, 4))
        wait_read([member], places)


def by_reference(bench: Bench, group: str, topic: str) -> Member:
    return Member(bench, group, bench.reference.name, topics=[topic], auto_commit=True)


def emptied(bench: Bench, group: str, topic: str) -> None:
    """Make a group that has read ten records of each of two partitions, and has no member now."""
    with by_reference(bench, group, topic) as member:
        wait_read([member], written(bench, topic, 2, 10))
    assert committed(bench, group, topic) == {"0": 10, "1": 10}


@feature("groups: list and describe")
def describe(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.name()
    bench.ask("list_groups")
    with by_reference(bench, group, topic) as member:
        wait_shared([member], all_of(topic, 2))
        assert group in bench.ask("list_groups")
        found = bench.ask("describe_group", group=group)
        assert (found["state"], found["members"]) == ("Stable", 1)
    found = bench.ask("describe_group", group=group)
    assert (found["state"], found["members"]) == ("Empty", 0)


@feature("groups: committed offsets, and their reset")
def reset(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.name()
    bench.ask("group_offsets", group=group, topic=topic)
    emptied(bench, group, topic)
    assert bench.ask("group_offsets", group=group, topic=topic) == {"0": 10, "1": 10}
    bench.ask("set_group_offsets", group=group, topic=topic, offsets={"0": 4})
    assert committed(bench, group, topic) == {"0": 4, "1": 10}
    with by_reference(bench, group, topic) as member:
        wanted = {(topic, 0, offset) for offset in range(4, 10)} | written(bench, topic, 2, 1)
        wait_read([member], wanted)
        assert set(member.read) == wanted


@feature("groups: delete offsets")
def delete_offsets(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.name()
    emptied(bench, group, topic)
    bench.ask("delete_group_offsets", group=group, topic=topic, partitions=[1])
    assert committed(bench, group, topic) == {"0": 10}


@feature("groups: delete")
def delete(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.name()
    with by_reference(bench, group, topic) as member:
        wait_read([member], written(bench, topic, 2, 10))
        refused(lambda: bench.ask("delete_group", group=group), NON_EMPTY_GROUP, "NonEmptyGroup", "not empty")
    bench.ask("delete_group", group=group)
    assert group not in bench.ask_reference("list_groups")
    assert committed(bench, group, topic) == {}
    refused(
        lambda: bench.ask("delete_group", group=group), GROUP_ID_NOT_FOUND, "GroupIdNotFound", "not found"
    )
