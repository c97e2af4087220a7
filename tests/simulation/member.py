"""The parts that make a process a member of the cluster: real session, store, registration and controller.

The world drives them step by step; their threads are never started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.config.dynamic import LiveSettings
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.broker.membership import Membership
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.controller.controller import Controller
from barnabas.controller.events import Event
from barnabas.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch
from barnabas.zookeeper.configs import ConfigChanges
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.notifications import NOTICE_LIFETIME_MS
from barnabas.zookeeper.session import Threads
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import AdvertisedListener, BrokerRegistration
from tests.simulation.channels import SimChannels
from tests.simulation.requests import LISTENER
from tests.support.defaults import controller_settings
from tests.support.zookeeper_client import SimKazooClient

if TYPE_CHECKING:
    from tests.simulation.world import World

SESSION_TIMEOUT_MS: Final = 6_000


def raise_it(error: BaseException) -> None:
    raise error


class SimThreads(Threads):
    """Starts no thread and never waits: an awaited event is set at once, or the wait times out."""

    def __init__(self, world: World, poll: Callable[[], None]) -> None:
        self._world = world
        self._poll = poll

    def start(self, thread: threading.Thread) -> None:
        return

    def now_s(self) -> float:
        return self._world.now_ms / 1000

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self._poll()
        return event.is_set()


class SimMember:
    """The membership of one process, from its start to its end."""

    def __init__(self, world: World, broker_id: BrokerId) -> None:
        self.id = broker_id
        self.configs: ConfigChanges | None = None
        self.live: LiveSettings | None = None
        """In a world whose settings change."""
        self._must_load: bool | None = None
        """After a failed attempt to read settings: whether to read all of them."""
        self.channels: SimChannels | None = None
        """The channels of the last election that this process has won."""
        self._world = world
        self._threads = SimThreads(world, lambda: self.client.poll())
        self.store = ClusterStore(
            "simulated",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            connection_timeout_ms=SESSION_TIMEOUT_MS,
            on_session_event=lambda event: self.membership.session_changed(event),
            on_fatal=raise_it,
            make_client=self._make_client,
            threads=self._threads,
        )
        self.controller = Controller(
            broker_id,
            self.store,
            settings=controller_settings(inter_broker_listener_name=LISTENER),
            on_fatal=raise_it,
            make_channels=self._make_channels,
            threads=self._threads,
        )

    def start(self, replicas: ReplicaManager, config: BrokerConfig, table: TopicConfigs) -> None:
        """Connect, register and run for controller, in the order of `barnabas.broker.app`."""
        self.membership = Membership(self.store, replicas, on_fatal=raise_it)
        self.store.start()
        if self._world.settings is not None:
            self._watch_settings(replicas, config, table)
        earlier = self.store.brokers().get(self.id)
        if earlier is not None:
            replicas.roles.registered(BrokerEpoch(earlier.broker_epoch + 1))
        self.membership.join(self._registration())
        self.controller.start()

    def _watch_settings(self, replicas: ReplicaManager, config: BrokerConfig, table: TopicConfigs) -> None:
        """Read the settings and watch them; the logs that are open before in a simulation take them over."""
        live = self.live = LiveSettings(
            config,
            table,
            topics_changed=replicas.roles.settings_changed,
            topics_written=self.controller.topic_configs_changed,
            layers_changed=lambda layers: None,
        )
        settings = self._world.settings
        assert settings is not None
        # Here a notification is removed sooner, but later than a session ends without a connection.
        earlier_ms = NOTICE_LIFETIME_MS - 2 * SESSION_TIMEOUT_MS
        self.configs = ConfigChanges(
            self.store.configs,
            apply=live.take,
            now_ms=lambda: int(settings.notices_ms()) + earlier_ms,
            on_fatal=raise_it,
        )
        self.configs.load()
        replicas.logs.update_config(None)

    def vanish(self) -> None:
        """The process and its connections end; its session remains."""
        self.client.vanish()
        if self.channels is not None:
            self.channels.stop()

    def leave(self) -> None:
        """The process shuts down cleanly, and closes its session."""
        self.controller.stop()
        self.vanish()
        self._world.zookeeper.expire(self.client.session)

    # Steps

    @property
    def is_busy(self) -> bool:
        """Whether a step is ready that does not depend on time."""
        return bool(self.ready())

    @property
    def session(self) -> Any:
        return self.store.session

    def ready(self) -> list[Callable[[], object]]:
        """The steps that have something to do."""
        steps: list[Callable[[], object]] = []
        if self.client.has_callbacks:
            steps.append(self.watch)
        if not self.session._states.empty():
            steps.append(self.session_event)
        if self.must_read_settings:
            steps.append(self.read_settings)
        if len(self.controller._queue):
            steps.append(self.control)
        return steps

    @property
    def must_read_settings(self) -> bool:
        return self.configs is not None and self.configs._task.is_due

    @property
    def has_heard_all(self) -> bool:
        """Whether its connection has told it of all changes, and its settings are read."""
        configs, client = self.configs, self.client
        return (
            configs is not None
            and client.client_id is not None
            and client.session in self._world.zookeeper.sessions
            and not client.has_callbacks
            and self.session._states.empty()
            and not configs._task.is_due
            and self._must_load is None
        )

    def connection(self) -> None:
        """The connection's thread checks the connection."""
        self.client.poll()

    def session_event(self) -> bool:
        """The session's thread delivers one event."""
        return bool(self.session.deliver_next(0))

    def watch(self) -> bool:
        """The library's thread calls one triggered watch."""
        return self.client.run_callback()

    def read_settings(self) -> bool:
        """The thread that watches settings reads them; it tries again later without ZooKeeper."""
        configs = self.configs
        assert configs is not None
        configs._task.take()
        must_load, configs._must_reload = configs._must_reload, False
        try:
            (configs.load if must_load else configs.read_changes)()
        except (ZooKeeperUnavailable, SessionLost):
            self._must_load = must_load
        return True

    def control(self) -> bool:
        """The controller's thread handles one event."""
        return self.controller.step(0)

    def work_off(self) -> bool:
        """Take one ready step; False without one."""
        if self.watch() or self.session_event():
            return True
        if self.must_read_settings:
            return self.read_settings()
        return len(self.controller._queue) > 0 and self.control()

    def sentinel(self) -> None:
        """The sentinel's thread reports the controller's process as dead, if it is."""
        target = self.controller._sentinel._target
        if target is not None and not self._world.hosts[target.node.broker_id].is_up:
            self.controller._sentinel._on_gone(target.node)

    def time_passes(self) -> None:
        """The timed steps of the threads: notice a long silence, run for election again."""
        if self.session._states.empty():
            self.session_event()
        if not len(self.controller._queue):
            self.control()
        if self.configs is not None and self._must_load is not None:
            must_load, self._must_load = self._must_load, None
            self.configs._must_reload = self.configs._must_reload or must_load
            self.configs._task.wake()

    # Factories for the parts

    def _make_client(self, **arguments: Any) -> Any:
        self.client = SimKazooClient(self._world.zookeeper, lambda: self._world.doors[self.id], **arguments)
        return self.client

    def _make_channels(self, epoch: ControllerEpoch, report: Callable[[Event], None]) -> SimChannels:
        self.channels = SimChannels(self._world, self.id, epoch, report)
        self._world.channels.append(self.channels)
        return self.channels

    def _registration(self) -> BrokerRegistration:
        return BrokerRegistration(
            broker_id=self.id,
            listeners=(AdvertisedListener(LISTENER, "sim", 9000 + self.id),),
            timestamp_ms=int(self._world.now_ms),
            directories=(f"of {self.id}",),
        )
