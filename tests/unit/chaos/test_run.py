"""A run that does not go as written is recorded all the same, and says so; the cluster is not a real one."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from barnabas.chaos import run as module
from barnabas.chaos.checker import RECORDS, Verdict, check
from barnabas.chaos.history import Acknowledged, History, Log, Sent
from barnabas.chaos.load import LoadFailed
from barnabas.chaos.run import Recording, run
from barnabas.chaos.samples import PartitionSeen, Samples
from barnabas.chaos.scenario import parse_scenario
from barnabas.deploy.process import DeployError
from barnabas.protocol.ids import TopicPartition

P0: Final = TopicPartition("t", 0)
TWO_STEPS: Final = """
title = "x"
seconds = 0.02
[[steps]]
at = 0
do = "kill"
target = 1
[[steps]]
at = 0.01
do = "kill"
target = 2
"""


class Cluster:
    """Its brokers are dead after a fault, and back after healing."""

    bootstrap = "127.0.0.1:1"
    broker_ids = (1, 2, 3)
    zookeeper = None

    def __init__(self, *_: object, **__: object) -> None:
        self.brokers = [SimpleNamespace(id=id, state="running", process=None) for id in self.broker_ids]
        self.killed = False

    def broker(self, broker_id: int) -> SimpleNamespace:
        return self.brokers[broker_id - 1]

    def check_settings(self, topic: object) -> None: ...
    def start(self) -> None: ...
    def close(self) -> None: ...
    def wait_ready(self, timeout_s: float) -> None: ...

    def launch_broker(self, broker_id: int) -> None:
        self.broker(broker_id).state = "running"

    def kill_all(self) -> None:
        self.killed = True


class Load(nullcontext[None]):
    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()
        self.history = History(Sent(1, P0), Acknowledged(P0, 0, 1))

    def wait_progress(self, when: str, **_: object) -> None: ...


def judged(cluster: Cluster, load: Load, *, timeout_s: float) -> Verdict:
    load.history.add(Log("client", P0, [(0, 1)]))
    return check(load.history, RECORDS)


def raising(error: BaseException) -> Any:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


def second_step(error: BaseException) -> Any:
    def inject(cluster: Cluster, do: str, aim: Any) -> None:
        if aim.target == "2":
            raise error
        cluster.broker(int(aim.target)).state = "gone"

    return inject


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    """The clusters that were made; what a run needs of a real one is there at once."""
    made: list[Cluster] = []

    def make(*_: object, **__: object) -> Cluster:
        made.append(Cluster())
        return made[-1]

    for name, part in {
        "LocalCluster": make,
        "Load": Load,
        "Watch": lambda *_: nullcontext(),
        "stop_and_judge": judged,
        "inject": second_step(DeployError("broker 2 is not running")),
    }.items():
        monkeypatch.setattr(module, name, part)
    monkeypatch.setattr(module._Run, "_create_topic", lambda _: None)
    monkeypatch.setattr(module._Run, "_await_in_sync", lambda *_: None)
    return made


def injected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """The faults of the next run, each with its target and the other end of a link."""
    done: list[tuple[str, str, str]] = []
    monkeypatch.setattr(module, "inject", lambda _, do, aim: done.append((do, aim.target, aim.other)))
    return done


def record(text: str = TWO_STEPS) -> Recording:
    return run(parse_scenario(text), "x", Path("unused"), seed=1, say=lambda *_: None)


def test_a_step_that_fails_is_named_and_the_run_is_healed_and_judged() -> None:
    recording = record()
    faults = recording.conclusion.faults
    assert faults == {"not run as written": ["step 2 (kill broker 2) failed: broker 2 is not running"]}
    assert (recording.conclusion.outcome, recording.was_interrupted) == ("unfinished", False)
    assert [step["text"] for step in recording.data["steps"]] == [
        "kill broker 1",
        "kill broker 2",
        "step 2 failed: broker 2 is not running",
        "heal: start broker 1",
    ]
    assert "Nothing acknowledged is lost" in recording.data["verdict"]["text"]


def test_no_step_follows_one_that_failed_and_the_load_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "inject", raising(OSError(28, "No space left on device")))
    recording = record(TWO_STEPS.replace("0.02", "3600"))
    assert recording.data["seconds"] < 60
    [[only]] = recording.conclusion.faults.values()
    assert only == "step 1 (kill broker 1) failed: [Errno 28] No space left on device"
    assert len(recording.data["steps"]) == 2


def test_a_target_that_does_not_exist_now_is_a_step_that_failed() -> None:
    [[only]] = record(TWO_STEPS.replace("= 2", "= 'leader of t-0'")).conclusion.faults.values()
    assert only == "step 2 (kill leader of t-0) failed: t-0 has no leader now"


@pytest.mark.parametrize("name", ["inject", "stop_and_judge"])
def test_an_interrupted_run_is_recorded_and_not_judged(
    name: str, parts: list[Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "inject", lambda *_: None)
    monkeypatch.setattr(module, name, raising(KeyboardInterrupt()))
    recording = record()
    assert recording.was_interrupted
    assert recording.conclusion.outcome == "unfinished"
    assert "interrupted 0.0 s after the start" in recording.data["verdict"]["text"]
    assert "nothing says whether they are there" in recording.data["verdict"]["text"]
    assert parts[0].killed


def test_before_the_load_there_is_nothing_to_record(
    parts: list[Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (KeyboardInterrupt(), LoadFailed("t-0: not all replicas are in sync")):
        monkeypatch.setattr(module._Run, "_await_in_sync", raising(error))
        with pytest.raises(type(error)):
            record()
        assert parts[-1].killed


def test_records_that_cannot_be_read_leave_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "inject", lambda *_: None)
    monkeypatch.setattr(module, "stop_and_judge", raising(LoadFailed("not all records were read")))
    conclusion = record().conclusion
    assert conclusion.faults == {"not judged": ["not all records were read"]}
    assert conclusion.outcome == "unfinished"


def test_a_cluster_that_does_not_heal_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "inject", lambda *_: None)
    monkeypatch.setattr(Cluster, "wait_ready", raising(DeployError("broker 1 ended")), raising=True)
    conclusion = record().conclusion
    assert conclusion.faults == {"not healed": ["broker 1 ended"]}
    assert conclusion.outcome == "broken"


def test_the_load_lasts_as_long_as_the_scenario_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert injected(monkeypatch) == []
    assert 0.02 <= record().data["seconds"] < 60


STEPS: Final = """
title = "x"
seconds = 1
[[steps]]
at = 0
do = "kill"
target = "controller"
[[steps]]
at = 0
do = "kill"
target = "leader of t-1"
[[steps]]
at = 0
do = "pause"
target = "a follower of t-1"
[[steps]]
at = 0
do = "slow"
target = "leader of t-1 to clients"
[[steps]]
at = 0
do = "kill"
target = "target of step 2"
[[steps]]
at = 0
do = "kill"
target = "leader of t-0"
"""


def test_a_target_is_what_the_watch_has_seen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def watch(_: object, __: str, samples: Samples) -> nullcontext[None]:
        samples.saw_controller(1, 3, 0.0)
        samples.saw("t-1", PartitionSeen(1, 0, (1, 2)), 0.0)
        samples.saw("t-0", PartitionSeen(-1, 0, (1,)), 0.0)
        return nullcontext()

    monkeypatch.setattr(module, "Watch", watch)
    monkeypatch.setattr(Cluster, "links", SimpleNamespace(rules=list), raising=False)
    done = injected(monkeypatch)
    recording = record(STEPS)
    assert done == [
        ("kill", "3", ""),
        ("kill", "1", ""),
        ("pause", "2", ""),
        ("slow", "1", "client"),
        ("kill", "1", ""),
    ]
    assert [mark["text"] for mark in recording.data["marks"]] == [
        "kill broker 3 (controller)",
        "kill broker 1 (leader of t-1)",
        "pause broker 2 (a follower of t-1)",
        "slow broker 1 to the clients (leader of t-1 to clients)",
        "kill broker 1 (target of step 2)",
        "step 6 failed: t-0 has no leader now",
    ]


def test_healing_ends_each_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(Cluster, "resume", lambda _, id: calls.append(f"resume {id}"), raising=False)
    monkeypatch.setattr(Cluster, "launch_broker", lambda _, id: calls.append(f"start {id}"))
    links = SimpleNamespace(rules=lambda: ["a cut"], mend=lambda: calls.append("mend"))
    monkeypatch.setattr(Cluster, "links", links, raising=False)
    monkeypatch.setattr(module, "ZooKeeper", SimpleNamespace)
    monkeypatch.setattr(Cluster, "zookeeper", SimpleNamespace(state="gone"))
    monkeypatch.setattr(module, "has_full_disk", lambda _, id: id == 2)

    def inject(cluster: Cluster, do: str, aim: Any) -> None:
        calls.append(f"{do} {aim.target}")
        cluster.broker(1).state, cluster.broker(3).state = "paused", "gone"

    monkeypatch.setattr(module, "inject", inject)
    recording = record(
        TWO_STEPS.replace("kill", "cut").replace("= 1", "= '1 to 2'").replace("= 2", "= '1 to 2'")
    )
    assert calls == ["cut 1", "cut 1", "mend", "resume 1", "give-room 2", "start 3", "restart zookeeper"]
    assert recording.data["steps"][-1]["text"] == (
        "heal: mend the links, resume broker 1, give broker 2 room, start broker 3, restart ZooKeeper"
    )
