"""The lifecycle that producer, consumer and admin client share: started once, closed once, warned about."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from barnabas.client.cluster import Cluster
from barnabas.client.errors import ClientClosed


class Client(ABC):
    """A client with a cluster of its own, for ``async with``. Belongs to the loop that it was started on."""

    _cluster: Cluster | None = None

    async def start(self) -> None:
        """Connect to the cluster. Raises NoBrokerReachable naming every server that was tried."""
        if self._cluster is not None:
            raise ClientClosed(f"a {type(self).__name__} can be started only once")
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
        if self._cluster is not None:
            self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        # Its buffers are lost.
        if self._cluster is not None and not self._cluster.is_closed:
            kind = type(self)
            text = f"unclosed {kind.__module__}.{kind.__qualname__}"
            warnings.warn(text, ResourceWarning, stacklevel=1, source=self)
