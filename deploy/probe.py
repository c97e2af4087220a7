"""Looking at a cluster from outside: does every broker answer, and do they agree on who is there?

Guarantees. Reads only; every request and every wait is bounded. The async functions belong to the caller's
event loop; `wait_ready` makes a loop of its own and blocks.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from barnabas.deploy.process import DeployError
from barnabas.protocol.channel import Channel
from barnabas.protocol.errors import LocalError
from barnabas.protocol.ids import BrokerId, Endpoint
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataResponse

CLIENT_ID = "barnabas-probe"
_INTERVAL_S = 0.01
_REQUEST_TIMEOUT_MS = 2_000


def probe_channel(endpoint: Endpoint) -> Channel:
    """A channel that tries again at once and gives up soon; close it after use."""
    return Channel(
        endpoint,
        client_id=CLIENT_ID,
        request_timeout_ms=_REQUEST_TIMEOUT_MS,
        connect_timeout_ms=1_000,
        reconnect_backoff_ms=5,
        reconnect_backoff_max_ms=50,
    )


def why_not_ready(seen: MetadataResponse, expected: Collection[BrokerId]) -> str | None:
    """Why a broker's view is not that of a complete cluster; None when it is."""
    missing = sorted(set(expected) - {broker.node_id for broker in seen.brokers})
    if missing:
        return f"does not see broker{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} yet"
    if seen.controller_id < 0:
        return "knows no controller yet"
    return None


async def _wait_for_one(
    broker: BrokerId, endpoint: Endpoint, expected: Collection[BrokerId], reasons: dict[BrokerId, str]
) -> None:
    channel = probe_channel(endpoint)
    try:
        while True:
            try:
                reason = why_not_ready(await channel.request(MetadataRequest(topics=[])), expected)
            except LocalError as error:
                reason = f"does not answer on {endpoint} ({error})"
            if reason is None:
                reasons.pop(broker, None)
                return
            reasons[broker] = reason
            await asyncio.sleep(_INTERVAL_S)
    finally:
        channel.close()


async def wait_ready_async(
    endpoints: Mapping[BrokerId, Endpoint], timeout_s: float, check: Callable[[], None] = lambda: None
) -> None:
    """Wait until each of these brokers sees all of them and a controller.

    `check` is called now and then and may raise, for example because a process has ended. Raises DeployError
    naming the brokers that were not ready in time and why.
    """
    reasons: dict[BrokerId, str] = dict.fromkeys(endpoints, "was not asked")
    waiting = [
        asyncio.create_task(_wait_for_one(broker, endpoint, endpoints.keys(), reasons))
        for broker, endpoint in endpoints.items()
    ]
    deadline = time.monotonic() + timeout_s
    try:
        pending = set(waiting)
        while pending:
            check()
            left = deadline - time.monotonic()
            if left <= 0:
                said = "; ".join(f"broker {broker} {reason}" for broker, reason in sorted(reasons.items()))
                raise DeployError(f"the cluster was not ready within {timeout_s:g} s: {said}")
            done, pending = await asyncio.wait(pending, timeout=min(left, 0.1))
            for task in done:
                task.result()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def wait_ready(
    endpoints: Mapping[BrokerId, Endpoint], timeout_s: float, check: Callable[[], None] = lambda: None
) -> None:
    """`wait_ready_async` in a loop of its own; blocks, also when called on the thread of another loop."""
    given_up = threading.Event()

    def check_or_end() -> None:
        if given_up.is_set():
            raise DeployError("nobody waits for the cluster any more")
        check()

    # A thread of its own can always run a loop; the caller's may be running one already.
    with ThreadPoolExecutor(1, thread_name_prefix="barnabas-probe") as pool:
        ready = pool.submit(lambda: asyncio.run(wait_ready_async(endpoints, timeout_s, check_or_end)))
        try:
            ready.result()
        except BaseException:
            # Ctrl-C, for one, interrupts the caller alone: the thread is told to end too.
            given_up.set()
            raise
