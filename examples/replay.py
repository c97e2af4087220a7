"""Print the records of a topic from a time on, up to its present end.

Run: python examples/replay.py orders 2026-11-30T12:00:00Z
"""

import os
import sys
from datetime import datetime

from barnabas.client.blocking import Consumer

SERVERS = os.environ.get("BARNABAS_BOOTSTRAP", "127.0.0.1:9092")

topic, time = sys.argv[1:]
with Consumer(bootstrap_servers=SERVERS) as consumer:
    consumer.assign([(topic, info.partition) for info in consumer.partitions_for(topic)])
    consumer.seek_to_time(int(datetime.fromisoformat(time).timestamp() * 1000))
    ends = consumer.end_offsets(consumer.assignment())
    while any(consumer.position(tp) < end for tp, end in ends.items()):
        for record in consumer.poll():
            print(f"{record.tp} {record.offset} {record.timestamp_ms}: {record.value!r}")
