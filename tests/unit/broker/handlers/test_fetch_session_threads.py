"""Threads that fetch with sessions miss no change that other threads write.

Nothing expires here: only an event answers a waiting fetch, so a lost event fails the test.
"""

import random
import threading
from collections import Counter
from typing import Any

from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.schema import replace
from tests.support.building import TWO, state
from tests.support.record_requests import fetch_of, produce_at
from tests.support.serving import Serving
from tests.support.waiting import DEADLINE_S, wait_for

PARTITIONS = range(5)
BATCHES = 200


def chosen(seed: int) -> list[int]:
    """The partitions that a writer writes to, in order."""
    return random.Random(seed).choices(PARTITIONS, k=BATCHES)


def write(serving: Serving, seed: int) -> None:
    for index in chosen(seed):
        produce_at(serving, index, b"x" * 100)


def read(serving: Serving, seed: int, ends: list[int]) -> None:
    """Fetch until every partition is read to its end."""
    choice = random.Random(seed)
    offsets = [0 for _ in PARTITIONS]
    session_id = epoch = 0
    named = set(PARTITIONS)
    while offsets != ends:
        connection = serving.send(
            fetch_of(
                {index: offsets[index] for index in named},
                max_wait_ms=1_000_000,
                max_bytes=choice.choice([1, 500, 1 << 20]),
                session_id=session_id,
                session_epoch=epoch,
            )
        )
        wait_for(lambda: connection.is_answered, "an answer")  # noqa: B023 - called before it changes
        answer = connection.response
        assert answer.error_code == 0
        session_id, epoch, named = answer.session_id, epoch + 1, set()
        for topic in answer.responses:
            for data in topic.partitions:
                for _, header in iter_batches(data.records):
                    assert header.base_offset == offsets[data.partition_index]
                    offsets[data.partition_index] = header.next_offset
                    named.add(data.partition_index)


def test_writers_and_readers_side_by_side(serving: Serving) -> None:
    serving.managed.know({1: 0, TWO: 5})
    alone = state(isr=(1,), replicas=(1,))
    assert serving.managed.tell(*[replace(alone, partition_index=index) for index in PARTITIONS]) == []
    seeds = (1, 2)
    # What will be written is known from the seeds, so a reader knows when it has everything.
    written = Counter(index for seed in seeds for index in chosen(seed))
    ends = [written[index] for index in PARTITIONS]
    failures: list[BaseException] = []

    def run(work: Any, *arguments: Any) -> None:
        try:
            work(serving, *arguments)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [
        *(threading.Thread(target=run, args=(write, seed)) for seed in seeds),
        *(threading.Thread(target=run, args=(read, seed, ends)) for seed in range(3)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
