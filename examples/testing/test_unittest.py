"""How to test without pytest: `python -m unittest examples/testing/test_unittest.py`."""

from __future__ import annotations

import unittest

import barnabas
from barnabas.deploy.scripted_cluster import Cluster


class OrdersTest(unittest.TestCase):
    cluster: Cluster

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = cls.enterClassContext(barnabas.local_cluster(brokers=1))
        cls.cluster.create_topic("orders", partitions=1)

    def test_an_order_survives_a_restart_of_the_broker(self) -> None:
        with self.cluster.producer() as producer:
            producer.send_and_wait("orders", b"order")
        with self.cluster.stopped(1):
            pass
        with self.cluster.consumer() as consumer:
            consumer.subscribe(["orders"])
            assert next(consumer).value == b"order"


if __name__ == "__main__":
    unittest.main()
