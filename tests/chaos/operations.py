"""An operator's requests, chosen at random: moves, throttles, cancellations, elections and growth.

The cluster is judged by `settle`: no reassignment lasts longer than it may, acknowledged targets are the
replicas, all in sync, and no broker keeps a log of a partition that it has no replica of. A request may fail
while brokers are away; its partitions then have either replicas. One thread.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from kazoo.exceptions import KazooException, NodeExistsError

from barnabas.cli.exit_codes import OK
from barnabas.cli.reassign import LISTS, RATES
from barnabas.client.admin.admin import ConfigChange, ConfigResource
from barnabas.client.blocking import Admin
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ApiError, BarnabasError
from barnabas.protocol.ids import TopicPartition
from barnabas.zookeeper import admin_requests, paths, znodes
from tests.support.waiting import wait_for

from ..cluster.test_cli import commands_to
from ..cluster.tools import ClusterView, call_command

_MOST_PARTITIONS: Final = 10
_BYTES_PER_S: Final = (50_000, 500_000, 5_000_000)
"""The rates of throttled moves, of which the lowest ends within no run."""
_TIMEOUT_MS: Final = 5_000
_REPLICAS: Final = (2, 3, 3)
"""The numbers of a partition's new replicas: at least two, since two must be in sync."""

Outcomes = Mapping[TopicPartition, ApiError | None]


class Used(Protocol):
    """The partitions of one topic that a load uses."""

    partitions: list[TopicPartition]

    def grow(self, partitions: int) -> None:
        """Use so many partitions from now on, if there were fewer."""


class InternalTopic(Used):
    """A topic of the coordinators, which never grows."""

    def __init__(self, name: str, partitions: int) -> None:
        self.partitions = [TopicPartition(name, number) for number in range(partitions)]

    def grow(self, partitions: int) -> None:
        assert partitions == len(self.partitions)


class Operator:
    """Changes one topic, in use as by a load; `say` notes each outcome."""

    def __init__(
        self,
        cluster: LocalCluster,
        load: Used,
        chance: random.Random,
        say: Callable[[str], None],
        *,
        deadline_s: float,
    ) -> None:
        self._cluster = cluster
        self._view = ClusterView(cluster)
        self._barnabas = commands_to(cluster, call_command)
        self._load = load
        self.topic = load.partitions[0].topic
        self._chance = chance
        self._say = say
        self._deadline_s = deadline_s
        self._targets: dict[TopicPartition, tuple[int, ...]] = {}
        """The replicas of the partitions whose last change was acknowledged."""
        self.draining: int | None = None
        self._is_throttled = False

    def move(self) -> None:
        """Give some partitions other replicas, through the controller."""
        targets = self._random_targets()
        self._forget(targets)
        outcomes = self._ask(
            lambda admin: admin.alter_partition_reassignments(targets, timeout_ms=_TIMEOUT_MS)
        )
        moving = {tp: tuple(targets[tp]) for tp, error in outcomes.items() if error is None}
        self._targets |= moving
        self._say(f"  {len(moving)} of {len(targets)} partitions move")

    def move_through_zookeeper(self) -> None:
        """Do the same as Kafka's old tools do, which nobody acknowledges."""
        targets = self._random_targets()
        self._forget(targets)
        data = admin_requests.encode_reassignments({tp: tuple(to) for tp, to in targets.items()})
        self._create(paths.REASSIGNMENTS, data)

    def elect_through_zookeeper(self) -> None:
        data = znodes.encode_partitions(self._load.partitions)
        self._create(paths.PREFERRED_ELECTION, data)

    def throttle(self) -> None:
        """Make moves last until the cluster is healed, so that faults meet them."""
        rate = str(self._chance.choice(_BYTES_PER_S))
        self._is_throttled = True
        self._ask(lambda admin: _limit(admin, self._cluster.broker_ids, self.topic, rate, "*"))
        self._say(f"  {rate} bytes/s")

    def cancel(self) -> None:
        """Cancel all moves of the topic."""

        def cancelled(admin: Admin) -> Outcomes:
            moving = [tp for tp in admin.list_partition_reassignments() if tp.topic == self.topic]
            self._forget(moving)
            return admin.alter_partition_reassignments(dict.fromkeys(moving), timeout_ms=_TIMEOUT_MS)

        outcomes = self._ask(cancelled)
        self._say(f"  {sum(error is None for error in outcomes.values())} of {len(outcomes)} are cancelled")

    def elect(self) -> None:
        """Let the preferred replicas lead."""
        outcomes = self._ask(lambda admin: admin.elect_leaders(timeout_ms=_TIMEOUT_MS))
        self._say(f"  {sum(error is None for error in outcomes.values())} leaders are elected")

    def grow(self) -> None:
        """Add a partition, and load."""
        count = len(self._load.partitions) + 1
        if count > _MOST_PARTITIONS:
            return

        def grown(admin: Admin) -> Outcomes:
            admin.create_partitions({self.topic: count}, timeout_ms=_TIMEOUT_MS)
            return {TopicPartition(self.topic, count - 1): None}

        if self._ask(grown):
            self._load.grow(count)

    def begin_drain(self, broker_id: int) -> None:
        """Ask for a broker without replicas; until `refill`, no move gives it one."""
        self.draining = broker_id
        self._targets.clear()
        done = self._barnabas("drain", str(broker_id), check=False)
        self._say(f"  {(done.stdout + done.stderr).strip()}")

    def check_drained(self) -> None:
        """The cluster is healthy: the broker has no replicas after the command at the latest."""
        broker_id = self.draining
        said: list[str] = []

        def is_drained() -> bool:
            # A topic that is deleted meanwhile is refused.
            timeout = ("--wait", "--timeout", str(self._deadline_s))
            done = self._barnabas("drain", str(broker_id), *timeout, check=False)
            said.append(done.stdout + done.stderr)
            return done.returncode == OK

        wait_for(is_drained, lambda: f"broker {broker_id} is not drained: {said[-1]}", self._deadline_s)
        self.settle()
        left = [info for info in self._view.partitions(self.topic) if broker_id in info.replicas]
        assert not left, f"broker {broker_id} is drained and has {left}"

    def refill(self, path: Path) -> None:
        """Spread the replicas over all brokers again, by a plan."""
        self.draining = None
        plan = self._barnabas("reassign", "plan", self.topic, "--replication-factor", "3", "--json").stdout
        path.write_text(plan)
        targets = {
            TopicPartition(entry["topic"], entry["partition"]): tuple(entry["replicas"])
            for entry in json.loads(plan)["partitions"]
        }
        used = {broker for target in targets.values() for broker in target}
        assert targets, "a drained broker needs no replicas"
        assert used <= set(self._cluster.broker_ids), plan
        self._targets.clear()
        said = self._barnabas("reassign", "execute", str(path), check=False)
        if said.returncode == OK:
            self._targets |= targets
        self._say(f"  {(said.stdout + said.stderr).strip()}")

    def settle(self) -> None:
        """Wait until the moves are done. Fails if they last too long, or have another end."""
        seen: list[object] = []
        if self._is_throttled:
            wait_for(self._unthrottle, "the throttle is not removed", self._deadline_s)
            self._is_throttled = False

        def is_done() -> bool:
            try:
                with self._view.admin() as admin:
                    seen.append(admin.list_partition_reassignments())
            except BarnabasError as error:
                seen.append(error)
            return seen[-1] == {}

        wait_for(is_done, lambda: f"the partitions still move: {seen[-1]}", self._deadline_s)
        wait_for(self._is_as_wanted, self._why_not, self._deadline_s)
        # A request without an answer may have added a partition.
        self._load.grow(len(self._view.partitions(self.topic)))
        self._view.wait_agreed(self.topic, len(self._load.partitions), self._deadline_s)
        wait_for(
            self._has_no_removed_log, lambda: f"logs: {self._logs()}, {self._replicas()}", self._deadline_s
        )

    def check_election(self) -> None:
        """The cluster is healthy and settled: an election lets every preferred replica lead.

        Those of the load are elected at once. The replicas of topics that come and go may still catch up, and
        are refused until they are in the ISR.
        """
        refused: list[Outcomes] = []

        def is_led() -> bool:
            with self._view.admin() as admin:
                outcomes = admin.elect_leaders()
            refused.append({tp: error for tp, error in outcomes.items() if error is not None})
            assert all(tp.topic != self.topic for tp in refused[-1]), f"not elected: {refused[-1]}"
            return not refused[-1]

        wait_for(is_led, lambda: f"not elected: {refused[-1]}", self._deadline_s)
        led = [(info.partition, info.leader, info.replicas) for info in self._view.partitions(self.topic)]
        assert all(leader == replicas[0] for _, leader, replicas in led), f"others lead: {led}"

    def _ask(self, call: Callable[[Admin], Outcomes | None]) -> Outcomes:
        """The outcomes of a request; empty if it failed, which it may while brokers are away."""
        try:
            with Admin(
                **self._view.clients,
                request_timeout_ms=_TIMEOUT_MS,
                default_api_timeout_ms=2 * _TIMEOUT_MS,
            ) as admin:
                return call(admin) or {}
        except BarnabasError as error:
            self._say(f"  {error!r}")
            return {}

    def _unthrottle(self) -> bool:
        try:
            with self._view.admin() as admin:
                _limit(admin, self._cluster.broker_ids, self.topic, None, None)
        except BarnabasError:
            return False
        return True

    def _create(self, path: str, data: bytes) -> None:
        try:
            with self._view.zookeeper() as zookeeper:
                zookeeper.create(path, data)
        except NodeExistsError:
            self._say("  the request before is not done")
        except KazooException as error:
            self._say(f"  {error!r}")

    def _random_targets(self) -> dict[TopicPartition, Sequence[int]]:
        brokers = [broker for broker in self._cluster.broker_ids if broker != self.draining]
        moved = self._chance.sample(
            self._load.partitions, self._chance.randint(1, len(self._load.partitions))
        )
        return {
            tp: self._chance.sample(brokers, min(len(brokers), self._chance.choice(_REPLICAS)))
            for tp in moved
        }

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._targets.pop(partition, None)

    def _replicas(self) -> dict[TopicPartition, tuple[int, ...]]:
        return {
            TopicPartition(self.topic, info.partition): info.replicas
            for info in self._view.partitions(self.topic)
        }

    def _is_as_wanted(self) -> bool:
        try:
            replicas = self._replicas()
        except BarnabasError:
            return False
        return all(replicas.get(tp) == target for tp, target in self._targets.items())

    def _why_not(self) -> str:
        return f"acknowledged: {self._targets}, but the partitions have {self._replicas()}"

    def _logs(self) -> dict[TopicPartition, set[int]]:
        return {
            tp: {
                int(broker.id)
                for broker in self._cluster.brokers
                for path in broker.log_dirs
                if (path / f"{tp.topic}-{tp.partition}").is_dir()
            }
            for tp in self._load.partitions
        }

    def _why_not_removed(self) -> str:
        return f"the replicas are {self._replicas()}, and the logs are at {self._logs()}"

    def _has_no_removed_log(self) -> bool:
        replicas = self._replicas()
        return all(brokers == set(replicas[tp]) for tp, brokers in self._logs().items())


def _limit(admin: Admin, brokers: Sequence[int], topic: str, rate: str | None, throttled: str | None) -> None:
    """Set the throttles of a topic's replicas, or remove them."""
    rates: dict[str, ConfigChange] = dict.fromkeys(RATES, rate)
    lists: dict[str, ConfigChange] = dict.fromkeys(LISTS, throttled)
    admin.alter_configs(
        {ConfigResource.topic(topic): lists, **{ConfigResource.broker(id): rates for id in brokers}},
        timeout_ms=_TIMEOUT_MS,
    )
