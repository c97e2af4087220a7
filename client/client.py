"""The lifecycle that producer, consumer and admin client share: started once, closed once, warned about."""

from __future__ import annotations

import asyncio
import sys
import time
import warnings
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

from barnabas.client.cluster import Cluster
from barnabas.client.errors import ClientClosed
from barnabas.client.metrics import Metrics

_AFTER_ERROR_S: Final = 3.0
"""A program that gets Ctrl-C or SIGTERM must end within seconds, also if no broker answers."""
_LEAST_AFTER_ERROR_S: Final = 0.25
_ENDS_AT: Final = "_barnabas_ends_at"


def seconds_after(error: BaseException | None) -> float | None:
    """The time that clients have to close after an error; all clients that it closes share this time.

    None, which is no limit, without an error, or if only a generator ends.
    """
    if error is None or isinstance(error, GeneratorExit):
        return None
    present = time.monotonic()
    ends_at: float | None = vars(error).get(_ENDS_AT)
    if ends_at is None or ends_at + _AFTER_ERROR_S < present:
        # An error object may be raised again later, by other work.
        vars(error)[_ENDS_AT] = ends_at = present + _AFTER_ERROR_S
    return max(_LEAST_AFTER_ERROR_S, ends_at - present)


def ms_after(error: BaseException | None) -> int | None:
    """`seconds_after` in milliseconds."""
    seconds = seconds_after(error)
    return None if seconds is None else int(seconds * 1000)


def handled_error() -> BaseException | None:
    """The error that the caller is handling, as in a ``finally``."""
    return sys.exc_info()[1]


def interruption() -> BaseException | None:
    """The same, if it is a cancellation, Ctrl-C or exit."""
    error = handled_error()
    return None if isinstance(error, Exception) else error


def public_class(client: object) -> type:
    """The class by which users know a client."""
    return next(kind for kind in type(client).__mro__ if not kind.__name__.startswith("_"))


class Client(ABC):
    """A client with a cluster of its own, for ``async with``. Belongs to the loop that it was started on."""

    _cluster: Cluster | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Connect to the cluster. Raises NoBrokerReachable naming every server that was tried."""
        if self._cluster is not None:
            raise ClientClosed(f"a {public_class(self).__name__} can be started only once")
        self._loop = asyncio.get_running_loop()
        self._cluster = cluster = self._make_cluster()
        await cluster.start()
        self._started(cluster)

    @abstractmethod
    def _make_cluster(self) -> Cluster:
        """The cluster of this client's configuration, not started."""

    def _started(self, cluster: Cluster) -> None:  # noqa: B027 - the admin client needs nothing here
        """Hook: the cluster can be used."""

    async def close(self) -> None:
        """Disconnect. Idempotent."""
        if self._cluster is not None and not self._has_lost_loop():
            self._cluster.close()

    def metrics(self) -> Metrics:
        """A snapshot of what the client has measured, by Kafka's names: see `docs/client.md`.

        It asks nobody; any thread may call it, also after `close`. Before the start it has no requests.
        """
        return {} if self._cluster is None else self._cluster.metrics()

    def _has_lost_loop(self) -> bool:
        """For `close`: whether the event loop has ended, and the connections with it. Raises ClientClosed."""
        if self._cluster is not None and self._loop is not None and self._loop.is_closed():
            self._cluster.is_closed = True
            return True
        self._check_loop()
        return False

    def _check_loop(self) -> None:
        """Raises ClientClosed on another event loop than that of `start`."""
        if self._loop is None:
            return
        try:
            is_other = asyncio.get_running_loop() is not self._loop
        except RuntimeError:
            # A plain method outside of any loop.
            is_other = self._loop.is_closed()
        if is_other:
            raise ClientClosed(
                f"the {public_class(self).__name__.lower()} belongs to the event loop that it was started "
                "on, such as that of another `asyncio.run`"
            )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close_after(error)

    async def _close_after(self, error: BaseException | None) -> None:
        """The close at the end of ``async with``, after an error of its body or without one."""
        await self.close()

    def __del__(self) -> None:
        # Its buffers are lost.
        if self._cluster is not None and not self._cluster.is_closed:
            kind = public_class(self)
            text = f"unclosed {kind.__module__}.{kind.__qualname__}"
            warnings.warn(text, ResourceWarning, stacklevel=1, source=self)
