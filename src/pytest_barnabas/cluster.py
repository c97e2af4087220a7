"""The cluster that tests use: its addresses, its leaders, and faults that are undone at the end of a block.

Each fault is a context manager, for `with` and `async with`. At its end the broker runs again, and the block
is left when the cluster is whole: every broker sees all brokers, and every replica is in its ISR. Brokers
that another fault still holds are left out of that. All calls block and are bounded; `async with` waits in a
thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from barnabas.cli.acls import bindings_of, operations_of, resource_of
from barnabas.cli.exit_codes import CommandError
from barnabas.client import NewTopic
from barnabas.client.admin.users import ScramDeletion, ScramUpsertion
from barnabas.client.blocking import Admin
from barnabas.common.security.acl import AclBinding, AclFilter
from barnabas.common.security.principal import Principal
from barnabas.deploy.client_settings import ClientAccess, client_settings
from barnabas.deploy.health import wait_for_acls, wait_ready
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.security import ADMIN, make_password
from barnabas.protocol.errors import BarnabasError, UnknownTopicOrPartitionError

WHOLE_TIMEOUT_S: Final = 60.0
_LEADER_TIMEOUT_S: Final = 30.0
_USER_TIMEOUT_S: Final = 30.0
_UNKNOWN_TIMEOUT_S: Final = 1.0
_POLL_S: Final = 0.02


class Fault:
    """A fault of one broker, begun and undone by a `with` or `async with` block."""

    def __init__(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self._begin = begin
        self._end = end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *outcome: object) -> None:
        self._end()

    async def __aenter__(self) -> None:
        await asyncio.to_thread(self._begin)

    async def __aexit__(self, *outcome: object) -> None:
        await asyncio.to_thread(self._end)


class Cluster:
    def __init__(self, local: LocalCluster) -> None:
        self._local = local
        self._security = local.security
        self._admin = Admin(**self.client_settings("barnabas"))
        self._faults: Counter[int] = Counter()
        """The number of faults that each broker has now."""

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,host:port,…`` of all brokers."""
        return self._local.bootstrap

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
        ``barnabas_security`` it has the bootstrap servers alone. Raises ValueError, and DeployError for an
        unknown user.
        """
        if self._security is None:
            return client_settings(kind, ClientAccess(bootstrap=self.bootstrap_servers))
        return client_settings(kind, self._security.access(self.bootstrap_servers, user))

    def create_user(self, name: str, *rights: str) -> None:
        """Create a user with these rights, each ``OPERATION,… RESOURCE…`` as `barnabas acls grant` has them.

        Returns once every broker knows the user. Raises ValueError for rights that mean nothing, ApiError,
        and RuntimeError for a cluster whose users cannot be made while it runs.
        """
        security = self._security
        mechanism = None if security is None else security.scram_mechanism
        if security is None or mechanism is None:
            raise RuntimeError("users of tests need barnabas_security = scram or scram+tls")
        bindings = {binding for right in rights for binding in _bindings(name, right)}
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
        security = self._security
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
        if not isinstance(configs, Mapping | None):
            raise TypeError(f"configs={configs!r}: expected a mapping")
        texts = {setting: str(value) for setting, value in (configs or {}).items()}
        self._admin.create_topics(NewTopic(name, partitions, replicas, texts))

    def delete_topic(self, name: str) -> None:
        """Raises ApiError, for example if there is no such topic."""
        self._admin.delete_topics(name)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """The leader of a partition, as soon as it has one. Raises TimeoutError after 30 s.

        Raises UNKNOWN_TOPIC_OR_PARTITION, after a second, for one that does not exist: a broker may learn of
        a new one later than the client that created it.
        """
        if not isinstance(topic, str):
            raise TypeError(f"topic {topic!r}: expected a str")
        if type(partition) is not int or partition < 0:
            raise ValueError(f"partition {partition!r}: expected a whole number, 0 or more")

        def leader() -> int:
            info = self._admin.describe_topics(topic)[topic]
            if partition >= len(info.partitions):
                text = f"topic {topic!r} has {len(info.partitions)} partitions, there is no {partition}"
                raise UnknownTopicOrPartitionError(text)
            return info.partitions[partition].leader

        return self._broker(leader, f"{topic}-{partition} has no leader")

    def controller(self) -> int:
        """The broker that is the controller. Raises TimeoutError after 30 s without one."""
        return self._broker(lambda: self._admin.describe_cluster().controller_id, "there is no controller")

    def killed(self, broker_id: int) -> Fault:
        """Kill a broker (SIGKILL); at the end of the block start it again."""
        return self._fault(broker_id, self._local.kill, self._local.start_broker, runs=False)

    def stopped(self, broker_id: int) -> Fault:
        """Shut a broker down, as a rolling restart does; at the end of the block start it again."""
        return self._fault(broker_id, self._local.stop_broker, self._local.start_broker, runs=False)

    def paused(self, broker_id: int) -> Fault:
        """Pause a broker (SIGSTOP): it keeps its connections and answers nothing. Resume it at the end."""
        return self._fault(broker_id, self._local.pause, self._local.resume, runs=True)

    def wait_until_whole(self, timeout_s: float = WHOLE_TIMEOUT_S) -> None:
        """Wait until all brokers run and every replica is in its ISR.

        Raises TimeoutError naming the first replica that is not, DeployError for a broker that does not run.
        """
        self._wait_until_whole_without((), timeout_s)

    def _wait_until_whole_without(self, faulty: Collection[int], timeout_s: float = WHOLE_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        self._local.wait_ready(timeout_s, must_run=[id_ for id_ in self.broker_ids if id_ not in faulty])
        while (gap := self._gap(faulty)) is not None:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"the cluster is not whole after {timeout_s:g} s: {gap}")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Close the admin client; the brokers are not touched."""
        self._admin.close()

    def _fault(
        self, broker_id: int, begin: Callable[[int], object], end: Callable[[int], object], *, runs: bool
    ) -> Fault:
        """`runs`: whether the process exists during the fault; `end` is left out if it is otherwise then."""
        # A wrong id is an error here, and not within the block.
        self._local.broker(broker_id)

        def do() -> None:
            begin(broker_id)
            self._faults[broker_id] += 1

        def undo() -> None:
            self._faults[broker_id] -= 1
            if self._local.broker(broker_id).is_alive == runs:
                end(broker_id)
            self._wait_until_whole_without([id_ for id_, count in self._faults.items() if count])

        return Fault(do, undo)

    def _gap(self, faulty: Collection[int]) -> str | None:
        """The first reason why the cluster is not whole without the faulty brokers; None if it is."""
        try:
            topics = self._admin.describe_topics()
        except BarnabasError as error:
            return f"no metadata: {error}"
        for name, topic in topics.items():
            for number, partition in enumerate(topic.partitions):
                if faulty and set(partition.isr) <= set(faulty):
                    # It waits for these brokers: no other one may lead it.
                    continue
                missing = set(partition.replicas) - set(partition.isr) - set(faulty)
                if missing or partition.leader < 0:
                    return f"{name}-{number}: leader {partition.leader}, not in sync: {sorted(missing)}"
        return None

    def _broker(self, look: Callable[[], int], complaint: str) -> int:
        start = time.monotonic()
        while True:
            try:
                broker_id, last = look(), complaint
            except BarnabasError as error:
                is_unknown = isinstance(error, UnknownTopicOrPartitionError)
                if is_unknown and time.monotonic() >= start + _UNKNOWN_TIMEOUT_S:
                    raise
                broker_id, last = -1, f"{complaint}: {error}"
            if broker_id >= 0:
                return broker_id
            if time.monotonic() >= start + _LEADER_TIMEOUT_S:
                raise TimeoutError(last)
            time.sleep(_POLL_S)


def _bindings(user: str, right: str) -> list[AclBinding]:
    operations, *resources = right.split()
    if not resources:
        raise ValueError(f"{right!r}: expected operations and resources, such as 'read,write topic:orders'")
    try:
        chosen = [resource_of(text) for text in resources]
        return bindings_of(Principal.user(user), operations_of(operations), chosen)
    except CommandError as error:
        raise ValueError(f"{right!r}: {error}") from None
