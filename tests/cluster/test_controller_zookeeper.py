"""Sessions and elections with a real ZooKeeper; `test_store.py` has the reads and writes."""

import threading
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from barnabas.controller.controller import Controller
from barnabas.deploy.zookeeper import ZooKeeper
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, TopicPartition
from barnabas.zookeeper import paths
from barnabas.zookeeper.errors import ZooKeeperUnavailable
from barnabas.zookeeper.session import SessionEvent
from barnabas.zookeeper.store import ClusterStore
from tests.support.controller_fakes import FakeChannels
from tests.support.defaults import controller_settings
from tests.support.store_contract import registration
from tests.support.waiting import DEADLINE_S, wait_for

from .tools import OpenStore, expire_session


def test_a_new_cluster_gets_its_paths_under_the_chroot(open_store: OpenStore, zookeeper_connect: str) -> None:
    open_store()
    hosts, _, chroot = zookeeper_connect.partition("/")
    client = KazooClient(hosts)
    client.start()
    try:
        assert all(client.exists(f"/{chroot}{path}") for path in paths.PERSISTENT)
    finally:
        client.stop()
        client.close()


def test_a_zookeeper_that_is_down_is_named_in_the_error(fatal: list[BaseException]) -> None:
    store = ClusterStore(
        "127.0.0.1:1", session_timeout_ms=1_500, connection_timeout_ms=200, on_fatal=fatal.append
    )
    with pytest.raises(ZooKeeperUnavailable, match=r"127\.0\.0\.1:1 within 200 ms"):
        store.start()
    store.session.close()


def test_a_request_survives_a_restart_of_zookeeper_but_not_a_longer_absence(
    tmp_path: Path, open_store: OpenStore
) -> None:
    server = ZooKeeper(tmp_path)
    server.start()
    events: list[SessionEvent] = []
    try:
        store = open_store(server.connect, on_session_event=events.append)
        epoch = store.register_broker(registration(BrokerId(1)))
        server.kill()
        wait_for(lambda: events == [SessionEvent.SUSPENDED])
        restart = threading.Thread(target=server.start)
        restart.start()
        assert store.brokers()[BrokerId(1)].broker_epoch == epoch
        restart.join()
        wait_for(lambda: events == [SessionEvent.SUSPENDED, SessionEvent.RESUMED])
        # Short only from here on: while the server lives, a busy machine may keep it silent for as long.
        store.session.session_timeout_ms = 1_000
        server.kill()
        wait_for(lambda: events[2:] == [SessionEvent.SUSPENDED, SessionEvent.SILENT])
        with pytest.raises(ZooKeeperUnavailable):
            store.topics()
        store.session.close()
    finally:
        server.stop()


def test_a_controller_whose_session_expires_is_replaced_and_can_be_elected_again(
    open_store: OpenStore, fatal: list[BaseException]
) -> None:
    events: list[SessionEvent] = []
    is_held, others_turn = threading.Event(), threading.Event()

    def wait_for_others_turn(_: ErrorCode, __: list[TopicPartition]) -> None:
        is_held.set()
        others_turn.wait(DEADLINE_S)

    stores = [open_store(on_session_event=events.append), open_store()]
    controllers = []
    for number, store in enumerate(stores):
        store.register_broker(registration(BrokerId(number)))
        controllers.append(
            Controller(
                BrokerId(number),
                store,
                settings=controller_settings(),
                on_fatal=fatal.append,
                make_channels=lambda epoch, report: FakeChannels(epoch),
            )
        )
    first, second = controllers
    try:
        first.start()
        wait_for(lambda: first.is_active)
        second.start()
        wait_for(lambda: second.active_broker_id == 0)
        # The callback holds the first one's event thread. Otherwise it may win again in its next session.
        first.controlled_shutdown(BrokerId(1), BrokerEpoch(-1), wait_for_others_turn)
        assert is_held.wait(DEADLINE_S)
        expire_session(stores[0].session._client)
        wait_for(lambda: second.is_active and second.epoch == 2)
        # The session's thread may be late; a late event would end the next term of the first one.
        wait_for(lambda: events[-2:] == [SessionEvent.EXPIRED, SessionEvent.RENEWED])
        others_turn.set()
        wait_for(lambda: not first.is_active and first.active_broker_id == 1)
        second.stop()
        wait_for(lambda: first.is_active and first.epoch == 3)
    finally:
        others_turn.set()
        for controller in controllers:
            controller.stop()
