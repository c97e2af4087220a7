"""Calls an ASGI application without a server, for tests of the live page.

page = await get(app, "messages?topic=t")
assert page.status == 200
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False
    """Its last part was sent; without it a server breaks the connection off."""

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def location(self) -> str:
        return self.headers["location"]


def _scope(method: str, url: str, headers: dict[str, str]) -> dict[str, Any]:
    path, _, query = url.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": f"/{path}",
        "raw_path": f"/{path}".encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


async def get(
    app: Any,
    url: str,
    *,
    leaves_after: Callable[[bytes], bool] = lambda body: False,
    has_left: bool = False,
    **headers: str,
) -> Answer:
    """The answer; the client disconnects once the body so far is enough, or before the beginning."""
    return await _call(app, _scope("GET", url, headers), b"", leaves_after, gone=has_left)


async def post(app: Any, url: str, value: object = None, /, *, accept: str = "*/*", **form: str) -> Answer:
    """With a form, or with a JSON value, as a script."""
    is_json = value is not None
    body = (json.dumps(value) if is_json else urlencode(form)).encode()
    headers = {
        "accept": accept,
        "content-type": "application/json" if is_json else "application/x-www-form-urlencoded",
        "content-length": str(len(body)),
    }
    return await _call(app, _scope("POST", url, headers), body, lambda body: False)


async def _call(
    app: Any, scope: Any, body: bytes, leaves_after: Callable[[bytes], bool], *, gone: bool = False
) -> Answer:
    answer, has_left = Answer(), asyncio.Event()
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    if gone:
        parts.clear()
        has_left.set()

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message["body"]
            answer.is_whole = not message.get("more_body", False)
            if leaves_after(answer.body):
                has_left.set()
                # As a server that waits for a slow reader.
                await asyncio.sleep(0)

    await app(scope, receive, send)
    return answer
