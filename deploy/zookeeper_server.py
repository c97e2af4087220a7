"""Run the bundled ZooKeeper as this very process: ``python -m barnabas.deploy.zookeeper_server --dir /data``.

For containers and service managers, which watch the process they started: after writing the configuration
this program becomes the server (``exec``). Transactions are forced to disk here, unlike in a cluster for a
test.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from barnabas.deploy.process import DeployError
from barnabas.deploy.zookeeper import ZooKeeper


def main() -> int:
    """Become a ZooKeeper server; returns only when that fails."""
    parser = argparse.ArgumentParser(prog="python -m barnabas.deploy.zookeeper_server", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where its data and configuration are kept")
    parser.add_argument("--host", default="0.0.0.0", help="the address to listen on (default: every one)")
    parser.add_argument("--port", type=int, default=2181)
    parser.add_argument("--tick-time-ms", type=int, default=2000, help="sessions last 2 to 20 ticks")
    parser.add_argument("--log-level", default="warn", help="of ZooKeeper's own log, to standard output")
    options = parser.parse_args()
    server = ZooKeeper(
        options.dir,
        host=options.host,
        port=options.port,
        tick_time_ms=options.tick_time_ms,
        sync=True,
        log_level=options.log_level,
    )
    try:
        command = server.command()
        os.execv(command[0], command)
    except (DeployError, OSError) as error:
        print(f"zookeeper: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
