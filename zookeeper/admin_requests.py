"""The requests that operators' tools write under ``/admin``, and their JSON.

``/admin/preferred_replica_election`` names partitions that their preferred replicas shall lead,
``/admin/reassign_partitions`` names partitions and their new replicas. The controller removes what it has
carried out. A node that cannot be read raises `MalformedZnode`. ``/admin/delete_topics/<name>`` requests the
deletion of a topic; Kafka writes no data into it and reads none. The functions with a session block and raise
as the session does. Source: the JSON formats of Apache Kafka 3.9 in ZooKeeper mode.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.zookeeper import paths
from barnabas.zookeeper.json_nodes import MalformedZnode, dump, int32, reading
from barnabas.zookeeper.requests import Watch, exists, read
from barnabas.zookeeper.session import ZooKeeperSession
from barnabas.zookeeper.znodes import decode_partitions, decode_uuid, encode_uuid


class StoredReassignments(NamedTuple):
    """The new replicas by partition; unchecked, as the operator wrote them. `version` is the node's."""

    targets: Mapping[TopicPartition, tuple[int, ...]]
    version: int


def read_preferred_elections(session: ZooKeeperSession, watch: Watch) -> list[TopicPartition] | None:
    """The partitions; None without a request. The watch covers the node even while it does not exist."""
    found = _read_watched(session, paths.PREFERRED_ELECTION, watch)
    if found is None:
        return None
    return list(dict.fromkeys(decode_partitions(paths.PREFERRED_ELECTION, found[0])))


def read_reassignments(session: ZooKeeperSession, watch: Watch | None = None) -> StoredReassignments | None:
    """The requested reassignments; None without a request. Watched as above."""
    found = _read_watched(session, paths.REASSIGNMENTS, watch)
    return None if found is None else StoredReassignments(decode_reassignments(found[0]), found[1])


def _read_watched(session: ZooKeeperSession, path: str, watch: Watch | None) -> tuple[bytes, int] | None:
    if session.run(exists(path, watch)) is None:
        return None
    node = read(session, [path]).get(path)
    return None if node is None else (node[0], int(node[1].version))


def encode_deletion(topic_id: TopicId) -> bytes:
    """The data of a request to delete only the topic with this id; `NO_TOPIC_ID` means any of the name."""
    return b"" if topic_id == NO_TOPIC_ID else dump({"version": 1, "topic_id": encode_uuid(topic_id)})


def decode_deletion(data: bytes) -> TopicId:
    """`NO_TOPIC_ID` for a request of Kafka's tools."""
    try:
        with reading(paths.DELETE_TOPICS, data) as body:
            return TopicId(decode_uuid(body["topic_id"]))
    except MalformedZnode:
        return NO_TOPIC_ID


def encode_reassignments(targets: Mapping[TopicPartition, Collection[int]]) -> bytes:
    entries = [
        {"topic": tp.topic, "partition": tp.partition, "replicas": list(replicas)}
        for tp, replicas in targets.items()
    ]
    return dump({"version": 1, "partitions": entries})


def decode_reassignments(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    path = paths.REASSIGNMENTS
    with reading(path, data) as body:
        targets: dict[TopicPartition, tuple[int, ...]] = {}
        for entry in body["partitions"]:
            tp = TopicPartition(str(entry["topic"]), int32(entry["partition"]))
            if tp in targets:
                raise ValueError(f"{tp} is named twice")
            targets[tp] = tuple(int32(replica) for replica in entry["replicas"])
        return targets
