"""Print the records of a topic from the beginning, and continue as new ones arrive.

Run: python examples/consume.py localhost:9092 greetings
"""

from __future__ import annotations

import asyncio
import sys

from barnabas.client import Consumer, TopicPartition


async def main(bootstrap: str, topic: str) -> None:
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = await consumer.partitions_for(topic)
        consumer.assign([TopicPartition(topic, found.partition) for found in partitions])
        async for record in consumer:
            print(f"{record.topic}-{record.partition}@{record.offset}: {record.key!r} = {record.value!r}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
