"""An iteration that SIGTERM ends well: the record in hand is finished and committed, and the group is left.

Run: python examples/graceful_stop.py, and end it with Ctrl-C or `kill`
"""

import asyncio
import os
import signal

from barnabas.client import Consumer

SERVERS = os.environ.get("BARNABAS_BOOTSTRAP", "127.0.0.1:9092")


async def main() -> None:
    async with Consumer(
        bootstrap_servers=SERVERS, group_id="printers", auto_offset_reset="earliest"
    ) as consumer:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, consumer.stop)
        consumer.subscribe("orders")
        async for record in consumer:
            print(f"{record.tp} {record.offset}: {record.value!r}", flush=True)
            await asyncio.sleep(0.01)  # work


asyncio.run(main())
