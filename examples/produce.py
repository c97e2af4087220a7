"""Send a few records and print where they were written.

Run: python examples/produce.py localhost:9092 greetings
"""

from __future__ import annotations

import asyncio
import sys

from barnabas.client import Producer


async def main(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap, acks="all", client_id="example") as producer:
        futures = [await producer.send(topic, b"hello %d" % number, key=b"greeting") for number in range(5)]
        for future in futures:
            metadata = await future
            print(f"{metadata.topic}-{metadata.partition} at offset {metadata.offset}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
