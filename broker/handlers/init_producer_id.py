"""InitProducerId gives an idempotent producer a new producer id, with epoch 0.

As in Kafka 3.9, a producer without a transactional id that asks for a higher epoch gets a new id instead: no
broker stores its epoch, and its sequences begin at 0 either way. There is no transaction coordinator;
requests with a transactional id are refused.
"""

from __future__ import annotations

from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import ProducerId
from barnabas.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse


def handle(services: Services, request: ApiRequest) -> None:
    body: InitProducerIdRequest = request.body
    error = _refusal(body)
    if error is not None:
        request.respond(InitProducerIdResponse(error_code=error))
        return

    def answer(producer_id: ProducerId, code: ErrorCode) -> None:
        if code == ErrorCode.NONE:
            request.respond(
                InitProducerIdResponse(error_code=code, producer_id=producer_id, producer_epoch=0)
            )
        else:
            request.respond(InitProducerIdResponse(error_code=code))

    services.producer_ids.give(answer)


def _refusal(body: InitProducerIdRequest) -> ErrorCode | None:
    if (body.producer_id == -1) != (body.producer_epoch == -1):
        return ErrorCode.INVALID_REQUEST
    if body.transactional_id is None:
        return None
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if body.transactional_id else ErrorCode.INVALID_REQUEST
