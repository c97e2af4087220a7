"""Known mistakes about leaders that are deposed and topics that change beside transactions; see `planted`."""

from typing import Any

from barnabas.broker.cluster.metadata_cache import MetadataCache, _TopicChanges
from barnabas.broker.compaction import cleaning
from barnabas.broker.compaction.batch_filter import AbortedTransactions
from barnabas.broker.coordinators.transactions import marker_queue as transaction_markers
from barnabas.broker.coordinators.transactions.coordinator import TransactionCoordinator
from barnabas.broker.replication import replica_manager
from barnabas.broker.replication.partition import Partition
from barnabas.protocol import schema
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.inter_broker import UpdateMetadataRequest, UpdateMetadataTopic
from tests.simulation.mutations import a_deposed_leader_keeps_its_role, a_leader_needs_no_proof
from tests.simulation.planted import SetAttr, found_in, of_compiled_code
from tests.simulation.promises import Promise


@found_in("exactly once", 26, alone=Promise.LEADERS)
@of_compiled_code
def acks_of_the_leader_need_no_proof(setattr_: SetAttr) -> None:
    """It is coordination alone that asks for one, and a deposed leader keeps its role."""
    a_deposed_leader_keeps_its_role(setattr_)
    writable = replica_manager.ReplicaManager._writable

    def careless(self: replica_manager.ReplicaManager, name: Any, acks: int = 1) -> Partition:
        is_fenced = acks == replica_manager.ACKS_ALL or self.fence.reason is not None
        return writable(self, name, acks) if is_fenced else self.partition(name)

    setattr_(replica_manager.ReplicaManager, "_writable", careless)


@found_in("exactly once", 2)
@of_compiled_code
def a_deposed_leader_goes_on(setattr_: SetAttr) -> None:
    """Found in this code: one that only the controller could not reach led on without limit."""
    a_leader_needs_no_proof(setattr_)
    a_deposed_leader_keeps_its_role(setattr_)


@found_in("exactly once", 31)
def a_coordinator_trusts_its_own_broker(setattr_: SetAttr) -> None:
    """Found in this code: it added a partition that its broker led and did not know yet; no marker came."""
    apply, leader_of = TransactionCoordinator.apply, transaction_markers.MarkerQueue._leader_of

    def trusting(self: TransactionCoordinator, *arguments: Any) -> None:
        coordinator: Any = self
        coordinator.unknown = lambda partitions: set()
        try:
            apply(self, *arguments)
        finally:
            del coordinator.unknown

    def hasty(self: transaction_markers.MarkerQueue, name: Any, sending: Any) -> Any:
        is_known = self._metadata.current.may_exist(name)
        return leader_of(self, name, sending) if is_known else transaction_markers._DELETED

    setattr_(TransactionCoordinator, "apply", trusting)
    setattr_(transaction_markers.MarkerQueue, "_leader_of", hasty)


@found_in("exactly once", 523)
def an_omitted_topic_may_be_unreadable(setattr_: SetAttr) -> None:
    """Found in this code: who missed the mark of a deletion waited for the topic for ever."""
    update = MetadataCache.update

    def inferring(self: MetadataCache, request: UpdateMetadataRequest) -> None:
        unreadable = request.unreadable_topics or []
        request.unreadable_topics = [*unreadable, *self.current.unreadable_topics, *self.current.topics]
        update(self, request)

    setattr_(MetadataCache, "update", inferring)


@found_in("exactly once", 22)
def a_topic_does_not_grow(setattr_: SetAttr) -> None:
    """A broker learns of new partitions from full updates alone."""
    take = _TopicChanges._take

    def partial(self: _TopicChanges, state: UpdateMetadataTopic) -> None:
        known = self._before.topics.get(state.topic_name)
        if known is not None and known.topic_id == state.topic_id and not self._request.is_full:
            states = [each for each in state.partition_states if each.partition_index in known.partitions]
            state = schema.replace(state, partition_states=states)
        take(self, state)

    setattr_(_TopicChanges, "_take", partial)


@found_in("exactly once", 306)
def a_removed_replica_has_its_marker(setattr_: SetAttr) -> None:
    """Its broker does not know the partition any more, as if the topic was deleted."""
    written = frozenset({*transaction_markers._WRITTEN, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    setattr_(transaction_markers, "_WRITTEN", written)


@found_in("exactly once", 376)
def an_aborted_commit_replaces_a_committed_offset(setattr_: SetAttr) -> None:
    """In the offset map of a cleaning."""
    add_keys = cleaning._Cleaning._add_keys

    def careless(self: cleaning._Cleaning, chunk: Any, aborted: AbortedTransactions) -> bool:
        return add_keys(self, chunk, AbortedTransactions([]))

    setattr_(cleaning._Cleaning, "_add_keys", careless)
