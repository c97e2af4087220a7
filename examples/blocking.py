"""The same clients without asyncio: make a topic, write to it, read it back.

Run: python examples/blocking.py localhost:9092
"""

from __future__ import annotations

import sys

from barnabas.client import NewTopic
from barnabas.client.blocking import Admin, Consumer, Producer


def main(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        if "numbers" not in admin.list_topics():
            admin.create_topics(NewTopic("numbers", num_partitions=3, replication_factor=1))
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(1_000):
            producer.send("numbers", b"%d" % number)
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([("numbers", partition) for partition in range(3)])
        total = sum(int(record.value or b"0") for _, record in zip(range(1_000), consumer, strict=False))
        print(f"the first 1,000 records add up to {total}")


if __name__ == "__main__":
    main(*sys.argv[1:])
