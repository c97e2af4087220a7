"""A consumer per thread: the threads share the partitions, whose records they process in order.

Run: python examples/group_workers.py, as often as you like at once, and end each with Ctrl-C
"""

import os
import signal
import threading

from barnabas.client.blocking import Consumer

SERVERS = os.environ.get("BARNABAS_BOOTSTRAP", "127.0.0.1:9092")


def work(consumer: Consumer) -> None:
    with consumer:
        consumer.subscribe("orders")
        for record in consumer:
            print(f"{threading.current_thread().name}: {record.tp} {record.offset}", flush=True)


consumers = [
    Consumer(bootstrap_servers=SERVERS, group_id="group-workers", auto_offset_reset="earliest")
    for _ in range(3)
]
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: [consumer.stop() for consumer in consumers])
threads = [threading.Thread(target=work, args=[consumer]) for consumer in consumers]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
