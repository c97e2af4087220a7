"""The leader hints of one answer: where a refused partition is led (KIP-951).

A client moves to a hinted leader at once, without asking for metadata; franz-go then asks for none for up to
five minutes. So this broker hints only at what it knows to be newer than its own role: `LeaderHints.find`.
Without a hint clients ask for metadata, and that answer waits for a leader.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.handlers.services import Services
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.partitions import LeaderIdAndEpoch, NodeEndpoint

NO_HINT: Final = LeaderIdAndEpoch()


class LeaderHints:
    """Finds the hints of one answer, and collects the addresses of the leaders."""

    def __init__(self, services: Services, listener_name: str) -> None:
        self._services = services
        self._listener_name = listener_name
        self.endpoints: dict[BrokerId, NodeEndpoint] = {}

    def find(self, tp: TopicPartition, client_epoch: int = -1) -> LeaderIdAndEpoch:
        """The hint for a partition that was refused, to a client that knows this leader epoch.

        It is the leader that the metadata names, if that is another broker, reachable, and no older than the
        leaders that the client and this broker's replica know.
        """
        replicas = self._services.replicas
        if replicas.fence.reason is not None:
            # Without ZooKeeper this broker does not learn of new leaders.
            return NO_HINT
        known = self._services.metadata.current.partitions_of(tp.topic).get(tp.partition)
        replica = replicas.roles.partitions.get(tp)
        least_epoch = client_epoch
        if replica is not None:
            # The metadata may be behind the role of this broker's replica.
            least_epoch = max(least_epoch, replica.leader_epoch + replica.is_leader)
        if known is None or known.leader == replicas.broker_id or known.leader_epoch < least_epoch:
            return NO_HINT
        if not self._note_endpoint(BrokerId(known.leader)):
            return NO_HINT
        return LeaderIdAndEpoch(leader_id=known.leader, leader_epoch=known.leader_epoch)

    def _note_endpoint(self, broker_id: BrokerId) -> bool:
        """Whether clients of the listener can reach a broker, whose address the answer then has."""
        if broker_id in self.endpoints:
            return True
        metadata = self._services.metadata
        endpoint = metadata.current.endpoint(broker_id, self._listener_name)
        if endpoint is None or broker_id in metadata.suspects:
            return False
        self.endpoints[broker_id] = NodeEndpoint(
            node_id=broker_id,
            host=endpoint.host,
            port=endpoint.port,
            rack=metadata.current.brokers[broker_id].rack,
        )
        return True
