"""Whether brokers and ZooKeeper are ready, asked over the network.

``python -m barnabas.deploy.health zookeeper|broker HOST:PORT`` is the health check of a container: exit code
0 for healthy, 1 otherwise with the reason on stderr. A broker is healthy if it answers Metadata and knows a
controller and itself; ZooKeeper is healthy if it answers ``srvr``.

Guarantees. Reads only; every request and every wait is bounded. `wait_ready` makes a loop of its own and
blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from barnabas.common.channel import Channel
from barnabas.common.fault_rules import FAULTS_CLIENT_ID
from barnabas.common.security.acl import PatternType
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.deploy.process import DeployError
from barnabas.deploy.zookeeper import is_serving
from barnabas.protocol.errors import LocalError
from barnabas.protocol.ids import BrokerId, Endpoint
from barnabas.protocol.messages.acls import DescribeAclsRequest
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataResponse

_INTERVAL_S = 0.01
_REQUEST_TIMEOUT_MS = 2_000


def _open_channel(endpoint: Endpoint, security: ChannelSecurity) -> Channel:
    """A channel that reconnects at once and has short time-outs; close it after use."""
    return Channel(
        endpoint,
        client_id=FAULTS_CLIENT_ID,
        request_timeout_ms=_REQUEST_TIMEOUT_MS,
        connect_timeout_ms=1_000,
        reconnect_backoff_ms=5,
        reconnect_backoff_max_ms=50,
        security=security,
    )


def why_not_ready(metadata: MetadataResponse, expected: Collection[BrokerId]) -> str | None:
    """The reason why a broker's metadata does not describe the complete cluster, or None."""
    missing = sorted(set(expected) - {broker.node_id for broker in metadata.brokers})
    if missing:
        return f"does not see broker{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} yet"
    if metadata.controller_id < 0:
        return "knows no controller yet"
    return None


_Problem = Callable[[Channel], Awaitable[str | None]]
"""Asks a broker; returns the reason why its answer is not the awaited one, or None."""


async def _wait_for_one(
    broker: BrokerId,
    endpoint: Endpoint,
    problem: _Problem,
    reasons: dict[BrokerId, str],
    security: ChannelSecurity,
) -> None:
    channel = _open_channel(endpoint, security)
    try:
        while True:
            try:
                reason = await problem(channel)
            except LocalError as error:
                reason = f"does not answer on {endpoint} ({error})"
            if reason is None:
                reasons.pop(broker, None)
                return
            reasons[broker] = reason
            await asyncio.sleep(_INTERVAL_S)
    finally:
        channel.close()


def wait_ready(
    endpoints: Mapping[BrokerId, Endpoint],
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
    security: ChannelSecurity = PLAINTEXT,
) -> None:
    """Wait until each of these brokers sees all of them and a controller.

    `check` is called repeatedly and may raise, for example because a process has ended. Raises DeployError
    with the reason of every broker that was not ready in time.
    """

    async def problem(channel: Channel) -> str | None:
        return why_not_ready(await channel.request(MetadataRequest(topics=[])), endpoints.keys())

    _wait(endpoints, problem, timeout_s, check, security)


def wait_for_acls(
    endpoints: Mapping[BrokerId, Endpoint],
    principal: str,
    count: int,
    timeout_s: float,
    security: ChannelSecurity,
) -> None:
    """Wait until each of these brokers obeys so many ACLs of a principal. Raises as `wait_ready`."""
    request = DescribeAclsRequest(pattern_type_filter=PatternType.ANY, principal_filter=principal)

    async def problem(channel: Channel) -> str | None:
        found = sum(len(resource.acls) for resource in (await channel.request(request)).resources)
        return None if found >= count else f"knows {found} of {count} ACLs of {principal}"

    _wait(endpoints, problem, timeout_s, lambda: None, security)


def _wait(
    endpoints: Mapping[BrokerId, Endpoint],
    problem: _Problem,
    timeout_s: float,
    check: Callable[[], None],
    security: ChannelSecurity,
) -> None:
    is_abandoned = threading.Event()

    async def wait() -> None:
        reasons: dict[BrokerId, str] = dict.fromkeys(endpoints, "was not asked")
        waiting = [
            asyncio.create_task(_wait_for_one(broker, endpoint, problem, reasons, security))
            for broker, endpoint in endpoints.items()
        ]
        await _wait_for_all(waiting, reasons, timeout_s, check, is_abandoned)

    # The caller's thread may be running a loop already.
    with ThreadPoolExecutor(1, thread_name_prefix="barnabas-probe") as pool:
        ready = pool.submit(lambda: asyncio.run(wait()))
        try:
            ready.result()
        except BaseException:
            # Ctrl-C interrupts the caller alone; the thread must end too.
            is_abandoned.set()
            raise


async def _wait_for_all(
    waiting: Sequence[asyncio.Task[None]],
    reasons: Mapping[BrokerId, str],
    timeout_s: float,
    check: Callable[[], None],
    is_abandoned: threading.Event,
) -> None:
    deadline = time.monotonic() + timeout_s
    try:
        pending = set(waiting)
        while pending and not is_abandoned.is_set():
            check()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                said = "; ".join(f"broker {broker} {reason}" for broker, reason in sorted(reasons.items()))
                raise DeployError(f"the cluster was not ready within {timeout_s:g} s: {said}")
            done, pending = await asyncio.wait(pending, timeout=min(left_s, 0.1))
            for task in done:
                task.result()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def broker_problem(endpoint: Endpoint, security: ChannelSecurity = PLAINTEXT) -> str | None:
    """The reason why the broker is not healthy, or None."""
    channel = _open_channel(endpoint, security)
    try:
        metadata = await channel.request(MetadataRequest(topics=[]))
    except LocalError as error:
        return str(error)
    finally:
        channel.close()
    return why_not_ready(metadata, ()) if metadata.brokers else "knows no broker yet"


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
