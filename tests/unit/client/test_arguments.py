"""Arguments of a wrong type: each method names the argument, its value, and what it expects.

Most are what a user of another library's client would write.
"""

import asyncio
import inspect
from typing import Any

import pytest

from barnabas.client import (
    Admin,
    Consumer,
    ConsumerRecord,
    NewPartitions,
    NewTopic,
    Producer,
    RebalanceListener,
    TopicPartition,
    blocking,
)
from barnabas.client.admin.admin import ConfigResource
from barnabas.client.cluster import Cluster
from barnabas.client.config import ClientConfig
from barnabas.client.errors import InvalidTopicError, NotAssigned, Unencodable
from barnabas.protocol.ids import Offset
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.record_batch import TimestampType
from barnabas.protocol.schema import ApiKey
from tests.support.coordinator import Coordinator
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import until

from .test_blocking import ThreadedCluster
from .test_consumer import fill
from .test_group import consumer_of

T0 = TopicPartition("t", 0)
RECORD = ConsumerRecord("t", 0, Offset(5), 0, b"k", b"v", (), TimestampType.CREATE_TIME)
OFFSETS = "expected a mapping of partitions to offsets, such as {('orders', 0): 5}"
TIMES = "expected a mapping of partitions to times or positions, such as {('orders', 0): 'latest'}"
PARTITIONS = f"partitions={T0!r}: expected several, such as [('orders', 0)]"
NO_PARTITION = "expected a topic and a number, such as ('orders', 0)"

FIVE: Any = 5


def new_topic(**fields: Any) -> NewTopic:
    return NewTopic("x", **fields)


CONSUMER_CALLS = [
    ("assign", (T0,), PARTITIONS),
    ("assign", ("t",), f"partition 't': {NO_PARTITION}"),
    ("assign", (5,), f"partition 5: {NO_PARTITION}"),
    ("assign", ([5],), "partition 5: expected a topic and a number"),
    ("assign", ([T0, ("a b", 0)],), "topic name 'a b' is invalid: it may hold only ASCII letters"),
    ("pause", ([T0],), f"partition [{T0!r}]: expected a topic and a number"),
    ("pause", (5,), "partition 5: expected a topic and a number"),
    ("position", (5,), "partition 5: expected a topic and a number"),
    ("lag", (5,), "partition 5: expected a topic and a number"),
    ("seek", (5, 0), "partition 5: expected a topic and a number"),
    ("seek", (T0, "5"), "offset '5': expected 0 or more"),
    ("seek_to_time", ("5",), "timestamp_ms='5': expected 0 or more"),
    ("seek_to_time", (-1, T0), "timestamp_ms=-1: expected 0 or more"),
    ("seek_to_committed", (5,), "partition 5: expected a topic and a number"),
    ("subscribe", (5,), "topics=5: expected str or several of them"),
    ("subscribe", ([b"t"],), "topic=b't': expected a str"),
    ("subscribe", (["t", ""],), "topic name '' is invalid: it is empty"),
    ("subscribe", (b"t",), "topics=b't': expected str or several of them"),
    ("subscribe", (None, b"t.*"), "pattern=b't.*': expected a regular expression of type str"),
    ("subscribe", ("t", None, RebalanceListener), "expected an object of it, not the class"),
    ("poll", ("5",), "timeout_ms='5': expected milliseconds"),
    ("poll", (0, 0), "max_records=0: expected 1 or more"),
    ("poll", (0, "5"), "max_records='5': expected 1 or more"),
    ("commit", (5,), f"offsets=5: {OFFSETS}, or one or several ConsumerRecord"),
    ("commit", ([RECORD, T0],), f"offsets=[{RECORD!r}, {T0!r}]: {OFFSETS}"),
    ("commit", ("orders",), f"offsets='orders': {OFFSETS}"),
    ("commit", (RECORD[:6],), f"offsets={RECORD[:6]!r}: {OFFSETS}"),
    ("commit", ({T0: (1, "a", -1, 4)},), "offset (1, 'a', -1, 4) of"),
    ("commit", ({5: 1},), "partition 5: expected a topic and a number"),
    ("commit_nowait", (T0,), f"offsets={T0!r}: {OFFSETS}"),
    ("commit_nowait", (None, 5), "on_commit=5: expected a callable"),
    ("committed", (("t", "0"),), f"partition ('t', '0'): {NO_PARTITION}"),
    ("partitions_for", (5,), "topic=5: expected a str"),
    ("partitions_for", ("",), "topic name '' is invalid: it is empty"),
    ("end_offsets", (T0,), PARTITIONS),
    ("offsets_for_times", ([T0],), f"timestamps_ms=[{T0!r}]: {TIMES}"),
]
ADMIN_CALLS = [
    ("create_topics", ("x",), "topics='x': expected NewTopic or several of them"),
    ("create_topics", (["x"],), "topics has 'x': expected NewTopic"),
    ("create_topics", (new_topic(configs="y"),), "configs='y': expected a mapping of settings to values"),
    ("create_topics", (new_topic(replica_assignment=[[1]]),), "expected a mapping of partitions to replicas"),
    ("create_topics", (new_topic(replica_assignment={0: "1"}),), "replica_assignment='1': expected int"),
    ("create_partitions", ({"t": NewPartitions(3, FIVE)},), "assignments=5: expected a list of"),
    ("elect_leaders", (None, "preferred"), "election_type='preferred': expected one of PREFERRED, UNCLEAN"),
    ("update_features", ({"f": 1}, "up"), "upgrade_type='up': expected one of UPGRADE, "),
    ("delete_topics", (5,), "names=5: expected str or several of them"),
    ("create_partitions", ("x",), "topics='x': expected a mapping of topics to numbers of partitions"),
    ("describe_topics", ([5],), ".name=5: expected string"),
    ("describe_topics", ([NewTopic("x")],), ".name=NewTopic("),
    ("describe_configs", ("t",), "resources='t': expected ConfigResource or several of them"),
    ("describe_configs", (ConfigResource.topic("t"), 5), "names=5: expected str or several of them"),
    ("alter_configs", ([ConfigResource.topic("t")],), "expected a mapping of resources to settings"),
    ("alter_configs", ({"t": {}},), "changes has 't': expected ConfigResource"),
    ("alter_configs", ({ConfigResource.topic("t"): "x"},), "'x': expected a mapping of settings to values"),
    ("list_offsets", ([T0],), f"specs=[{T0!r}]: {TIMES}"),
    ("delete_records", ([T0],), "offsets=[TopicPartition(topic='t', partition=0)]: expected a mapping of"),
    ("delete_records", ({T0: -2},), "offset -2 of t-0, or -1: expected 0 or more"),
    ("delete_records", ({5: 1},), "partition 5: expected a topic and a number"),
    ("describe_replicas", (5,), "topics=5: expected str or several of them"),
    ("describe_log_dirs", ("1",), "brokers='1': expected int or several of them"),
    ("alter_replica_log_dirs", ("x",), "assignment='x': expected a mapping of replicas to log dirs"),
    (
        "alter_replica_log_dirs",
        ({T0: "/x"},),
        "expected a topic, a partition and a broker, such as ('orders', 0, 1)",
    ),
    ("update_features", ("x",), "levels='x': expected a mapping of features to levels"),
    ("describe_groups", ([b"g"],), "=b'g': expected string"),
    ("delete_groups", (5,), "group_ids=5: expected str or several of them"),
    ("remove_members", (5, "i"), "group_id=5: expected a str"),
    ("remove_members", ("g", 5), "group_instance_ids=5: expected str or several of them"),
    ("group_offsets", (None,), "group_id=None: expected a str"),
    ("group_offsets", ("g", "t"), f"partition 't': {NO_PARTITION}"),
    ("alter_group_offsets", ("g", [T0]), f"offsets=[{T0!r}]: {OFFSETS}"),
    ("alter_group_offsets", (5, {T0: 5}), "group_id=5: expected a str"),
    ("delete_group_offsets", ("g", T0), PARTITIONS),
    ("delete_group_offsets", (b"g", [T0]), "group_id=b'g': expected a str"),
    ("elect_leaders", ([5],), "partition 5: expected a topic and a number"),
    ("alter_partition_reassignments", ([T0],), "expected a mapping of partitions to replicas"),
    ("alter_partition_reassignments", ({T0: "12"},), "targets='12': expected int or several of them"),
    ("list_partition_reassignments", ([5],), "partition 5: expected a topic and a number"),
    ("describe_transactions", ([5],), "=5: expected string"),
    ("fence_producers", (5,), "transactional_ids=5: expected str or several of them"),
    ("complete_transaction", (5,), "transaction=5: expected a PreparedTransaction or a transactional id"),
    ("describe_producers", (T0,), PARTITIONS),
]
TRANSACTION_CALLS = [
    (({T0: 5}, None), "group=None: expected the GroupMetadata of a consumer, or a group id"),
    (({T0: 5}, ("g", 1, "m")), "group=('g', 1, 'm'): expected the GroupMetadata of a consumer"),
    (([T0], "g"), f"offsets=[{T0!r}]: {OFFSETS}"),
]


KEYWORDS = {
    "close": (0, ("timeout_ms",)),
    "elect_leaders": (1, ("election_type",)),
    "subscribe": (1, ("pattern", "listener")),
}
"""The number of arguments by position, and the names of the others."""


async def check(client: Any, name: str, arguments: tuple[Any, ...], expected: str) -> None:
    count, names = KEYWORDS.get(name, (len(arguments), ()))
    keywords = dict(zip(names, arguments[count:], strict=False))

    async def call() -> None:
        outcome = getattr(client, name)(*arguments[:count], **keywords)
        if inspect.isawaitable(outcome):
            await outcome

    with pytest.raises((TypeError, ValueError, InvalidTopicError, Unencodable)) as refusal:
        await call()
    assert expected in str(refusal.value)


@pytest.mark.parametrize(("name", "arguments", "expected"), CONSUMER_CALLS)
async def test_a_consumer_names_a_wrong_argument(
    coordinator: Coordinator, name: str, arguments: tuple[Any, ...], expected: str
) -> None:
    async with consumer_of(coordinator) as consumer:
        await check(consumer, name, arguments, expected)
        assert not consumer.assignment()


@pytest.mark.parametrize(("name", "arguments", "expected"), ADMIN_CALLS)
async def test_an_admin_client_names_a_wrong_argument(
    cluster: FakeCluster, name: str, arguments: tuple[Any, ...], expected: str
) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await check(admin, name, arguments, expected)


@pytest.mark.parametrize(("arguments", "expected"), TRANSACTION_CALLS)
async def test_a_transaction_names_wrong_offsets_or_groups(arguments: tuple[Any, ...], expected: str) -> None:
    """Before anything is asked of a broker."""
    producer = Producer(transactional_id="x")
    await check(producer, "send_offsets_to_transaction", arguments, expected)


async def test_a_blocking_consumer_names_a_wrong_argument() -> None:
    cluster = ThreadedCluster()
    cluster.do(lambda: cluster.fake.add_topic("t"))
    try:
        with blocking.Consumer(bootstrap_servers=cluster.bootstrap, group_id="g") as consumer:
            for name, arguments, expected in CONSUMER_CALLS:
                await check(consumer, name, arguments, expected)
    finally:
        cluster.stop()


def test_a_blocking_poll_for_no_records_is_refused_also_with_records_in_hand() -> None:
    """It returned an empty list for ever."""
    cluster = ThreadedCluster()
    cluster.do(lambda: cluster.fake.add_topic("t"))
    try:
        cluster.do(lambda: fill(cluster.fake.partition("t"), 0, 10))
        with blocking.Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([T0])
            next(consumer)
            with pytest.raises(ValueError, match="max_records=0: expected 1 or more"):
                consumer.poll(0, max_records=0)
            assert next(consumer).offset == 1
    finally:
        cluster.stop()


async def test_one_name_is_as_good_as_a_list_of_one(coordinator: Coordinator) -> None:
    """A text was taken as its letters: the answer was empty, in silence."""
    cluster = coordinator.cluster
    cluster.add_topic("orders")
    coordinator.commit("g", 1, topic="orders")
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert [group.group_id for group in await admin.list_groups(states="Empty")] == ["g"]
        resource = ConfigResource.topic("orders")
        assert (await admin.describe_configs(resource, "retention.ms"))[resource].keys() == {"retention.ms"}
        assert any(
            broker.replicas.keys() == {("orders", 0)} for broker in await admin.describe_replicas("orders")
        )
        assert len(await admin.describe_log_dirs(1)) == 1


async def test_metadata_is_not_asked_for_what_is_no_name(cluster: FakeCluster) -> None:
    """Brokers close the connection, so that every one of them was tried until the time was over."""
    client = Cluster(ClientConfig(bootstrap_servers=cluster.bootstrap))
    await client.start()
    wrong: Any = 5
    with pytest.raises(Unencodable, match="name=5: expected string"):
        await client.ask_any(MetadataRequest(topics=[MetadataRequestTopic(name=wrong)]))
    client.close()


@pytest.mark.parametrize("kind", [Producer, Consumer, blocking.Producer, blocking.Consumer])
async def test_a_close_with_a_wrong_time_limit_leaves_the_client_as_it_was(kind: Any) -> None:
    """It failed in the middle: the records were dropped, and the positions not committed."""
    cluster = ThreadedCluster()
    cluster.do(lambda: cluster.fake.add_topic("t"))
    client = kind(bootstrap_servers=cluster.bootstrap)
    try:
        if isinstance(client, Producer | Consumer):
            await client.start()
        await check(client, "close", ("5",), "timeout_ms='5': expected milliseconds")
        partitions = client.partitions_for("t")
        assert len(await partitions if inspect.isawaitable(partitions) else partitions) == 1
    finally:
        closing = client.close()
        if closing is not None:
            await closing
        cluster.stop()


async def test_poll_takes_none_for_its_default_time(coordinator: Coordinator) -> None:
    async with consumer_of(coordinator) as consumer:
        consumer.assign([T0])
        polling: Any = consumer.poll
        waiting = asyncio.create_task(polling(None))
        await until(lambda: bool(coordinator.cluster.requests(ApiKey.FETCH)))
        fill(coordinator.cluster.partition("t"), 0, 10)
        assert len(await waiting) == 10


@pytest.mark.parametrize("name", ["seek_to_beginning", "seek_to_end", "pause", "resume"])
def test_a_call_for_several_partitions_does_all_or_nothing(name: str) -> None:
    """One of them is not assigned; the blocking consumer would keep the records of the others."""
    cluster = ThreadedCluster()
    cluster.do(lambda: cluster.fake.add_topic("t"))
    try:
        cluster.do(lambda: fill(cluster.fake.partition("t"), 0, 10))
        with blocking.Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([T0])
            next(consumer)
            if name == "resume":
                consumer.pause(T0)
            state = consumer._client._assignment.states[T0]
            before = state.reset, state.position
            with pytest.raises(NotAssigned, match="t-9 is not assigned"):
                getattr(consumer, name)(T0, ("t", 9))
            assert (state.reset, state.position) == before
            assert consumer.paused() == ({T0} if name == "resume" else set())
            assert consumer.position(T0) == 1
            consumer.resume(T0)
            assert next(consumer).offset == 1
    finally:
        cluster.stop()
