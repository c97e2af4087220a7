"""Orders as JSON, with keys: write five, and read five back in a group.

Run: python examples/json_orders.py
"""

import asyncio
import os

from barnabas.client import Consumer, Producer
from barnabas.client.serializers import JSON, STRING

SERVERS = os.environ.get("BARNABAS_BOOTSTRAP", "127.0.0.1:9092")


async def main() -> None:
    async with Producer(bootstrap_servers=SERVERS, key_serializer=STRING, value_serializer=JSON) as producer:
        for number in range(5):
            await producer.send("orders", {"item": "lamp", "count": number}, key=f"customer {number % 2}")
    async with Consumer(
        bootstrap_servers=SERVERS,
        group_id="order-readers",
        auto_offset_reset="earliest",
        key_deserializer=STRING,
        value_deserializer=JSON,
    ) as consumer:
        consumer.subscribe("orders")
        for _ in range(5):
            record = await consumer.getone()
            print(f"{record.key} orders {record.value['count']} of {record.value['item']}")


asyncio.run(main())
