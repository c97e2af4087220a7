"""Access to the page: a token in the URL, the names of this host, the origin of changes.

Every path begins with the token, so relative links carry it, and a page of another site cannot guess it. The
Host header must be one that this server is known by: a name that another site lets point to 127.0.0.1 is
refused. A change is a POST whose Origin, if a browser sends one, is this page's; without one (`curl`) the
token alone counts. No other method changes anything, and no answer repeats the token.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TOKEN_BYTES: Final = 18
MAX_BODY_BYTES: Final = 2 << 20
_METHODS: Final = ("GET", "HEAD", "POST")
_SAME_SITE: Final = ("", "same-origin", "none")
"""Of Sec-Fetch-Site: no browser, this page, or the address bar."""
_HEADERS: Final = {
    b"content-security-policy": b"default-src 'self'; style-src 'self' 'unsafe-inline'; object-src 'none'; "
    b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    # With no-referrer a browser would send the Origin null with the forms of this page.
    b"referrer-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


def make_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


class Address(NamedTuple):
    """One address of the page: ``http://127.0.0.1:9080``, or that of a reverse proxy with a prefix."""

    origin: str
    prefix: str = ""
    """``/barnabas``; a proxy may remove it from the path or leave it there."""

    @property
    def host(self) -> str:
        """As in the Host header: without the default port, which browsers leave out."""
        return self.origin.partition("://")[2]

    @classmethod
    def parse(cls, url: str) -> Address:
        """Raises ValueError, with what was expected."""
        problem = f"{url!r}: expected a URL such as https://ops.example.org/barnabas/"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise ValueError(problem) from None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise ValueError(problem)
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"{problem}, without a user")
        name = f"[{host}]" if ":" in host else host
        default = {"http": 80, "https": 443}[parts.scheme]
        origin = f"{parts.scheme}://{name}" if port in (None, default) else f"{parts.scheme}://{name}:{port}"
        return cls(origin, parts.path.rstrip("/"))

    def url(self, token: str) -> str:
        return f"{self.origin}{self.prefix}/{token}/"


def local_addresses(port: int) -> list[Address]:
    return [Address.parse(f"http://{host}:{port}") for host in ("127.0.0.1", "localhost")]


class Access:
    """The outermost ASGI application; requests that it lets through have a root path with the token."""

    def __init__(
        self, app: ASGIApp, *, token: str, addresses: Collection[Address], is_read_only: bool
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = frozenset(address.host for address in addresses)
        self._origins = frozenset(address.origin for address in addresses)
        self._prefixes = sorted({address.prefix for address in addresses}, key=len, reverse=True)
        self._is_read_only = is_read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [header for header in message.get("headers", ()) if header[0].lower() not in _HEADERS]
                message["headers"] = [*kept, *_HEADERS.items()]
            await send(message)

        prefix, path = self._split(scope["path"])
        answer = self._refusal(scope, path)
        if answer is None and path == f"/{self._token}":
            # Relative links count from the last slash. The name after it is the one that the browser used.
            answer = RedirectResponse(f"./{self._token}/", 308)
        if answer is not None:
            await answer(scope, receive, with_headers)
            return
        inner = dict(scope, root_path=f"{prefix}/{self._token}")
        await self._app(inner, receive, with_headers)

    def _split(self, path: str) -> tuple[str, str]:
        """The prefix of a reverse proxy that left it in the path, and the rest."""
        for prefix in self._prefixes:
            if path.startswith(f"{prefix}/"):
                return prefix, path.removeprefix(prefix)
        return "", path

    def _refusal(self, scope: Scope, path: str) -> Response | None:
        host = _header(scope["headers"], b"host").lower()
        if host not in self._hosts:
            return _refuse(
                421,
                f"this page is not known as {host!r}; if it is behind a reverse proxy, start "
                "it with --public-url",
            )
        token = path.split("/", 2)[1] if path.startswith("/") else ""
        if not secrets.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return _refuse(404, "the token of this page is missing or wrong; `barnabas ui` has printed it")
        method = scope["method"]
        if method not in _METHODS:
            answer = _refuse(405, f"{method}: expected one of {', '.join(_METHODS)}")
            answer.headers["allow"] = ", ".join(_METHODS)
            return answer
        return self._refused_change(scope["headers"]) if method == "POST" else None

    def _refused_change(self, headers: Sequence[tuple[bytes, bytes]]) -> Response | None:
        if self._is_read_only:
            return _refuse(403, "this page was started with --read-only")
        origin = _header(headers, b"origin")
        if origin and origin.lower() not in self._origins:
            return _refuse(403, f"a change from the origin {origin!r} is refused: it is not this page's")
        if _header(headers, b"sec-fetch-site") not in _SAME_SITE:
            return _refuse(403, "a change from another site is refused")
        length = _header(headers, b"content-length")
        # With a transfer encoding the length would not bound the body.
        if _header(headers, b"transfer-encoding") or not (length.isascii() and length.isdigit()):
            return _refuse(411, "a change says the length of its body (Content-Length)")
        if int(length) > MAX_BODY_BYTES:
            return _refuse(413, f"a change of {length} bytes: expected at most {MAX_BODY_BYTES}")
        return None


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """Its value; of several values all, which equal no accepted one."""
    return ",".join(value.decode("latin-1") for key, value in headers if key == name)


def _refuse(status: int, text: str) -> Response:
    # The connection of a refused body must not be reused: nobody reads the body.
    headers = {"connection": "close"} if status in (411, 413) else None
    return PlainTextResponse(text + "\n", status, headers)
