import json
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from barnabas.protocol.ids import NO_TOPIC_ID, BrokerEpoch, BrokerId, ControllerEpoch, TopicId, TopicPartition
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.znodes import (
    AdvertisedListener,
    BrokerRegistration,
    FinalizedFeatures,
    LevelRange,
    ReplicaAssignment,
    TopicAssignment,
)
from tests.support.controller_fakes import assigned, state


def test_paths_are_kafkas() -> None:
    assert paths.leadership(TopicPartition("t", 3)) == "/brokers/topics/t/partitions/3/state"
    assert paths.broker_id(BrokerId(7)) == "/brokers/ids/7"
    assert paths.topic_config("t") == "/config/topics/t"
    assert paths.delete_topic("t") == "/admin/delete_topics/t"


def test_a_registration_reads_back_and_is_kafkas() -> None:
    broker = BrokerRegistration(
        broker_id=BrokerId(1),
        listeners=(
            AdvertisedListener("INSIDE", "broker-1", 9092),
            AdvertisedListener("OUTSIDE", "::1", 19092, "SSL"),
        ),
        timestamp_ms=1_700_000_000_000,
        rack="r1",
        directories=("tCu5n6hbRy-kVzs_Yp0Tuw",),
        principals=("User:CN=broker-1,O=us",),
        features={"transaction.version": LevelRange(0, 2)},
        broker_epoch=BrokerEpoch(42),
    )
    data = znodes.encode_broker(broker)
    assert json.loads(data) == {
        "features": {"transaction.version": {"min_version": 0, "max_version": 2}},
        "listener_security_protocol_map": {"INSIDE": "PLAINTEXT", "OUTSIDE": "SSL"},
        "endpoints": ["INSIDE://broker-1:9092", "OUTSIDE://[::1]:19092"],
        "jmx_port": -1,
        "host": "broker-1",
        "port": 9092,
        "version": 5,
        "timestamp": "1700000000000",
        "rack": "r1",
        "directories": ["tCu5n6hbRy-kVzs_Yp0Tuw"],
        "principals": ["User:CN=broker-1,O=us"],
    }
    assert znodes.decode_broker("/brokers/ids/1", data, BrokerId(1), 42) == broker


def test_features_read_back_and_are_kafkas() -> None:
    data = znodes.encode_features({"transaction.version": 2, "group.version": 0})
    assert data == b'{"version":2,"status":1,"features":{"transaction.version":{"max_version_level":2}}}'
    assert znodes.decode_features("/feature", data, 7) == FinalizedFeatures({"transaction.version": 2}, 7)
    before_3_3 = b'{"version":1,"status":1,"features":{"f":{"min_version_level":1,"max_version_level":3}}}'
    assert znodes.decode_features("/feature", before_3_3, 0).levels["f"] == 3
    disabled = before_3_3.replace(b'"status":1', b'"status":0')
    assert znodes.decode_features("/feature", disabled, 4) == FinalizedFeatures({}, 4)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"version":3,"status":1,"features":{}}',
        b'{"version":2,"status":2,"features":{}}',
        b'{"version":2,"status":1}',
        b'{"version":2,"status":1,"features":{"f":{}}}',
        b'{"version":2,"status":1,"features":{"f":{"max_version_level":0}}}',
        b'{"version":2,"status":1,"features":{"f":{"max_version_level":32768}}}',
    ],
)
def test_malformed_features_name_the_path_and_the_format(data: bytes) -> None:
    with pytest.raises(MalformedZnode, match=r'^/feature holds .*expected JSON with "version": 2'):
        znodes.decode_features("/feature", data, 0)


def test_a_topic_reads_back_and_is_kafkas() -> None:
    topic = TopicAssignment(topic_id=TopicId(uuid.UUID(int=255)), partitions={1: assigned(2), 0: assigned(1)})
    data = znodes.encode_topic(topic)
    assert json.loads(data) == {
        "removing_replicas": {},
        "partitions": {"0": [1], "1": [2]},
        "topic_id": "AAAAAAAAAAAAAAAAAAAA_w",
        "adding_replicas": {},
        "version": 3,
    }
    assert znodes.decode_topic("/brokers/topics/t", data) == topic


def test_a_reassignment_reads_back_and_survives_added_partitions() -> None:
    data = (
        b'{"removing_replicas":{"0":[1]},"partitions":{"0":[3,2,1],"1":[2]},'
        b'"topic_id":"AAAAAAAAAAAAAAAAAAAA_w","adding_replicas":{"0":[3]},"version":3}'
    )
    topic = znodes.decode_topic("/brokers/topics/t", data)
    assert topic.partitions[0] == ReplicaAssignment((3, 2, 1), adding=(3,), removing=(1,))
    assert znodes.encode_topic(topic) == data
    grown = replace(topic, partitions={**topic.partitions, 2: assigned(1)})
    again = znodes.decode_topic("/brokers/topics/t", znodes.encode_topic(grown))
    assert again.partitions[0] == topic.partitions[0]


def test_a_topic_from_before_ids_is_read() -> None:
    found = znodes.decode_topic("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1,2]}}')
    assert found == TopicAssignment(topic_id=NO_TOPIC_ID, partitions={0: assigned(1, 2)})


def test_a_partition_state_reads_back_and_is_kafkas() -> None:
    written = state(1, (1, 2), epoch=3, version=8, controller_epoch=5)
    data = znodes.encode_leadership(written)
    assert data == b'{"controller_epoch":5,"leader":1,"version":1,"leader_epoch":3,"isr":[1,2]}'
    assert znodes.decode_leadership("/s", data, 8) == written


def test_a_partition_state_has_the_broker_epochs_of_its_isr() -> None:
    written = replace(
        state(1, (1, 2)), broker_epochs={BrokerId(1): BrokerEpoch(7), BrokerId(2): BrokerEpoch(9)}
    )
    data = znodes.encode_leadership(written)
    assert json.loads(data)["isr_broker_epochs"] == {"1": 7, "2": 9}
    assert znodes.decode_leadership("/s", data, 0).broker_epochs == written.broker_epochs
    by_kafka = b'{"controller_epoch":5,"leader":1,"version":1,"leader_epoch":3,"isr":[1,2]}'
    assert znodes.decode_leadership("/s", by_kafka, 0).broker_epochs == {}


def test_the_rest_reads_back() -> None:
    assert znodes.decode_config("/c", znodes.encode_config({"a": "1"})) == {"a": "1"}
    changed = [TopicPartition("t", 0), TopicPartition("u", 7)]
    assert znodes.decode_partitions("/i", znodes.encode_partitions(changed)) == changed
    data = znodes.encode_log_dir_event(BrokerId(3))
    assert data == b'{"version":1,"broker":3,"event":1}'
    assert znodes.decode_log_dir_event("/l", data) == 3
    assert znodes.decode_cluster_id("/cluster/id", znodes.encode_cluster_id("x")) == "x"
    assert znodes.decode_epoch("/e", znodes.encode_epoch(ControllerEpoch(9))) == 9
    found = znodes.decode_controller("/controller", znodes.encode_controller(BrokerId(4), 1), 77, 88)
    assert (found.broker_id, found.session_id, found.czxid) == (4, 77, 88)


def test_a_random_id_does_not_look_like_an_option() -> None:
    assert not any(znodes.encode_uuid(znodes.random_uuid()).startswith("-") for _ in range(2_000))


DECODERS: list[Callable[[bytes], object]] = [
    lambda data: znodes.decode_broker("/odd", data, BrokerId(1), 1),
    lambda data: znodes.decode_topic("/odd", data),
    lambda data: znodes.decode_leadership("/odd", data, 0),
    lambda data: znodes.decode_controller("/odd", data, 1, 1),
    lambda data: znodes.decode_partitions("/odd", data),
    lambda data: znodes.decode_log_dir_event("/odd", data),
    lambda data: znodes.decode_cluster_id("/odd", data),
]


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "data",
    [
        None,  # created by hand without data
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"partitions":7}',
        b'{"endpoints":["x"]}',
        b'{"isr":1}',
    ],
)
def test_rubbish_is_named_with_its_path(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(MalformedZnode, match=r"^/odd holds b"):
        decode(data)


@pytest.mark.parametrize(
    "partitions", [{"0": []}, {"-1": [1]}, {"x": [1]}, {"0": ["a"]}, {"0": "12"}, {"0": [1 << 40]}]
)
def test_an_impossible_assignment_is_malformed(partitions: object) -> None:
    with pytest.raises(MalformedZnode):
        znodes.decode_topic("/odd", json.dumps({"version": 3, "partitions": partitions}).encode())


@pytest.mark.parametrize(
    "odd", [{"leader": 1 << 40}, {"leader": -2}, {"leader_epoch": 1 << 31}, {"isr": [-1]}, {"isr": "12"}]
)
def test_a_number_that_no_message_could_carry_is_malformed(odd: dict[str, object]) -> None:
    good = json.loads(znodes.encode_leadership(state(1, (1, 2))))
    with pytest.raises(MalformedZnode):
        znodes.decode_leadership("/odd", json.dumps(good | odd).encode(), 0)


def test_the_error_says_what_was_expected() -> None:
    with pytest.raises(MalformedZnode, match=r'expected JSON with "endpoints"'):
        znodes.decode_broker("/brokers/ids/1", b"{", BrokerId(1), 1)


def test_an_unreadable_state_counts_as_absent(caplog: pytest.LogCaptureFixture) -> None:
    assert znodes.readable_leadership("/odd", b"?", 1) is None
    assert "/odd holds" in caplog.text
