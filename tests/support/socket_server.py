"""A socket server on a free port, for a handler of the test's own."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.broker.config.load import config_from
from barnabas.broker.network.pipeline import ConnectionLimits
from barnabas.broker.network.request import Lane, Request
from barnabas.broker.network.server import SocketServer

CONFIG = {"broker.id": "1", "log.dirs": "/data", "zookeeper.connect": "z:1"}


def start_server(
    process: Callable[[Request], None],
    *,
    on_fatal: Callable[[BaseException], None],
    lane_of: Callable[[memoryview], Lane] = lambda view: Lane.GENERAL,
    after_run: Callable[[], None] = lambda: None,
    limits: ConnectionLimits | None = None,
    listener: str = "PLAINTEXT",
    port: int = 0,
    **settings: int,
) -> SocketServer:
    """Settings by Kafka's names, with underscores: ``num_io_threads=2``."""
    config = config_from(
        CONFIG
        | {
            "listeners": f"{listener}://127.0.0.1:{port}",
            "listener.security.protocol.map": f"{listener}:PLAINTEXT",
            "inter.broker.listener.name": listener,
        }
        | {name.replace("_", "."): str(value) for name, value in settings.items()}
    )
    server = SocketServer(config, on_fatal=on_fatal, limits=limits)
    server.bind()
    server.start(process, lane_of=lane_of, after_run=after_run)
    return server
