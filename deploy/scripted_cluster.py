"""A cluster of real brokers for programs: tests, scripts and notebooks; `barnabas.local_cluster` makes it.

Guarantees. No process of it survives the program, however that ends. Each fault is a context manager, for
`with` and `async with`; at its end the cluster is whole again but for faults that still hold
(`held_faults.py`). Wrong arguments raise at once, naming the argument, its value and what was expected.

Any thread; calls block and are bounded. `Cluster.aio` has the same calls for a running event loop.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

import barnabas.client as asynchronous
from barnabas.client import NewTopic
from barnabas.client.admin.users import ScramDeletion, ScramUpsertion
from barnabas.client.arguments import check_mapping, check_number, check_text
from barnabas.client.blocking import Admin, Consumer, Producer
from barnabas.client.metadata import topic_info
from barnabas.common.fault_rules import FaultRule, fault_rule
from barnabas.common.security.acl import AclFilter
from barnabas.common.security.principal import Principal
from barnabas.common.security.rights import bindings_of_right
from barnabas.deploy.client_settings import ClientAccess, client_settings
from barnabas.deploy.cluster_options import ClusterOptions
from barnabas.deploy.direct_admin import DirectAdmin
from barnabas.deploy.faults import DELAY_MS
from barnabas.deploy.health import wait_for_acls, wait_ready
from barnabas.deploy.held_faults import (
    WHOLE_TIMEOUT_S,
    Fault,
    HeldFaults,
    LinkFault,
    ProtocolFault,
    ServerFault,
    in_thread,
)
from barnabas.deploy.links import Rule, RuleKind
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import DeployError
from barnabas.deploy.security import ADMIN, make_password
from barnabas.deploy.state import ZOOKEEPER
from barnabas.protocol.errors import BarnabasError, UnknownTopicOrPartitionError
from barnabas.protocol.messages.metadata import MetadataResponse

P = ParamSpec("P")
T = TypeVar("T")

_LEADER_TIMEOUT_S: Final = 30.0
_USER_TIMEOUT_S: Final = 30.0
_UNKNOWN_TIMEOUT_S: Final = 1.0
_POLL_S: Final = 0.02
_MOST_DELAY_MS: Final = 3_600_000


class Cluster:
    """A cluster for `with`, `async with`, or `start` and `close`; until then it has no processes."""

    def __init__(self, options: ClusterOptions, directory: Path | str | None = None, *, keeps: bool = False):
        """`directory`: None for a temporary one; `keeps`: whether brokers end by a controlled shutdown."""
        self._options = options
        self._directory = directory
        self._keeps = keeps
        self._removal: weakref.finalize[..., Self] | None = None
        self._running: HeldFaults | None = None

    def start(self) -> Self:
        """Start the brokers and ZooKeeper. Raises DeployError; nothing of the cluster runs then."""
        if self._running is not None:
            raise DeployError("the cluster runs already")
        options, directory = self._options, self._directory
        if directory is None:
            directory = tempfile.mkdtemp(prefix="barnabas-")
            self._removal = weakref.finalize(self, _remove, directory, os.getpid())
        local = None
        try:
            local = LocalCluster(
                directory,
                brokers=options.brokers,
                settings=dict(options.settings),
                security=options.configuration,
                links=options.links,
            )
            local.check_settings()
            local.start()
            self._running = HeldFaults(local, DirectAdmin(local))
        except BaseException:
            self._end(local)
            raise
        return self

    def close(self) -> None:
        """End all processes, and remove the temporary directory. Idempotent; a forked child ends nothing."""
        running, self._running = self._running, None
        if running is not None and running.owner_pid == os.getpid():
            try:
                running.close()
                running.admin.close()
            finally:
                self._end(running.cluster)

    def _end(self, local: LocalCluster | None) -> None:
        with ExitStack() as ends:
            if self._removal is not None:
                ends.callback(self._removal)
            if local is not None:
                ends.callback(local.close)
                ends.callback(local.kill_all)
                if self._keeps:
                    ends.callback(local.stop)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await in_thread(self.start, undo=self.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await in_thread(self.close)

    @property
    def _faults(self) -> HeldFaults:
        if self._running is None:
            raise DeployError("the cluster does not run: use it in a `with` block, or call start() first")
        if self._running.owner_pid != os.getpid():
            raise DeployError("the cluster belongs to the parent process, and a forked child cannot use it")
        return self._running

    @property
    def _local(self) -> LocalCluster:
        return self._faults.cluster

    @property
    def _admin(self) -> DirectAdmin:
        return self._faults.admin

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,host:port,…`` of all brokers."""
        return self._local.proxies or self._local.bootstrap

    @property
    def broker_ids(self) -> list[int]:
        return self._local.broker_ids

    @property
    def log_files(self) -> dict[int, str]:
        """Broker id → the path of its log."""
        return {int(broker.id): str(broker.server_log) for broker in self._local.brokers}

    def client_settings(self, kind: str, user: str = ADMIN) -> dict[str, Any]:
        """The settings with which a client of this kind connects, by default as the super user admin.

        Kinds: ``confluent``, ``kafka-python``, ``aiokafka``, ``java``, ``spark`` and ``barnabas``. Without
        ``barnabas_security`` it has the bootstrap servers alone, and no user but admin. Raises ValueError,
        and DeployError for an unknown user.
        """
        security = self._local.security
        if security is None:
            if user != ADMIN:
                raise DeployError(f"there is no user {user!r}, because the cluster was started without users")
            return client_settings(kind, ClientAccess(bootstrap=self.bootstrap_servers))
        return client_settings(kind, security.access(self.bootstrap_servers, user))

    @property
    def aio(self) -> AioCluster:
        """The same calls for a running event loop, as coroutines, and clients of asyncio."""
        return AioCluster(self)

    def producer(self, *, user: str = ADMIN, **settings: Any) -> Producer:
        """A producer of `barnabas.client.blocking`; `settings` are those of the client."""
        return Producer(**self.client_settings("barnabas", user), **settings)

    def consumer(self, *, user: str = ADMIN, **settings: Any) -> Consumer:
        """A consumer, by default from the earliest record on and in a group of its own."""
        return Consumer(**self.consumer_settings(user, settings))

    def admin(self, *, user: str = ADMIN, **settings: Any) -> Admin:
        return Admin(**self.client_settings("barnabas", user), **settings)

    def consumer_settings(self, user: str, given: Mapping[str, Any]) -> dict[str, Any]:
        own = {"group_id": f"group-{uuid.uuid4().hex[:8]}", "auto_offset_reset": "earliest"}
        return self.client_settings("barnabas", user) | own | dict(given)

    def create_user(self, name: str, *rights: str) -> None:
        """Create a user with these rights, each ``OPERATION,… RESOURCE…`` as `barnabas acls grant` has them.

        Returns once every broker knows the user. Raises ValueError for rights that mean nothing, ApiError,
        and RuntimeError for a cluster whose users cannot be made while it runs.
        """
        security = self._local.security
        mechanism = None if security is None else security.scram_mechanism
        if security is None or mechanism is None:
            raise RuntimeError("users can be made with security scram or scram+tls, not with this one")
        bindings = {binding for right in rights for binding in bindings_of_right(name, right)}
        password, bootstrap = make_password(), self.bootstrap_servers
        self._admin.alter_user_scram_credentials(ScramUpsertion(name, password, mechanism))
        security.keep_user(name, password, bootstrap)
        if bindings:
            self._admin.create_acls(bindings)
        endpoints = {
            broker.id: broker.endpoint for broker in self._local.brokers if broker.state == "running"
        }
        principal, admin = str(Principal.user(name)), security.channel_security(bootstrap)
        wait_for_acls(endpoints, principal, len(bindings), _USER_TIMEOUT_S, admin)
        wait_ready(endpoints, _USER_TIMEOUT_S, security=security.channel_security(bootstrap, name))

    def delete_user(self, name: str) -> None:
        """Delete a user and its rights. Raises ApiError."""
        security = self._local.security
        mechanism = None if security is None else security.scram_mechanism
        if security is None or mechanism is None or name not in security.users:
            return
        self._admin.delete_acls(AclFilter(principal=str(Principal.user(name))))
        self._admin.alter_user_scram_credentials(ScramDeletion(name, mechanism))
        security.forget_user(name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 3,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic, replicated to three brokers or to as many as there are. Raises ApiError."""
        replicas = min(3, len(self.broker_ids)) if replication_factor is None else replication_factor
        check_mapping("configs", given := configs or {}, "settings of the topic")
        texts = {setting: str(value) for setting, value in given.items()}
        self._admin.create_topics(NewTopic(name, partitions, replicas, texts))

    def delete_topic(self, name: str) -> None:
        """Raises ApiError, for example if there is no such topic."""
        self._admin.delete_topics(name)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """The leader of a partition, as soon as it has one. Raises TimeoutError after 30 s.

        Raises UNKNOWN_TOPIC_OR_PARTITION, after a second, for one that does not exist: a broker may learn of
        a new one later than the client that created it.
        """
        check_text("topic", topic)
        check_number("partition", partition, 0)

        def leader() -> int:
            views = self._views([topic])
            infos = [topic_info(known) for view in views for known in view.topics if known.partitions]
            if views and not infos:
                raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
            known = [info.partitions[partition] for info in infos if partition < len(info.partitions)]
            if infos and not known:
                count = max(len(info.partitions) for info in infos)
                text = f"topic {topic!r} has {count} partitions, there is no {partition}"
                raise UnknownTopicOrPartitionError(text)
            # Some brokers learn of a new leader later than others.
            return max(known, key=lambda info: info.leader_epoch).leader if known else -1

        return self._broker(leader, f"{topic}-{partition} has no leader")

    def controller(self) -> int:
        """The broker that is the controller. Raises TimeoutError after 30 s without one."""

        def controller() -> int:
            ids = Counter(view.controller_id for view in self._views([]))
            return ids.most_common(1)[0][0] if ids else -1

        return self._broker(controller, "there is no controller")

    def _views(self, topics: Collection[str]) -> list[MetadataResponse]:
        """The metadata of the brokers that are not cut off."""
        answers = self._admin.views(self._faults.reachable(), topics).values()
        views = [answer for answer in answers if not isinstance(answer, BarnabasError)]
        for answer in answers:
            if not views and isinstance(answer, BarnabasError):
                raise answer
        return views

    def killed(self, broker_id: int) -> Fault:
        """Kill a broker (SIGKILL); at the end of the block start it again."""
        return self._server_fault("kill", broker_id)

    def stopped(self, broker_id: int) -> Fault:
        """Shut a broker down, as a rolling restart does; at the end of the block start it again."""
        return self._server_fault("stop", broker_id)

    def paused(self, broker_id: int) -> Fault:
        """Pause a broker (SIGSTOP): it keeps its connections and answers nothing. Resume it at the end."""
        return self._server_fault("pause", broker_id)

    def disk_full(self, broker_id: int) -> Fault:
        """Let a broker's writes to its files fail, as on a full disk; at the end it starts with room."""
        return self._server_fault("fill-disk", broker_id)

    def zookeeper_down(self) -> Fault:
        """Kill ZooKeeper; at the end of the block start it again, with its data.

        Raises DeployError if another program runs it.
        """
        self._local.own_zookeeper  # noqa: B018 - the property raises without one
        return ServerFault(self._faults, "kill", ZOOKEEPER)

    def cut(self, source: int | str, target: int | str) -> Fault:
        """Hold back all bytes from the source to the target until the end of the block: one way.

        Ends of links are broker ids, ``"zookeeper"`` and ``"client"``, which stands for all clients.
        """
        return self._link_fault(RuleKind.CUT, self._ends(source=source, target=target))

    def severed(self, one: int | str, other: int | str) -> Fault:
        """Hold back all bytes between two ends, both ways."""
        ends = self._ends(one=one, other=other)
        return self._link_fault(RuleKind.CUT, ends, ends[::-1])

    def slow(self, source: int | str, target: int | str, *, delay_ms: float = DELAY_MS) -> Fault:
        """Let all bytes from the source to the target take so long."""
        if type(delay_ms) not in (int, float) or not 0 < delay_ms <= _MOST_DELAY_MS:
            raise ValueError(f"delay_ms={delay_ms!r}: expected milliseconds, up to {_MOST_DELAY_MS}")
        return self._link_fault(RuleKind.DELAY, self._ends(source=source, target=target), delay_ms=delay_ms)

    def faults(self, *rules: FaultRule, broker: int | None = None, **rule: Any) -> ProtocolFault:
        """Let brokers apply rules to requests: errors, delays, no answers, closed connections.

        The values of one rule, or several rules; those of `FaultRule`. `broker`: the only one that has them.
        Raises InvalidConfiguration for a wrong value.
        """
        for given in rules:
            if not isinstance(given, FaultRule):
                raise TypeError(f"{given!r}: expected a FaultRule, or its values by name")
        chosen = (*rules, fault_rule(rule)) if rule or not rules else rules
        brokers = self.broker_ids if broker is None else [int(self._local.broker(broker).id)]
        return ProtocolFault(self._faults, chosen, brokers)

    def wait_until_whole(self, timeout_s: float = WHOLE_TIMEOUT_S) -> None:
        """Wait until all brokers run and every replica is in its ISR.

        Raises TimeoutError naming the first replica that is not, DeployError for a broker that does not run.
        """
        self._faults.wait_until_whole(timeout_s)

    def _server_fault(self, name: str, broker_id: int) -> Fault:
        # A wrong id is an error here, and not within the block.
        self._local.broker(broker_id)
        return ServerFault(self._faults, name, str(broker_id))

    def _link_fault(self, kind: RuleKind, *links: tuple[str, str], delay_ms: float = 0.0) -> Fault:
        rules = (Rule(kind=kind, source=a, target=b, delay_ms=delay_ms) for a, b in links)
        return LinkFault(self._faults, *rules)

    def _ends(self, **given: int | str) -> tuple[str, str]:
        """The two ends of a link. Raises ValueError for one that does not exist."""
        if not self._local.has_links:
            raise DeployError(
                "the cluster was started without links that can fail: `barnabas_links = true` in the ini "
                "file of pytest, `links=True` of the marker or of local_cluster"
            )
        ends = self._local.link_server.ends
        for name, end in given.items():
            if isinstance(end, bool) or not isinstance(end, int | str) or str(end) not in ends:
                listed = ", ".join(end if not end.isdecimal() else f"broker {end}" for end in ends)
                raise ValueError(f"{name}={end!r}: expected one of {listed}")
        one, other = map(str, given.values())
        if one == other:
            raise ValueError(f"a link has two ends, not {one!r} twice")
        return one, other

    def _broker(self, look: Callable[[], int], complaint: str) -> int:
        start = time.monotonic()
        while True:
            try:
                broker_id, last = look(), complaint
            except BarnabasError as error:
                is_unknown = isinstance(error, UnknownTopicOrPartitionError)
                is_late = is_unknown and time.monotonic() >= start + _UNKNOWN_TIMEOUT_S
                if is_late or isinstance(error, DeployError):
                    raise
                broker_id, last = -1, f"{complaint}: {error}"
            if broker_id >= 0:
                return broker_id
            if time.monotonic() >= start + _LEADER_TIMEOUT_S:
                raise TimeoutError(last)
            time.sleep(_POLL_S)


def _awaitable(call: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The call as one that a thread makes."""

    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return await in_thread(lambda: call(*args, **kwargs))

    return run


class AioCluster:
    """The calls of a `Cluster` for a running event loop: each waits in a thread; clients are of asyncio."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.create_topic = _awaitable(cluster.create_topic)
        self.delete_topic = _awaitable(cluster.delete_topic)
        self.create_user = _awaitable(cluster.create_user)
        self.delete_user = _awaitable(cluster.delete_user)
        self.leader_of = _awaitable(cluster.leader_of)
        self.controller = _awaitable(cluster.controller)
        self.wait_until_whole = _awaitable(cluster.wait_until_whole)

    def producer(self, *, user: str = ADMIN, **settings: Any) -> asynchronous.Producer:
        """For ``async with``; `settings` are those of the client."""
        return asynchronous.Producer(**self._cluster.client_settings("barnabas", user), **settings)

    def consumer(self, *, user: str = ADMIN, **settings: Any) -> asynchronous.Consumer:
        """As `Cluster.consumer`."""
        return asynchronous.Consumer(**self._cluster.consumer_settings(user, settings))

    def admin(self, *, user: str = ADMIN, **settings: Any) -> asynchronous.Admin:
        return asynchronous.Admin(**self._cluster.client_settings("barnabas", user), **settings)


def _remove(directory: str, owner_pid: int) -> None:
    if owner_pid == os.getpid():
        shutil.rmtree(directory, ignore_errors=True)


def local_cluster(
    brokers: int = 3,
    settings: Mapping[str, Any] | None = None,
    security: str = "off",
    links: bool = True,
    directory: Path | str | None = None,
) -> Cluster:
    """A cluster of this program, for `with`, `async with`, or `start` and `close`.

    `settings`: of all brokers, in Kafka's names. `security`: ``off``, ``tls``, ``plain``, ``plain+tls``,
    ``scram`` or ``scram+tls``. `links`: whether proxies stand before the brokers, so that links can fail.
    Data is in a temporary directory, or stays in `directory` for the next start in it.

    Raises ValueError and TypeError for wrong arguments at once; the start raises DeployError.
    """
    if not isinstance(directory, str | Path | None):
        raise TypeError(f"directory={directory!r}: expected a path")
    options = ClusterOptions.of(brokers, settings, security, links)
    return Cluster(options, directory, keeps=directory is not None)
