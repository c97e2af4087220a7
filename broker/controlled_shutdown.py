"""Asking the controller to move this broker's leaderships away before it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from barnabas.protocol.channel import Channel
from barnabas.protocol.errors import ErrorCode, LocalError
from barnabas.protocol.ids import BrokerEpoch, BrokerId, Endpoint
from barnabas.protocol.messages.inter_broker import ControlledShutdownRequest

logger = logging.getLogger(__name__)


def request_controlled_shutdown(
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
    controller: Callable[[], Endpoint | None],
    *,
    max_retries: int,
    retry_backoff_ms: int,
    timeout_ms: int,
) -> bool:
    """Ask, at most ``max_retries`` times more, until no leadership remains here; whether that succeeded.

    ``controller`` tells where the controller is now. Blocks; runs on the main thread.
    """
    return asyncio.run(
        _request(broker_id, broker_epoch, controller, max_retries, retry_backoff_ms, timeout_ms)
    )


async def _request(
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
    controller: Callable[[], Endpoint | None],
    max_retries: int,
    retry_backoff_ms: int,
    timeout_ms: int,
) -> bool:
    for attempt in range(max_retries + 1):
        if attempt:
            await asyncio.sleep(retry_backoff_ms / 1000)
        endpoint = controller()
        if endpoint is None:
            logger.warning("controlled shutdown: the controller is not known")
            continue
        channel = Channel(endpoint, client_id=f"broker-{broker_id}-shutdown", request_timeout_ms=timeout_ms)
        try:
            response = await channel.request(
                ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
            )
        except LocalError as error:
            logger.warning("controlled shutdown: %s", error)
            continue
        finally:
            channel.close()
        remaining = response.remaining_partitions
        if response.error_code == ErrorCode.NONE and not remaining:
            return True
        logger.warning(
            "controlled shutdown: error %d, %d partitions remain led here",
            response.error_code,
            len(remaining),
        )
    return False
