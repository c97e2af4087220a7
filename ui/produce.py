"""The form that writes one record, with acks=all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from barnabas.client.producer.batch import RecordMetadata
from barnabas.client.producer.producer import Producer
from barnabas.common.settings import INT_MAX, LONG_MAX
from barnabas.protocol.errors import BarnabasError, ClusterAuthorizationFailedError, ErrorCode, api_error
from barnabas.ui.access import MAX_BODY_BYTES
from barnabas.ui.asking import error_text, status_of
from barnabas.ui.context import Context, context_of, form_of, outcome, render
from barnabas.ui.message_query import link, parse_bytes, parse_number, parse_time

_DEADLINE_S: Final = 20.0
_REQUEST_MS: Final = 8_000
_FIELDS: Final = ("topic", "partition", "key", "value", "tombstone", "headers", "timestamp")


@dataclass(frozen=True, kw_only=True)
class _Order:
    """The record that a form describes."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None


def parse_order(form: Mapping[str, str]) -> _Order:
    """Raises ValueError naming the field."""
    texts = {name: form.get(name, "") for name in _FIELDS}
    topic, partition = texts["topic"].strip(), texts["partition"].strip()
    if not topic:
        raise ValueError("topic '': expected the name of a topic")
    # A form sends each line's end as CR LF.
    value = texts["value"].replace("\r\n", "\n")
    time = texts["timestamp"].strip()
    timestamp_ms = parse_time("timestamp", time) if time else None
    if timestamp_ms is not None and timestamp_ms > LONG_MAX:
        raise ValueError(f"timestamp {time!r}: expected ms below 2**63")
    if texts["tombstone"] and value:
        raise ValueError("value: expected none with a tombstone, which is a null value")
    return _Order(
        topic=topic,
        partition=parse_number("partition", partition, 0, INT_MAX) if partition else None,
        key=parse_bytes("key", texts["key"]) if texts["key"] else None,
        value=None if texts["tombstone"] else parse_bytes("value", value),
        headers=[_header(line) for line in texts["headers"].splitlines() if line.strip()],
        timestamp_ms=timestamp_ms,
    )


def _header(line: str) -> tuple[str, bytes | None]:
    name, separator, value = line.partition("=")
    if not name.strip():
        raise ValueError(f"header {line!r}: expected name=value")
    return name.strip(), parse_bytes("header", value) if separator else None


async def write(context: Context, order: _Order) -> RecordMetadata:
    """Write a record to a topic that exists. Raises BarnabasError, and ValueError for a wrong partition."""
    topic = (await context.admin.describe_topics(order.topic))[order.topic]
    numbers = [info.partition for info in topic.partitions]
    if order.partition is not None and order.partition not in numbers:
        raise ValueError(f"partition {order.partition}: topic {order.topic} has 0 to {len(numbers) - 1}")
    settings: dict[str, Any] = {
        **context.settings,
        "bootstrap_servers": context.bootstrap,
        "acks": "all",
        "request_timeout_ms": _REQUEST_MS,
        "delivery_timeout_ms": _REQUEST_MS,
        "max_block_ms": _REQUEST_MS,
        "max_request_size": MAX_BODY_BYTES,
    }
    async with Producer(**settings) as producer:
        try:
            sent = await producer.send(
                order.topic,
                order.value,
                order.key,
                partition=order.partition,
                headers=order.headers,
                timestamp_ms=order.timestamp_ms,
            )
            return await sent
        except ClusterAuthorizationFailedError:
            # Of the producer id, which any user gets who may write to any topic.
            text = f"this user may not write to topic {order.topic}"
            raise api_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text) from None


async def _form(request: Request) -> Response:
    return _page(request, {name: request.query_params.get(name, "") for name in _FIELDS})


def _page(request: Request, texts: Mapping[str, str], error: str = "", status: int = 200) -> Response:
    return render(request, "produce.html", status=status, texts=texts, error=error)


async def _produce(request: Request) -> Response:
    form = await form_of(request)
    texts = {name: form.get(name, "") for name in _FIELDS}
    try:
        order = parse_order(form)
        async with asyncio.timeout(_DEADLINE_S):
            written = await write(context_of(request), order)
    except (BarnabasError, ValueError, TimeoutError) as error:
        return _page(request, texts, error_text(error), status_of(error))
    place = {"topic": written.topic, "partition": written.partition, "offset": written.offset}
    sentence = f"Written to {written.topic}-{written.partition} at offset {written.offset}, with acks=all."
    return outcome(request, link("message", place), sentence, **place)


ROUTES: Final = [Route("/produce", _form), Route("/produce", _produce, methods=["POST"])]
