"""The clients without asyncio: the same names, methods and errors, for programs of threads.

Each client has one background thread with an event loop, on which the asyncio client runs. Calls are passed
to it, except that `Producer.send` appends in the caller's thread, under a lock; only a new batch wakes the
loop. All clients may be used from several threads, a consumer by one at a time. After a fork, clients of the
parent raise an error in the child, which must make its own.
"""

from barnabas.client.admin.blocking import Admin
from barnabas.client.consumer.blocking import Consumer
from barnabas.client.consumer.blocking_range_reader import RangeReader, read_range
from barnabas.client.consumer.pool import WorkerPool
from barnabas.client.producer.blocking import Producer, RecordFuture

__all__ = ["Admin", "Consumer", "Producer", "RangeReader", "RecordFuture", "WorkerPool", "read_range"]
