"""The page of one record: its whole value, its transaction, and the batch that it is in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from barnabas.client.admin.peek import LogBatch
from barnabas.common.texts import iso_time
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.records import RecordFields
from barnabas.ui.asking import Missing, error_text, status_of
from barnabas.ui.context import Context, context_of, render
from barnabas.ui.message_formats import show
from barnabas.ui.message_query import FORMATS, Query, link, parse_query
from barnabas.ui.message_range import find_range, reader
from barnabas.ui.message_scan import Bounds, Scan, make_row, records_of
from barnabas.ui.messages import DEADLINE_S, file_name, state_of

_MAX_SHOWN_BYTES: Final = 1 << 20
_NO_PRODUCER: Final = -1


def _place(parameters: Mapping[str, str]) -> tuple[Query, TopicPartition, int]:
    """A query for the format, the partition and the offset. Raises ValueError."""
    offset = parameters.get("offset", "")
    texts = {name: parameters.get(name, "") for name in ("topic", "partition", "format")}
    query = parse_query({**texts, "from": f"offset:{offset}", "limit": "1", "markers": "1"})
    if not query.topic or query.partition is None:
        raise ValueError("expected topic, partition and offset")
    return query, TopicPartition(query.topic, query.partition), query.start.number


async def _find(context: Context, query: Query, offset: int) -> tuple[LogBatch, RecordFields]:
    """The batch with an offset, and the record. Raises BarnabasError, ValueError and Missing."""
    tp = TopicPartition(query.topic, query.partition or 0)
    found = await find_range(context.admin, query)
    if tp not in found.high:
        raise api_error(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} cannot be read: it has no leader now")
    if not found.log_start[tp] <= offset < found.high[tp]:
        raise Missing(f"{tp} has offsets {found.log_start[tp]} to before {found.high[tp]}, not {offset}")
    piece = (await reader(context.admin)({tp: offset}, 1))[tp]
    following = -1
    for batch in piece.batches[:2]:
        for fields in records_of(batch):
            if fields[0] == offset:
                return batch, fields
            if following < offset < fields[0]:
                following = fields[0]
    where = f"; the next one is at {following}" if following > offset else ""
    raise Missing(f"{tp} has no record at offset {offset}, which a compaction may have removed{where}")


async def _message(request: Request) -> Response:
    values: dict[str, Any] = {"error": "", "formats": FORMATS}
    context = context_of(request)
    try:
        query, tp, offset = _place(request.query_params)
        async with asyncio.timeout(DEADLINE_S):
            values |= await _values(context, query, tp, offset)
    except (BarnabasError, ValueError, TimeoutError) as error:
        return render(request, "message.html", status=status_of(error), error=error_text(error))
    return render(request, "message.html", **values)


async def _values(context: Context, query: Query, tp: TopicPartition, offset: int) -> dict[str, Any]:
    batch, fields = await _find(context, query, offset)
    scan = Scan(reader(context.admin), query, {tp: offset}, {tp: offset + 1}, 1, Bounds())
    await scan.run()
    row = make_row(tp.partition, fields, batch, _MAX_SHOWN_BYTES)
    place = {"topic": tp.topic, "partition": tp.partition}
    return {
        "query": query,
        "tp": tp,
        "row": row,
        "time": iso_time(row.timestamp_ms),
        "timestamp_type": batch.header.timestamp_type.name,
        "key": show(row.key, "hex" if query.format == "hex" else "auto"),
        "value": show(row.value, query.format, context.decoders.get(tp.topic)),
        "headers": [(name, show(value, "auto")) for name, value in row.headers],
        "states": [state for each in scan.rows for state in state_of(each)],
        "batch": _batch_lines(batch),
        "links": {
            "bytes": link("message.bin", {**place, "offset": offset}),
            "log": link("messages", {**place, "from": f"offset:{offset}"}),
            "same": link("message", {**place, "offset": offset}),
        },
    }


def _batch_lines(batch: LogBatch) -> list[tuple[str, str]]:
    header = batch.header
    has_producer = header.producer_id != _NO_PRODUCER
    return [
        ("Offsets", f"{header.base_offset:,} to {header.last_offset:,}"),
        ("Records", f"{header.record_count:,}"),
        ("Size", f"{header.size_bytes:,} bytes"),
        ("Compression", header.compression.name.lower()),
        ("Leader epoch", str(header.partition_leader_epoch)),
        ("Producer id", str(header.producer_id) if has_producer else "none: not idempotent"),
        ("Producer epoch", str(header.producer_epoch) if has_producer else "-"),
        ("First sequence", str(header.base_sequence) if has_producer else "-"),
        ("Transactional", "yes" if header.is_transactional else "no"),
        ("CRC-32C", f"{header.crc:#010x}"),
    ]


async def _bytes(request: Request) -> Response:
    """The key or the value of one record as it is in the log."""
    part = request.query_params.get("part", "value")
    try:
        query, tp, offset = _place(request.query_params)
        if part not in ("key", "value"):
            raise ValueError(f"part {part!r}: expected key or value")
        async with asyncio.timeout(DEADLINE_S):
            _, fields = await _find(context_of(request), query, offset)
    except (BarnabasError, ValueError, TimeoutError) as error:
        return PlainTextResponse(f"{error_text(error)}\n", status_of(error))
    data = fields[2] if part == "key" else fields[3]
    name = f"{file_name(tp.topic)}-{tp.partition}-{offset}.{part}"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(data or b"", media_type="application/octet-stream", headers=headers)


ROUTES: Final = [Route("/message", _message), Route("/message.bin", _bytes)]
