"""The requests that reach the live page: hosts, the token, origins, methods, bodies."""

from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from barnabas.ui.access import MAX_BODY_BYTES, Access, Address, local_addresses

TOKEN = "secret-token"
PROXY = Address.parse("https://ops.example.org/barnabas/")
Headers = dict[str, str]


async def _inner(scope: Scope, receive: Receive, send: Send) -> None:
    # Starlette routes by the path below the root path.
    answer = PlainTextResponse(scope["path"].removeprefix(scope["root_path"]), headers={"Cache-Control": "x"})
    await answer(scope, receive, send)


async def _ask(
    method: str = "GET", path: str = f"/{TOKEN}/topics", *, is_read_only: bool = False, **headers: str
) -> tuple[int, dict[str, str], str]:
    given = {"host": "127.0.0.1:9080"} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    access = Access(_inner, token=TOKEN, addresses=[*local_addresses(9080), PROXY], is_read_only=is_read_only)
    await access(scope, receive, send)
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert len(answered) == len(sent[0]["headers"]), "no header twice"
    return sent[0]["status"], answered, b"".join(part.get("body", b"") for part in sent[1:]).decode()


@pytest.mark.parametrize("host", ["127.0.0.1:9080", "localhost:9080", "LOCALHOST:9080", "ops.example.org"])
async def test_a_known_host_with_the_token_is_let_through(host: str) -> None:
    status, headers, body = await _ask(host=host)
    assert (status, body) == (200, "/topics")
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "same-origin", "or forms of the page would send the Origin null"


@pytest.mark.parametrize(
    "host", ["", "127.0.0.1", "127.0.0.1:9081", "rebound.example:9080", "ops.example.org:9080"]
)
async def test_another_host_is_refused(host: str) -> None:
    assert (await _ask(host=host))[0] == 421


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "//",
        "/topics",
        "/secret-token2/",
        f"//{TOKEN}/",
        f"/x/{TOKEN}/",
        "/\udcff/",
        "/é",
    ],
)
async def test_a_wrong_token_is_refused_and_the_right_one_not_told(path: str) -> None:
    status, headers, body = await _ask(path=path)
    assert status == 404
    assert TOKEN not in body + str(headers)


async def test_the_token_alone_leads_to_the_first_page() -> None:
    status, headers, _ = await _ask(path=f"/{TOKEN}")
    assert (status, headers["location"]) == (308, f"./{TOKEN}/"), "relative, for a reverse proxy"


@pytest.mark.parametrize("path", [f"/barnabas/{TOKEN}/topics", f"/{TOKEN}/topics"])
async def test_a_proxy_may_leave_its_prefix_in_the_path(path: str) -> None:
    assert (await _ask(path=path, host="ops.example.org"))[2] == "/topics"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://127.0.0.1:9080"},
        {"origin": "http://localhost:9080", "sec_fetch_site": "same-origin"},
        {"origin": "https://ops.example.org"},
    ],
)
async def test_a_change_of_this_page_or_of_a_program_is_accepted(headers: Headers) -> None:
    assert (await _ask("POST", content_length="3", **headers))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9081"},
        {"origin": "https://127.0.0.1:9080"},
        {"origin": "http://ops.example.org"},
        {"origin": "http://127.0.0.1:9080.evil.example"},
        {"origin": "127.0.0.1:9080"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
async def test_a_change_of_another_origin_is_refused(headers: Headers) -> None:
    assert (await _ask("POST", content_length="3", **headers))[0] == 403


@pytest.mark.parametrize("length", ["", "-1", "+3", "x", "\xb2"])
async def test_a_change_without_a_length_is_refused(length: str) -> None:
    status, headers, _ = await _ask("POST", **({"content_length": length} if length else {}))
    assert (status, headers["connection"]) == (411, "close")


async def test_a_length_that_bounds_nothing_is_refused() -> None:
    # HTTP lets the transfer encoding win: a body of any size would follow.
    headers = {"content_length": "3", "transfer_encoding": "chunked"}
    assert (await _ask("POST", **headers))[0] == 411


async def test_a_change_has_a_bound() -> None:
    assert (await _ask("POST", content_length=str(MAX_BODY_BYTES)))[0] == 200
    assert (await _ask("POST", content_length=str(MAX_BODY_BYTES + 1)))[0] == 413


async def test_read_only_refuses_changes_alone() -> None:
    assert (await _ask("POST", content_length="3", is_read_only=True))[0] == 403
    assert (await _ask(is_read_only=True))[0] == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "post"])
async def test_another_method_is_refused(method: str) -> None:
    status, headers, _ = await _ask(method)
    assert (status, headers["allow"]) == (405, "GET, HEAD, POST")


async def test_a_websocket_is_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    access = Access(_inner, token=TOKEN, addresses=local_addresses(9080), is_read_only=False)
    await access({"type": "websocket", "path": f"/{TOKEN}/stream"}, None, send)  # type: ignore[arg-type]  # never read
    assert sent == ["websocket.close"]


@pytest.mark.parametrize(
    "url", ["", "ops.example.org", "ftp://h/", "https://u:p@h/", "https://h/?q", "http://h:x/"]
)
def test_a_malformed_public_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected a URL"):
        Address.parse(url)


def test_the_default_port_is_left_out_as_browsers_do() -> None:
    assert Address.parse("https://ops.example.org:443/a/").url("t") == "https://ops.example.org/a/t/"
    assert Address.parse("https://[::1]:8443").host == "[::1]:8443"
