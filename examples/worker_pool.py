"""Slow work in eight threads, more than the topic has partitions: no commit covers an unfinished record.

Run: python examples/worker_pool.py, as often as you like at once, and end each with Ctrl-C
"""

import os
import signal
import time

from barnabas.client import ConsumerRecord
from barnabas.client.blocking import Consumer, WorkerPool

SERVERS = os.environ.get("BARNABAS_BOOTSTRAP", "127.0.0.1:9092")


def work(record: ConsumerRecord) -> None:
    time.sleep(0.05)
    print(f"done: {record.tp} {record.offset}", flush=True)


with Consumer(
    bootstrap_servers=SERVERS, group_id="workers", auto_offset_reset="earliest", enable_auto_commit=False
) as consumer:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: consumer.stop())
    WorkerPool(consumer, work, workers=8).run("orders")
