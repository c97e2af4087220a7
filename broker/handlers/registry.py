"""The one list of all APIs, their handlers and the lanes that they run in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.broker.handlers import (
    acls,
    api_versions,
    authentication,
    client_quotas,
    configs,
    controller_requests,
    describe_transactions,
    fault_rules,
    fetch,
    find_coordinator,
    groups,
    inter_broker,
    log_offsets,
    metadata,
    offsets,
    produce,
    replicas,
    scram_users,
    switched_off,
    transactions,
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
    is_exempt: bool = False
    """Whether no quota holds for it, as for those of the inter-broker listener alone. Kafka serves
    authentication below its quotas too."""


def _slowly(handle: Callable[[Services, ApiRequest], None]) -> Callable[[Services, ApiRequest], None]:
    """The handler on the slow-work thread: it waits for ZooKeeper."""

    def handle_slowly(services: Services, request: ApiRequest) -> None:
        request.run_slowly(services.slow_work, handle, services, request)

    return handle_slowly


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.PRODUCE: Handler(produce.handle, Lane.NETWORK),
    ApiKey.FETCH: Handler(fetch.handle, Lane.NETWORK, _SMALL),
    ApiKey.FETCH_PROGRESS: Handler(fetch.handle_progress, Lane.NETWORK, _SMALL, is_exempt=True),
    ApiKey.LIST_OFFSETS: Handler(log_offsets.handle_list_offsets),
    ApiKey.METADATA: Handler(metadata.handle_metadata, Lane.NETWORK, _SMALL, in_turn=True),
    ApiKey.OFFSET_COMMIT: Handler(offsets.handle_commit),
    ApiKey.OFFSET_FETCH: Handler(offsets.handle_fetch),
    ApiKey.FIND_COORDINATOR: Handler(find_coordinator.handle),
    ApiKey.JOIN_GROUP: Handler(groups.handle_join),
    ApiKey.HEARTBEAT: Handler(groups.handle_heartbeat),
    ApiKey.LEAVE_GROUP: Handler(groups.handle_leave),
    ApiKey.SYNC_GROUP: Handler(groups.handle_sync),
    ApiKey.DESCRIBE_GROUPS: Handler(groups.handle_describe),
    ApiKey.LIST_GROUPS: Handler(groups.handle_list),
    ApiKey.CREATE_TOPICS: Handler(controller_requests.handle_create_topics),
    ApiKey.DELETE_TOPICS: Handler(controller_requests.handle_delete_topics),
    ApiKey.DELETE_RECORDS: Handler(log_offsets.handle_delete_records),
    ApiKey.INIT_PRODUCER_ID: Handler(transactions.handle_init_producer_id),
    ApiKey.ADD_PARTITIONS_TO_TXN: Handler(transactions.handle_add_partitions),
    ApiKey.ADD_OFFSETS_TO_TXN: Handler(transactions.handle_add_offsets),
    ApiKey.END_TXN: Handler(transactions.handle_end),
    ApiKey.PREPARE_TXN: Handler(transactions.handle_prepare),
    ApiKey.DESCRIBE_TRANSACTIONS: Handler(describe_transactions.handle_describe),
    ApiKey.LIST_TRANSACTIONS: Handler(describe_transactions.handle_list),
    ApiKey.TXN_OFFSET_COMMIT: Handler(offsets.handle_transaction_commit),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Handler(log_offsets.handle_leader_epoch),
    ApiKey.WRITE_TXN_MARKERS: Handler(transactions.handle_write_markers, is_exempt=True),
    ApiKey.SASL_HANDSHAKE: Handler(authentication.handle_handshake, Lane.NETWORK, _SMALL, is_exempt=True),
    ApiKey.SASL_AUTHENTICATE: Handler(
        authentication.handle_authenticate, Lane.NETWORK, _SMALL, is_exempt=True
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Handler(_slowly(scram_users.handle_describe)),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Handler(_slowly(scram_users.handle_alter)),
    ApiKey.DESCRIBE_CONFIGS: Handler(_slowly(configs.handle_describe)),
    ApiKey.ALTER_CONFIGS: Handler(_slowly(configs.handle_alter)),
    ApiKey.DESCRIBE_ACLS: Handler(acls.handle_describe),
    ApiKey.CREATE_ACLS: Handler(_slowly(acls.handle_create)),
    ApiKey.DELETE_ACLS: Handler(_slowly(acls.handle_delete)),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Handler(replicas.handle_alter_log_dirs),
    ApiKey.DESCRIBE_LOG_DIRS: Handler(replicas.handle_describe_log_dirs),
    ApiKey.CREATE_PARTITIONS: Handler(controller_requests.handle_create_partitions),
    ApiKey.DELETE_GROUPS: Handler(groups.handle_delete),
    ApiKey.ELECT_LEADERS: Handler(controller_requests.handle_elect_leaders),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Handler(_slowly(configs.handle_alter)),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Handler(controller_requests.handle_alter_reassignments),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Handler(controller_requests.handle_list_reassignments),
    ApiKey.OFFSET_DELETE: Handler(offsets.handle_delete),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Handler(_slowly(client_quotas.handle_describe)),
    ApiKey.ALTER_CLIENT_QUOTAS: Handler(_slowly(client_quotas.handle_alter)),
    ApiKey.UPDATE_FEATURES: Handler(_slowly(controller_requests.handle_update_features)),
    ApiKey.DESCRIBE_CLUSTER: Handler(metadata.handle_describe_cluster),
    ApiKey.DESCRIBE_PRODUCERS: Handler(describe_transactions.handle_describe_producers),
    ApiKey.DESCRIBE_REPLICAS: Handler(replicas.handle_describe_replicas),
    ApiKey.ALTER_FAULT_RULES: Handler(fault_rules.handle_alter),
    ApiKey.DESCRIBE_FAULT_RULES: Handler(fault_rules.handle_describe),
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
