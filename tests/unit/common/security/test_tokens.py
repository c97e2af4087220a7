"""Sources of bearer tokens, and a token endpoint that grants, refuses or fails."""

import base64
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

import pytest

from barnabas.common.security.tokens import (
    StaticToken,
    TokenEndpoint,
    TokenFile,
    TokenFromProgram,
    make_token_source,
)
from barnabas.protocol.errors import (
    AuthenticationFailed,
    ConnectionClosed,
    InvalidConfiguration,
    SaslAuthenticationFailed,
)


def jwt(life_s: float) -> str:
    claims = json.dumps({"sub": "me", "exp": time.time() + life_s}).encode()
    return "e30." + base64.urlsafe_b64encode(claims).decode().rstrip("=") + ".sig"


class _Endpoint(http.server.BaseHTTPRequestHandler):
    requests: ClassVar[list[tuple[str, dict[str, list[str]]]]] = []
    status = 200
    body = b""
    redirected = 0

    def do_GET(self) -> None:
        type(self).redirected += 1
        self.send_error(404)

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.requests.append((self.headers["Authorization"], form))
        if not self.status:
            self.wfile.write(self.body)
            return
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests need no log."""


@pytest.fixture
def endpoint() -> Iterator[tuple[str, type[_Endpoint]]]:
    handler = type("Handler", (_Endpoint,), {"requests": []})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/token", handler
        server.shutdown()
        thread.join()


def source(url: str, **others: Any) -> TokenEndpoint:
    return TokenEndpoint(url, "me", "s+cret", **others)


async def test_a_token_endpoint_is_asked_once_in_the_life_of_a_token(
    endpoint: tuple[str, type[_Endpoint]],
) -> None:
    url, handler = endpoint
    token = jwt(60)
    handler.body = json.dumps({"access_token": token}).encode()
    tokens = source(url, scope="kafka")
    assert [await tokens.token() for _ in range(3)] == [token] * 3
    ((authorization, form),) = handler.requests
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"me:s+cret"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    await source(url, is_urlencoded=True).token()
    assert base64.b64decode(handler.requests[1][0].removeprefix("Basic ")) == b"me:s%2Bcret"


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, b"{}", SaslAuthenticationFailed),
        (200, b"{}", SaslAuthenticationFailed),
        (200, b'{"access_token":""}', SaslAuthenticationFailed),
        (200, b'{"access_token":1}', SaslAuthenticationFailed),
        (200, b"<html>", SaslAuthenticationFailed),
        (200, b"[" * 100_000, SaslAuthenticationFailed),
        (500, b"", ConnectionClosed),
        # Raw answers, of no HTTP and of less than was promised.
        (0, b"SSH-2.0-x\r\n\r\n", ConnectionClosed),
        (0, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc", ConnectionClosed),
    ],
)
async def test_a_token_that_is_not_granted(
    endpoint: tuple[str, type[_Endpoint]], status: int, body: bytes, error: type[Exception]
) -> None:
    url, handler = endpoint
    handler.status, handler.body = status, body
    with pytest.raises(ConnectionClosed) as caught:
        await source(url).token()
    assert type(caught.value) is error
    assert "cret" not in str(caught.value)


async def test_the_secret_follows_no_redirect(endpoint: tuple[str, type[_Endpoint]]) -> None:
    url, handler = endpoint
    handler.status = 0
    handler.body = f"HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode()
    with pytest.raises(SaslAuthenticationFailed, match="302"):
        await source(url).token()
    assert len(handler.requests) == 1
    assert handler.redirected == 0


async def test_the_options_of_the_login_module_name_the_certificates_to_trust_there() -> None:
    options = {"ssl.truststore.location": "/missing"}
    source = make_token_source(
        "https://localhost:1/",
        options,
        client_id="me",
        client_secret="hunter2",
        timeouts_ms=(None,),
        tls=ssl.create_default_context,
    )
    with pytest.raises(InvalidConfiguration, match=r"ssl\.truststore\.location=/missing"):
        await source.token()


async def test_an_endpoint_that_is_away_may_be_back_later() -> None:
    with pytest.raises(ConnectionClosed, match="cannot be asked") as caught:
        await source("http://127.0.0.1:1/token").token()
    assert not isinstance(caught.value, AuthenticationFailed)


async def test_a_token_that_has_lived_four_fifths_of_its_life_is_replaced() -> None:
    given = [jwt(0.5), jwt(100), jwt(100)]
    expected = given[1]
    tokens = TokenFromProgram(lambda: given.pop(0))
    await tokens.token()
    while len(given) == 2:
        await tokens.token()
    assert await tokens.token() == expected
    assert len(given) == 1


async def _asynchronous() -> str:
    return "t"


class _Provider:
    def token(self) -> str:
        return "t"


class _AsyncProvider:
    async def token(self) -> tuple[str, float]:
        return "t", time.time() + 60


@pytest.mark.parametrize(
    "provider", [lambda: "t", _asynchronous, _Provider(), _AsyncProvider(), lambda: ("t", time.time() + 9)]
)
async def test_the_forms_of_a_provider(provider: Any) -> None:
    assert await TokenFromProgram(provider).token() == "t"


def _failing() -> str:
    raise ValueError("the secret is 42")


@pytest.mark.parametrize("provider", [lambda: None, lambda: "", lambda: ("t", "soon"), _failing])
async def test_a_provider_without_a_token(provider: Callable[[], str]) -> None:
    with pytest.raises(SaslAuthenticationFailed, match="sasl_oauth_token_provider") as caught:
        await TokenFromProgram(provider).token()
    assert "42" not in str(caught.value)


async def test_a_file_is_read_again_for_each_authentication(tmp_path: Path) -> None:
    path = tmp_path / "token"
    tokens = TokenFile(path)
    with pytest.raises(SaslAuthenticationFailed, match="has no token"):
        await tokens.token()
    for token in (jwt(100), jwt(200)):
        path.write_text(token + "\n")
        assert await tokens.token() == token
    assert await StaticToken("t").token() == "t"
