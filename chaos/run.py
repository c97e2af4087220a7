"""Runs a scenario: a cluster of its own, load and faults by the clock, healing, and the judgement.

The recording is plain JSON: what the report draws, and the verdict. A step that fails ends the steps, and the
run is judged; Ctrl-C under load ends it, and nothing is judged. Every process has ended when `run` returns or
raises. Blocks its thread; load and watch have threads of their own.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from barnabas.chaos.history import Sent
from barnabas.chaos.load import Load, LoadFailed, stop_and_judge
from barnabas.chaos.samples import Samples
from barnabas.chaos.scenario import CLIENTS, TOPIC, Scenario, Step, Target, targets_of
from barnabas.chaos.verdict import NOT_HEALED, NOT_JUDGED, NOT_RUN, Conclusion, conclude
from barnabas.chaos.watch import Watch
from barnabas.client.admin.admin import NewTopic
from barnabas.client.blocking import Admin
from barnabas.deploy.faults import DELAY_MS, Aim, has_full_disk, inject
from barnabas.deploy.links import CLIENT, named
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.process import DeployError, wait_until
from barnabas.deploy.state import ZOOKEEPER
from barnabas.deploy.zookeeper import ZooKeeper
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import TopicPartition

_HEALING_S: Final = 60.0
_START_S: Final = 30.0
_READ_S: Final = 60.0
_SETTLED_RECORDS: Final = 50
_QUICK: Final[dict[str, Any]] = {"request_timeout_ms": 2_000, "metadata_max_age_ms": 5_000}
"""Of the clients: a paused broker is given up soon."""

_BETWEEN: Final = {"sever": " from ", "mend": " and "}
"""Between the two ends of a link, in the sentence of a step."""

Say = Callable[[float, str], None]
"""Is called with the seconds since the beginning of the load, and a sentence."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    data: dict[str, Any]
    conclusion: Conclusion
    was_interrupted: bool = False


def run(scenario: Scenario, name: str, directory: Path, *, seed: int, say: Say) -> Recording:
    """`name` is that of the scenario in the recording.

    Raises DeployError if the cluster does not start, KeyboardInterrupt before the load has begun, and before
    anything is started as `LocalCluster.check_settings`.
    """
    cluster = LocalCluster(
        directory,
        brokers=scenario.cluster.brokers,
        settings=scenario.cluster_settings,
        links=scenario.needs_links,
    )
    try:
        cluster.check_settings(scenario.topic_settings)
        cluster.start()
        return _Run(scenario, cluster, seed, say).record(name)
    finally:
        cluster.kill_all()
        cluster.close()


class _Run:
    """One run on a cluster that has started."""

    def __init__(self, scenario: Scenario, cluster: LocalCluster, seed: int, say: Say) -> None:
        self._scenario = scenario
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._seed = seed
        self._say_at = say
        self._began_s = time.monotonic()
        self._began_ms = time.time_ns() // 1_000_000
        self._samples = Samples(self._began_s, self._began_ms)
        self._targets: list[list[str]] = []
        """By step: the ends that it hit, by name."""
        self._steps: list[dict[str, Any]] = []
        self._has_ended = False
        """Whether the load has begun, and whether it has ended, in order or not."""
        self._end_s = self._began_s
        self._sent_per_s = 0.0
        self._failures: defaultdict[str, list[str]] = defaultdict(list)
        """By kind, one of `barnabas.chaos.verdict`."""
        self._pause = threading.Event()

    def record(self, name: str) -> Recording:
        topic, load_plan = self._scenario.topic, self._scenario.load
        self._create_topic()
        load = Load(
            self._cluster.bootstrap,
            TOPIC,
            topic.partitions,
            records_per_s=load_plan.records_per_s,
            value_bytes=load_plan.value_bytes,
            readers=load_plan.readers,
            watcher=self._samples,
            acks=load_plan.acks if load_plan.acks == "all" else int(load_plan.acks),
            **_QUICK,
        )
        verdict, was_interrupted = None, False
        try:
            self._run_load(load)
            self._say("the load has ended; everything is read and compared")
            verdict = stop_and_judge(self._cluster, load, timeout_s=_READ_S)
        except KeyboardInterrupt:
            if not self._has_ended:
                raise
            was_interrupted = True
            self._fail(NOT_RUN, f"interrupted {time.monotonic() - self._began_s:.1f} s after the start")
        except (BarnabasError, OSError) as error:
            if not self._has_ended:
                raise
            self._fail(NOT_JUDGED, str(error))
        longest = self._samples.longest_gap(self._end_s)
        conclusion = conclude(
            self._scenario, load.history, verdict, longest, self._sent_per_s, self._failures
        )
        return Recording(
            data=self._data(name, conclusion), conclusion=conclusion, was_interrupted=was_interrupted
        )

    # -- the phases ----------------------------------------------------------------------------------------

    def _create_topic(self) -> None:
        topic = self._scenario.topic
        new = NewTopic(TOPIC, topic.partitions, topic.replicas, self._scenario.topic_settings)
        with Admin(bootstrap_servers=self._cluster.bootstrap) as admin:
            admin.create_topics(new)

    def _run_load(self, load: Load) -> None:
        with Watch(self._cluster, TOPIC, self._samples):
            self._await_in_sync("after the start", _START_S)
            with load:
                self._began_s, self._began_ms = time.monotonic(), time.time_ns() // 1_000_000
                self._samples.begin(self._began_s, self._began_ms)
                sent_before = len(load.history.of(Sent))
                try:
                    if self._do_steps():
                        self._sleep_until(self._scenario.seconds)
                    self._heal(load)
                finally:
                    self._has_ended, self._end_s = True, time.monotonic()
                    self._samples.end_load(self._end_s)
                    sent = len(load.history.of(Sent)) - sent_before
                    self._sent_per_s = sent / (self._end_s - self._began_s)

    def _do_steps(self) -> bool:
        """Whether all steps were done; a step that fails is the last one."""
        for number, step in enumerate(self._scenario.steps, 1):
            self._sleep_until(step.at)
            words = f"{step.do} {step.target}".strip()
            try:
                ends = [self._resolved(target) for target in targets_of(step)]
                words = f"{step.do} {self._in_words(step, ends)}".strip()
                self._targets.append(ends)
                self._mark(words)
                target, other = (*ends, "", "")[:2]
                delay_ms = DELAY_MS if step.delay_ms is None else step.delay_ms
                inject(self._cluster, step.do, Aim(target=target, other=other, delay_ms=delay_ms))
            except (BarnabasError, OSError) as error:
                self._mark(f"step {number} failed: {error}")
                self._fail(NOT_RUN, f"step {number} ({words}) failed: {error}")
                return False
        return True

    def _heal(self, load: Load) -> None:
        """Mend the links, resume and start everything; wait until replicas are in sync and writes succeed."""
        try:
            if healed := [*self._mended(), *self._revived()]:
                self._mark(f"heal: {', '.join(healed)}")
            self._cluster.wait_ready(_HEALING_S)
            self._await_in_sync("after healing", _HEALING_S)
            load.wait_progress("after healing", records=_SETTLED_RECORDS, timeout_s=_HEALING_S)
        except (BarnabasError, OSError) as error:
            self._fail(NOT_HEALED, str(error))

    def _fail(self, kind: str, text: str) -> None:
        self._failures[kind].append(text)

    # -- the faults ----------------------------------------------------------------------------------------

    def _mended(self) -> list[str]:
        if not self._scenario.needs_links or not self._cluster.links.rules():
            return []
        self._cluster.links.mend()
        return ["mend the links"]

    def _revived(self) -> list[str]:
        done = []
        for broker in self._cluster.brokers:
            if broker.state == "paused":
                self._cluster.resume(broker.id)
                done.append(f"resume broker {broker.id}")
            elif has_full_disk(self._cluster, broker.id):
                inject(self._cluster, "give-room", Aim(target=str(broker.id)))
                done.append(f"give broker {broker.id} room")
            elif broker.state == "gone":
                self._cluster.launch_broker(broker.id)
                done.append(f"start broker {broker.id}")
        zookeeper = self._cluster.zookeeper
        if isinstance(zookeeper, ZooKeeper) and zookeeper.state != "running":
            inject(self._cluster, "restart", Aim(target=ZOOKEEPER))
            done.append("restart ZooKeeper")
        return done

    def _resolved(self, target: Target) -> str:
        """The end that a target names now: the id of a broker, or a word of the links."""
        role, number = target
        if role == "id":
            return str(number)
        if role == "step":
            return self._targets[number][0]
        if role == "controller":
            if self._samples.controller is None:
                raise DeployError("there is no controller now")
            return str(self._samples.controller)
        if role in ("leader", "follower"):
            return self._replica(number, is_leader=role == "leader")
        return CLIENT if role == CLIENTS else role

    def _replica(self, partition: int, *, is_leader: bool) -> str:
        name = str(TopicPartition(TOPIC, partition))
        seen = self._samples.newest(name)
        if seen is None or seen.leader < 0:
            raise DeployError(f"{name} has no leader now")
        if is_leader:
            return str(seen.leader)
        followers = [id for id in seen.isr if id != seen.leader]
        if not followers:
            raise DeployError(f"{name} has no follower in sync now")
        return str(self._chance.choice(followers))

    def _in_words(self, step: Step, ends: Sequence[str]) -> str:
        text = _BETWEEN.get(step.do, " to ").join(map(named, ends))
        said = str(step.target)
        is_plain = not said or said.isdecimal() or said.lower() == text.lower()
        return text if is_plain else f"{text} ({said})"

    # -- small parts ---------------------------------------------------------------------------------------

    def _await_in_sync(self, when: str, timeout_s: float) -> None:
        topic = self._scenario.topic
        names = [str(TopicPartition(TOPIC, number)) for number in range(topic.partitions)]

        def behind() -> list[str]:
            found = [(name, self._samples.newest(name)) for name in names]
            return [name for name, seen in found if seen is None or len(seen.isr) < topic.replicas]

        if not wait_until(lambda: not behind(), timeout_s):
            raise LoadFailed(f"{', '.join(behind())}: not all replicas are in sync {when}")

    def _sleep_until(self, at_s: float) -> None:
        self._pause.wait(max(0.0, self._began_s + at_s - time.monotonic()))

    def _mark(self, text: str) -> None:
        now_s = time.monotonic()
        self._samples.step(text, now_s)
        self._steps.append({"time_ms": self._samples.ms(now_s), "text": text})
        self._say(text)

    def _say(self, text: str) -> None:
        self._say_at(time.monotonic() - self._began_s, text)

    def _data(self, name: str, conclusion: Conclusion) -> dict[str, Any]:
        return {
            "title": self._scenario.title,
            "text": self._scenario.text,
            "scenario": name,
            "seed": self._seed,
            "started_ms": self._began_ms,
            "seconds": round(self._end_s - self._began_s, 3),
            "series": self._samples.series(self._end_s),
            **self._samples.history(self._end_s),
            "brokers": list(map(int, self._cluster.broker_ids)),
            "steps": self._steps,
            "verdict": conclusion.as_json(),
        }
