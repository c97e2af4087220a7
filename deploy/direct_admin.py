"""An admin client that no fault of a local cluster hinders: it goes past the proxies to each broker itself.

Any thread; calls block and are bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from barnabas.client.admin.admin import Admin as _AsyncAdmin
from barnabas.client.blocking import Admin
from barnabas.client.cluster import Cluster
from barnabas.client.loop_thread import BlockingClient
from barnabas.client.metadata import MetadataCache, Node
from barnabas.common.fault_rules import FAULTS_CLIENT_ID
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import BrokerId, Endpoint
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


class _DirectCache(MetadataCache):
    """Has all brokers with their own addresses, also those that ZooKeeper has lost."""

    def __init__(self, endpoints: Mapping[BrokerId, Endpoint]) -> None:
        super().__init__()
        self._endpoints = endpoints

    def update(self, response: MetadataResponse) -> None:
        super().update(response)
        self.nodes = {id: Node(id, endpoint) for id, endpoint in self._endpoints.items()}


class _AsyncDirectAdmin(_AsyncAdmin):
    def __init__(self, cluster: RunningCluster) -> None:
        super().__init__(**cluster.client_settings(), client_id=FAULTS_CLIENT_ID)
        self._endpoints = {broker.id: broker.endpoint for broker in cluster.brokers}

    def _make_cluster(self) -> Cluster:
        view = super()._make_cluster()
        view.cache = _DirectCache(self._endpoints)
        return view

    async def views(
        self, brokers: Collection[int], topics: Collection[str] | None
    ) -> dict[BrokerId, MetadataResponse | BarnabasError]:
        asked = None if topics is None else [MetadataRequestTopic(name=topic) for topic in topics]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        return {node.node_id: answer for node, answer in await self._ask_live(request, brokers)}


class DirectAdmin(Admin):
    def __init__(self, cluster: RunningCluster) -> None:
        self._direct = _AsyncDirectAdmin(cluster)
        BlockingClient.__init__(self, self._direct)

    def views(
        self, brokers: Collection[int], topics: Collection[str] | None = None
    ) -> dict[BrokerId, MetadataResponse | BarnabasError]:
        """The metadata of these topics, or of all, as each of these brokers knows it, or its error.

        A broker that is cut off from the others knows what was true before.
        """
        return self._thread.call(lambda: self._direct.views(brokers, topics)) if brokers else {}
