"""Who may see and change: a token in the URL, the names of this host, the Origin of changes.

Every path begins with the token, so relative links carry it, and a page of another site cannot guess it. The
Host header must be one that this server is known by: a name that another site lets point to 127.0.0.1 is
refused. A change is a POST whose Origin is this page's; without one (`curl`) the token alone counts.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TOKEN_BYTES: Final = 18
MAX_BODY_BYTES: Final = 2 << 20
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)


def make_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


class Access:
    """The outermost ASGI application; what it lets through has a path without the token."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Collection[str], is_read_only: bool) -> None:
        """`hosts`: values of the Host header, with the port; of other origins no change is accepted."""
        self._app = app
        self._token = token
        self._hosts = frozenset(hosts)
        self._is_read_only = is_read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reason = self._refusal(scope)
        if reason is not None:
            status, text = reason
            await PlainTextResponse(text + "\n", status)(scope, receive, send)
            return
        prefix = f"/{self._token}"
        inner = dict(scope, root_path=scope.get("root_path", "") + prefix)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await self._app(inner, receive, with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if host not in self._hosts:
            return 421, f"this page is not known as {host!r}; see `barnabas ui --help` about reverse proxies"
        token = scope["path"].lstrip("/").partition("/")[0]
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return 404, "the token of this page is missing or wrong; `barnabas ui` has printed its URL"
        if scope["method"] in ("GET", "HEAD"):
            return None
        if self._is_read_only:
            return 403, "this page was started with --read-only"
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin.partition("://")[2] not in self._hosts:
            return 403, f"a change from {origin!r} is refused: it is another origin"
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            return 413, f"a change has a body of at most {MAX_BODY_BYTES} bytes, and says its length"
        return None
