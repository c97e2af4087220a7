"""Health checks for containers: ``python -m barnabas.deploy.health zookeeper|broker HOST:PORT``.

A broker is healthy when it answers Metadata and knows a controller and itself; ZooKeeper when it answers
``srvr``. Exit code 0 for healthy, 1 otherwise with the reason on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from barnabas.deploy.probe import probe_channel, why_not_ready
from barnabas.deploy.zookeeper import is_serving
from barnabas.protocol.errors import LocalError
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.metadata import MetadataRequest


async def broker_problem(endpoint: Endpoint) -> str | None:
    """Why the broker there is not healthy; None when it is."""
    channel = probe_channel(endpoint)
    try:
        seen = await channel.request(MetadataRequest(topics=[]))
    except LocalError as error:
        return str(error)
    finally:
        channel.close()
    return why_not_ready(seen, ()) if seen.brokers else "knows no broker yet"


def main(arguments: list[str] | None = None) -> int:
    """Check once; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m barnabas.deploy.health", description=__doc__)
    parser.add_argument("kind", choices=("zookeeper", "broker"))
    parser.add_argument("endpoint", type=Endpoint.parse, metavar="HOST:PORT")
    options = parser.parse_args(arguments)
    if options.kind == "zookeeper":
        problem = None if is_serving(options.endpoint) else "does not answer srvr"
    else:
        problem = asyncio.run(broker_problem(options.endpoint))
    if problem is not None:
        print(f"{options.kind} at {options.endpoint}: {problem}", file=sys.stderr)
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
