"""The examples of groups with many threads: every record is processed, no commit covers an unfinished one."""

import importlib.util
import random
import threading
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from barnabas.client import blocking
from barnabas.client.admin.admin import NewTopic
from barnabas.deploy.local import LocalCluster
from tests.support.names import fresh_name

PARTITIONS = 4
RECORDS = 400
DEADLINE_S = 60.0


def load(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Group:
    """A topic with records, and the number of times that each was processed."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topic = fresh_name("t")
        self.done: Counter[tuple[int, int]] = Counter()
        self.lock = threading.Lock()
        with blocking.Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics(NewTopic(self.topic, PARTITIONS, 3))
        with blocking.Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(RECORDS):
                producer.send(self.topic, b"%d" % number, partition=number % PARTITIONS)

    def work(self, record: Any) -> None:
        # Records overtake each other.
        time.sleep(random.random() / 500)
        with self.lock:
            self.done[record.partition, record.offset] += 1

    def member(self, example: ModuleType, is_over: threading.Event) -> threading.Thread:
        thread = threading.Thread(
            target=example.run,
            args=(self.bootstrap, self.topic, self.topic, 3, self.work, is_over),
        )
        thread.start()
        return thread

    def committed(self) -> dict[int, int]:
        with blocking.Admin(bootstrap_servers=self.bootstrap) as admin:
            found = admin.group_offsets(self.topic)
        return {tp.partition: one.offset for tp, one in found.items() if one is not None}


@pytest.mark.parametrize("name", ["group_workers", "group_pool"])
def test_every_record_is_processed_and_committed_through_a_change_of_members(
    shared_cluster: LocalCluster, name: str
) -> None:
    group = Group(shared_cluster.bootstrap)
    example = load(name)
    all_over, one_over = threading.Event(), threading.Event()
    first = group.member(example, all_over)
    second = group.member(example, one_over)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while len(group.done) < RECORDS:
            assert time.monotonic() < deadline, f"{len(group.done)} of {RECORDS} records were processed"
            if len(group.done) > RECORDS // 3:
                one_over.set()
            for partition, offset in group.committed().items():
                with group.lock:
                    done = {at for number, at in group.done if number == partition}
                assert done >= set(range(offset)), "a commit covers a record that is not done"
    finally:
        one_over.set()
        all_over.set()
        first.join()
        second.join()
    assert group.committed() == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
