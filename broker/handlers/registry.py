"""The one list of all APIs, their handlers and the lanes that they run in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.broker.handlers import (
    api_versions,
    configs,
    delete_records,
    describe_cluster,
    describe_producers,
    describe_replicas,
    describe_transactions,
    elections,
    features,
    fetch,
    find_coordinator,
    groups,
    init_producer_id,
    inter_broker,
    leader_epoch,
    list_offsets,
    log_dirs,
    metadata,
    offsets,
    produce,
    reassignments,
    switched_off,
    topics,
    transaction_offsets,
    transactions,
    write_txn_markers,
)
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.network.request import Lane
from barnabas.protocol.schema import ApiKey

_SMALL: Final = 32 * 1024
"""A larger request names many topics or partitions, and takes longer than a network thread has."""


class Handler(NamedTuple):
    """A handler, and where it begins to run; it may continue in another lane (`Request.continue_in`)."""

    handle: Callable[[Services, ApiRequest], None]
    lane: Lane = Lane.GENERAL
    max_bytes: int = 2**31 - 1
    """Larger requests run in the general lane."""
    inter_broker_only: bool = False
    """Whether it is refused on every listener but the inter-broker one."""
    in_turn: bool = False
    """Whether it runs only when all earlier requests of its connection are answered. Behind a waiting fetch,
    an answer may be half a second old when it leaves, and a client takes it for newer than those that came by
    its other connections: librdkafka 2.0 goes back to the dead leader, and may stay there."""


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.PRODUCE: Handler(produce.handle, Lane.NETWORK),
    ApiKey.FETCH: Handler(fetch.handle, Lane.NETWORK, _SMALL),
    ApiKey.LIST_OFFSETS: Handler(list_offsets.handle),
    ApiKey.METADATA: Handler(metadata.handle, Lane.NETWORK, _SMALL, in_turn=True),
    ApiKey.OFFSET_COMMIT: Handler(offsets.handle_commit),
    ApiKey.OFFSET_FETCH: Handler(offsets.handle_fetch),
    ApiKey.FIND_COORDINATOR: Handler(find_coordinator.handle),
    ApiKey.JOIN_GROUP: Handler(groups.handle_join),
    ApiKey.HEARTBEAT: Handler(groups.handle_heartbeat),
    ApiKey.LEAVE_GROUP: Handler(groups.handle_leave),
    ApiKey.SYNC_GROUP: Handler(groups.handle_sync),
    ApiKey.DESCRIBE_GROUPS: Handler(groups.handle_describe),
    ApiKey.LIST_GROUPS: Handler(groups.handle_list),
    ApiKey.CREATE_TOPICS: Handler(topics.handle_create),
    ApiKey.DELETE_TOPICS: Handler(topics.handle_delete),
    ApiKey.DELETE_RECORDS: Handler(delete_records.handle),
    ApiKey.INIT_PRODUCER_ID: Handler(init_producer_id.handle),
    ApiKey.ADD_PARTITIONS_TO_TXN: Handler(transactions.handle_add_partitions),
    ApiKey.ADD_OFFSETS_TO_TXN: Handler(transactions.handle_add_offsets),
    ApiKey.END_TXN: Handler(transactions.handle_end),
    ApiKey.PREPARE_TXN: Handler(transactions.handle_prepare),
    ApiKey.DESCRIBE_TRANSACTIONS: Handler(describe_transactions.handle_describe),
    ApiKey.LIST_TRANSACTIONS: Handler(describe_transactions.handle_list),
    ApiKey.TXN_OFFSET_COMMIT: Handler(transaction_offsets.handle),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Handler(leader_epoch.handle),
    ApiKey.WRITE_TXN_MARKERS: Handler(write_txn_markers.handle),
    ApiKey.DESCRIBE_CONFIGS: Handler(configs.handle_describe),
    ApiKey.ALTER_CONFIGS: Handler(configs.handle_alter),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Handler(log_dirs.handle_alter),
    ApiKey.DESCRIBE_LOG_DIRS: Handler(log_dirs.handle_describe),
    ApiKey.CREATE_PARTITIONS: Handler(topics.handle_create_partitions),
    ApiKey.DELETE_GROUPS: Handler(groups.handle_delete),
    ApiKey.ELECT_LEADERS: Handler(elections.handle),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Handler(configs.handle_incremental_alter),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Handler(reassignments.handle_alter),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Handler(reassignments.handle_list),
    ApiKey.OFFSET_DELETE: Handler(offsets.handle_delete),
    ApiKey.UPDATE_FEATURES: Handler(features.handle),
    ApiKey.DESCRIBE_CLUSTER: Handler(describe_cluster.handle),
    ApiKey.DESCRIBE_PRODUCERS: Handler(describe_producers.handle),
    ApiKey.DESCRIBE_REPLICAS: Handler(describe_replicas.handle),
    ApiKey.LEADER_AND_ISR: Handler(inter_broker.handle_leader_and_isr, Lane.CONTROL, inter_broker_only=True),
    ApiKey.STOP_REPLICA: Handler(inter_broker.handle_stop_replica, Lane.CONTROL, inter_broker_only=True),
    ApiKey.UPDATE_METADATA: Handler(
        inter_broker.handle_update_metadata, Lane.CONTROL, inter_broker_only=True
    ),
    ApiKey.CONTROLLED_SHUTDOWN: Handler(
        inter_broker.handle_controlled_shutdown, Lane.CONTROL, inter_broker_only=True
    ),
}
HANDLERS.update(dict.fromkeys(switched_off.APIS, Handler(switched_off.handle)))
# It names itself and all the others.
HANDLERS[ApiKey.API_VERSIONS] = Handler(api_versions.handler({*HANDLERS, ApiKey.API_VERSIONS}))
