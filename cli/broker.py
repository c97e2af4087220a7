"""`barnabas broker`: run one broker in the foreground, until SIGTERM or Ctrl-C.

Imports only what a broker needs: three of these start at once on two cores.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from barnabas.broker.config.load import load_config
from barnabas.cli.action import arg, command, flag
from barnabas.cli.exit_codes import NOT_REACHABLE, CommandError
from barnabas.protocol.ids import Endpoint, parse_endpoints


def _run(options: argparse.Namespace) -> int:
    """Check the settings, then run the broker; returns its exit code."""
    config = load_config(file=options.config, environment=os.environ, overrides=options.overrides)
    # Import before the wait, to use the time that ZooKeeper needs.
    from barnabas.broker.process import run_broker

    if options.walls is not None:
        from barnabas.deploy.wall import build_wall

        build_wall(config.broker_id, options.walls)
    if options.await_zookeeper:
        servers = parse_endpoints(config.zookeeper_connect.partition("/")[0])
        await_zookeeper(servers, max(config.zookeeper_connection_timeout_ms, 10_000) / 1000)
    return run_broker(config, options.logs_dir)


def await_zookeeper(servers: list[Endpoint], timeout_s: float) -> None:
    """Wait until one of the servers accepts requests; raises CommandError if none does in time.

    An open port is not enough: a client that connects before the server is ready hangs for a session timeout.
    """
    from barnabas.deploy.process import wait_until
    from barnabas.deploy.zookeeper import is_serving

    if not wait_until(lambda: any(map(is_serving, servers)), timeout_s):
        addresses = ", ".join(map(str, servers))
        raise CommandError(f"no ZooKeeper answered at {addresses} within {timeout_s:g} s", NOT_REACHABLE)


add_arguments = command(
    _run,
    arg("--config", "FILE", "a .properties file with Kafka's settings", type=Path),
    arg(
        "--set",
        "KEY=VALUE",
        "one setting (may be repeated; wins over BARNABAS_… variables, which win over the file)",
        action="append",
        default=[],
        dest="overrides",
    ),
    arg(
        "--logs-dir",
        "DIR",
        "write server.log, controller.log, state-change.log and kafka-authorizer.log there (default: all to "
        "standard error)",
        type=Path,
    ),
    flag(
        "--await-zookeeper",
        "before connecting wait until ZooKeeper answers `srvr`, within its connection time-out",
    ),
    arg(
        "--walls",
        "DIR",
        "connect from 127.0.1.ID, and not to ports in DIR/wall-ID; `barnabas up --links` sets it",
        type=Path,
    ),
)
