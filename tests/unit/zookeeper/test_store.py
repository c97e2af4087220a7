"""The store over the simulated ZooKeeper; and its writes whose answers are lost."""

from collections.abc import Callable

import pytest
from kazoo.exceptions import UnimplementedError

from barnabas.protocol.ids import TopicPartition
from barnabas.zookeeper.acls import StoredAcls
from barnabas.zookeeper.configs import Entity
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import LeadershipState, StoredConfig
from tests.support.acl_contract import *  # noqa: F403 - its tests run here
from tests.support.acl_contract import PREFIX, READ, WRITE, T
from tests.support.controller_fakes import NoThreads, Znodes
from tests.support.store_contract import *  # noqa: F403 - its tests run here
from tests.support.store_contract import BROKER, ONE, TOPIC, TP, leadership, registration, topic_of
from tests.support.zookeeper_client import Result, SimKazooClient

WRITES: dict[str, Callable[..., object]] = {
    "election": lambda store, writer: store.election.run(ONE).epoch - writer.epoch,
    "registration": lambda store, writer: len([store.register_broker(registration(ONE))]),
    "first settings": lambda store, writer: store.configs.replace(BROKER, {"a": "1"}, _read(store, BROKER)),
    "settings": lambda store, writer: store.configs.replace(TOPIC, {"a": "1"}, _read(store, TOPIC)),
    "topic": lambda store, writer: writer.create_topic("u", topic_of(1, ONE), {}),
    "growth": lambda store, writer: writer.set_topic_assignment("t", store.topic_assignments(["t"])["t"]),
    "deletion": lambda store, writer: writer.request_deletion("t"),
    "state": lambda store, writer: list(writer.update_leadership({TP: leadership(ONE, (), epoch=1)}).written),
    "first states": lambda store, writer: list(writer.create_leadership(_first_states()).written),
    "states": lambda store, writer: list(
        writer.update_leadership(writer.create_leadership(_first_states()).written).written
    ),
    "isr": lambda store, writer: store.update_isr(TP, leadership(ONE, ())),
    "first ACLs": lambda store, writer: store.acls.replace(T, [READ], StoredAcls()),
    "ACLs": lambda store, writer: store.acls.replace(
        PREFIX, [READ, WRITE], store.acls.read([PREFIX])[PREFIX]
    ),
    "last ACL": lambda store, writer: store.acls.replace(PREFIX, [], store.acls.read([PREFIX])[PREFIX]),
}


def _first_states() -> dict[TopicPartition, LeadershipState]:
    return {TopicPartition("t", index): leadership(ONE, (ONE,)) for index in range(1, 4)}


def _read(store: ClusterStore, entity: Entity) -> StoredConfig:
    return store.configs.read([entity])[entity]


def _acls(store: ClusterStore) -> StoredAcls:
    return store.acls.read([PREFIX])[PREFIX]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("requests", range(10))
def test_a_write_whose_answer_was_lost_has_the_same_result(
    write: Callable[..., object], requests: int
) -> None:
    """The connection is lost after each of the first requests of the write."""
    results = []
    for is_broken in (False, True):
        threads = NoThreads()
        store = Znodes().open_store(threads)
        writer = store.election.run(ONE)
        writer.create_topic("t", topic_of(1, ONE), {})
        writer.create_leadership({TP: leadership(ONE, (ONE,))})
        store.acls.create_folders()
        store.acls.replace(PREFIX, [READ], StoredAcls())
        if is_broken:
            threads.client.break_after(requests, is_last_done=True)
        results.append(write(store, writer))
    assert results[0] == results[1]


def test_states_are_read_one_by_one_from_an_older_server(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Znodes().open_store(NoThreads())
    writer = store.election.run(ONE)
    writer.create_topic("t", topic_of(4, ONE), {})
    written = writer.create_leadership(_first_states()).written
    monkeypatch.setattr(
        SimKazooClient, "get_many_async", lambda client, paths: Result(error=UnimplementedError())
    )
    assert store.leadership([TP, *written]) == written
