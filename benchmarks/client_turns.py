"""The client's turns of `against_release`: a process that sends and consumes on demand, and says its CPU.

It runs with the client of one tree, so it uses nothing else of the project. Each line of its input is
``send PARTITION N`` or ``consume PARTITION N``, from the first record on; each line of its output is the CPU
of this process for a record, in microseconds.

    python client_turns.py BOOTSTRAP TOPIC
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from barnabas.client import Consumer, Producer

_VALUE = bytes(100)


async def _send(producer: Producer, topic: str, partition: int, count: int) -> None:
    for _ in range(count):
        await producer.send(topic, _VALUE, partition=partition)
    await producer.flush()


async def _consume(consumer: Consumer, count: int) -> None:
    while count > 0:
        count -= len(await consumer.poll())


async def _serve(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap, acks=1, batch_size=131_072, linger_ms=5) as producer:
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            partition, count = map(int, words[1:])
            if words[0] == "send":
                began = time.process_time()
                await _send(producer, topic, partition, count)
                used = time.process_time() - began
            else:
                async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
                    consumer.assign([(topic, partition)])
                    began = time.process_time()
                    await _consume(consumer, count)
                    used = time.process_time() - began
            print(used / count * 1e6, flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], sys.argv[2]))
