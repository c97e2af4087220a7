"""The page's socket, and what its server lets through."""

import socket

import pytest
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from barnabas.client.admin.admin import Admin
from barnabas.ui.app import bind, make_app, make_server
from barnabas.ui.context import Context
from tests.support.asgi import post


def test_a_busy_port_is_named_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="in use") as refused:
            bind(port)
    assert refused.value.strerror == "Address already in use"
    assert refused.value.filename == f"127.0.0.1:{port}"


async def test_a_page_that_may_only_see_refuses_every_change() -> None:
    """By the table of routes, so that a new one is not forgotten."""
    context = Context(
        admin=Admin(bootstrap_servers="127.0.0.1:1"), bootstrap="", settings={}, is_read_only=True
    )
    server = make_server(context, port=9080, token="token")

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        scope["headers"].append((b"host", b"127.0.0.1:9080"))
        await server.config.app(scope, receive, send)  # type: ignore[operator, arg-type]  # uvicorn types it as any kind of app

    routes = [route for route in make_app(context).routes if isinstance(route, Route)]
    changes = [route.path for route in routes if "POST" in (route.methods or ())]
    assert changes
    for path in changes:
        answer = await post(served, f"token{path}")
        assert (answer.status, "--read-only" in answer.text) == (403, True), path
    assert {name for route in routes for name in route.methods or ()} == {"GET", "HEAD", "POST"}
