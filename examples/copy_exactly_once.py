"""Copy a topic in transactions: each record is copied once, whatever is killed meanwhile.

Run: python examples/copy_exactly_once.py 1, others beside it with 2, 3, …, and end each with Ctrl-C
"""

import asyncio
import os
import signal
import sys

from barnabas.client import Consumer, Producer
from barnabas.client.errors import CommitFailed, TransactionAbortable

SERVERS = os.environ.get("BARNABAS_BOOTSTRAP", "127.0.0.1:9092")


async def main() -> None:
    async with (
        Consumer(
            bootstrap_servers=SERVERS,
            group_id="copiers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        ) as consumer,
        Producer(bootstrap_servers=SERVERS, transactional_id=f"copier-{sys.argv[1]}") as producer,
    ):
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, consumer.stop)
        consumer.subscribe("orders")
        while not consumer.is_stopped:
            if not (records := await consumer.poll()):
                continue
            try:
                async with producer.transaction():
                    for record in records:
                        await producer.send("copies", record.value, record.key, headers=record.headers)
                    await producer.send_offsets_to_transaction(records, consumer.group_metadata())
                print(f"copied {len(records)} records", flush=True)
            except (CommitFailed, TransactionAbortable) as error:
                print(f"read again: {error}", flush=True)
                await consumer.seek_to_committed()


asyncio.run(main())
