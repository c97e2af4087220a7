"""The pages of records: a page of a search, its live tail, and its download as JSON lines.

Every page works without JavaScript. Each request has a deadline and a bound of memory, however large the
topic is; the download alone lasts for as long as its reader takes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Send

from barnabas.client.admin.admin import Admin
from barnabas.client.isolation import TransactionEnd
from barnabas.client.record_texts import json_line
from barnabas.common.texts import count, iso_time
from barnabas.protocol.errors import BarnabasError, UnknownTopicOrPartitionError
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId
from barnabas.ui.asking import error_text, status_of
from barnabas.ui.context import TEMPLATES, Context, context_of, render
from barnabas.ui.message_formats import show
from barnabas.ui.message_query import (
    FORMATS,
    LATEST,
    NAMES,
    Query,
    Where,
    bytes_text,
    link,
    offsets_text,
    parse_place,
    parse_query,
)
from barnabas.ui.message_range import Offsets, Range, find_range, reader
from barnabas.ui.message_scan import Bounds, Row, Scan, all_records

log = logging.getLogger(__name__)

DEADLINE_S: Final = 30.0
_MAX_LISTED_TOPICS: Final = 500
_CHUNK_BYTES: Final = 256 * 1024
_MAX_TAILS: Final = 8
_SEARCH_BYTES: Final = 512 << 20
_TAIL_ROWS: Final = 50
_TAIL_S: Final = 0.5
_TAIL_SECONDS: Final = 1.0
_TAIL_BYTES: Final = 16 << 20
_tails: Final = asyncio.Semaphore(_MAX_TAILS)

_STATES: Final = {
    TransactionEnd.COMMITTED: ("committed", "Its transaction was committed."),
    TransactionEnd.ABORTED: ("aborted", "Its transaction was aborted: read_committed consumers skip it."),
    TransactionEnd.UNKNOWN: ("undecided", "No marker of its transaction was found in the next 8 MB."),
}
_OPEN: Final = ("open", "Its transaction is open: read_committed consumers wait for its end.")
_HELD_BACK: Final = ("held back", "An earlier open transaction holds it back from read_committed consumers.")


def state_of(row: Row) -> list[tuple[str, str]]:
    """The words about a record's transaction, each with its explanation."""
    if row.marker:
        return [(f"{row.marker} marker", f"Ends the transaction of producer {row.producer_id}.")]
    if row.is_open:
        return [_OPEN]
    states = [] if row.end is None else [_STATES[row.end]]
    return [*states, _HELD_BACK] if row.is_held_back else states


def row_values(context: Context, query: Query, row: Row) -> dict[str, Any]:
    """The values of `message_rows.html` for one record."""
    avro = context.decoders.get(query.topic)
    place = {"topic": query.topic, "partition": row.partition, "offset": row.offset}
    has_key = row.key is not None and row.key.is_whole and not row.marker
    same_key = {"key": bytes_text(row.key.data) if row.key is not None else "", "from": "earliest", "to": ""}
    return {
        "row": row,
        "time": iso_time(row.timestamp_ms),
        "link": link("message", {**place, "format": query.texts["format"]}),
        "same_key": query.link(**same_key) if has_key else "",
        "key": show(row.key, "hex" if query.format == "hex" else "auto"),
        "value": show(row.value, query.format, avro),
        "headers": [(name, show(value, "auto")) for name, value in row.headers],
        "states": state_of(row),
    }


async def _messages(request: Request) -> Response:
    context = context_of(request)
    texts = {name: request.query_params.get(name, "") for name in NAMES}
    values: dict[str, Any] = {"formats": FORMATS, "texts": texts, "error": "", "query": None, "topics": []}
    try:
        async with asyncio.timeout(DEADLINE_S):
            query = parse_query(request.query_params)
            values["query"] = query
            values["topics"] = (await context.admin.list_topics(include_internal=True))[:_MAX_LISTED_TOPICS]
            if query.topic:
                values |= await _search(context, query, request.is_disconnected)
    except (BarnabasError, ValueError, TimeoutError) as error:
        values["error"] = error_text(error)
        return render(request, "messages.html", status=status_of(error), **values)
    return render(request, "messages.html", **values)


async def _search(context: Context, query: Query, has_left: Callable[[], Awaitable[bool]]) -> dict[str, Any]:
    found = await find_range(context.admin, query)
    bounds = Bounds(size_bytes=_SEARCH_BYTES)
    began = bounds.clock()
    read = reader(context.admin, found.high)
    scan = Scan(read, query, dict(found.low), dict(found.high), query.limit, bounds, has_left)
    await scan.run()
    return {
        "found": found,
        "scan": scan,
        "lines": [row_values(context, query, row) for row in scan.rows],
        "searched": searched_text(query, found, scan, bounds.clock() - began),
        "links": links_of(query, found, scan),
        "partitions": [info.partition for info in found.topic.partitions],
    }


def _by_partition(where: Where, offsets: Offsets) -> str:
    return offsets_text(where, {tp.partition: offset for tp, offset in offsets.items()})


def links_of(query: Query, found: Range, scan: Scan) -> dict[str, str]:
    """The pages before and after this one; empty where there is none."""
    is_backward = query.start.is_backward
    older = scan.high if is_backward else found.low
    newer = found.high if is_backward else scan.low
    has_older = any(older[tp] > found.log_start[tp] for tp in older)
    return {
        "older": query.link(**{"from": _by_partition(Where.BEFORE, older)}) if has_older else "",
        "newer": query.link(**{"from": _by_partition(Where.AT, newer)}) if newer else "",
        "download": query.link("messages.jsonl", **{"from": _by_partition(Where.AT, older)}),
        "tail": query.link("messages/tail", **{"from": _by_partition(Where.AT, newer)})
        if query.end.where is Where.LATEST and (is_backward or scan.is_done)
        else "",
    }


def searched_text(query: Query, found: Range, scan: Scan, seconds: float) -> str:
    """The part of the range that was searched, as a sentence."""
    if not (query.has_filter or scan.is_cut_short or scan.error):
        return ""
    total = sum(found.high[tp] - found.low[tp] for tp in found.low)
    left = sum(scan.high[tp] - scan.low[tp] for tp in scan.low)
    if len(found.low) == 1:
        (tp,) = found.low
        is_backward = query.start.is_backward
        part = (scan.high[tp], found.high[tp]) if is_backward else (found.low[tp], scan.low[tp])
        what = f"offsets {part[0]:,} to {part[1]:,} of {found.high[tp]:,}"
    else:
        what = f"{total - left:,} of {count(total, 'offset')} in {count(len(found.low), 'partition')}"
    matches = f", {count(len(scan.rows), 'match', 'matches')}" if query.has_filter else ""
    return f"Searched {what} in {seconds:.1f} s ({scan.size_bytes / 1e6:,.1f} MB){matches}."


# Download


async def _download(request: Request) -> Response:
    admin = context_of(request).admin
    try:
        query = parse_query(request.query_params)
        async with asyncio.timeout(DEADLINE_S):
            found = await find_range(admin, query)
    except (BarnabasError, ValueError, TimeoutError) as error:
        return PlainTextResponse(error_text(error) + "\n", status_of(error))
    headers = {"content-disposition": f'attachment; filename="{file_name(query.topic)}.jsonl"'}
    return _Download(admin, query, found, headers)


def file_name(topic: str) -> str:
    """Names of topics have no other characters, but a header must not depend on that."""
    return "".join(letter for letter in topic if letter.isascii() and (letter.isalnum() or letter in "._-"))


class _Download(StreamingResponse):
    """After an error the connection is closed before the end of the body, so no reader takes it for whole."""

    def __init__(self, admin: Admin, query: Query, found: Range, headers: Mapping[str, str]) -> None:
        super().__init__(self._lines(admin, query, found), headers=headers, media_type="application/x-ndjson")
        self._is_whole = False

    async def stream_response(self, send: Send) -> None:
        async def send_unless_cut(message: Message) -> None:
            if message.get("more_body", True) or self._is_whole:
                await send(message)

        await super().stream_response(send_unless_cut)

    async def _lines(self, admin: Admin, query: Query, found: Range) -> AsyncIterator[bytes]:
        """The lines, in chunks; an error ends them with a line of its own."""
        lines: list[bytes] = []
        size_bytes = 0
        try:
            async for record in all_records(reader(admin, found.high), query, found.low, found.high):
                lines += [_error_line(record) if isinstance(record, str) else json_line(record), b"\n"]
                size_bytes += len(lines[-2])
                if size_bytes >= _CHUNK_BYTES:
                    yield b"".join(lines)
                    lines, size_bytes = [], 0
            lines += [line for text in found.unread for line in (_error_line(text), b"\n")]
            self._is_whole = not found.unread
        except BarnabasError as error:
            lines += [_error_line(str(error)), b"\n"]
        yield b"".join(lines)


def _error_line(text: str) -> bytes:
    return json.dumps({"error": text}).encode()


# Tail


async def _tail(request: Request) -> Response:
    try:
        query = parse_query(request.query_params)
        if last := request.headers.get("last-event-id"):
            query = replace(query, start=parse_place("last-event-id", last))
        if not query.topic:
            raise ValueError("topic '': expected the topic to follow")
    except ValueError as error:
        return PlainTextResponse(f"{error}\n", 400)
    if _tails.locked():
        return PlainTextResponse(f"{_MAX_TAILS} live tails are open, which is the most\n", 503)
    return EventSourceResponse(_events(context_of(request), query))


async def _events(context: Context, query: Query) -> AsyncIterator[dict[str, str]]:
    """Each half second the newest records, at most `_TAIL_ROWS`; the rest is counted."""
    async with _tails:
        tail = _Tail(context, query)
        while True:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    event = await tail.tick()
            except UnknownTopicOrPartitionError as error:
                yield {"event": "end", "data": json.dumps({"text": str(error)})}
                return
            except (BarnabasError, ValueError, TimeoutError) as error:
                log.debug("tail of %s: %s", query.topic, error)
                event = {"text": error_text(error)}
            if event:
                at = {"id": _by_partition(Where.AT, tail.position)} if tail.position else {}
                yield {"data": json.dumps(event)} | at
            await asyncio.sleep(_TAIL_S)


@dataclass
class _Tail:
    """A reader that is at the end of the log after each tick."""

    context: Context
    query: Query
    position: Offsets | None = None
    topic_id: TopicId = NO_TOPIC_ID

    async def tick(self) -> dict[str, Any]:
        """The event to send; empty if nothing happened."""
        admin, query = self.context.admin, self.query
        newest = await find_range(admin, replace(query, start=LATEST, end=LATEST))
        texts, ends, starts = [*newest.unread, *newest.notes], newest.high, newest.log_start
        if self.position is None:
            self.topic_id = newest.topic.topic_id
            self.position = ends if query.start.is_backward else (await find_range(admin, query)).low
        if newest.topic.topic_id != self.topic_id:
            texts.append("The topic was deleted and made again; this is the new one.")
            self.topic_id, self.position = newest.topic.topic_id, starts
        elif any(self.position.get(tp, end) > end for tp, end in ends.items()):
            texts.append("The log is shorter than before: it was truncated.")
        low = {tp: min(max(self.position.get(tp, end), starts[tp]), end) for tp, end in ends.items()}
        backward = replace(query, start=LATEST)
        bounds = Bounds(_TAIL_SECONDS, _TAIL_BYTES)
        scan = Scan(reader(admin), backward, low, dict(ends), _TAIL_ROWS, bounds)
        await scan.run()
        self.position = ends
        if skipped := sum(scan.high[tp] - scan.low[tp] for tp in scan.low):
            texts.append(f"{count(skipped, 'offset')} were passed over: more arrives than is shown.")
        texts += [scan.error] if scan.error else []
        rows = [row_values(self.context, query, row) for row in scan.rows]
        if not rows and not texts:
            return {}
        html = TEMPLATES.get_template("message_rows.html").render(lines=rows)
        return {"html": html, "text": " ".join(texts)}


ROUTES: Final = [
    Route("/messages", _messages),
    Route("/messages/tail", _tail),
    Route("/messages.jsonl", _download),
]
