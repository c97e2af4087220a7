"""How many connections a second a broker takes in, with TLS and SCRAM, here and with Apache Kafka.

    python -m benchmarks.logins

Both systems have one broker, certificates of the same kind and the same users, and run in turn; rounds
alternate. A few connections at a time are opened, authenticated, used for one request and closed. A new
connection resumes no session of TLS. The client runs on the same cores and takes its share of them, which is
the same for both, so the figures are for comparing; the CPU of the brokers is theirs alone.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from barnabas.common.channel import Channel
from barnabas.common.security.channel_security import ChannelSecurity
from barnabas.deploy.process import DeployError
from barnabas.deploy.security import ClusterSecurity
from barnabas.deploy.state import SecurityConfiguration
from barnabas.protocol.errors import LocalError
from barnabas.protocol.ids import parse_endpoints
from barnabas.protocol.messages.metadata import MetadataRequest
from benchmarks.peers.comparison import Comparison, Goal, table
from benchmarks.peers.processes import PeerError, cpu_seconds
from benchmarks.peers.systems import STARTERS, System, chosen
from benchmarks.support import Options, machine, tell, temporary_folder

_AT_ONCE: Final = 4
_WARM_UP: Final = 300
_KINDS: Final = {
    "TLS": SecurityConfiguration(tls=True),
    "SCRAM-SHA-256": SecurityConfiguration(mechanism="SCRAM-SHA-256"),
    "TLS and SCRAM-SHA-256": SecurityConfiguration(tls=True, mechanism="SCRAM-SHA-256"),
}


async def _open_many(bootstrap: str, security: ChannelSecurity, count: int) -> None:
    endpoint = parse_endpoints(bootstrap)[0]
    left = iter(range(count))

    async def open_in_turn() -> None:
        for _ in left:
            channel = Channel(endpoint, client_id="logins", wire="kafka", security=security)
            try:
                await channel.request(MetadataRequest(topics=[]))
            finally:
                channel.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(open_in_turn())


def rate(system: System, security: ChannelSecurity, count: int) -> tuple[float, float]:
    """Connections a second, and the broker's CPU milliseconds of each."""
    pids = list(system.pids().values())
    asyncio.run(_open_many(system.bootstrap, security, _WARM_UP))
    cpu, began = cpu_seconds(pids), time.perf_counter()
    asyncio.run(_open_many(system.bootstrap, security, count))
    seconds = time.perf_counter() - began
    return count / seconds, (cpu_seconds(pids) - cpu) * 1000 / count


def measure(folder: Path, names: list[str], options: Options) -> list[Comparison]:
    count = options.amount(3_000, 600)
    found = []
    for kind, configuration in _KINDS.items():
        rates: dict[str, list[float]] = {name: [] for name in STARTERS}
        costs: dict[str, list[float]] = {name: [] for name in STARTERS}
        with ExitStack() as stack:
            started = {}
            for name in names:
                into = folder / f"{name}-{kind.replace(' ', '-')}"
                started[name] = stack.enter_context(STARTERS[name](into, 1, {}, configuration)).system
            for number in range(options.rounds):
                for name in names if number % 2 == 0 else reversed(names):
                    into = folder / f"{name}-{kind.replace(' ', '-')}"
                    system = started[name]
                    security = ClusterSecurity(into, configuration).channel_security(system.bootstrap)
                    per_second, cost = rate(system, security, count)
                    tell(f"  {system.name}, {kind}: {per_second:.0f}/s, {cost:.2f} CPU ms")
                    rates[name].append(per_second)
                    costs[name].append(cost)
        for what, unit, of, goal in (
            (f"connections with {kind}", "1/s", rates, Goal(at_least=1.0)),
            (f"connections with {kind}: broker", "CPU ms each", costs, Goal(at_most=1.0)),
        ):
            found.append(Comparison(name=what, unit=unit, a=of["barnabas"], b=of["kafka"], goal=goal))
    return found


def main() -> int:
    options, names = chosen(__doc__ or "")
    try:
        with temporary_folder(options) as folder:
            found = measure(folder, names, options)
    except (LocalError, DeployError, PeerError) as error:
        print(f"FAILED {error}", file=sys.stderr)
        return 1
    print(machine(options))
    print(table(found, "Barnabas", "Apache Kafka"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
