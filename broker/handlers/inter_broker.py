"""LeaderAndIsr, StopReplica, UpdateMetadata and ControlledShutdown: the requests between brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from barnabas.broker.base.contained import contained
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.replication.become_leader_or_follower import UnconfirmedController
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, TopicPartition
from barnabas.protocol.messages import inter_broker as wire

logger = logging.getLogger(__name__)


def _in_order(apply: Callable[[Services, Any], Any]) -> Callable[[Services, ApiRequest], None]:
    """A handler of the controller's requests: refuses an old controller epoch, and ignores a late copy.

    An epoch that ZooKeeper does not confirm closes the connection; the controller sends the request again.
    """

    def handle(services: Services, request: ApiRequest) -> None:
        body = request.body
        order = services.request_order
        with order.lock:
            try:
                services.replicas.roles.check_epochs(body.controller_epoch, body.broker_epoch)
                if order.is_late(body.controller_epoch, body.sequence):
                    logger.warning("a late %s was ignored: %d", type(body).__name__, body.sequence)
                    response = body.response_type(error_code=0)
                else:
                    response = apply(services, body)
            except ApiError as error:
                response = body.response_type(error_code=int(error.code))
            except UnconfirmedController as error:
                request.raw.close_connection(f"{type(body).__name__}: {error}")
                return
        request.respond(response)

    return handle


@_in_order
def handle_leader_and_isr(services: Services, body: wire.LeaderAndIsrRequest) -> wire.LeaderAndIsrResponse:
    # First: clients of a deposed leader ask here for the new one. If it fails, the UpdateMetadata that
    # follows has the same leaders.
    contained("the leaders of a LeaderAndIsr were not added to the metadata", services.metadata.learn, body)
    errors = services.replicas.roles.become_leader_or_follower(body)
    if body.topic_states or body.is_full:
        # The controller knows this registration and has sent its roles: the broker may lead again. An empty
        # request only probes a suspect broker.
        services.replicas.fence.confirmed(BrokerEpoch(body.broker_epoch))
    return wire.LeaderAndIsrResponse(error_code=0, partition_errors=errors)


@_in_order
def handle_stop_replica(services: Services, body: wire.StopReplicaRequest) -> wire.StopReplicaResponse:
    errors = services.replicas.roles.stop_replicas(body)
    return wire.StopReplicaResponse(error_code=0, partition_errors=errors)


@_in_order
def handle_update_metadata(
    services: Services, body: wire.UpdateMetadataRequest
) -> wire.UpdateMetadataResponse:
    # If the connection were closed, the controller would resend only this request, again and again.
    failure = f"an UpdateMetadata of {len(body.topic_states)} topics was not applied"
    is_applied = contained(failure, services.metadata.update, body)
    code = ErrorCode.NONE if is_applied else ErrorCode.UNKNOWN_SERVER_ERROR
    return wire.UpdateMetadataResponse(error_code=code)


def handle_controlled_shutdown(services: Services, request: ApiRequest) -> None:
    body: wire.ControlledShutdownRequest = request.body

    def answer(code: ErrorCode, remaining: Collection[TopicPartition]) -> None:
        request.respond(
            wire.ControlledShutdownResponse(
                error_code=int(code),
                remaining_partitions=[
                    wire.RemainingPartition(topic_name=name.topic, partition_index=name.partition)
                    for name in remaining
                ],
            )
        )

    services.controller.controlled_shutdown(BrokerId(body.broker_id), BrokerEpoch(body.broker_epoch), answer)
