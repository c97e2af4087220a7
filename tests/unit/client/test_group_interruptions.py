"""A member that is interrupted, closed by another task or misused loses nothing and leaves no task."""

import asyncio
from typing import Any

import pytest

from barnabas.client import client as lifecycle
from barnabas.client.consumer.consumer import Consumer, RebalanceListener
from barnabas.client.consumer.group_membership import MemberState
from barnabas.client.consumer.group_offsets import CommittedOffsets
from barnabas.client.errors import ApiError, BarnabasError, ClientClosed, ErrorCode, LocalError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import HeartbeatResponse, SyncGroupResponse
from barnabas.protocol.messages.offsets import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from barnabas.protocol.schema import ApiKey
from tests.support.coordinator import Coordinator
from tests.support.waiting import until

from .test_consumer import fill, read, values
from .test_group import (
    Diary,
    P,
    consumer_of,
    member_of,
    poll_until,
    shares,
    subscriber_of,
)
from .test_group_offsets import refusal


def joins(coordinator: Coordinator) -> int:
    return len(coordinator.cluster.requests(ApiKey.JOIN_GROUP))


async def tasks_are_gone(before: set[asyncio.Task[Any]]) -> None:
    """Wait for the clients' tasks; the fake brokers have tasks too."""

    def left() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() - before if "barnabas/client" in repr(task.get_coro())]

    await until(lambda: not left(), "the end of the consumer's tasks")


async def test_a_member_that_closes_before_its_first_join_is_answered_leaves(
    coordinator: Coordinator,
) -> None:
    """The group waited for the id that it had been given, until its session ended."""
    is_asked = asyncio.Event()
    coordinator.cluster.intercept[ApiKey.JOIN_GROUP] = lambda broker, request: is_asked.set()
    async with member_of(coordinator) as first:
        is_asked.clear()
        async with subscriber_of(coordinator, session_timeout_ms=600_000) as consumer:
            await consumer.poll(0)
            await is_asked.wait()
        async with subscriber_of(coordinator) as second:
            await poll_until(lambda: shares(first, second) == [3, 3], first, second)


# Listeners


async def test_revoked_partitions_are_not_reported_as_lost_too(coordinator: Coordinator) -> None:
    """The member is evicted while its listener runs."""

    class Slow(Diary):
        async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
            await super().on_partitions_revoked(partitions)
            if len(self.entries) == 2:
                coordinator.kick("g", coordinator.group("g").members[0])
                await until(lambda: consumer._group is not None and consumer._group.member.member_id == "")

    diary = Slow()
    async with member_of(coordinator, listener=diary) as consumer:
        coordinator.cluster.brokers[1].script(
            ApiKey.HEARTBEAT, lambda _: HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        )
        await poll_until(lambda: len(diary.entries) >= 3, consumer)
        assert [event for event, _ in diary.entries] == ["assigned", "revoked", "assigned"]


async def test_a_commit_that_finds_the_member_evicted_turns_the_revocation_into_a_loss(
    coordinator: Coordinator,
) -> None:
    fill(coordinator.cluster.partition("t"), 0, 10)
    diary = Diary()
    async with subscriber_of(coordinator, diary) as consumer:
        await read(consumer, 10)
        coordinator.cluster.brokers[1].script(
            ApiKey.OFFSET_COMMIT, lambda body: refusal(body, ErrorCode.UNKNOWN_MEMBER_ID)
        )
    assert [event for event, _ in diary.entries] == ["assigned", "lost"]


@pytest.mark.parametrize("act", ["poll", "getone", "unsubscribe", "close"])
async def test_a_listener_that_would_wait_for_itself_is_refused(coordinator: Coordinator, act: str) -> None:
    class Wrong(RebalanceListener):
        async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            await getattr(consumer, act)()

    async with subscriber_of(coordinator, Wrong()) as consumer:
        with pytest.raises(LocalError, match="rebalance listener"):
            await consumer.poll(10_000)
        assert shares(consumer) == [6]
        assert await consumer.poll(0) == []
    assert coordinator.group("g").members == []


async def test_subscribing_to_the_same_topics_only_changes_the_listener(
    coordinator: Coordinator,
) -> None:
    first, second = Diary(), Diary()
    async with consumer_of(coordinator) as consumer:
        for arguments in ({"topics": ["t"]}, {"pattern": "t"}):
            await consumer.unsubscribe()
            consumer.subscribe(**arguments, listener=first)
            await poll_until(lambda: shares(consumer) == [6], consumer)
            before = joins(coordinator)
            consumer.subscribe(**arguments, listener=second)
            await poll_until(lambda: consumer.assignment(), consumer)
            for _ in range(10):
                await consumer.poll(10)
            assert joins(coordinator) == before
            assert consumer.subscription() == {"t"}
    assert {event for event, _ in second.entries} == {"revoked"}


# Closing


async def test_an_iteration_ends_when_another_task_closes(coordinator: Coordinator) -> None:
    fill(coordinator.cluster.partition("t"), 0, 30)
    before = asyncio.all_tasks()
    diary = Diary()
    consumer = consumer_of(coordinator)
    await consumer.start()
    consumer.subscribe("t", listener=diary)
    seen: list[int] = []

    async def work() -> None:
        async for record in consumer:
            assert all(event != "revoked" for event, _ in diary.entries), "handed out after it was revoked"
            seen.append(record.offset)

    working = asyncio.create_task(work())
    await until(lambda: len(seen) == 30)
    await asyncio.gather(consumer.close(), consumer.close())
    await working
    assert [event for event, _ in diary.entries] == ["assigned", "revoked"]
    assert coordinator.group("g").members == []
    assert coordinator.group("g").offsets["t", 0][0] == 30
    await tasks_are_gone(before)


async def test_closing_waits_for_the_rebalance_that_another_task_is_in(coordinator: Coordinator) -> None:
    calls: list[str] = []

    class Slow(RebalanceListener):
        async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
            calls.append("assigned begins")
            await go_on.wait()
            calls.append("assigned ends")

        def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
            calls.append("revoked")

    go_on = asyncio.Event()
    consumer = consumer_of(coordinator)
    await consumer.start()
    consumer.subscribe("t", listener=Slow())
    polling = asyncio.create_task(consumer.poll(10_000))
    await until(lambda: calls)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    with pytest.raises(ClientClosed):
        await polling
    assert calls == ["assigned begins", "assigned ends", "revoked"]
    assert coordinator.group("g").members == []


@pytest.mark.parametrize("way", ["close", "unsubscribe"])
async def test_a_member_leaves_although_the_coordinator_has_moved(coordinator: Coordinator, way: str) -> None:
    async with member_of(coordinator, heartbeat_interval_ms=1_000, enable_auto_commit=False) as consumer:
        coordinator.move(2)
        await getattr(consumer, way)()
        assert coordinator.group("g").members == []


async def test_closing_keeps_its_time_limit_while_the_coordinator_hangs(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    fill(coordinator.cluster.partition("t"), 0, 30)
    before = asyncio.all_tasks()
    outcomes: list[BarnabasError | None] = []
    consumer = consumer_of(coordinator)
    await consumer.start()
    consumer.subscribe("t")
    await read(consumer, 30)
    for api in (ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP, ApiKey.FIND_COORDINATOR, ApiKey.HEARTBEAT):
        for broker in coordinator.cluster.brokers.values():
            broker.gate(api)
    consumer.commit_nowait({P[0]: 1}, lambda offsets, error: outcomes.append(error))
    # The deadline of the test: without the limit closing takes 15 s.
    async with asyncio.timeout(12):
        await consumer.close(timeout_ms=200)
    assert "closing takes too long" in caplog.text
    await tasks_are_gone(before)
    assert len(outcomes) == 1
    assert outcomes[0] is not None


async def test_a_member_that_fails_while_the_coordinator_hangs_ends_soon(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_AFTER_ERROR_S", 0.1)
    fill(coordinator.cluster.partition("t"), 0, 30)

    async def body() -> None:
        async with subscriber_of(coordinator) as consumer:
            await read(consumer, 30)
            for api in (ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP):
                coordinator.cluster.brokers[1].gate(api)
            await consumer.poll(0)
            raise ZeroDivisionError

    before = asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        # Without the limit it takes 10 s.
        async with asyncio.timeout(8):
            await body()
    await tasks_are_gone(before)


async def test_a_close_that_is_cancelled_repeatedly_leaves_no_task(coordinator: Coordinator) -> None:
    fill(coordinator.cluster.partition("t"), 0, 30)
    before = asyncio.all_tasks()
    consumer = consumer_of(coordinator)
    await consumer.start()
    consumer.subscribe("t")
    await read(consumer, 30)
    for api in (ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP):
        coordinator.cluster.brokers[1].gate(api)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    while not closing.done():
        closing.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await closing
    await tasks_are_gone(before)
    with pytest.raises(ClientClosed):
        await consumer.poll()


async def test_a_cancelled_unsubscribe_still_releases_the_partitions(
    coordinator: Coordinator,
) -> None:
    fill(coordinator.cluster.partition("t"), 0, 30)
    async with subscriber_of(coordinator) as consumer:
        await read(consumer, 30)
        gate = coordinator.cluster.brokers[1].gate(ApiKey.OFFSET_COMMIT)
        leaving = asyncio.create_task(consumer.unsubscribe())
        commits = len(coordinator.cluster.requests(ApiKey.OFFSET_COMMIT))
        await until(lambda: len(coordinator.cluster.requests(ApiKey.OFFSET_COMMIT)) > commits)
        leaving.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert consumer.assignment() == set()
        assert consumer.subscription() == set()
        consumer.subscribe("t")
        await poll_until(lambda: shares(consumer) == [6], consumer)


# Commits


async def test_commits_keep_the_order_of_their_calls_while_the_coordinator_is_looked_up(
    coordinator: Coordinator,
) -> None:
    async with consumer_of(coordinator, enable_auto_commit=False, heartbeat_interval_ms=1_000) as consumer:
        consumer.assign([P[0]])
        assert await consumer.position(P[0]) == 0
        for round_ in range(20):
            assert consumer._group is not None
            consumer._group.member.coordinator_lost()
            # The first broker that is asked is slow.
            gates = [broker.gate(ApiKey.FIND_COORDINATOR) for broker in coordinator.cluster.brokers.values()]
            first = consumer.commit_nowait({P[0]: 10 * round_ + 1})
            await asyncio.sleep(0.002)
            second = asyncio.create_task(consumer.commit({P[0]: 10 * round_ + 2}))
            await asyncio.sleep(0.002)
            gates[round_ % 2].set()
            await asyncio.sleep(0.002)
            gates[1 - round_ % 2].set()
            await asyncio.gather(first, second)
            assert coordinator.group("g").offsets["t", 0][0] == 10 * round_ + 2


async def test_the_next_poll_raises_the_exception_of_a_commit_callback(
    coordinator: Coordinator,
) -> None:
    def done(offsets: Any, error: Any) -> None:
        raise ZeroDivisionError

    diary = Diary()
    async with member_of(coordinator, enable_auto_commit=False, listener=diary) as consumer:
        await consumer.commit_nowait({P[0]: 3}, done)
        group = consumer._group
        assert group is not None
        group.member.want_rejoin("as a heartbeat says")
        with pytest.raises(ZeroDivisionError):
            await consumer.getone()
        waiting = asyncio.create_task(consumer.getone())
        await until(lambda: len(diary.entries) == 3, "the rebalance that was due in the call before")
        waiting.cancel()
    assert coordinator.group("g").offsets["t", 0][0] == 3


async def test_of_two_exceptions_of_callbacks_one_is_raised_and_one_is_logged(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    def raising(error: Exception) -> Any:
        def done(offsets: Any, outcome: Any) -> None:
            raise error

        return done

    async with member_of(coordinator, enable_auto_commit=False) as consumer:
        await consumer.commit_nowait({P[0]: 3}, raising(ZeroDivisionError()))
        await consumer.commit_nowait({P[0]: 4}, raising(OverflowError()))
        with pytest.raises(OverflowError):
            await consumer.getone()
        assert await consumer.poll(0) == []
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]


async def test_a_bug_in_a_commit_in_the_background_is_raised_by_the_next_poll(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: CommittedOffsets, *_: Any, **settings: Any) -> None:
        raise KeyError("a bug")

    outcomes: list[Any] = []
    async with member_of(coordinator, enable_auto_commit=False) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(CommittedOffsets, "commit", broken)
            await consumer.commit_nowait({P[0]: 3}, lambda offsets, error: outcomes.append(error))
        assert [type(error) for error in outcomes] == [LocalError]
        with pytest.raises(LocalError, match="KeyError: 'a bug'"):
            await consumer.getone()
        assert await consumer.poll(0) == []
        await consumer.commit({P[0]: 4})
    assert coordinator.group("g").offsets["t", 0][0] == 4


async def test_automatic_commits_do_not_pile_up_while_one_is_not_answered(
    coordinator: Coordinator,
) -> None:
    fill(coordinator.cluster.partition("t"), 0, 30)
    async with subscriber_of(coordinator, auto_commit_interval_ms=0) as consumer:
        gate = coordinator.cluster.brokers[1].gate(ApiKey.OFFSET_COMMIT)
        await read(consumer, 30, max_records=1)
        for _ in range(20):
            await consumer.poll(12)
        assert consumer._group is not None
        assert len(consumer._group.commits._tasks) == 1
        gate.set()
        await poll_until(lambda: coordinator.group("g").offsets.get(("t", 0), (0,))[0] == 30, consumer)


async def test_offsets_of_a_group_without_members_are_committed_again_without_new_records(
    coordinator: Coordinator,
) -> None:
    """Otherwise they would expire, a retention time after their last commit."""
    fill(coordinator.cluster.partition("t"), 0, 10)
    async with consumer_of(coordinator, auto_commit_interval_ms=10) as consumer:
        consumer.assign([P[0]])
        await read(consumer, 10)
        await poll_until(lambda: len(coordinator.cluster.requests(ApiKey.OFFSET_COMMIT)) >= 3, consumer)
    assert coordinator.group("g").offsets["t", 0][0] == 10


# Joining


async def test_a_slow_group_leader_does_not_end_the_sessions_of_others(
    coordinator: Coordinator,
) -> None:
    """Heartbeats go on while the answer to a sync is waited for."""
    gate = coordinator.cluster.brokers[1].gate(ApiKey.SYNC_GROUP)
    begun_ms = coordinator.cluster.now_ms
    async with subscriber_of(coordinator, session_timeout_ms=200, heartbeat_interval_ms=20) as consumer:
        await poll_until(lambda: coordinator.cluster.now_ms > begun_ms + 500, consumer)
        gate.set()
        await poll_until(lambda: shares(consumer) == [6], consumer)
        assert coordinator.group("g").generation == 1
        assert len(coordinator.cluster.requests(ApiKey.SYNC_GROUP)) == 1


async def test_an_unreadable_assignment_is_an_error_and_the_member_rejoins(
    coordinator: Coordinator,
) -> None:
    """The member must not keep a generation without partitions."""
    coordinator.cluster.brokers[1].script(
        ApiKey.SYNC_GROUP, lambda _: SyncGroupResponse(error_code=0, assignment=b"\x00")
    )
    async with subscriber_of(coordinator) as consumer:
        with pytest.raises(ApiError, match="ConsumerProtocolAssignment"):
            await consumer.poll(10_000)
        await poll_until(lambda: shares(consumer) == [6], consumer)


async def test_a_poll_while_the_member_leaves_after_max_poll_interval_keeps_it_in_the_group(
    coordinator: Coordinator,
) -> None:
    """The join that it begins must not be answered to a member that has left meanwhile."""
    may_join = asyncio.Event()

    async def join(broker: Any, body: Any) -> None:
        if body.member_id:
            await may_join.wait()

    coordinator.cluster.intercept[ApiKey.JOIN_GROUP] = join
    async with subscriber_of(coordinator, max_poll_interval_ms=60) as consumer:
        session = consumer._group
        assert session is not None
        stop_joining = session._stop_joining

        async def stop_while_a_poll_comes() -> None:
            session._stop_joining = stop_joining
            await stop_joining()
            await consumer.poll(0)
            await until(lambda: session.member.state is MemberState.JOINING)
            may_join.set()

        session._stop_joining = stop_while_a_poll_comes
        await consumer.poll(0)
        await until(may_join.is_set)
        await poll_until(lambda: shares(consumer) == [6], consumer)


def unstable(body: Any) -> OffsetFetchResponse:
    group = OffsetFetchResponseGroup(
        group_id=body.groups[0].group_id, error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    return OffsetFetchResponse(groups=[group])


@pytest.mark.parametrize("way", ["assigned", "subscribed"])
async def test_offsets_that_are_not_available_for_long_are_waited_for(
    coordinator: Coordinator, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is neither another rebalance nor a reset meanwhile."""
    monkeypatch.setattr("barnabas.client.consumer.group_joining._OFFSETS_WITHIN_MS", 30)
    fill(coordinator.cluster.partition("t"), 0, 30)
    coordinator.commit("g", 12)
    refused = 0

    def fetch(broker: Any, body: Any) -> Any:
        nonlocal refused
        refused += 1
        return unstable(body)

    coordinator.cluster.intercept[ApiKey.OFFSET_FETCH] = fetch
    async with consumer_of(coordinator, default_api_timeout_ms=40) as consumer:
        if way == "assigned":
            consumer.assign(P)
        else:
            consumer.subscribe("t")
            await poll_until(lambda: shares(consumer) == [6], consumer)
        enough = refused + 20
        await poll_until(lambda: refused > enough, consumer)
        del coordinator.cluster.intercept[ApiKey.OFFSET_FETCH]
        assert await read(consumer, 18) == values(12, 30)
        assert coordinator.group("g").generation <= 1


async def test_a_listing_that_hangs_does_not_hold_up_heartbeats(coordinator: Coordinator) -> None:
    settings = {"metadata_max_age_ms": 30, "session_timeout_ms": 300}
    async with consumer_of(coordinator, **settings) as consumer:
        consumer.subscribe(pattern="t")
        await poll_until(lambda: shares(consumer) == [6], consumer)
        for broker in coordinator.cluster.brokers.values():
            broker.gate(ApiKey.METADATA)
        before = len(coordinator.cluster.requests(ApiKey.METADATA))
        await poll_until(lambda: len(coordinator.cluster.requests(ApiKey.METADATA)) > before, consumer)
        beats = len(coordinator.cluster.requests(ApiKey.HEARTBEAT))
        await poll_until(lambda: len(coordinator.cluster.requests(ApiKey.HEARTBEAT)) > beats + 20, consumer)
        assert coordinator.group("g").generation == 1
        for broker in coordinator.cluster.brokers.values():
            broker.gates.clear()


async def test_a_failing_listener_at_close_leaves_no_task_and_no_member(
    coordinator: Coordinator,
) -> None:
    class Failing(RebalanceListener):
        def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
            raise ZeroDivisionError

    before = asyncio.all_tasks()
    consumer: Consumer = consumer_of(coordinator)
    await consumer.start()
    consumer.subscribe("t", listener=Failing())
    await poll_until(lambda: shares(consumer) == [6], consumer)
    with pytest.raises(ZeroDivisionError):
        await consumer.close()
    assert coordinator.group("g").members == []
    await tasks_are_gone(before)
