"""Changes of settings reach every broker, also after a lost session; `test_store.py` has reads and writes."""

from collections.abc import Callable, Iterator, Mapping

import pytest

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.configs import (
    ALL_BROKERS,
    ConfigChanges,
    Entity,
)
from barnabas.zookeeper.notifications import NOTICE_LIFETIME_MS
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import StoredConfig
from tests.support.store_contract import TOPIC, change, notices
from tests.support.waiting import wait_for

from .tools import OpenStore, expire_session


@pytest.fixture
def store(open_store: OpenStore) -> ClusterStore:
    store = open_store()
    store.session.run(lambda zk: zk.create_async(paths.topic("t"), b"{}"))
    return store


class Watcher:
    """A broker that watches for changes; `values` are the settings that it was given."""

    def __init__(self, store: ClusterStore, fatal: list[BaseException]) -> None:
        self.store = store
        self.values: dict[Entity, Mapping[str, str]] = {}
        self.now_ms = wall_clock_ms()
        self.changes = ConfigChanges(
            store.configs, apply=self._take, now_ms=lambda: self.now_ms, on_fatal=fatal.append
        )
        self.changes.load()
        self.changes.start()

    def _take(self, configs: Mapping[Entity, StoredConfig]) -> None:
        self.values |= {entity: config.values for entity, config in configs.items()}

    def wait_for(self, entity: Entity, values: Mapping[str, str]) -> None:
        wait_for(
            lambda: self.values.get(entity) == values,
            lambda: f"{entity.path} is {self.values.get(entity)}, expected {values}",
        )


@pytest.fixture
def watch(open_store: OpenStore, fatal: list[BaseException]) -> Iterator[Callable[[], Watcher]]:
    watchers: list[Watcher] = []

    def make() -> Watcher:
        watchers.append(Watcher(open_store(), fatal))
        return watchers[-1]

    yield make
    for watcher in watchers:
        watcher.changes.stop()


def test_a_change_reaches_every_broker(store: ClusterStore, watch: Callable[[], Watcher]) -> None:
    change(store.configs, TOPIC, before="1")
    brokers = [watch(), watch()]
    for broker in brokers:
        assert broker.values[TOPIC] == {"before": "1"}
    change(store.configs, TOPIC, a="1")
    change(store.configs, ALL_BROKERS, b="2")
    for number in range(30):
        change(store.configs, TOPIC, a=str(number))
    for broker in brokers:
        broker.wait_for(TOPIC, {"a": "29"})
        broker.wait_for(ALL_BROKERS, {"b": "2"})


def test_a_change_while_the_session_was_lost_is_read_though_its_notification_is_gone(
    store: ClusterStore, watch: Callable[[], Watcher]
) -> None:
    broker = watch()
    change(store.configs, TOPIC, a="1")
    broker.wait_for(TOPIC, {"a": "1"})
    # Written without a notification, so that only reading all settings again finds it.
    store.session.run(lambda zk: zk.set_async(TOPIC.path, znodes.encode_config({"a": "2"})))
    expire_session(broker.store.session._client)
    broker.wait_for(TOPIC, {"a": "2"})
    change(store.configs, TOPIC, a="3")
    broker.wait_for(TOPIC, {"a": "3"})


def test_a_user_whose_node_was_deleted_has_no_settings(
    store: ClusterStore, watch: Callable[[], Watcher]
) -> None:
    users = [Entity.user("alice"), Entity.user("alice", "x"), Entity.user("bob")]
    change(store.configs, users[0], a="0")
    broker = watch()
    for user in users[1:]:
        change(store.configs, user, a="1")
        broker.wait_for(user, {"a": "1"})
    store.configs.change(users[2], lambda _: {})
    broker.wait_for(users[2], {})
    # Without a notification, while the session was lost.
    for path in (users[1].path, f"{users[0].path}/clients", users[0].path):
        store.session.run(lambda zk, path=path: zk.delete_async(path))
    expire_session(broker.store.session._client)
    for user in users:
        broker.wait_for(user, {})


def test_old_notifications_are_removed_and_malformed_ones_ignored(
    store: ClusterStore, watch: Callable[[], Watcher]
) -> None:
    broker = watch()
    prefix = paths.CONFIG_CHANGE_PREFIX
    for data in (b"nonsense", b'{"version":2,"entity_path":"client-metrics/all"}'):
        store.session.run(lambda zk, data=data: zk.create_async(prefix, data, sequence=True))
    old = b'{"version":1,"entity_type":"topics","entity_name":"t"}'
    store.session.run(lambda zk: zk.create_async(TOPIC.path, znodes.encode_config({"a": "1"})))
    store.session.run(lambda zk: zk.create_async(prefix, old, sequence=True))
    broker.wait_for(TOPIC, {"a": "1"})
    assert len(notices(store)) == 3
    broker.now_ms += NOTICE_LIFETIME_MS + 60_000
    change(store.configs, TOPIC, a="2")
    wait_for(lambda: not notices(store), "old notifications stay")
    broker.wait_for(TOPIC, {"a": "2"})
