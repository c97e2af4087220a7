"""Servers and channels for the tests of channels."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from barnabas.common.channel import Channel
from barnabas.common.dialects import Wire
from barnabas.protocol.ids import Endpoint

from .channel_server import Server

MakeChannel = Callable[..., Channel]


@pytest.fixture(params=list(Wire), ids=lambda wire: wire.value)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    """A server of each dialect in turn; a test of one dialect sets the parameter."""
    made = Server(request.param)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def channel_to() -> AsyncIterator[MakeChannel]:
    """Makes channels and closes them; fails the test when the loop had to report something."""
    # The collection at the end then looks at this test's objects alone.
    gc.freeze()
    made: list[Channel] = []
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def make(server: Server | Endpoint, **settings: Any) -> Channel:
        if isinstance(server, Server):
            settings.setdefault("wire", server.wire)
            server = server.endpoint
        settings = {"reconnect_backoff_ms": 5, "reconnect_backoff_max_ms": 20, "client_id": "test"} | settings
        made.append(Channel(server, **settings))
        return made[-1]

    yield make
    for channel in made:
        channel.close()
    await asyncio.sleep(0)
    gc.collect()
    gc.unfreeze()
    assert reported == []


@pytest.fixture
def channel(channel_to: MakeChannel, server: Server) -> Channel:
    return channel_to(server)
