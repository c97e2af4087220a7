"""A consumer per worker: every thread is a member of the group, and reads partitions of its own.

The simplest way to use several threads. Records of a partition are processed in order, and only processed
records are committed: `poll` periodically commits the records that it returned before. At most as many
threads are busy as there are partitions; further workers wait until another one leaves.

Run: python examples/group_workers.py localhost:9092 greetings
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable

from barnabas.client import ConsumerRecord
from barnabas.client.blocking import Consumer

Work = Callable[[ConsumerRecord], object]


def work_on(bootstrap: str, topic: str, group: str, work: Work, is_over: threading.Event) -> None:
    """Run one worker. If ``work`` raises, it leaves the group without committing: another member retries."""
    with Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        while not is_over.is_set():
            for record in consumer.poll(timeout_ms=200):
                work(record)


def run(bootstrap: str, topic: str, group: str, workers: int, work: Work, is_over: threading.Event) -> None:
    threads = [
        threading.Thread(target=work_on, args=(bootstrap, topic, group, work, is_over))
        for _ in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def show(record: ConsumerRecord) -> None:
    print(f"{threading.current_thread().name}: {record.topic}-{record.partition}@{record.offset}")


if __name__ == "__main__":
    bootstrap, topic = sys.argv[1:]
    is_over = threading.Event()
    # Polled records are processed first; closing commits them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    run(bootstrap, topic, "group-workers", 3, show, is_over)
