"""The offsets that members of a group commit and start at, and their proof of membership for transactions."""

import asyncio
import signal
from typing import Any

import pytest

from barnabas.client.consumer.consumer import Consumer
from barnabas.client.errors import ApiError, BarnabasError, CommitFailed, ErrorCode, InvalidConfiguration
from barnabas.client.offsets import GroupMetadata
from barnabas.protocol.messages.offsets import OffsetCommitResponse
from barnabas.protocol.messages.partitions import PartitionResult, TopicResult
from barnabas.protocol.schema import ApiKey
from tests.support.coordinator import Coordinator
from tests.support.waiting import DEADLINE_S, until

from .test_consumer import fill, read, values
from .test_group import P, consumer_of, member_of, poll_until, subscriber_of


def refusal(body: Any, code: int) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            TopicResult(
                name=topic.name,
                partitions=[
                    PartitionResult(partition_index=one.partition_index, error_code=code)
                    for one in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )


async def test_the_next_member_starts_at_the_committed_offsets(coordinator: Coordinator) -> None:
    fill(coordinator.cluster.partition("t"), 0, 30)
    async with subscriber_of(coordinator, enable_auto_commit=False) as consumer:
        await read(consumer, 10, max_records=10)
        await consumer.commit()
        await read(consumer, 10, max_records=10)
        committed = await consumer.committed([P[0], P[1]])
        assert committed[P[0]] is not None
        assert committed[P[0]].offset == 10
        assert committed[P[0]].leader_epoch == 0
        assert committed[P[1]] is not None
        assert committed[P[1]].offset == 0
        assert (await consumer.committed([("t", 9)])) == {("t", 9): None}
    async with subscriber_of(coordinator, enable_auto_commit=False) as consumer:
        assert await read(consumer, 20) == values(10, 30)


async def test_the_group_metadata_is_that_of_the_present_generation(coordinator: Coordinator) -> None:
    async with member_of(coordinator, group_instance_id="i") as consumer:
        first = consumer.group_metadata()
        assert first.group_id == "g"
        assert first.group_instance_id == "i"
        assert coordinator.group("g").members == [first.member_id]


async def test_an_evicted_member_has_no_group_metadata(coordinator: Coordinator) -> None:
    """Without a member id, the coordinator would accept its offsets in a transaction."""
    async with member_of(coordinator) as consumer:
        coordinator.kick("g", consumer.group_metadata().member_id)

        def is_refused() -> bool:
            try:
                consumer.group_metadata()
            except CommitFailed:
                return True
            return False

        # A heartbeat finds it out.
        await until(is_refused)


async def test_without_a_subscription_the_group_metadata_has_no_member(coordinator: Coordinator) -> None:
    async with consumer_of(coordinator) as consumer:
        consumer.assign([P[0]])
        assert consumer.group_metadata() == GroupMetadata("g")
    async with consumer_of(coordinator, group_id=None) as consumer:
        with pytest.raises(InvalidConfiguration, match="group_metadata"):
            consumer.group_metadata()


async def test_the_user_commits_offsets(coordinator: Coordinator) -> None:
    async with member_of(coordinator, enable_auto_commit=False) as consumer:
        await consumer.commit({P[1]: 5, P[2]: (7, "note")})
        outcomes: list[Any] = []
        await consumer.commit_nowait({P[3]: 9}, lambda offsets, error: outcomes.append((offsets, error)))
        assert outcomes == [({P[3]: (9, "", -1)}, None)]
        with pytest.raises(ValueError, match="-1"):
            await consumer.commit({P[1]: -1})
    offsets = coordinator.group("g").offsets
    assert (offsets["t", 1][0], offsets["t", 2][:2], offsets["t", 3][0]) == (5, (7, "note"), 9)


async def test_the_last_of_two_commits_counts(coordinator: Coordinator) -> None:
    """The one in the background began later than the one after it, and replaced its offset."""
    async with member_of(coordinator, enable_auto_commit=False) as consumer:
        earlier = consumer.commit_nowait({P[0]: 3})
        await consumer.commit({P[0]: 5})
        await earlier
        assert coordinator.group("g").offsets["t", 0][0] == 5


async def test_the_user_commits_records(coordinator: Coordinator) -> None:
    """The offset after each, in each partition after the last of them."""
    for number in (0, 1):
        fill(coordinator.cluster.partition("t", number), 0, 10)
    async with consumer_of(coordinator, enable_auto_commit=False) as consumer:
        consumer.assign([P[0], P[1]])
        records = []
        while len(records) < 20:
            records += await consumer.poll(10_000)
        group = coordinator.group("g")
        of_first = [record for record in records if record.tp == P[0]]
        await consumer.commit(of_first[3])
        assert group.offsets["t", 0] == (4, "", -1)
        await consumer.commit_nowait(reversed(records[:-1]))
        assert {tp: offset[0] for tp, offset in group.offsets.items()} == {P[0]: 10, P[1]: 9}
        # This one is before the position, which has a leader epoch.
        await consumer.commit(records[-1])
        assert group.offsets["t", 1] == (records[-1].next_offset, "", 0)
        await consumer.commit([])
        assert len(group.offsets) == 2


@pytest.mark.parametrize("stops_at", [4, 29])
async def test_a_stopped_member_finishes_its_record_commits_and_leaves(
    coordinator: Coordinator, stops_at: int
) -> None:
    """At the last record the signal comes while the iteration waits for more."""
    fill(coordinator.cluster.partition("t"), 0, 30)
    loop = asyncio.get_running_loop()
    seen = []
    async with subscriber_of(coordinator, auto_commit_interval_ms=600_000) as consumer:
        loop.add_signal_handler(signal.SIGUSR1, consumer.stop)
        try:
            async with asyncio.timeout(DEADLINE_S):
                async for record in consumer:
                    if record.offset == stops_at:
                        loop.call_later(0, signal.raise_signal, signal.SIGUSR1)
                        if stops_at < 29:
                            await until(lambda: consumer.is_stopped)
                    seen.append(record.offset)
        finally:
            loop.remove_signal_handler(signal.SIGUSR1)
    assert seen == list(range(stops_at + 1))
    group = coordinator.group("g")
    assert (group.offsets["t", 0][0], group.members) == (stops_at + 1, [])


async def test_an_automatic_commit_never_covers_records_that_were_not_handed_out(
    coordinator: Coordinator,
) -> None:
    fill(coordinator.cluster.partition("t"), 0, 30)
    seen = 0
    async with subscriber_of(coordinator, auto_commit_interval_ms=0) as consumer:
        async for _ in consumer:
            committed = coordinator.group("g").offsets.get(("t", 0), (0,))[0]
            assert committed <= seen
            # Working on a record takes its time, in which commits may happen.
            await asyncio.sleep(0.002)
            seen += 1
            if seen == 30:
                break
        await until(lambda: ("t", 0) in coordinator.group("g").offsets)
        assert 0 < coordinator.group("g").offsets["t", 0][0] < 30
        await poll_until(lambda: coordinator.group("g").offsets["t", 0][0] == 30, consumer)


async def test_manually_assigned_partitions_start_at_committed_offsets(coordinator: Coordinator) -> None:
    fill(coordinator.cluster.partition("t"), 0, 30)
    async with consumer_of(coordinator, enable_auto_commit=False) as consumer:
        consumer.assign([P[0]])
        assert await read(consumer, 30) == values(0, 30)
        await consumer.commit({P[0]: 12})
    async with consumer_of(coordinator) as consumer:
        consumer.assign([P[0], P[1]])
        assert await consumer.position(P[0]) == 12
        assert await read(consumer, 18) == values(12, 30)
    # Closing commits, without being a member.
    assert coordinator.group("g").offsets["t", 0][0] == 30
    assert not coordinator.cluster.requests(ApiKey.JOIN_GROUP)


async def test_a_seek_overrides_committed_offsets(coordinator: Coordinator) -> None:
    fill(coordinator.cluster.partition("t"), 0, 30)
    gate = coordinator.cluster.brokers[1].gate(ApiKey.OFFSET_FETCH)
    coordinator.commit("g", 12)
    async with consumer_of(coordinator) as consumer:
        consumer.assign([P[0]])
        consumer.seek(P[0], 25)
        gate.set()
        assert await read(consumer, 5) == values(25, 30)


async def test_a_commit_refused_for_a_rebalance_raises_an_error(coordinator: Coordinator) -> None:
    async with member_of(coordinator, enable_auto_commit=False) as consumer:
        for code, raised in (
            (ErrorCode.REBALANCE_IN_PROGRESS, ApiError),
            (ErrorCode.ILLEGAL_GENERATION, CommitFailed),
        ):
            coordinator.cluster.brokers[1].script(
                ApiKey.OFFSET_COMMIT, lambda body, code=code: refusal(body, code)
            )
            with pytest.raises(raised):
                await consumer.commit({P[0]: 1})
            await poll_until(
                lambda: consumer.assignment() and coordinator.group("g").state == "Stable", consumer
            )


async def test_a_commit_is_retried_while_the_coordinator_loads(coordinator: Coordinator) -> None:
    async with member_of(coordinator) as consumer:
        coordinator.cluster.brokers[1].script(
            ApiKey.OFFSET_COMMIT,
            *[lambda body: refusal(body, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * 2,
        )
        await consumer.commit({P[0]: 1})
        assert coordinator.group("g").offsets["t", 0][0] == 1


async def test_a_commit_of_a_partition_that_does_not_exist_names_it_after_the_time(
    coordinator: Coordinator,
) -> None:
    """It is retried until then, because the coordinator may not know of a new partition yet."""
    async with member_of(coordinator, enable_auto_commit=False) as consumer:
        said = r"UNKNOWN_TOPIC_OR_PARTITION: the offset of t-9 was not committed.* \(asked for 300 ms\)"
        with pytest.raises(BarnabasError, match=said):
            await consumer.commit({P[0]: 1, ("t", 9): 1}, timeout_ms=300)
        requests = coordinator.cluster.requests(ApiKey.OFFSET_COMMIT)
        assert len(requests) > 1
        assert [p.partition_index for p in requests[-1].topics[0].partitions] == [9], "the other one is done"
        assert coordinator.group("g").offsets["t", 0][0] == 1


# Positions in a topic that was deleted and made again


async def make_again(coordinator: Coordinator, consumer: Consumer) -> None:
    """Make "t" again while the consumer fetches nothing, so that nothing shows it the change."""
    consumer.pause(*consumer.assignment())
    fetcher = consumer._polls.fetcher
    assert fetcher is not None
    await until(lambda: not fetcher._fetches)
    coordinator.cluster.add_topic("t", 6)
    fill(coordinator.cluster.partition("t"), 1_000, 1_010)


@pytest.mark.parametrize("wire", ["native", "kafka"])
@pytest.mark.parametrize("way", ["close", "unsubscribe", "close assigned"])
async def test_the_last_commit_leaves_out_positions_in_a_topic_that_was_made_again(
    coordinator: Coordinator, wire: str, way: str
) -> None:
    """Otherwise the next member would begin in the middle of the new topic."""
    coordinator.cluster.add_topic("other")
    fill(coordinator.cluster.partition("t"), 0, 10)
    fill(coordinator.cluster.partition("other"), 0, 5)
    async with consumer_of(coordinator, wire=wire, auto_commit_interval_ms=600_000) as consumer:
        if way == "close assigned":
            consumer.assign([P[0], ("other", 0)])
        else:
            consumer.subscribe(["t", "other"])
        await read(consumer, 15)
        await make_again(coordinator, consumer)
        if way == "unsubscribe":
            await consumer.unsubscribe()
    offsets = coordinator.group("g").offsets
    assert ("t", 0) not in offsets
    assert offsets["other", 0][0] == 5
    async with subscriber_of(coordinator) as consumer:
        assert await read(consumer, 10) == values(1_000, 1_010)


async def test_offsets_in_a_topic_that_was_made_again_are_refused_and_others_committed(
    coordinator: Coordinator,
) -> None:
    coordinator.cluster.add_topic("other")
    fill(coordinator.cluster.partition("t"), 0, 10)
    async with consumer_of(coordinator, enable_auto_commit=False) as consumer:
        consumer.subscribe(["t", "other"])
        await read(consumer, 10)
        await make_again(coordinator, consumer)
        outcomes: list[Any] = []
        await consumer.commit_nowait({P[0]: 10}, lambda offsets, error: outcomes.append(error))
        assert isinstance(outcomes[0], BarnabasError)
        with pytest.raises(CommitFailed, match="t-0 was read in a topic that was deleted and made again"):
            await consumer.commit({P[0]: 10, ("other", 0): 3})
        assert coordinator.group("g").offsets.keys() == {("other", 0)}
        consumer.resume(P[0])
        assert await read(consumer, 10) == values(1_000, 1_010)
        await consumer.commit()
        assert coordinator.group("g").offsets["t", 0][0] == 10


async def test_a_commit_waits_for_a_coordinator_that_knows_only_the_former_topic(
    coordinator: Coordinator,
) -> None:
    async with member_of(coordinator, enable_auto_commit=False) as consumer:
        refuse = [lambda body: refusal(body, ErrorCode.UNKNOWN_TOPIC_ID)] * 2
        coordinator.cluster.brokers[1].script(ApiKey.OFFSET_COMMIT, *refuse)
        await consumer.commit({P[0]: 1})
        assert coordinator.group("g").offsets["t", 0][0] == 1


@pytest.mark.parametrize("wire", ["native", "kafka"])
async def test_the_offset_of_a_record_in_hand_is_refused_if_its_topic_was_made_again(
    coordinator: Coordinator, wire: str
) -> None:
    """Also when the consumer reads the new topic already, until it hands out a record of that, or a seek."""
    fill(coordinator.cluster.partition("t"), 0, 20)
    async with consumer_of(coordinator, wire=wire, enable_auto_commit=False) as consumer:
        consumer.assign([P[0], P[1]])
        records = await consumer.poll(10_000, max_records=10)
        coordinator.cluster.add_topic("t", 6)
        fill(coordinator.cluster.partition("t"), 1_000, 1_020)
        states = consumer._assignment.states
        await until(lambda: all(state.restarts and state.position is not None for state in states.values()))
        with pytest.raises(CommitFailed, match="t-0 was read in a topic that was deleted and made again"):
            await consumer.commit({P[0]: 10})
        with pytest.raises(CommitFailed, match="t-0 was read in a topic that was deleted and made again"):
            await consumer.commit(records)
        assert coordinator.group("g").offsets == {}
        await consumer.commit()
        assert coordinator.group("g").offsets["t", 0][0] == 0
        assert await read(consumer, 10, max_records=10) == values(1_000, 1_010)
        await consumer.commit({P[0]: 10})
        assert coordinator.group("g").offsets["t", 0][0] == 10
        coordinator.cluster.add_topic("t", 6)
        await until(lambda: states[P[0]].restarts == 2)
        consumer.seek(P[0], 3)
        await consumer.commit({P[0]: 3})
        assert coordinator.group("g").offsets["t", 0][0] == 3
