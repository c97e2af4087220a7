"""Malformed bytes to real brokers: each is answered or its connection is closed, and no other client suffers.

After every test the brokers must still be the same processes, and the topic writable and readable; see
`unharmed`.
"""

import struct
from collections.abc import Callable, Iterator

import msgspec
import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.inter_broker import StopReplicaRequest
from barnabas.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from barnabas.protocol.record_batch import write_crc
from barnabas.protocol.schema import ApiKey

from .raw_client import RawClient, batch_of, encoded, frame, produce_request
from .tools import ClusterView, complaint, writes_and_reads

TOPIC = "t"


@pytest.fixture(scope="module")
def broker(shared_cluster: LocalCluster) -> Endpoint:
    """The broker that leads the topic's only partition."""
    view = ClusterView(shared_cluster)
    view.create_topic(TOPIC, 1, 3, min_insync_replicas="2")
    return shared_cluster.broker(view.leader(TOPIC)).endpoint


@pytest.fixture(autouse=True)
def unharmed(shared_cluster: LocalCluster, broker: Endpoint) -> Iterator[None]:
    """No broker died or was replaced, all are in sync, and a record still goes in and comes out."""
    before = [process.running_process.pid for process in shared_cluster.brokers]
    yield
    for process in shared_cluster.brokers:
        process.check_alive()
    assert [process.running_process.pid for process in shared_cluster.brokers] == before
    assert writes_and_reads(shared_cluster, TOPIC)
    ClusterView(shared_cluster).wait_isr(TOPIC, 3)


def test_a_false_controller_epoch_is_not_believed(shared_cluster: LocalCluster) -> None:
    lie = StopReplicaRequest(controller_id=1, controller_epoch=2**31 - 1, broker_epoch=2**62, topic_states=[])
    for process in shared_cluster.brokers:
        with RawClient(process.endpoint) as client:
            client.send(encoded(lie))
            assert client.is_closed_by_broker()
    # Every broker still takes roles from the controller.
    ClusterView(shared_cluster).create_topic("after-a-lie", 3, 3)
    assert writes_and_reads(shared_cluster, "after-a-lie")


def metadata_request() -> bytes:
    return encoded(MetadataRequest(topics=[], allow_auto_topic_creation=False))


def head(*fields: object) -> bytes:
    """A native frame with these head fields."""
    packed = msgspec.msgpack.encode([0xFFFFFFFF, *fields])
    return frame(packed[:2] + struct.pack(">I", len(packed)) + packed[6:])


NONSENSE = {
    "no head": frame(b"\x95"),
    "head longer than the frame": frame(b"\x95\xce\x00\xff\xff\xff" + bytes(20)),
    "head cut short": frame(metadata_request()[4:-3]),
    "bytes within the head that belong to nothing": frame(
        b"\x95\xce" + struct.pack(">I", 60) + msgspec.msgpack.encode([0, 3, 1, "", []])[2:] + bytes(60)
    ),
    "unknown api key": head(9999, 1, "raw", []),
    "negative api key": head(-1, 1, "raw", []),
    "api key of a wrong type": head("metadata", 1, "raw", []),
    "correlation id of a wrong type": head(int(ApiKey.METADATA), None, "raw", []),
    "correlation id out of range": head(int(ApiKey.METADATA), 1 << 40, "raw", []),
    "client id of a wrong type": head(int(ApiKey.METADATA), 1, 7, []),
    "body that is no array": head(int(ApiKey.METADATA), 1, "raw", "body"),
    "body that nests for ever": head(
        int(ApiKey.METADATA), 1, "raw", msgspec.msgpack.decode(b"\x91" * 200 + b"\x90")
    ),
    "acks of a wrong type": head(int(ApiKey.PRODUCE), 1, "raw", [None, "all", 1000, []]),
    "records longer than what follows": head(
        int(ApiKey.PRODUCE), 1, "raw", [None, 1, 1000, [["t", [[0, 1_000_000]]]]]
    ),
    "negative length of records": head(int(ApiKey.PRODUCE), 1, "raw", [None, 1, 1000, [["t", [[0, -5]]]]]),
    "number out of range": head(int(ApiKey.PRODUCE), 1, "raw", [None, 1, 1 << 40, []]),
    "frame of length zero": struct.pack(">I", 0),
    "frame of negative length": struct.pack(">i", -1),
    "frame above socket.request.max.bytes": struct.pack(">I", 104_857_601) + bytes(1000),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_closes_its_connection_with_one_line_in_the_log(
    shared_cluster: LocalCluster, broker: Endpoint, what: str
) -> None:
    log = next(b.server_log for b in shared_cluster.brokers if b.endpoint == broker)
    with RawClient(broker) as bystander, RawClient(broker) as client:
        assert "malformed" in complaint(client, log, NONSENSE[what])
        assert bystander.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False)).brokers


def spoilt(change: Callable[[bytearray], object], *, crc: bool = False) -> bytes:
    """A batch of three records after a change, with a CRC that fits if so wanted."""
    batch = batch_of(b"a", b"b", b"c")
    change(batch)
    if crc:
        write_crc(batch)
    return bytes(batch)


def put(form: str, position: int, value: int) -> Callable[[bytearray], object]:
    return lambda batch: struct.pack_into(form, batch, position, value)


BAD_BATCHES: dict[str, tuple[bytes | None, ErrorCode]] = {
    "no records at all": (None, ErrorCode.INVALID_RECORD),
    "empty records": (b"", ErrorCode.INVALID_RECORD),
    "a few bytes": (b"abc", ErrorCode.INVALID_RECORD),
    "bad CRC": (spoilt(put(">I", 17, 12345)), ErrorCode.CORRUPT_MESSAGE),
    "a flipped bit": (spoilt(lambda batch: batch.__setitem__(-2, batch[-2] ^ 1)), ErrorCode.CORRUPT_MESSAGE),
    "cut short": (bytes(batch_of(b"a" * 100))[:-20], ErrorCode.INVALID_RECORD),
    "trailing garbage": (bytes(batch_of(b"a")) + b"garbage", ErrorCode.INVALID_RECORD),
    "trailing zeros": (bytes(batch_of(b"a")) + bytes(100), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "magic 0": (spoilt(put(">b", 16, 0)), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "magic 1": (spoilt(put(">b", 16, 1)), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "magic 3": (spoilt(put(">b", 16, 3)), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "negative length": (spoilt(put(">i", 8, -1)), ErrorCode.CORRUPT_MESSAGE),
    "length too small": (spoilt(put(">i", 8, 48)), ErrorCode.CORRUPT_MESSAGE),
    "length too large": (spoilt(put(">i", 8, 1 << 30)), ErrorCode.INVALID_RECORD),
    "an empty batch": (
        spoilt(lambda batch: (put(">i", 23, -1)(batch), put(">i", 57, 0)(batch)), crc=True),
        ErrorCode.INVALID_RECORD,
    ),
    "negative count": (spoilt(put(">i", 57, -3), crc=True), ErrorCode.INVALID_RECORD),
    "count above the offsets": (spoilt(put(">i", 57, 7), crc=True), ErrorCode.INVALID_RECORD),
    "offsets with gaps": (spoilt(put(">i", 23, 100), crc=True), ErrorCode.INVALID_RECORD),
    "unknown compression": (spoilt(put(">h", 21, 7), crc=True), ErrorCode.UNKNOWN_SERVER_ERROR),
    "a control batch": (spoilt(put(">h", 21, 0x20), crc=True), ErrorCode.INVALID_RECORD),
    "the broker's timestamps": (spoilt(put(">h", 21, 0x08), crc=True), ErrorCode.INVALID_TIMESTAMP),
    "above message.max.bytes": (bytes(batch_of(bytes(1_100_000))), ErrorCode.MESSAGE_TOO_LARGE),
    "a good batch before a bad one": (
        bytes(batch_of(b"good")) + spoilt(put(">I", 17, 1)),
        ErrorCode.CORRUPT_MESSAGE,
    ),
}


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("what", BAD_BATCHES)
def test_a_bad_batch_is_refused_with_its_code_and_nothing_of_it_is_written(
    broker: Endpoint, what: str, acks: int
) -> None:
    records, code = BAD_BATCHES[what]
    with RawClient(broker) as client:
        before = client.produce(0, bytes(batch_of(b"before"))).base_offset
        answer = client.produce(0, records, acks=acks)
        assert ErrorCode(answer.error_code) is code, answer.error_message
        assert answer.base_offset == -1
        assert answer.error_message
        assert client.produce(0, bytes(batch_of(b"after"))).base_offset == before + 1


def test_a_bad_batch_with_acks_0_closes_the_connection(broker: Endpoint) -> None:
    with RawClient(broker) as client:
        client.send(encoded(produce_request([(0, spoilt(put(">I", 17, 1)))], acks=0)))
        assert client.is_closed_by_broker()


@pytest.mark.parametrize("acks", [2, -2, 100, -32768])
def test_acks_that_do_not_exist_are_refused(broker: Endpoint, acks: int) -> None:
    with RawClient(broker) as client:
        assert (
            client.produce(0, bytes(batch_of(b"x")), acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
        )


def test_a_bad_partition_of_a_request_does_not_fail_the_good_one(broker: Endpoint) -> None:
    with RawClient(broker) as client:
        request = produce_request([(0, bytes(batch_of(b"x"))), (77, bytes(batch_of(b"x"))), (-1, b"")])
        answers = client.ask(request).responses[0].partition_responses
        assert [answer.error_code for answer in answers] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]


def test_a_partition_named_twice_in_a_request_is_written_twice(broker: Endpoint) -> None:
    with RawClient(broker) as client:
        request = produce_request([(0, bytes(batch_of(b"x"))), (0, bytes(batch_of(b"y", b"z")))])
        first, second = client.ask(request).responses[0].partition_responses
        assert (first.error_code, second.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
        assert second.base_offset == first.base_offset + 1


def fetch(client: RawClient, offset: int, **arguments: int) -> object:
    own = {
        name: arguments.pop(name)
        for name in ("partition_max_bytes", "last_fetched_epoch")
        if name in arguments
    }
    own.setdefault("partition_max_bytes", 1000)
    partition = FetchPartition(partition=0, fetch_offset=offset, **own)
    common = {"max_wait_ms": 0, "min_bytes": 1, **arguments}
    request = FetchRequest(topics=[FetchTopic(topic=TOPIC, partitions=[partition])], **common)
    return client.ask(request).responses[0].partitions[0]


INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1


@pytest.mark.parametrize("offset", [-1, -INT64_MAX - 1, 1 << 40, INT64_MAX])
def test_an_offset_out_of_range_is_refused_with_the_range(broker: Endpoint, offset: int) -> None:
    with RawClient(broker) as client:
        answer = fetch(client, offset)
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert answer.log_start_offset == 0


@pytest.mark.parametrize(
    "odd",
    [
        {"max_bytes": -1},
        {"max_bytes": 0},
        {"partition_max_bytes": -5},
        {"partition_max_bytes": 0},
        {"min_bytes": -1},
        {"min_bytes": INT32_MAX, "max_wait_ms": 10},
        {"max_wait_ms": -1},
        {"last_fetched_epoch": INT32_MAX},
        {"isolation_level": 5},
    ],
    ids=str,
)
def test_odd_numbers_in_a_fetch_are_answered(broker: Endpoint, odd: dict[str, int]) -> None:
    with RawClient(broker) as client:
        assert client.produce(0, bytes(batch_of(b"x"))).error_code == ErrorCode.NONE
        assert fetch(client, 0, **odd).error_code in (
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            ErrorCode.FENCED_LEADER_EPOCH,
        )


@pytest.mark.parametrize("replica", [0, 99, INT32_MAX])
def test_a_fetch_with_a_false_replica_id_moves_nothing(broker: Endpoint, replica: int) -> None:
    with RawClient(broker) as client:
        answer = fetch(client, 0, replica_id=replica, replica_epoch=1)
        assert answer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("timestamp", [-4, -100, INT64_MAX, -INT64_MAX - 1])
def test_odd_timestamps_are_looked_up_in_vain(broker: Endpoint, timestamp: int) -> None:
    with RawClient(broker) as client:
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])]
        )
        found = client.ask(request).topics[0].partitions[0]
        assert found.error_code in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION)


def test_names_that_no_topic_can_have_are_answered(broker: Endpoint) -> None:
    with RawClient(broker) as client:
        names = ["", ".", "..", "a/b", "x" * 300, "\x00", "t\n", "\N{SNOWMAN}"]
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True
        )
        codes = [topic.error_code for topic in client.ask(request).topics]
        assert len(codes) == len(names)
        assert set(codes) <= {ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("name", ["..", "", "t/partitions", "t/partitions/0/state", "../ids", "\x00"])
def test_an_invalid_name_gets_no_partitions(shared_cluster: LocalCluster, name: str) -> None:
    """In ZooKeeper the name could be the path of another node, or an invalid path."""
    view = ClusterView(shared_cluster)
    endpoint = shared_cluster.broker(view.controller()).endpoint
    with RawClient(endpoint) as client:
        asked = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=5)], timeout_ms=10_000)
        [result] = client.ask(asked).results
        assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert result.error_message
