"""Consumers that share a group, against a small coordinator that fails on command."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from barnabas.client.consumer.consumer import Consumer, RebalanceListener
from barnabas.client.consumer.group_offsets import GroupCommits
from barnabas.client.errors import (
    ApiError,
    CommitFailed,
    ErrorCode,
    NotAssigned,
    RequestTimedOutLocally,
    SubscriptionConflict,
)
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import HeartbeatResponse, JoinGroupResponse, SyncGroupResponse
from barnabas.protocol.schema import ApiKey
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.coordinator import Coordinator
from tests.support.waiting import DEADLINE_S, until

from .test_consumer import fill, read, values

P = [TopicPartition("t", number) for number in range(6)]
QUICK = {
    "auto_offset_reset": "earliest",
    "retry_backoff_ms": 5,
    "heartbeat_interval_ms": 15,
    "session_timeout_ms": 2_000,
    "fetch_max_wait_ms": 20,
    "group_id": "g",
}
COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}


def consumer_of(coordinator: Coordinator, **settings: Any) -> Consumer:
    return Consumer(bootstrap_servers=coordinator.cluster.bootstrap, **{**QUICK, **settings})


@asynccontextmanager
async def subscriber_of(
    coordinator: Coordinator, listener: RebalanceListener | None = None, **settings: Any
) -> AsyncIterator[Consumer]:
    """A consumer that has subscribed to "t"."""
    async with consumer_of(coordinator, **settings) as consumer:
        consumer.subscribe("t", listener=listener)
        yield consumer


@asynccontextmanager
async def member_of(
    coordinator: Coordinator, listener: RebalanceListener | None = None, **settings: Any
) -> AsyncIterator[Consumer]:
    """A member that has all six partitions."""
    async with subscriber_of(coordinator, listener, **settings) as consumer:
        await poll_until(lambda: shares(consumer) == [6], consumer)
        yield consumer


async def poll_until(condition: Callable[[], object], *consumers: Consumer) -> None:
    """Poll all consumers in turn until the condition holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline, [consumer.assignment() for consumer in consumers]
        for consumer in consumers:
            await consumer.poll(5)


def shares(*consumers: Consumer) -> list[int]:
    return [len(consumer.assignment()) for consumer in consumers]


class Diary(RebalanceListener):
    """Notes each call."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, set[int]]] = []

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        self.entries.append(("assigned", {tp.partition for tp in partitions}))

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        self.entries.append(("revoked", {tp.partition for tp in partitions}))

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        self.entries.append(("lost", {tp.partition for tp in partitions}))


async def test_a_lone_member_gets_all_partitions_and_leaves_when_it_closes(
    coordinator: Coordinator,
) -> None:
    fill(coordinator.cluster.partition("t", 2), 0, 20)
    async with subscriber_of(coordinator) as consumer:
        assert await read(consumer, 20) == values(0, 20)
        assert consumer.assignment() == set(P)
        assert consumer.subscription() == {"t"}
        assert coordinator.group("g").state == "Stable"
    assert coordinator.group("g").members == []
    assert coordinator.group("g").offsets["t", 2][0] == 20


async def test_a_wait_for_a_partition_that_a_rebalance_takes_ends(coordinator: Coordinator) -> None:
    async with (
        member_of(coordinator, group_instance_id="b") as first,
        subscriber_of(coordinator, group_instance_id="a") as second,
    ):
        waiting = asyncio.create_task(first.getone(P[0]))
        await poll_until(lambda: P[0] in second.assignment(), second)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(NotAssigned, match="t-0 is not assigned"):
                await waiting


@pytest.mark.parametrize("strategy", ["range", "sticky", "cooperative-sticky"])
async def test_members_share_partitions_and_take_over_those_of_a_leaving_member(
    coordinator: Coordinator, strategy: str
) -> None:
    settings = {"partition_assignment_strategy": strategy}
    async with member_of(coordinator, **settings) as first:
        async with (
            consumer_of(coordinator, **settings) as second,
            consumer_of(coordinator, **settings) as third,
        ):
            second.subscribe("t")
            third.subscribe("t")
            await poll_until(lambda: shares(first, second, third) == [2, 2, 2], first, second, third)
            assert first.assignment() | second.assignment() | third.assignment() == set(P)
        await poll_until(lambda: shares(first) == [6], first)


@pytest.mark.parametrize(
    ("settings", "calls"),
    [
        ({}, [("assigned", 6), ("revoked", 6), ("assigned", 3)]),
        (COOPERATIVE, [("assigned", 6), ("revoked", 3), ("assigned", 0)]),
    ],
    ids=["eager", "cooperative"],
)
async def test_a_member_revokes(
    coordinator: Coordinator, settings: dict[str, Any], calls: list[tuple[str, int]]
) -> None:
    """An eager member revokes everything, a cooperative one only the partitions that move."""
    diary = Diary()
    async with consumer_of(coordinator, **settings) as first, consumer_of(coordinator, **settings) as second:
        first.subscribe("t", listener=diary)
        await poll_until(lambda: shares(first) == [6], first)
        second.subscribe("t")
        await poll_until(lambda: shares(first, second) == [3, 3], first, second)
        await poll_until(lambda: len(diary.entries) >= 3, first, second)
    assert [(event, len(partitions)) for event, partitions in diary.entries[:3]] == calls
    assert diary.entries[-1][0] == "revoked", "closing tells the listener"


async def test_a_cooperative_member_keeps_reading_partitions_that_it_keeps(
    coordinator: Coordinator,
) -> None:
    async with member_of(coordinator, **COOPERATIVE) as first:
        # The new member is slow to sync, so that the rebalance does not end meanwhile.
        gate = coordinator.cluster.brokers[1].gate(ApiKey.SYNC_GROUP)
        async with subscriber_of(coordinator, **COOPERATIVE) as second:
            await second.poll(0)
            await poll_until(lambda: coordinator.group("g").state == "CompletingRebalance", first, second)
            fill(coordinator.cluster.partition("t", 0), 0, 10)
            assert await read(first, 10) == values(0, 10)
            gate.set()
            await poll_until(lambda: shares(first, second) == [3, 3], first, second)


@pytest.mark.parametrize(("user_commits", "committed"), [(None, 10), (15, 15), (20, 20), (7, 10)])
async def test_a_failure_in_the_body_commits_the_records_before_the_last_list(
    coordinator: Coordinator, user_commits: int | None, committed: int
) -> None:
    """It does not lower an offset that the user committed in the middle of the list."""
    fill(coordinator.cluster.partition("t"), 0, 30)

    async def body() -> None:
        async with subscriber_of(coordinator, auto_commit_interval_ms=600_000) as consumer:
            await read(consumer, 20, max_records=10)
            if user_commits is not None:
                await consumer.commit({P[0]: user_commits})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()
    group = coordinator.group("g")
    assert group.members == []
    assert group.offsets["t", 0][0] == committed


@pytest.mark.parametrize(
    ("seek_to", "committed"), [(3, 3), (15, 10), (None, 0)], ids=["back", "ahead", "beginning"]
)
async def test_a_seek_before_the_failure_commits_no_record_of_the_last_list(
    coordinator: Coordinator, seek_to: int | None, committed: int
) -> None:
    fill(coordinator.cluster.partition("t"), 0, 30)

    async def body() -> None:
        async with subscriber_of(coordinator, auto_commit_interval_ms=600_000) as consumer:
            await read(consumer, 20, max_records=10)
            if seek_to is None:
                consumer.seek_to_beginning()
            else:
                consumer.seek(P[0], seek_to)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()
    assert coordinator.group("g").offsets.get(("t", 0), (0,))[0] == committed


@pytest.mark.parametrize("way", ["close", "shield", "gather", "wait_for", "unsubscribe"])
async def test_a_member_that_closes_while_it_handles_an_error_commits_the_records_before_the_one_in_hand(
    coordinator: Coordinator, way: str
) -> None:
    async def give_up(consumer: Consumer) -> None:
        match way:
            case "close":
                await consumer.close()
            case "shield":
                await asyncio.shield(consumer.close())
            case "gather":
                await asyncio.gather(consumer.close())
            case "wait_for":
                await asyncio.wait_for(consumer.close(), 5)
            case _:
                await asyncio.shield(consumer.unsubscribe())

    fill(coordinator.cluster.partition("t"), 0, 10)
    async with subscriber_of(coordinator, auto_commit_interval_ms=600_000) as consumer:
        try:
            async for record in consumer:
                if record.offset == 5:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            await give_up(consumer)
    assert coordinator.group("g").offsets["t", 0][0] == 5


async def test_a_position_in_a_topic_that_was_made_again_is_committed_though_its_number_was(
    coordinator: Coordinator,
) -> None:
    cluster = coordinator.cluster
    fill(cluster.partition("t"), 0, 10)
    async with subscriber_of(coordinator, auto_commit_interval_ms=600_000) as consumer:
        assert await read(consumer, 10) == values(0, 10)
        await consumer.commit()
        cluster.add_topic("t", 6)
        assert coordinator.group("g").offsets == {}
        fill(cluster.partition("t"), 1_000, 1_010)
        assert await read(consumer, 10) == values(1_000, 1_010)
    assert coordinator.group("g").offsets["t", 0][0] == 10


@pytest.mark.parametrize("way", ["poll", "async for", "time-out"])
async def test_a_member_that_is_cancelled_while_it_waits_commits_handed_out_records(
    coordinator: Coordinator, way: str
) -> None:
    """A service that stops between two records must not read the last ones again at its next start."""
    fill(coordinator.cluster.partition("t"), 0, 10)
    seen: list[int] = []

    async def body() -> None:
        async with subscriber_of(coordinator, auto_commit_interval_ms=600_000) as consumer:
            # The timeout turns the cancellation into another error.
            async with asyncio.timeout(None) as timeout:
                while way == "poll":
                    seen.extend(record.offset for record in await consumer.poll(60_000))
                async for record in consumer:
                    seen.append(record.offset)
                    if way == "time-out" and len(seen) == 10:
                        timeout.reschedule(asyncio.get_running_loop().time() + 0.01)

    running = asyncio.create_task(body())
    await until(lambda: len(seen) == 10)
    if way != "time-out":
        running.cancel()
    with pytest.raises((asyncio.CancelledError, TimeoutError)):
        await running
    assert coordinator.group("g").offsets["t", 0][0] == 10
    assert coordinator.group("g").members == []


@pytest.mark.parametrize("way", ["async with", "pausing", "finally"])
async def test_a_member_that_is_cancelled_at_work_on_a_record_commits_the_ones_before(
    coordinator: Coordinator, way: str
) -> None:
    fill(coordinator.cluster.partition("t"), 0, 10)
    at_work = asyncio.Event()

    async def work(consumer: Consumer) -> None:
        async for record in consumer:
            if record.offset == 5:
                if way == "pausing":
                    consumer.pause(P[0])
                at_work.set()
                await asyncio.Event().wait()

    async def body() -> None:
        async with subscriber_of(coordinator, auto_commit_interval_ms=600_000) as consumer:
            if way != "finally":
                await work(consumer)
            try:
                await work(consumer)
            finally:
                await consumer.close()

    running = asyncio.create_task(body())
    await at_work.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert coordinator.group("g").offsets["t", 0][0] == 5
    assert coordinator.group("g").members == []


async def test_a_member_that_does_not_poll_leaves_and_rejoins_with_the_next_poll(
    coordinator: Coordinator,
) -> None:
    diary = Diary()
    async with member_of(coordinator, max_poll_interval_ms=60, listener=diary) as consumer:
        await until(lambda: not coordinator.group("g").members, "the member's leaving")
        with pytest.raises(CommitFailed):
            await consumer.commit({P[0]: 1})
        await poll_until(lambda: len(diary.entries) == 3, consumer)
    assert diary.entries[1] == ("lost", set(range(6)))
    assert diary.entries[2][0] == "assigned"


async def test_a_member_that_waits_within_poll_stays(coordinator: Coordinator) -> None:
    async with member_of(coordinator, max_poll_interval_ms=40) as consumer:
        assert await consumer.poll(200) == []
        assert len(coordinator.group("g").members) == 1
        assert coordinator.group("g").generation == 1


async def test_an_evicted_member_loses_its_partitions_and_rejoins(
    coordinator: Coordinator,
) -> None:
    diary = Diary()
    async with member_of(coordinator, listener=diary) as consumer:
        (old,) = coordinator.group("g").members
        coordinator.kick("g", old)
        await poll_until(lambda: len(diary.entries) == 3, consumer)
        assert [event for event, _ in diary.entries] == ["assigned", "lost", "assigned"]
        assert old not in coordinator.group("g").members


async def test_the_coordinator_is_followed_when_it_moves(coordinator: Coordinator) -> None:
    fill(coordinator.cluster.partition("t"), 0, 10)
    async with subscriber_of(coordinator) as consumer:
        await read(consumer, 10)
        coordinator.move(2)
        await consumer.commit()
        assert coordinator.group("g").offsets["t", 0][0] == 10
        before = len(coordinator.cluster.requests(ApiKey.HEARTBEAT))
        await until(lambda: len(coordinator.cluster.requests(ApiKey.HEARTBEAT)) > before + 2)
        assert coordinator.group("g").generation == 1


async def test_a_lost_connection_to_the_coordinator_costs_no_rebalance(coordinator: Coordinator) -> None:
    async with member_of(coordinator) as consumer:
        coordinator.cluster.brokers[1].drop_connections()
        before = len(coordinator.cluster.requests(ApiKey.HEARTBEAT))
        await until(lambda: len(coordinator.cluster.requests(ApiKey.HEARTBEAT)) > before + 2)
        await consumer.commit({P[0]: 3})
        assert coordinator.group("g").generation == 1


async def test_a_join_is_retried(coordinator: Coordinator) -> None:
    broker = coordinator.cluster.brokers[1]
    passing = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
    for code in (*passing, ErrorCode.UNKNOWN_MEMBER_ID):
        broker.script(ApiKey.JOIN_GROUP, lambda _, code=code: JoinGroupResponse(error_code=code))
    for code in (*passing, ErrorCode.REBALANCE_IN_PROGRESS):
        broker.script(ApiKey.SYNC_GROUP, lambda _, code=code: SyncGroupResponse(error_code=code))
    async with member_of(coordinator) as consumer:
        assert shares(consumer) == [6]


async def test_a_full_group_is_an_error_and_the_next_poll_retries(coordinator: Coordinator) -> None:
    broker = coordinator.cluster.brokers[1]
    broker.script(ApiKey.JOIN_GROUP, lambda _: JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
    async with subscriber_of(coordinator) as consumer:
        with pytest.raises(ApiError) as refused:
            await consumer.poll(10_000)
        assert refused.value.code == ErrorCode.GROUP_MAX_SIZE_REACHED
        await poll_until(lambda: shares(consumer) == [6], consumer)


async def test_a_fenced_static_member_gets_an_error_from_every_poll(coordinator: Coordinator) -> None:
    diary = Diary()
    async with member_of(coordinator, group_instance_id="i", listener=diary) as consumer:
        coordinator.cluster.brokers[1].script(
            ApiKey.HEARTBEAT, lambda _: HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID)
        )
        for _ in range(2):
            with pytest.raises(ApiError) as refused:
                await consumer.poll(10_000)
            assert refused.value.code == ErrorCode.FENCED_INSTANCE_ID
        assert consumer.assignment() == set()
    assert [event for event, _ in diary.entries] == ["assigned", "lost"]


async def test_a_static_member_does_not_leave_and_keeps_its_partitions(coordinator: Coordinator) -> None:
    async with subscriber_of(coordinator, group_instance_id="a") as other:
        async with subscriber_of(coordinator, group_instance_id="b") as consumer:
            await poll_until(lambda: shares(other, consumer) == [3, 3], other, consumer)
            held = consumer.assignment()
        assert len(coordinator.group("g").members) == 2
        assert not coordinator.cluster.requests(ApiKey.LEAVE_GROUP)
        async with subscriber_of(coordinator, group_instance_id="b") as consumer:
            await poll_until(lambda: shares(other, consumer) == [3, 3], other, consumer)
            assert consumer.assignment() == held


async def test_a_pattern_finds_topics_that_are_created_later(coordinator: Coordinator) -> None:
    coordinator.cluster.add_topic("other")
    async with consumer_of(coordinator, metadata_max_age_ms=20) as consumer:
        consumer.subscribe(pattern="t.*")
        await poll_until(lambda: shares(consumer) == [6], consumer)
        coordinator.cluster.add_topic("t2", 2)
        coordinator.cluster.add_topic("not-t")
        await poll_until(lambda: shares(consumer) == [8], consumer)
        assert consumer.subscription() == {"t", "t2"}


async def test_partitions_and_topics_that_come_later_are_assigned(coordinator: Coordinator) -> None:
    async with consumer_of(coordinator) as consumer:
        consumer.subscribe(["t", "later"])
        await poll_until(lambda: shares(consumer) == [6], consumer)
        coordinator.cluster.add_topic("later", 2)
        await poll_until(lambda: shares(consumer) == [8], consumer)
        coordinator.cluster.grow_topic("t", 7)
        assert consumer._cluster is not None
        await consumer._cluster.refresh()
        await poll_until(lambda: shares(consumer) == [9], consumer)


@pytest.mark.parametrize(
    ("reset", "committed"), [("latest", False), ("latest", True), ("by_duration:PT1H", False)]
)
async def test_partitions_that_appear_during_a_membership_are_read_from_their_start(
    coordinator: Coordinator, reset: str, committed: bool
) -> None:
    """With any reset: all their records are newer than the subscription."""
    fill(coordinator.cluster.partition("t"), 0, 10)
    settings = {"auto_offset_reset": reset, "metadata_max_age_ms": 30, "allow_auto_create_topics": False}
    async with consumer_of(coordinator, **settings) as consumer:
        consumer.subscribe(["t", "later"])
        await poll_until(lambda: shares(consumer) == [6], consumer)
        await consumer.position(P[0])
        coordinator.cluster.grow_topic("t", 7)
        coordinator.cluster.add_topic("later", 1)
        if committed:
            await consumer.commit({("later", 0): 5})
        for topic, partition in (("t", 6), ("later", 0)):
            fill(coordinator.cluster.partition(topic, partition), 0, 10)
        expected = values(0, 10) + values(5 if committed else 0, 10)
        assert sorted(await read(consumer, len(expected))) == sorted(expected)


async def test_topics_of_a_pattern_that_appear_during_a_membership_are_read_from_their_start(
    coordinator: Coordinator,
) -> None:
    fill(coordinator.cluster.partition("t"), 0, 10)
    settings = {"auto_offset_reset": "latest", "metadata_max_age_ms": 30}
    async with consumer_of(coordinator, **settings) as consumer:
        consumer.subscribe(pattern="t.*")
        await poll_until(lambda: shares(consumer) == [6], consumer)
        assert await consumer.position(P[0]) == 10
        coordinator.cluster.add_topic("t2", 1)
        fill(coordinator.cluster.partition("t2"), 0, 10)
        assert await read(consumer, 10) == values(0, 10)
        assert await consumer.position(P[0]) == 10


async def test_a_listener_without_on_partitions_lost_is_refused(coordinator: Coordinator) -> None:
    class OfAnotherLibrary:
        def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None: ...
        def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None: ...

    listener: Any = OfAnotherLibrary()
    async with consumer_of(coordinator) as consumer:
        with pytest.raises(ValueError, match="on_partitions_lost: derive it from RebalanceListener"):
            consumer.subscribe("t", listener=listener)
        assert consumer.subscription() == set()


async def test_poll_raises_the_exception_of_a_listener_and_the_member_stays(
    coordinator: Coordinator,
) -> None:
    class Failing(RebalanceListener):
        def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            raise ZeroDivisionError

    async with subscriber_of(coordinator, listener=Failing()) as consumer:
        with pytest.raises(ZeroDivisionError):
            await consumer.poll(10_000)
        assert len(consumer.assignment()) == 6
        assert await consumer.poll(0) == []


async def test_a_listener_may_commit_and_seek(coordinator: Coordinator) -> None:
    fill(coordinator.cluster.partition("t"), 0, 30)

    class Busy(RebalanceListener):
        async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            consumer.seek(P[0], 20)

        async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
            await consumer.commit({P[0]: 25})

    async with subscriber_of(coordinator, listener=Busy(), enable_auto_commit=False) as consumer:
        assert await read(consumer, 10) == values(20, 30)
    assert coordinator.group("g").offsets["t", 0][0] == 25


async def test_a_poll_that_is_cancelled_in_a_rebalance_loses_no_partition(
    coordinator: Coordinator,
) -> None:
    class Slow(RebalanceListener):
        async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            if not begun.is_set():
                begun.set()
                await asyncio.Event().wait()

    begun = asyncio.Event()
    async with subscriber_of(coordinator, listener=Slow()) as consumer:
        polling = asyncio.create_task(consumer.poll(10_000))
        await begun.wait()
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        await poll_until(
            lambda: shares(consumer) == [6] and coordinator.group("g").state == "Stable", consumer
        )


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_revoked_partitions_are_committed_once_however_short_the_poll(
    coordinator: Coordinator, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That commit takes at most five seconds if the coordinator does not answer."""
    coordinator.cluster.add_topic("other")
    fill(coordinator.cluster.partition("t"), 0, 10)
    limits_ms: list[int] = []

    async def times_out(commits: GroupCommits, offsets: object, timeout_ms: int) -> None:
        limits_ms.append(timeout_ms)
        raise RequestTimedOutLocally("the coordinator is silent")

    settings = {"partition_assignment_strategy": strategy, "auto_commit_interval_ms": 600_000}
    async with subscriber_of(coordinator, session_timeout_ms=600_000, **settings) as consumer:
        assert await read(consumer, 10) == values(0, 10)
        monkeypatch.setattr(GroupCommits, "commit", times_out)
        consumer.subscribe("other")
        await consumer.poll(0)
        assert consumer.assignment() == set()
        assert limits_ms == [5_000]


async def test_assign_and_subscribe_exclude_each_other(coordinator: Coordinator) -> None:
    async with consumer_of(coordinator) as consumer:
        consumer.assign([P[0]])
        with pytest.raises(SubscriptionConflict):
            consumer.subscribe("t")
        await consumer.unsubscribe()
        consumer.subscribe("t")
        with pytest.raises(SubscriptionConflict):
            consumer.assign([P[0]])
        with pytest.raises(ValueError, match="pattern"):
            consumer.subscribe("t", pattern="t")
        with pytest.raises(ValueError, match="regular expression"):
            consumer.subscribe(pattern="(")
        await consumer.unsubscribe()
        consumer.assign([P[0]])


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_a_member_does_not_create_topics_again_that_it_no_longer_wants(
    coordinator: Coordinator, strategy: str
) -> None:
    """The group leader does not either, for topics that only a departed member wanted."""
    cluster = coordinator.cluster
    cluster.creates_topics = True
    cluster.add_topic("other")
    cluster.add_topic("of-a-guest")
    settings = {"partition_assignment_strategy": strategy, "session_timeout_ms": 600_000}
    async with member_of(coordinator, **settings) as consumer:
        async with consumer_of(coordinator, **settings) as guest:
            guest.subscribe("of-a-guest")
            await poll_until(lambda: shares(consumer, guest) == [6, 1], consumer, guest)
        consumer.subscribe("other")
        await poll_until(lambda: consumer.assignment() == {TopicPartition("other", 0)}, consumer)
        cluster.delete_topic("t")
        cluster.delete_topic("of-a-guest")
        assert consumer._cluster is not None
        await consumer._cluster.refresh(at_once=True)
        await consumer._cluster.refresh(at_once=True)
        assert set(cluster.topics) == {"other", OFFSETS_TOPIC}


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_subscription_creates_its_topic_only_if_the_settings_allow_it(
    coordinator: Coordinator, is_allowed: bool
) -> None:
    coordinator.cluster.creates_topics = True
    async with consumer_of(coordinator, allow_auto_create_topics=is_allowed) as consumer:
        consumer.subscribe("new")
        await poll_until(lambda: coordinator.group("g").state == "Stable", consumer)
        if is_allowed:
            await poll_until(consumer.assignment, consumer)
    assert ("new" in coordinator.cluster.topics) is is_allowed


async def test_a_topic_that_a_pattern_found_is_not_created_again(coordinator: Coordinator) -> None:
    cluster = coordinator.cluster
    cluster.creates_topics = True
    async with consumer_of(coordinator) as consumer:
        consumer.subscribe(pattern="t|u")
        await poll_until(lambda: shares(consumer) == [6], consumer)
        cluster.delete_topic("t")
        assert consumer._cluster is not None
        await consumer._cluster.refresh(at_once=True)
        await consumer._cluster.refresh(at_once=True)
        assert set(cluster.topics) == {OFFSETS_TOPIC}
