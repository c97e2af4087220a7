"""The live page: its routes, its stream, and its server on one socket of 127.0.0.1, which ends at once.

``GET stream`` sends the whole state, then its changes, as server-sent events; ``?with=groups,log`` adds parts
that few pages need. Belongs to the event loop that serves.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final

import uvicorn
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from barnabas.ui import (
    cluster_pages,
    event_log,
    faults,
    groups,
    message,
    messages,
    produce,
    protocol_faults,
    pulse,
    settings,
    transactions,
)
from barnabas.ui.access import Access, Address, local_addresses
from barnabas.ui.context import HERE, Context, render
from barnabas.ui.report import as_data
from barnabas.ui.sampler import Listener, Part, Sampler

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 9080
_PORTS: Final = 20
_SHUTDOWN_S: Final = 2
_RECONNECT_MS: Final = 1000
_MOST_LISTENERS: Final = 50
_MOST_CONNECTIONS: Final = 200
_REQUEST_S: Final = 10.0
"""A connection that sends no whole request for so long is closed."""
_GC_OBJECTS: Final = 20_000
"""The collector scans the young objects after so many new ones."""
_RECORDINGS: Final = HERE / "replays"


async def _replay(request: Request) -> Response:
    """Recorded histories: the shipped ones, and any file, which only the browser reads."""
    paths = {path.stem: path for path in sorted(_RECORDINGS.glob("*.json"))}
    titles = {name: json.loads(path.read_bytes())["title"] for name, path in paths.items()}
    name = request.query_params.get("name", "")
    if name and name not in paths:
        problem = f"There is no recording {name!r}; there are {', '.join(paths)}."
        return render(request, "replay.html", status=404, titles=titles, name="", data="", problem=problem)
    data = as_data(paths[name].read_text()) if name else ""
    return render(request, "replay.html", titles=titles, name=name, data=data, problem="")


async def _stream(request: Request) -> Response:
    sampler: Sampler = request.app.state.sampler
    wanted = request.query_params.get("with", "").split(",")
    if sampler.listeners >= _MOST_LISTENERS:
        close = {"connection": "close"}
        return Response("too many pages are open; close some\n", 503, close, "text/plain")
    return _Stream(sampler, sampler.listen(wanted))


class _Stream(EventSourceResponse):
    """Leaves the sampler however it ends: if the page has gone already, its events are never begun."""

    def __init__(self, sampler: Sampler, listener: Listener) -> None:
        super().__init__(_events(sampler, listener))
        self._leave = partial(sampler.leave, listener)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


async def _events(sampler: Sampler, listener: Listener) -> AsyncIterator[ServerSentEvent]:
    while True:
        await listener.wait()
        if listener.is_closed:
            return
        if listener.needs_state and sampler.state is not None:
            listener.needs_state = False
            whole = sampler.whole(listener.parts).decode()
            yield ServerSentEvent(whole, event="state", retry=_RECONNECT_MS)
        for change in listener.take():
            yield ServerSentEvent(change.decode(), event="change")


_ROUTES: Final[list[BaseRoute]] = [
    *cluster_pages.ROUTES,
    Route("/replay", _replay),
    *messages.ROUTES,
    *message.ROUTES,
    *produce.ROUTES,
    *pulse.ROUTES,
    *faults.ROUTES,
    *protocol_faults.ROUTES,
    *event_log.ROUTES,
    *groups.ROUTES,
    *transactions.ROUTES,
    *settings.ROUTES,
    Route("/stream", _stream),
    Mount("/static", StaticFiles(directory=HERE / "static")),
]
_PARTS: Final[Sequence[Part]] = (
    Part("groups", 3.0, groups.make_part),
    Part("transactions", 3.0, transactions.make_part),
    Part("log", 0.5, event_log.make_log),
)
"""The parts of the state that a page asks for by name."""


def make_app(context: Context) -> Starlette:
    sampler = Sampler(context, _PARTS)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(sampler.run())
        try:
            yield
        finally:
            await app.state.pulse.stop()
            sampler.close()
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    app = Starlette(routes=_ROUTES, lifespan=lifespan)
    # A redirect would name the host that the server sees, not that of a reverse proxy.
    app.router.redirect_slashes = False
    app.state.context = context
    app.state.sampler = sampler
    app.state.pulse = pulse.Pulse(context, sampler)
    return app


# -- the server ---------------------------------------------------------------------------------------------


def bind(port: int | None) -> socket.socket:
    """A listening socket on this port, or without one on the first free port from 9080 on. Raises OSError."""
    ports = range(FIRST_PORT, FIRST_PORT + _PORTS) if port is None else (port,)
    for number in ports:
        try:
            return socket.create_server((HOST, number))
        except OSError as error:
            reason = error
    # Python adds the address to the text of the system, a second time.
    raise OSError(reason.errno, os.strerror(reason.errno or 0), f"{HOST}:{ports[0]}") from reason


class _Connection(H11Protocol):
    """A connection; their number and the time of a request are bounded, which uvicorn does not do."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows asyncio's type, too
        super().connection_made(transport)
        self._look: asyncio.TimerHandle | None = None
        if len(self.connections) > _MOST_CONNECTIONS:
            transport.abort()
        else:
            self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        self._look = self.loop.call_later(_REQUEST_S, self._end_if_idle, self.cycle)

    def _end_if_idle(self, before: object) -> None:
        """No request has come since the last look, and none is under way."""
        if self.cycle is before and (self.cycle is None or self.cycle.response_complete):
            self.transport.abort()
        else:
            self._look_again()


class _Server(uvicorn.Server):
    """Ends its streams first: an open page would keep the server for as long as it is open."""

    def __init__(self, config: uvicorn.Config, sampler: Sampler) -> None:
        super().__init__(config)
        self._sampler = sampler

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the server in order; uvicorn would raise them again at the end."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def end(self) -> None:
        self.should_exit = True
        self._sampler.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._sampler.close()
        await super().shutdown(sockets)


def make_server(context: Context, *, port: int, token: str, public: Sequence[Address] = ()) -> _Server:
    app = make_app(context)
    addresses = [*local_addresses(port), *public]
    config = uvicorn.Config(
        Access(app, token=token, addresses=addresses, is_read_only=context.is_read_only),
        # Other installed packages must not add another parser, or websockets.
        http=_Connection,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    return _Server(config, app.state.sampler)


async def serve(
    context: Context,
    listening: socket.socket,
    *,
    token: str,
    public: Sequence[Address],
    ready: Callable[[], None],
) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is called once connections are accepted."""
    server = make_server(context, port=listening.getsockname()[1], token=token, public=public)
    # Each look makes thousands of objects without a cycle, which the collector would scan with the modules.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS)
    ready()
    await server.serve([listening])
