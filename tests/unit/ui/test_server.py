"""The server of the live page: its streams and connections are bounded, and end however a peer behaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from barnabas.ui import app as app_module
from barnabas.ui.app import bind, make_app, make_server
from barnabas.ui.context import Context
from barnabas.ui.sampler import Sampler
from tests.support.admins import quick_admin
from tests.support.asgi import get
from tests.support.fake_broker import FakeCluster

_LIMIT_S = 10


@pytest.fixture
async def context() -> AsyncIterator[Context]:
    async with FakeCluster() as cluster, quick_admin(cluster) as admin:
        yield Context(admin=admin, bootstrap=cluster.bootstrap, settings={})


async def test_a_page_that_has_gone_already_leaves_no_listener(context: Context) -> None:
    app = make_app(context)
    stream = {"type": "http", "method": "GET", "path": "/stream", "query_string": b"", "headers": []}

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        # As a server that waits for a slow reader.
        await asyncio.sleep(0)

    await asyncio.wait_for(app({**stream, "root_path": ""}, gone, send), _LIMIT_S)
    assert app.state.sampler.listeners == 0


async def test_more_pages_than_the_bound_are_refused(context: Context) -> None:
    app = make_app(context)
    for _ in range(50):
        app.state.sampler.listen([])
    assert (await get(app, "stream")).status == 503
    assert (await get(app, "topics")).status == 200


async def test_connections_are_bounded_and_slow_ones_end(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "_MOST_CONNECTIONS", 3)
    monkeypatch.setattr(app_module, "_REQUEST_S", 0.1)
    with bind(0) as listening:
        port = listening.getsockname()[1]
        server = make_server(context, port=port, token="token")
        serving = asyncio.create_task(server.serve([listening]))
        try:
            # The server refuses one request at once; the others are never finished.
            peers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            for _, writer in peers:
                writer.write(b"GET / HTTP/1.1\r\n")
            async with asyncio.timeout(_LIMIT_S):
                for reader, writer in peers:
                    with suppress(ConnectionResetError):
                        assert not await reader.read()
                    writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /token/topics HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n\r\n" % port)
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                writer.close()
        finally:
            server.end()
            await serving


async def test_an_unforeseen_error_is_logged_once_whatever_its_words(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    sampler = Sampler(context)
    for number in range(3):
        for kind in (KeyError, OSError):
            try:
                raise kind(number)
            except kind as error:
                sampler._failed("a look", error)
    assert len(caplog.records) == 2
