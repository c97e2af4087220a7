"""InitProducerId gives a producer its producer id and epoch.

A transactional producer gets them from the coordinator of its transactional id, which fences the producers
that had the id before. Any other producer gets a new producer id with epoch 0. As in Kafka 3.9, that is also
so if it asks for a higher epoch: no broker stores its epoch, and its sequences begin at 0 either way.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.coordinators.transactions.requests import InitProducerId, ProducerGiven
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import ProducerId
from barnabas.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse

_FENCED_SINCE: Final = 4
"""Clients of earlier versions do not know PRODUCER_FENCED."""


def handle(services: Services, request: ApiRequest) -> None:
    body: InitProducerIdRequest = request.body
    if body.transactional_id is not None:
        _init_transactional(services, request, body.transactional_id)
        return
    if (body.producer_id == -1) != (body.producer_epoch == -1):
        request.respond(InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST))
        return

    def answer(producer_id: ProducerId, code: ErrorCode) -> None:
        if code == ErrorCode.NONE:
            request.respond(
                InitProducerIdResponse(error_code=code, producer_id=producer_id, producer_epoch=0)
            )
        else:
            request.respond(InitProducerIdResponse(error_code=code))

    services.producer_ids.give(answer)


def _init_transactional(services: Services, request: ApiRequest, transactional_id: str) -> None:
    body: InitProducerIdRequest = request.body
    if not transactional_id:
        request.respond(InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST))
        return
    if body.keep_prepared_txn and not services.config.transaction_two_phase_commit_enable:
        # As in KIP-939, and as `handle_prepare`.
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        request.respond(InitProducerIdResponse(error_code=code))
        return

    @request.answering
    def answer(given: ProducerGiven) -> None:
        code = given.error
        if code is ErrorCode.PRODUCER_FENCED and not request.is_since(_FENCED_SINCE):
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        request.respond(
            InitProducerIdResponse(
                error_code=code,
                producer_id=given.producer_id,
                producer_epoch=given.producer_epoch,
                ongoing_txn_producer_id=given.ongoing_producer_id,
                ongoing_txn_producer_epoch=given.ongoing_producer_epoch,
            )
        )

    init = InitProducerId(
        body.transaction_timeout_ms, body.producer_id, body.producer_epoch, body.keep_prepared_txn
    )
    services.transactions.apply(transactional_id, init, answer)
