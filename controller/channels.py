"""The controller's connections to all live brokers, itself included.

They run on a thread with an event loop, from election to resignation. Each broker has one link: a connection
that is opened at once and kept, and batches that are sent in order, one request at a time, with retries while
the broker is registered. Waiting batches are merged (see `barnabas.controller.request_batch`), so a stopped
broker costs bounded memory.

A broker becomes suspect when connecting fails and the `FailureDetector` declares it dead, even if its
ZooKeeper session is alive. A broker that the term already counts as dead, such as the former controller,
begins as suspect. The link probes a suspect broker until it answers a LeaderAndIsr for its registration;
another process at its address refuses that with a stale broker epoch.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable
from typing import Any, Final, cast

from barnabas.common.backoff import doubled
from barnabas.common.channel import Channel
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.common.threads import LoopThread
from barnabas.controller.events import ChannelsFailed, FromChannel, LinkFailed
from barnabas.controller.failure_detector import ConnectResult, FailureDetector, try_connect
from barnabas.controller.link_queue import LinkQueue
from barnabas.controller.request_batch import BrokerBatch, ControllerRequest
from barnabas.protocol.errors import (
    ConnectionClosed,
    ErrorCode,
    RequestTimedOutLocally,
    api_error,
)
from barnabas.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, Endpoint
from barnabas.protocol.schema import RequestOf

log = logging.getLogger("barnabas.controller")

_NEVER_IDLE_MS: Final = 2**31 - 1
_RETRY_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0
_PROBE_EVERY_S: Final = 0.1
_STOP_TIMEOUT_S: Final = 5.0
_ANSWERS_TIMEOUT_S: Final = 2.0


class ControllerChannels:
    """`report` puts an event into the controller's queue; it is called on this thread's loop.

    The controller calls the public methods on its event thread; none waits for a broker.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        epoch: ControllerEpoch,
        *,
        request_timeout_ms: int,
        report: Callable[[FromChannel], None],
        detector: FailureDetector,
        security: ChannelSecurity = PLAINTEXT,
    ) -> None:
        self.detector = detector
        self._security = security
        self._broker_id = broker_id
        self._epoch = epoch
        self._request_timeout_ms = request_timeout_ms
        self._report = report
        self._links: dict[BrokerId, _BrokerLink] = {}
        self.sequences = itertools.count(secrets.randbits(60))
        """Shared by all links, so that a new link to a broker continues the numbers of the former one. The
        first is a secret, so that no other sender can make a broker take later ones for late copies."""
        self.thread = LoopThread(
            f"controller-channels-{epoch}",
            on_fatal=lambda error: report(ChannelsFailed(epoch, error)),
            on_stop=self._close_links,
            log=log,
        )
        self.thread.start()

    def add_broker(
        self, broker: BrokerId, broker_epoch: BrokerEpoch, endpoint: Endpoint, *, is_suspected: bool
    ) -> None:
        """Connect to a registered broker; a link to an earlier registration is closed.

        The caller decides whether it is suspect: if term and link disagreed, it would get no requests.
        """
        self.thread.call(self._add, broker, broker_epoch, endpoint, is_suspected)

    def remove_broker(self, broker: BrokerId) -> None:
        self.thread.call(self._remove, broker)

    def send(self, broker: BrokerId, batch: BrokerBatch) -> None:
        """Send in the order of the calls; dropped if the broker is not connected."""
        self.thread.call(self._send, broker, batch)

    def when_answered(self, done: Callable[[], None]) -> None:
        """Call ``done`` once every reachable broker has answered all batches that were sent so far.

        At the latest after `_ANSWERS_TIMEOUT_S`, or when the channels are stopped; on any thread.
        """
        if not self.thread.call(self._when_answered, done):
            done()

    def stop(self) -> None:
        """Close all connections and end the thread. Idempotent."""
        if not self.thread.stop(_STOP_TIMEOUT_S):
            log.error("the channels' thread did not end within %.0f s", _STOP_TIMEOUT_S)

    def _add(
        self, broker: BrokerId, broker_epoch: BrokerEpoch, endpoint: Endpoint, is_suspected: bool
    ) -> None:
        self._remove(broker)
        link = _BrokerLink(self, broker, broker_epoch, endpoint, is_suspected)
        self._links[broker] = link
        link.start()

    def _remove(self, broker: BrokerId) -> None:
        link = self._links.pop(broker, None)
        if link is not None:
            link.close()

    def _send(self, broker: BrokerId, batch: BrokerBatch) -> None:
        link = self._links.get(broker)
        if link is not None:
            link.send(batch)

    def _when_answered(self, done: Callable[[], None]) -> None:
        # A callback, because a task that is cancelled before its first step runs no `finally`.
        self.thread.spawn(self._wait_for_answers()).add_done_callback(lambda _: done())

    async def _wait_for_answers(self) -> None:
        links = list(self._links.values())
        try:
            async with asyncio.timeout(_ANSWERS_TIMEOUT_S):
                for link in links:
                    await link.idle.wait()
        except TimeoutError:
            late = ", ".join(str(link) for link in links if not link.idle.is_set())
            log.warning("no answers within %.0f s: %s", _ANSWERS_TIMEOUT_S, late)

    def _close_links(self) -> None:
        for broker in list(self._links):
            self._remove(broker)


class _BrokerLink:
    """The link to one registration of one broker; runs on the channels' loop."""

    def __init__(
        self,
        owner: ControllerChannels,
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        endpoint: Endpoint,
        is_suspected: bool,
    ) -> None:
        self._owner = owner
        self._broker = broker
        self._broker_epoch = broker_epoch
        self._endpoint = endpoint
        self._queue = LinkQueue(
            owner._broker_id, owner._epoch, broker, broker_epoch, owner.sequences, is_suspected=is_suspected
        )
        self._wake = asyncio.Event()
        # Set when no request waits or is in flight, or when the broker is suspect.
        self.idle = asyncio.Event()
        self.idle.set()
        self._is_repeating = False
        # Pauses since the last batch that was completely sent and left the broker with all metadata.
        self._failures = 0
        # Reports, after a pause, that the broker failed to apply metadata.
        self._resend: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._channel = Channel(
            endpoint,
            client_id=f"controller-{owner._broker_id}",
            request_timeout_ms=owner._request_timeout_ms,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=1_000,
            connections_max_idle_ms=_NEVER_IDLE_MS,
            ends_with_silent_host=True,
            security=owner._security,
            on_close=lambda channel, error: self._wake.set(),
        )

    def __str__(self) -> str:
        return f"broker {self._broker} at {self._endpoint}"

    def start(self) -> None:
        self._task = self._owner.thread.spawn(self._serve())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._resend is not None:
            self._resend.cancel()
        self.idle.set()
        self._channel.close("the broker is gone or the controller resigned")

    def send(self, batch: BrokerBatch) -> None:
        self._queue.add(batch)
        if self._queue:
            self.idle.clear()
            self._wake.set()

    async def _serve(self) -> None:
        while True:
            try:
                await self._serve_once()
            except Exception as error:  # noqa: BLE001 - any error pauses this link, loudly
                await self._pause(error)

    async def _serve_once(self) -> None:
        self._wake.clear()
        if self._queue.is_suspected:
            await self._probe()
        elif not self._channel.is_connected:
            await self._connect()
        elif (request := self._queue.first()) is not None:
            await self._send_request(request)
        else:
            self.idle.set()
            await self._wake.wait()

    async def _pause(self, error: Exception) -> None:
        """After an unforeseen error, pause, then make the controller resend everything to the broker."""
        pause_s = self._next_pause_s()
        log.critical(
            "the link to %s failed and pauses for %.1f s, then resends everything: %r",
            self,
            pause_s,
            error,
            exc_info=error,
        )
        self._queue.failed()
        self.idle.set()
        await asyncio.sleep(pause_s)
        self._owner._report(self._queue.failed())

    def _next_pause_s(self) -> float:
        pause_s = doubled(_RETRY_S, self._failures, _LONGEST_PAUSE_S)
        self._failures += 1
        return pause_s

    def _resend_later(self, event: LinkFailed) -> None:
        """Report a failed UpdateMetadata after a pause, once for all that fail during it."""
        if self._resend is None:
            pause_s = self._next_pause_s()
            log.error("everything is sent to %s again in %.1f s: it failed to apply metadata", self, pause_s)
            self._resend = self._owner.thread.loop.call_later(pause_s, self._report_failed, event)

    def _report_failed(self, event: LinkFailed) -> None:
        self._resend = None
        self._owner._report(event)

    async def _connect(self) -> None:
        detector, registration = self._owner.detector, (self._broker, self._broker_epoch)
        try:
            await self._channel.connect()
        except ConnectionClosed:
            # The channel may only be in its back-off: probe the address directly.
            began_s = detector.now_s()
            result, connection = await try_connect(self._endpoint, detector.address(*registration))
            if connection is not None:
                connection.close()
            if detector.attempted(*registration, result, began_s):
                self._suspect(result)
            else:
                await asyncio.sleep(_RETRY_S)
        else:
            detector.connected(*registration, self._channel.peer_address)

    def _suspect(self, result: ConnectResult) -> None:
        log.warning("%s is suspect: it %s", self, result.value)
        event = self._queue.suspect()
        self.idle.set()
        self._owner._report(event)

    async def _probe(self) -> None:
        """Probe a suspect broker; once it is back, the controller sends it everything."""
        try:
            answer = await self._channel.request(self._queue.probe())
        except (ConnectionClosed, RequestTimedOutLocally):
            await asyncio.sleep(_PROBE_EVERY_S)
            return
        if answer.error_code != ErrorCode.NONE:
            await asyncio.sleep(_PROBE_EVERY_S)
            return
        log.warning("%s answers again", self)
        self._owner.detector.connected(self._broker, self._broker_epoch, self._channel.peer_address)
        self._owner._report(self._queue.returned())

    async def _send_request(self, request: ControllerRequest) -> None:
        """Send the first request of the queue; without an answer it stays there and is sent again."""
        name = type(request).__name__
        try:
            answer = await self._channel.request(cast(RequestOf[Any], request))
        except (ConnectionClosed, RequestTimedOutLocally) as error:
            log.log(
                logging.DEBUG if self._is_repeating else logging.WARNING, "%s to %s: %s", name, self, error
            )
            self._is_repeating = True
            return
        self._is_repeating = False
        if answer.error_code != ErrorCode.NONE:
            log.warning("%s to %s was refused: %s", name, self, api_error(answer.error_code))
        event = self._queue.answered(answer)
        if not self._queue.is_in_batch and not self._queue.lacks_metadata:
            self._failures = 0
        if isinstance(event, LinkFailed):
            self._resend_later(event)
        elif event is not None:
            self._owner._report(event)
