"""One broker of a simulated cluster: its disk stays, its process may end and start again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.base.purgatory import Reaper
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.broker.handlers.fault_table import FaultTable
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.broker.replication.fence import RequestOrder
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.security.broker_principals import BrokerPrincipals
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from tests.simulation.channels import HANDLERS
from tests.simulation.disk import Disk, LogView
from tests.simulation.fetchers import SimFetchers
from tests.simulation.member import SimMember, raise_it
from tests.simulation.requests import LISTENER, SimRequest
from tests.support.zookeeper_client import Door

if TYPE_CHECKING:
    from tests.simulation.world import World

EPOCH_MS: Final = 1_700_000_000_000


class SimBroker:
    """`life` counts the processes of this broker."""

    def __init__(self, world: World, broker_id: BrokerId) -> None:
        self.id = broker_id
        self.life = 0
        self.is_up = False
        self.is_paused = False
        self.is_lost = False
        """Down until all other brokers have returned."""
        self.config = world.config_of(broker_id)
        """The settings that the last process was given at its start."""
        self.settings = TopicConfigs(self.config.topics)
        """The settings of topics that the last process knows."""
        self.disk = Disk(broker_id, world.folder / str(broker_id), lambda topic: self.settings.of(topic))
        self.disk.on_slow = world.pass_time
        self._world = world
        self._clock_factor = 1.0
        self._clock_set_ms = (0.0, 0.0)
        self.wall_skew_ms = 0
        """How far its wall clock is ahead of the world's."""
        self.start()

    @property
    def can_act(self) -> bool:
        return self.is_up and not self.is_paused

    @property
    def logs(self) -> LogManager:
        return self.disk.logs

    @property
    def log(self) -> Log | None:
        return self.logs.get(self._world.tp)

    @property
    def view(self) -> LogView | None:
        """The records of its log, also while the process is down or the disk has failed."""
        return self.disk.view(self._world.tp)

    @property
    def partition(self) -> Partition | None:
        return self.partition_of(self._world.tp)

    def partition_of(self, tp: TopicPartition, topic_id: TopicId | None = None) -> Partition | None:
        """Its replica while the process is up; with `topic_id`, only a replica of that topic."""
        partition = self.replicas.roles.partitions.get(tp) if self.is_up else None
        if partition is None or topic_id is None or partition.log.topic_id == topic_id:
            return partition
        return None

    def now_ms(self) -> float:
        """The time by the broker's own clock."""
        here, world = self._clock_set_ms
        return here + (self._world.now_ms - world) * self._clock_factor

    def wall_ms(self) -> int:
        """The time by its wall clock, which an operator may set."""
        return EPOCH_MS + int(self._world.now_ms) + self.wall_skew_ms

    def set_clock(self, factor: float) -> None:
        """From now on its clock runs at this multiple of the world's rate."""
        self._clock_set_ms = (self.now_ms(), self._world.now_ms)
        self._clock_factor = factor

    def start(self) -> None:
        """Start a new process: register, run for controller."""
        world = self._world
        self.life += 1
        # A starting process would wait for ZooKeeper without limit.
        world.doors[self.id] = Door.OPEN
        self.config = world.config_of(self.id)
        self.settings = TopicConfigs(self.config.topics)
        self.member = SimMember(world, self.id)
        self.metadata = MetadataCache()
        self.metadata.on_deletion(self._topics_deleted)
        self.fetchers = SimFetchers(world, self)
        self.reaper = Reaper(on_fatal=raise_it, clock_ms=self.now_ms)
        self.replicas = ReplicaManager(
            self.id,
            self.logs,
            self.metadata,
            self.member.store,
            self.reaper,
            topic_settings=self.settings,
            make_fetchers=lambda manager: self.fetchers,
            max_lag_ms=world.max_lag_ms,
            max_fetch_sessions=10,
            call_soon=lambda work: work(),
            on_fatal=raise_it,
            now_ms=self.now_ms,
        )
        self.replicas.roles.inter_broker_listener = LISTENER
        self.services = SimpleNamespace(
            replicas=self.replicas,
            metadata=self.metadata,
            request_order=RequestOrder(),
            config=SimpleNamespace(inter_broker_listener_name=LISTENER, fetch_max_bytes=1 << 20),
            authorizer=None,
            brokers=BrokerPrincipals(),
            faults=FaultTable(),
        )
        self.is_up, self.is_paused = True, False
        world.started(self)
        self.member.start(self.replicas, self.config, self.settings)

    def _topics_deleted(self, topics: Mapping[str, object]) -> None:
        """As `barnabas.broker.app` does."""
        for name in topics.keys() - self.metadata.current.topics.keys():
            self.settings.forget(name)

    @contextmanager
    def disk_errors(self) -> Iterator[None]:
        """Report a failure of the disk inside the block to the replicas, as a broker's own threads do."""
        try:
            yield
        except LogDirFailure as error:
            self.replicas.disk_failures.note(error)

    def crash(self, *, power_loss: random.Random | None = None) -> None:
        """Kill the process; a power loss also takes all or some of the unflushed bytes."""
        self.is_up = self.is_paused = False
        self.member.vanish()
        if power_loss is None:
            self.disk.reopen()
        else:
            self._world.disk_has_lost(self.id)
            self.disk.lose_power(power_loss)

    def stop(self) -> None:
        """Shut the process down cleanly."""
        self.replicas.checkpoint_high_watermarks()
        self.member.leave()
        self.is_up = self.is_paused = False
        self.disk.stop_cleanly()

    def wipe(self) -> None:
        """Replace the disk of a dead broker by an empty one."""
        self._world.disk_has_lost(self.id)
        self.disk.wipe()

    def handle_control(self, request: Any, answer: Callable[[Any], None]) -> None:
        """A request of a controller arrives."""
        if self._world.topics is not None:
            # Check first, so that the committed records are known before a log is set aside.
            self._world.check()
        sim_request: Any = SimRequest(request, answer)
        HANDLERS[type(request)](self.services, sim_request)
