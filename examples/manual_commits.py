"""Commit a list of records once it is stored: after a crash the list is read again, and none is lost.

Run: python examples/manual_commits.py, and end it with Ctrl-C
"""

import os
import signal

from barnabas.client.blocking import Consumer

SERVERS = os.environ.get("BARNABAS_BOOTSTRAP", "127.0.0.1:9092")

with Consumer(
    bootstrap_servers=SERVERS, group_id="storing", auto_offset_reset="earliest", enable_auto_commit=False
) as consumer:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: consumer.stop())
    consumer.subscribe("orders")
    while not consumer.is_stopped:
        for tp, records in consumer.getmany(timeout_ms=1_000).items():
            print(f"stored {len(records)} records of {tp}", flush=True)
            consumer.commit(records)
