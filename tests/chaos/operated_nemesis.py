"""The faults of `Nemesis` among the work of an operator: restarts, drains, moves, elections and growth.

Faults meet moves under way, and a broker that is being drained. With `OperatedNemesis` every run has a drain,
a rolling restart and moves; the rest is chosen at random.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from barnabas.chaos.load import Load
from barnabas.deploy.local import LocalCluster

from .linked_cluster import LinkedCluster
from .nemesis import Nemesis
from .operations import InternalTopic, Operator
from .random_faults import Choice
from .runs import HEALING_S, Run

_FAULT_LASTS_S: Final = (0.0, 0.5, 1.0, 3.0)


class MovingNemesis(Nemesis):
    """Moves the partitions of internal topics, so that coordinators change places, among its faults."""

    def __init__(
        self,
        harmed: LocalCluster | LinkedCluster,
        run: Run,
        settle: Callable[[], None],
        topic: str,
        internal: Sequence[InternalTopic],
    ) -> None:
        super().__init__(harmed, run, settle, topic)
        self._operators = [
            Operator(self._cluster, moved, run.chance, run.say, deadline_s=HEALING_S) for moved in internal
        ]

    def _begin(self, duration_s: float) -> None:
        self._say("move the internal topics")
        for operator in self._operators:
            operator.move()
        super()._begin(duration_s)

    def heal(self) -> None:
        super().heal()
        for operator in self._operators:
            operator.settle()

    def _choices(self) -> list[Choice]:
        found = super()._choices()
        for operator in self._operators:
            found += [(f"move {operator.topic}", operator.move)] * 3
            found.append((f"cancel the moves of {operator.topic}", operator.cancel))
        found.append(("elect", self._operators[0].elect))
        return found


class OperatedNemesis(Nemesis):
    """The cluster needs a broker more than the topic of the load has replicas."""

    def __init__(self, cluster: LocalCluster, run: Run, load: Load, *, deadline_s: float) -> None:
        self._load = load
        self._deadline_s = deadline_s
        super().__init__(cluster, run, self._settled, load.partitions[0].topic)
        self._operator = Operator(cluster, load, self._chance, self._say, deadline_s=deadline_s)

    def _begin(self, duration_s: float) -> None:
        self._say("move")
        self._operator.move()
        super()._begin(duration_s)
        self.heal()
        victim = self._chance.choice(self._cluster.broker_ids)
        fault = self._chance.choice(self._faults())
        for name, act in (
            ("throttle", self._operator.throttle),
            (f"drain broker {victim}", lambda: self._drain(victim)),
            fault,
        ):
            self._say(name)
            act()
        self._pause.wait(self._chance.choice(_FAULT_LASTS_S))
        for name, act in (("end the drain", self._end_drain), ("rolling restart", self._roll)):
            self._say(name)
            act()

    def heal(self) -> None:
        super().heal()
        if self._chance.random() < 0.3:
            self._operator.check_election()

    def _settled(self) -> None:
        began = time.monotonic()
        self._operator.settle()
        self._say(f"  settled within {time.monotonic() - began:.1f} s")
        self._load.wait_progress("after healing", timeout_s=self._deadline_s)

    def _faults(self) -> list[Choice]:
        """The faults of a moment when nothing else is wrong."""
        found: list[Choice] = [
            ("kill zookeeper", self._zookeeper.kill),
            ("pause zookeeper", self._zookeeper.pause),
            ("delete /controller", self._delete_controller),
        ]
        for broker in self._cluster.broker_ids:
            found.append((f"kill broker {broker}", lambda id=broker: self._cluster.kill(id)))
            found.append((f"pause broker {broker}", lambda id=broker: self._cluster.pause(id)))
        return found

    def _choices(self) -> list[Choice]:
        operator = self._operator
        found: list[Choice] = super()._choices()
        work: list[tuple[str, Callable[[], None], int]] = [
            ("move", operator.move, 6),
            ("elect", operator.elect, 2),
            ("cancel", operator.cancel, 2),
            ("grow", operator.grow, 2),
            ("throttle", operator.throttle, 3),
        ]
        if self._zookeeper.state == "running":
            work.append(("move through zookeeper", operator.move_through_zookeeper, 2))
            work.append(("elect through zookeeper", operator.elect_through_zookeeper, 1))
        if operator.draining is not None:
            work.append(("end the drain", self._end_drain, 4))
        elif all(broker.state == "running" for broker in self._cluster.brokers):
            for broker in self._cluster.broker_ids:
                work.append((f"drain broker {broker}", lambda id=broker: self._drain(id), 1))
            work.append(("rolling restart", self._roll, 2))
        for name, act, weight in work:
            found += [(name, act)] * weight
        return found

    def _drain(self, broker_id: int) -> None:
        self._operator.begin_drain(broker_id)

    def _end_drain(self) -> None:
        """A drained broker is not missed: stop it, start it, and give it replicas again."""
        broker_id = self._operator.draining
        assert broker_id is not None
        self.heal()
        self._operator.check_drained()
        self._stop_cleanly(broker_id)
        self._load.wait_progress(f"without the drained broker {broker_id}")
        self._start(broker_id)
        # A broker that does not see it yet would plan without it.
        self._cluster.wait_ready()
        self._operator.refill(self._cluster.directory / "plan.json")

    def _roll(self) -> None:
        """Restart one broker after the other; moves may be under way."""
        for broker_id in self._chance.sample(self._cluster.broker_ids, len(self._cluster.broker_ids)):
            self.heal()
            if self._chance.random() < 0.5:
                self._operator.move()
            self._say(f"  restart broker {broker_id}")
            self._stop_cleanly(broker_id)
            if self._chance.random() < 0.3:
                other = self._chance.choice([id for id in self._cluster.broker_ids if id != broker_id])
                self._say(f"  kill broker {other}")
                self._cluster.kill(other)
            self._start(broker_id)

    def _stop_cleanly(self, broker_id: int) -> None:
        assert self._cluster.stop_broker(broker_id), f"broker {broker_id} did not stop by itself"
