"""An exactly-once sink whose driver is killed or stopped at any step, while brokers and ZooKeeper are harmed.

In the end the topic under read_committed is exactly the input, and no transaction of the sink is open.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from barnabas.client import NewTopic
from barnabas.client.admin.transactions import ONGOING
from barnabas.client.blocking import Admin, Consumer
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.security import ADMIN
from barnabas.protocol.ids import TopicPartition
from barnabas.spark_connector.sink.exactly_once import is_attempt_id
from tests.support.waiting import wait_for

from ..cluster.tools import StartCluster, client_settings_of
from . import sink_job
from .runs import BROKER, Run, chaos_run, chaos_test, seconds

ROUNDS: Final = int(seconds(6) / 1.5)
NAME, TOPIC = "sink", "output"
JOB_S: Final = 120.0
_REPOSITORY: Final = Path(__file__).parents[2]


def options_word(cluster: LocalCluster) -> str:
    """For the command line of the job: the file of Spark's options, or the bootstrap servers."""
    if cluster.security is None:
        return cluster.bootstrap
    return str(cluster.security.clients_of(ADMIN) / "spark.json")


@contextmanager
def started_job(
    cluster: LocalCluster, checkpoint: Path, batches: int, number: int, step: int
) -> Iterator[subprocess.Popen[str]]:
    words = [options_word(cluster), NAME, TOPIC, str(checkpoint), str(batches), str(number), str(step)]
    job = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.sink_job", *words],
        cwd=_REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            job.kill()
        job.communicate()


def is_stopped(job: subprocess.Popen[str]) -> bool:
    if job.poll() is not None:
        return False
    status = Path(f"/proc/{job.pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "T"


def harm(cluster: LocalCluster, run: Run) -> None:
    """Kill a broker, which may be any coordinator, or ZooKeeper; both come back."""
    if run.chance.random() < 0.2:
        run.say("ZooKeeper restarts")
        cluster.restart_zookeeper()
        return
    broker_id = run.chance.choice(cluster.broker_ids)
    run.say(f"broker {broker_id} is killed")
    cluster.kill(broker_id)
    cluster.launch_broker(broker_id)


def one_round(cluster: LocalCluster, checkpoint: Path, run: Run) -> None:
    """Run the job up to a step at which it dies or stops; a stopped one goes on beside its successor."""
    batches = sink_job.committed(checkpoint) + 2
    number = run.chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
    step = run.chance.randrange(1, 2 * sink_job.STEPS_OF_A_BATCH)
    run.say(f"{number.name} at step {step}, {batches - 2} batches are committed")
    with started_job(cluster, checkpoint, batches, number, step) as job:
        wait_for(lambda: job.poll() is not None or is_stopped(job), JOB_S)
        is_harmed = run.chance.random() < 0.3
        if is_harmed:
            harm(cluster, run)
        if is_stopped(job):
            with started_job(cluster, checkpoint, batches, 0, 0) as successor:
                if run.chance.random() < 0.5:
                    successor.wait(JOB_S)
                os.kill(job.pid, signal.SIGCONT)
                successor.wait(JOB_S)
            job.wait(JOB_S)
    if is_harmed:
        cluster.wait_ready()


def finish(cluster: LocalCluster, checkpoint: Path) -> int:
    """Run the job until it ends well; returns the number of batches."""
    batches = sink_job.committed(checkpoint) + 1
    for _ in range(3):
        with started_job(cluster, checkpoint, batches, 0, 0) as job:
            _, errors = job.communicate(timeout=JOB_S)
        if job.returncode == 0:
            return batches
    raise AssertionError(f"the job does not end well: {errors}")


def committed_rows(cluster: LocalCluster) -> Counter[bytes]:
    rows: Counter[bytes] = Counter()
    partitions = [TopicPartition(TOPIC, number) for number in range(sink_job.PARTITIONS)]
    with (
        Admin(**client_settings_of(cluster)) as admin,
        Consumer(**client_settings_of(cluster), isolation_level="read_committed") as consumer,
    ):
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation_level="read_committed")
        all_ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        assert {tp: end.offset for tp, end in ends.items()} == {
            tp: end.offset for tp, end in all_ends.items()
        }, "an open transaction holds readers back"
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while any(consumer.position(tp) < ends[tp].offset for tp in partitions):
            rows.update(record.value for record in consumer.poll(timeout_ms=1000))
    return rows


@chaos_test(ROUNDS * 10)
def test_a_sink_that_is_killed_at_any_step_writes_each_batch_once(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "commits"
    checkpoint.mkdir()
    with chaos_run(ROUNDS) as run:
        cluster = start_cluster(own_zookeeper=True, settings=BROKER, security=run.security())
        with Admin(**client_settings_of(cluster)) as admin:
            admin.create_topics(NewTopic(TOPIC, sink_job.PARTITIONS, 3))
        for _ in range(ROUNDS):
            one_round(cluster, checkpoint, run)
        batches = finish(cluster, checkpoint)
        expected = Counter(
            row
            for batch in range(batches)
            for partition in range(sink_job.PARTITIONS)
            for row in sink_job.rows_of(batch, partition)
        )
        assert committed_rows(cluster) == expected
        with Admin(**client_settings_of(cluster)) as admin:
            left = [
                each
                for each in admin.list_transactions(states=[ONGOING])
                if is_attempt_id(NAME, each.transactional_id)
            ]
        assert left == []
