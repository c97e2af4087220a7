"""Show what a consumer measures to Prometheus, on the page that it prints.

Run: python examples/prometheus_metrics.py 8000, and end it with Ctrl-C
"""

import os
import signal
import sys
from collections.abc import Iterator

from prometheus_client import REGISTRY, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from barnabas.client.blocking import Consumer

SERVERS = os.environ.get("BARNABAS_BOOTSTRAP", "127.0.0.1:9092")

with Consumer(bootstrap_servers=SERVERS, group_id="measured", auto_offset_reset="earliest") as consumer:

    class Measurements:
        def collect(self) -> Iterator[Metric]:
            for name, value in consumer.metrics().items():
                kind = CounterMetricFamily if name.endswith("-total") else GaugeMetricFamily
                yield kind("orders_" + name.replace("-", "_"), name, value=value)

    REGISTRY.register(Measurements())
    server, _ = start_http_server(int(sys.argv[1]))
    print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: consumer.stop())
    consumer.subscribe("orders")
    for record in consumer:
        print(record.value, flush=True)
