"""Settings in a real ZooKeeper: compare-and-set, and reading again after a change or a lost session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from barnabas.broker.clocks import wall_clock_ms
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.configs import (
    ALL_BROKERS,
    NOTICE_LIFETIME_MS,
    ConfigChanges,
    ConfigStore,
    Entity,
    EntityKind,
)
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import StoredConfig
from tests.support.waiting import wait_for

from .tools import OpenStore, expire_session

TOPIC = Entity(EntityKind.TOPIC, "t")


@pytest.fixture
def store(open_store: OpenStore) -> ClusterStore:
    store = open_store()
    store.session.run(lambda zk: zk.create_async(paths.topic("t"), b"{}"))
    return store


class Hearing:
    """A broker that hears of changes, and what it has heard."""

    def __init__(self, store: ClusterStore, fatal: list[BaseException]) -> None:
        self.store = store
        self.known: dict[Entity, Mapping[str, str]] = {}
        self.now_ms = wall_clock_ms()
        self.times = 0
        self._lock = threading.Lock()
        self.changes = ConfigChanges(
            store.configs, apply=self._take, now_ms=lambda: self.now_ms, on_fatal=fatal.append
        )
        self.changes.load()
        self.changes.start()

    def _take(self, found: Mapping[Entity, StoredConfig]) -> None:
        with self._lock:
            self.times += 1
            self.known |= {entity: config.values for entity, config in found.items()}

    def knows(self, entity: Entity, values: Mapping[str, str]) -> None:
        wait_for(
            lambda: self.known.get(entity) == values,
            lambda: f"{entity.path} is {self.known.get(entity)}, expected {values}",
        )


@pytest.fixture
def hear(open_store: OpenStore, fatal: list[BaseException]) -> Iterator[Callable[[], Hearing]]:
    hearing: list[Hearing] = []

    def one() -> Hearing:
        hearing.append(Hearing(open_store(), fatal))
        return hearing[-1]

    yield one
    for each in hearing:
        each.changes.stop()


def change(configs: ConfigStore, entity: Entity, **values: str) -> StoredConfig:
    former = configs.read([entity])[entity]
    assert configs.replace(entity, values, former)
    return configs.read([entity])[entity]


def test_settings_are_replaced_only_as_they_were_read(store: ClusterStore) -> None:
    configs = store.configs
    nothing = configs.read([TOPIC])[TOPIC]
    assert not nothing.exists
    first = change(configs, TOPIC, a="1")
    assert (dict(first.values), first.version) == ({"a": "1"}, 0)
    assert not configs.replace(TOPIC, {"a": "2"}, nothing)
    second = change(configs, TOPIC, a="2")
    assert second.zxid > first.zxid
    assert not configs.replace(TOPIC, {"a": "3"}, first)
    assert configs.read([TOPIC])[TOPIC] == second
    assert store.topic_configs(["t", "x"]) == {"t": second, "x": StoredConfig()}
    notices = configs.read_notices(configs.notices())
    assert [notice.entity for notice in notices.values()] == [TOPIC, TOPIC]


def test_unreadable_settings_leave_the_former_ones_and_no_retention_limit(store: ClusterStore) -> None:
    known = change(store.configs, TOPIC, **{"retention.ms": "1000"})
    change(store.configs, Entity.broker(BrokerId(7)), b="2")
    for path in ("/config/topics/t", "/config/brokers/7"):
        store.session.run(lambda zk, path=path: zk.set_async(path, b"{"))
    spoilt = store.configs.read([TOPIC])[TOPIC]
    assert spoilt.values == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert not spoilt.is_readable
    assert spoilt.zxid < known.zxid
    assert store.configs.read([Entity.broker(BrokerId(7))])[Entity.broker(BrokerId(7))].values == {}


def test_settings_stand_where_kafka_puts_them(store: ClusterStore) -> None:
    change(store.configs, ALL_BROKERS, a="1")
    change(store.configs, Entity.broker(BrokerId(7)), b="2")
    read = store.session.run
    assert (
        read(lambda zk: zk.get_async("/config/brokers/<default>"))[0] == b'{"version":1,"config":{"a":"1"}}'
    )
    assert read(lambda zk: zk.get_async("/config/brokers/7"))[0] == b'{"version":1,"config":{"b":"2"}}'
    assert set(store.configs.read_all(EntityKind.BROKER)) == {ALL_BROKERS, Entity.broker(BrokerId(7))}
    [first, _] = store.configs.notices()
    notice = read(lambda zk: zk.get_async(f"/config/changes/{first}"))[0]
    assert (first, notice) == (
        "config_change_0000000000",
        b'{"version":2,"entity_path":"brokers/<default>"}',
    )


def test_a_topic_that_does_not_exist_has_no_settings(store: ClusterStore) -> None:
    gone = Entity(EntityKind.TOPIC, "gone")
    with pytest.raises(ApiError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        store.configs.replace(gone, {"a": "1"}, StoredConfig())
    assert not store.configs.read([gone])[gone].exists
    assert store.configs.notices() == []


@pytest.mark.parametrize("is_first", [True, False])
def test_a_write_whose_answer_was_lost_is_recognised(
    store: ClusterStore, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    if not is_first:
        change(store.configs, TOPIC, a="0")
    former = store.configs.read([TOPIC])[TOPIC]
    lost: list[object] = []
    transaction = KazooClient.transaction

    class Lost:
        """A result that never comes, of a transaction that was carried out."""

        def __init__(self, result: object) -> None:
            self._result = result

        def get(self, timeout: float | None = None) -> object:
            self._result.get(timeout)
            raise ConnectionLoss

    def losing(client: KazooClient) -> object:
        made = transaction(client)
        if not lost:
            commit = made.commit_async

            def commit_and_lose() -> object:
                lost.append(True)
                return Lost(commit())

            made.commit_async = commit_and_lose
        return made

    monkeypatch.setattr(KazooClient, "transaction", losing)
    assert store.configs.replace(TOPIC, {"a": "1"}, former)
    assert lost
    found = store.configs.read([TOPIC])[TOPIC]
    assert (dict(found.values), found.version) == ({"a": "1"}, former.version + 1)
    assert not store.configs.replace(TOPIC, {"a": "2"}, former)


def test_every_broker_hears_of_a_change(store: ClusterStore, hear: Callable[[], Hearing]) -> None:
    change(store.configs, TOPIC, before="1")
    brokers = [hear(), hear()]
    for broker in brokers:
        assert broker.known[TOPIC] == {"before": "1"}
    change(store.configs, TOPIC, a="1")
    change(store.configs, ALL_BROKERS, b="2")
    for number in range(30):
        change(store.configs, TOPIC, a=str(number))
    for broker in brokers:
        broker.knows(TOPIC, {"a": "29"})
        broker.knows(ALL_BROKERS, {"b": "2"})


def test_a_change_while_the_session_was_lost_is_read_though_its_notification_is_gone(
    store: ClusterStore, hear: Callable[[], Hearing]
) -> None:
    broker = hear()
    change(store.configs, TOPIC, a="1")
    broker.knows(TOPIC, {"a": "1"})
    # Written without a notification, so that only reading all settings again finds it.
    store.session.run(lambda zk: zk.set_async(TOPIC.path, znodes.encode_config({"a": "2"})))
    expire_session(broker.store.session._client)
    broker.knows(TOPIC, {"a": "2"})
    change(store.configs, TOPIC, a="3")
    broker.knows(TOPIC, {"a": "3"})


def test_old_notifications_are_removed_and_malformed_ones_ignored(
    store: ClusterStore, hear: Callable[[], Hearing]
) -> None:
    broker = hear()
    prefix = paths.CONFIG_CHANGE_PREFIX
    for data in (b"nonsense", b'{"version":2,"entity_path":"users/somebody"}'):
        store.session.run(lambda zk, data=data: zk.create_async(prefix, data, sequence=True))
    old = b'{"version":1,"entity_type":"topics","entity_name":"t"}'
    store.session.run(lambda zk: zk.create_async(TOPIC.path, znodes.encode_config({"a": "1"})))
    store.session.run(lambda zk: zk.create_async(prefix, old, sequence=True))
    broker.knows(TOPIC, {"a": "1"})
    assert len(store.configs.notices()) == 3
    broker.now_ms += NOTICE_LIFETIME_MS + 60_000
    change(store.configs, TOPIC, a="2")
    wait_for(lambda: store.configs.notices() == [], "old notifications stay")
    broker.knows(TOPIC, {"a": "2"})
