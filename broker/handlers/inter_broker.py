"""LeaderAndIsr, StopReplica, UpdateMetadata and ControlledShutdown: the requests between brokers."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerEpoch, BrokerId, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    RemainingPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)

logger = logging.getLogger(__name__)


def handle_leader_and_isr(services: Services, request: ApiRequest) -> None:
    body: LeaderAndIsrRequest = request.body
    if body.broker_epoch >= services.replicas.broker_epoch:
        # First, because a deposed leader refuses its clients, and they ask here for the new leader.
        try:
            services.metadata.learn(body)
        except Exception:
            # The UpdateMetadata that follows has the same leaders.
            logger.critical("the leaders of a LeaderAndIsr were not added to the metadata", exc_info=True)
    try:
        errors = services.replicas.become_leader_or_follower(body)
    except ApiError as error:
        request.respond(LeaderAndIsrResponse(error_code=int(error.code)))
        return
    if body.topic_states or body.is_full:
        # The controller knows this registration and has sent its roles: the broker may lead again. An empty
        # request only probes a suspect broker.
        services.replicas.fence.confirmed(BrokerEpoch(body.broker_epoch))
    request.respond(LeaderAndIsrResponse(error_code=0, partition_errors=errors))


def handle_stop_replica(services: Services, request: ApiRequest) -> None:
    body: StopReplicaRequest = request.body
    try:
        errors = services.replicas.stop_replicas(body)
    except ApiError as error:
        request.respond(StopReplicaResponse(error_code=int(error.code)))
        return
    request.respond(StopReplicaResponse(error_code=0, partition_errors=errors))


def handle_update_metadata(services: Services, request: ApiRequest) -> None:
    body: UpdateMetadataRequest = request.body
    try:
        if body.broker_epoch < services.replicas.broker_epoch:
            raise api_error(ErrorCode.STALE_BROKER_EPOCH)
        if body.controller_epoch < services.replicas.controller_epoch:
            raise api_error(ErrorCode.STALE_CONTROLLER_EPOCH)
        services.metadata.update(body)
    except ApiError as error:
        request.respond(UpdateMetadataResponse(error_code=int(error.code)))
        return
    except Exception:
        # If the connection were closed, the controller would resend this request without end, and no other.
        count = len(body.topic_states)
        logger.critical("an UpdateMetadata of %d topics was not applied", count, exc_info=True)
        request.respond(UpdateMetadataResponse(error_code=int(ErrorCode.UNKNOWN_SERVER_ERROR)))
        return
    request.respond(UpdateMetadataResponse(error_code=0))


def handle_controlled_shutdown(services: Services, request: ApiRequest) -> None:
    body: ControlledShutdownRequest = request.body

    def answer(code: ErrorCode, remaining: Sequence[TopicPartition]) -> None:
        request.respond(
            ControlledShutdownResponse(
                error_code=int(code),
                remaining_partitions=[
                    RemainingPartition(topic_name=name.topic, partition_index=name.partition)
                    for name in remaining
                ],
            )
        )

    services.controller.controlled_shutdown(BrokerId(body.broker_id), BrokerEpoch(body.broker_epoch), answer)
