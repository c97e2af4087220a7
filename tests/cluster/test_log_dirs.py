"""Replicas move between the log dirs of brokers, under load and while the brokers are killed."""

import json
import random
import sys
import time
from pathlib import Path

import pytest

from barnabas.client.admin.admin import TopicPartitionReplica
from barnabas.client.blocking import Admin, Producer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import BrokerId
from tests.support.waiting import wait_for

from .test_failover import check_all, start_loaded
from .tools import KILLED, ClusterView, StartCluster, call_command

_ROUNDS = 12
_SETTINGS = KILLED | {"log.segment.bytes": "100000"}


def places(view: ClusterView, topic: str = "t") -> dict[TopicPartitionReplica, list[tuple[str, bool]]]:
    """The log dirs of each replica of a topic, each with whether the log there is a future one."""
    found: dict[TopicPartitionReplica, list[tuple[str, bool]]] = {}
    with view.admin() as admin:
        for broker in admin.describe_log_dirs():
            for log_dir in broker.log_dirs:
                for replica in log_dir.replicas:
                    if replica.partition.topic == topic:
                        name = TopicPartitionReplica(*replica.partition, broker.node.node_id)
                        found.setdefault(name, []).append((log_dir.path, replica.is_future))
    return found


def move(view: ClusterView, moves: dict[TopicPartitionReplica, str]) -> list[BarnabasError | None]:
    with view.admin() as admin:
        return list(admin.alter_replica_log_dirs(moves).values())


def are_all_moved(view: ClusterView, count: int) -> bool:
    found = places(view)
    return len(found) == count and all(len(dirs) == 1 and not dirs[0][1] for dirs in found.values())


def folders(cluster: LocalCluster, topic: str = "t") -> list[str]:
    """The folders of a topic's logs, without those that only wait for their removal."""
    return sorted(
        folder.name
        for broker in cluster.brokers
        for path in broker.log_dirs
        for folder in path.glob(f"{topic}-*")
        if not folder.name.endswith("-delete")
    )


@pytest.mark.brokers(log_dirs=2, settings=_SETTINGS)
def test_replicas_move_under_load_while_their_brokers_are_killed(cluster: LocalCluster) -> None:
    chance = random.Random(11)
    view = ClusterView(cluster)
    moved = 0
    with start_loaded(cluster, request_timeout_ms=3_000) as load:
        wait_for(lambda: len(places(view)) == 18, lambda: f"not all logs are there: {places(view)}")
        names = list(places(view))
        for number in range(_ROUNDS):
            for name in chance.sample(names, 6):
                path = cluster.broker(name.broker_id).log_dirs[chance.randrange(2)]
                moved += move(view, {name: str(path)}) == [None]
            if number % 4 == 3:
                victim = chance.randint(1, 3)
                cluster.kill(victim)
                cluster.start_broker(victim)
                load.wait_progress("after a kill")
        wait_for(lambda: are_all_moved(view, 18), lambda: f"replicas still move: {places(view)}")
        load.wait_progress("after all moves")
    assert moved > _ROUNDS
    check_all(cluster, load)
    assert folders(cluster) == sorted([f"t-{number}" for number in range(6)] * 3)


_DYING = """
import os, signal, sys, time
from pathlib import Path
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.future_log import FutureLog
from barnabas.cli.main import main

die_at = Path(sys.argv.pop(1))
swap = FutureLog.swap

class Dying(FileSystem):
    calls = 0

    def count(self):
        self.calls += 1
        if self.calls == int(die_at.read_text()):
            os.kill(os.getpid(), signal.SIGKILL)

    def rename(self, source, target):
        self.count()
        super().rename(source, target)

    def fsync(self, file):
        self.count()
        super().fsync(file)

def dying_swap(self, files):
    while not die_at.exists():
        time.sleep(0.01)
    dying = Dying()
    folder = swap(self, dying)
    dying.count()
    return folder

FutureLog.swap = dying_swap
sys.exit(main())
"""


def write_whole(path: Path, text: str) -> None:
    """Write a file that nobody sees in part."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def test_a_kill_at_each_step_of_a_swap_loses_nothing(start_cluster: StartCluster, tmp_path: Path) -> None:
    die_at = tmp_path / "die-at"
    cluster = start_cluster(
        brokers=1,
        log_dirs=2,
        settings=_SETTINGS,
        command=lambda settings: [
            sys.executable,
            "-c",
            _DYING,
            str(die_at),
            "broker",
            "--config",
            str(settings),
            "--logs-dir",
            str(settings.parent / "logs"),
            "--await-zookeeper",
        ],
    )
    view, broker = ClusterView(cluster), cluster.broker(1)
    view.create_topic("t", 1, 1)
    name = TopicPartitionReplica("t", 0, BrokerId(1))
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all", delivery_timeout_ms=60_000) as producer:
        # It must know the topic: while no broker lives, nobody could tell it.
        producer.send_and_wait("t", b"0")
        sent = 1
        for step in range(1, 6):
            (path, _), *_ = places(view)[name]
            target = next(str(other) for other in broker.log_dirs if str(other) != path)
            # The broker answers before it dies, since no swap begins without the file.
            die_at.unlink(missing_ok=True)
            assert move(view, {name: target}) == [None]
            write_whole(die_at, str(step))
            futures = []
            while broker.is_alive and len(futures) < 20_000:
                futures.append(producer.send("t", b"%d" % (sent + len(futures))))
                time.sleep(0.002)
            wait_for(lambda: not broker.is_alive, "the broker does not reach that step")
            sent += len(futures)
            write_whole(die_at, "0")
            cluster.start_broker(1)
            for future in futures:
                future.result(60)
            wait_for(lambda: are_all_moved(view, 1), lambda: f"the replica still moves: {places(view)}")
            assert places(view)[name] == [(target, False)], f"after a kill at step {step}"
    assert view.read("t", 1) == [b"%d" % number for number in range(sent)]
    assert folders(cluster) == ["t-0"]


@pytest.mark.brokers(brokers=1, log_dirs=2)
def test_the_command_shows_log_dirs_and_moves_replicas(cluster: LocalCluster) -> None:
    view = ClusterView(cluster)
    view.create_topic("t", 2, 1)
    view.write("t", [b"value"] * 10)
    first, second = map(str, cluster.broker(1).log_dirs)
    options = ("-b", cluster.bootstrap)
    before = json.loads(call_command("log-dirs", "describe", "t", "--json", *options).stdout)
    ((name, _),) = [pair for pair in places(view).items() if pair[1] == [(first, False)]]
    assert [log_dir["path"] for log_dir in before[0]["log_dirs"]] == [first, second]
    done = call_command(
        "log-dirs", "move", f"t:{name.partition}", "--broker", "1", "--to", second, "--wait", *options
    )
    assert (done.returncode, done.stdout) == (0, f"t:{name.partition} on broker 1 is in {second}\n"), (
        done.stderr
    )
    (broker,) = json.loads(call_command("log-dirs", "describe", "t", "--json", *options).stdout)
    assert [len(log_dir["replicas"]) for log_dir in broker["log_dirs"]] == [0, 2]
    assert second in call_command("log-dirs", "describe", *options).stdout
    wrong = call_command("log-dirs", "move", "t:0", "--broker", "1", "--to", "/nowhere", *options)
    assert (wrong.returncode, first in wrong.stderr) == (4, True)
    missing = call_command("log-dirs", "move", "other:0", "--broker", "1", "--to", first, *options)
    assert (missing.returncode, "UNKNOWN_TOPIC_OR_PARTITION" in missing.stderr) == (4, True)
    for words, code in (
        (("move", "t", "--broker", "1", "--to", first), 2),
        (("move", "t:2147483648", "--broker", "1", "--to", first), 2),
        (("move", "t:0", "--broker", "9", "--to", first), 4),
        (("describe", "--broker", "9"), 4),
        (("describe", "other"), 4),
    ):
        assert call_command("log-dirs", *words, *options).returncode == code, words


@pytest.mark.parametrize("wire", ["native", "kafka"])
@pytest.mark.brokers(brokers=1, log_dirs=2)
def test_the_admin_client_describes_and_moves(cluster: LocalCluster, wire: str) -> None:
    view = ClusterView(cluster)
    view.create_topic("t", 1, 1)
    first, second = map(str, cluster.broker(1).log_dirs)
    name = TopicPartitionReplica("t", 0, BrokerId(1))
    with Admin(bootstrap_servers=cluster.bootstrap, wire=wire) as admin:
        errors = admin.alter_replica_log_dirs({name: second, name._replace(topic="later"): second})
        assert errors[name] is None
        assert "UNKNOWN_TOPIC_OR_PARTITION" in str(errors[name._replace(topic="later")])
        wait_for(lambda: are_all_moved(view, 1), "it still moves")
        (broker,) = admin.describe_log_dirs([1])
        one, two = broker.log_dirs
        assert ((one.path, one.replicas), two.path) == ((first, []), second)
        assert [replica.partition for replica in two.replicas] == [("t", 0)]
        assert 0 < (two.usable_bytes or 0) <= (two.total_bytes or 0)
    view.create_topic("later", 1, 1)
    assert places(view, "later")[name._replace(topic="later")] == [(second, False)]
