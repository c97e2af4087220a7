"""The process of the proxies before the brokers and ZooKeeper of a local cluster; not a command for people.

    python -m barnabas.deploy.link_proxies DIR --proxy NAME PORT HOST:PORT …

It listens at each PORT of 127.0.0.1 and passes bytes on to HOST:PORT, as the rules of `links.py` let it.
Requests come through the socket ``DIR/control``, one line of JSON each; every answer has all rules, and is
given once the rules hold. Nothing else has the rules: with this process they end.

One thread, one loop. A way that may not send holds at most `_MOST_HELD_BYTES` and then reads no more.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import random
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from barnabas.deploy.links import CLIENT, CONTROL, HOST, Answer, Request, Rule, RuleKind
from barnabas.deploy.short_paths import short_path
from barnabas.deploy.wall import broker_at, wall_file
from barnabas.protocol.ids import Endpoint

log = logging.getLogger(__name__)

_MOST_HELD_BYTES: Final = 4 << 20
_MOST_REQUEST_BYTES: Final = 1 << 16
_LOOK_S: Final = 0.02
_RESET: Final = struct.pack("ii", 1, 0)

Proxies = Mapping[str, tuple[int, Endpoint]]
"""Name of a target → the port of its proxy, and its own address."""


class LinkProxies:
    def __init__(self, folder: Path, proxies: Proxies) -> None:
        """`folder` has the control socket and the walls; those of an earlier process are removed."""
        self._folder = folder
        self._proxies = proxies
        self._rules: dict[tuple[RuleKind, str, str], Rule] = {}
        """By their keys."""
        self._servers: dict[str, asyncio.Server] = {}
        self._reserved: list[socket.socket] = []
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mended = asyncio.Event()
        self._control: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to serve; raises OSError if a port is in use."""
        for name, (port, _) in self._proxies.items():
            self._reserve(port)
            wall_file(self._folder, name).unlink(missing_ok=True)
            await self._listen(name)
        (self._folder / CONTROL).unlink(missing_ok=True)
        control = socket.socket(socket.AF_UNIX)
        with short_path(self._folder / CONTROL) as path:
            control.bind(path)
        self._control = await asyncio.start_unix_server(self._answer, sock=control, limit=_MOST_REQUEST_BYTES)

    async def close(self) -> None:
        for server in (self._control, *self._servers.values()):
            if server is not None:
                server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.reset()
        for reserved in self._reserved:
            reserved.close()
        # An aborted connection is closed in one of the loop's next turns.
        await asyncio.sleep(0.01)

    # -- rules ---------------------------------------------------------------------------------------------

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        error = None
        with suppress(OSError, asyncio.CancelledError):
            try:
                await self._obey(msgspec.json.decode(await reader.readline(), type=Request))
            except ValueError as problem:
                error = str(problem)
            writer.write(msgspec.json.encode(Answer(list(self._rules.values()), error)) + b"\n")
            await writer.drain()
        writer.close()

    async def _obey(self, request: Request) -> None:
        """Raises ValueError for the name of an end that does not exist."""
        for name in (request.mended or ()) + ((request.reset,) if request.reset else ()):
            self._check_end(name)
        if request.mended is not None:
            ends = set(request.mended)
            await self._mend(lambda rule: not ends or {rule.source, rule.target} == ends)
        if request.removed:
            removed = {rule.key for rule in request.removed} - {rule.key for rule in request.added}
            await self._mend(lambda rule: rule.key in removed)
        for rule in request.added:
            self._check_end(rule.target)
            if rule.kind is RuleKind.REFUSE:
                if rule.target not in self._proxies:
                    raise ValueError(f"{rule.target!r} has no port; expected {', '.join(self._proxies)}")
            else:
                self._check_end(rule.source)
            self._add(rule)
        if request.reset is not None:
            self._reset(lambda connection: connection.source == request.reset)

    def _check_end(self, name: str) -> None:
        if name != CLIENT and name not in self._proxies:
            raise ValueError(f"{name!r} is no end of a link; expected {', '.join([*self._proxies, CLIENT])}")

    def _add(self, rule: Rule) -> None:
        self._rules[rule.key] = rule
        match rule.kind:
            case RuleKind.REJECT:
                self._build_wall(rule.source)
                self._reset(lambda one: (one.source, one.target) == (rule.source, rule.target))
            case RuleKind.REFUSE:
                self._refuse(rule.target)
            case RuleKind.CUT | RuleKind.DELAY:
                self._renew_ways()

    async def _mend(self, is_meant: Callable[[Rule], bool]) -> None:
        mended = [rule for rule in self._rules.values() if is_meant(rule)]
        for rule in mended:
            del self._rules[rule.key]
        for rule in mended:
            if rule.kind is RuleKind.REJECT:
                self._build_wall(rule.source)
            elif rule.kind is RuleKind.REFUSE:
                await self._listen(rule.target)
        self._mended.set()
        self._mended = asyncio.Event()
        self._renew_ways()

    def _renew_ways(self) -> None:
        for connection in list(self._connections):
            for way in connection.ways:
                way.renew()

    def _build_wall(self, source: str) -> None:
        lines = [
            f"{self._proxies[rule.target][0]} {rule.error}\n"
            for rule in self._rules.values()
            if rule.kind is RuleKind.REJECT and rule.source == source and rule.target in self._proxies
        ]
        # The source reads a whole file, the old one or the new one.
        wall = wall_file(self._folder, source)
        new = wall.with_suffix(".new")
        new.write_text("".join(lines))
        new.rename(wall)

    def delay_s(self, source: str, target: str) -> float:
        rule = self._rules.get((RuleKind.DELAY, source, target))
        return 0.0 if rule is None else (rule.delay_ms + random.uniform(0, rule.jitter_ms)) / 1000

    def has(self, kind: RuleKind, source: str, target: str) -> bool:
        return (kind, source, target) in self._rules

    # -- ports ---------------------------------------------------------------------------------------------

    def _reserve(self, port: int) -> None:
        """Keep the port while the proxy refuses: a socket is bound to it and never listens."""
        if sys.platform == "darwin":
            # There it would swallow connections, which are to be refused.
            return
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.append(reserved)
        reserved.bind((HOST, port))

    async def _listen(self, target: str) -> None:
        if target in self._servers or self.has(RuleKind.REFUSE, "", target):
            return
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _Connection(self, target).accepted, HOST, self._proxies[target][0], reuse_port=True
        )
        if target in self._servers or self.has(RuleKind.REFUSE, "", target):
            # Another task was faster.
            server.close()
        else:
            self._servers[target] = server

    def _refuse(self, target: str) -> None:
        if (server := self._servers.pop(target, None)) is not None:
            server.close()
        self._reset(lambda connection: connection.target == target)

    async def _has_ended(self, target: str) -> None:
        """The target's own port refuses: so does the proxy's, until the target listens again."""
        if target not in self._servers:
            return
        self._refuse(target)
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                _, writer = await asyncio.open_connection(*self._proxies[target][1])
            except OSError:
                continue
            writer.transport.abort()
            await self._listen(target)
            return

    def _reset(self, is_meant: Callable[[_Connection], bool]) -> None:
        for connection in list(filter(is_meant, self._connections)):
            connection.reset()

    # -- connections ---------------------------------------------------------------------------------------

    def opened(self, connection: _Connection) -> None:
        self._connections.add(connection)
        connection.connecting = self._spawn(self._connect(connection))

    def closed(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    async def _connect(self, connection: _Connection) -> None:
        source, target = connection.source, connection.target
        while self.has(RuleKind.CUT, source, target):
            await self._mended.wait()
        if self.has(RuleKind.REJECT, source, target):
            # It had looked at its wall before.
            connection.reset()
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: connection.onward, *self._proxies[target][1])
        except OSError as error:
            log.debug("%s -> %s: %s", source, target, error)
            connection.reset()
            if error.errno == errno.ECONNREFUSED:
                self._spawn(self._has_ended(target))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a proxy failed", exc_info=error)


class _Connection:
    """A connection of a source to a target, through a proxy."""

    def __init__(self, proxies: LinkProxies, target: str) -> None:
        self._proxies = proxies
        self.source = CLIENT
        self.target = target
        there, back = _Way(proxies, self), _Way(proxies, self)
        self.ways = there, back
        self.accepted = _End(self, there, back)
        self.onward = _End(self, back, there)
        self.connecting: asyncio.Task[None] | None = None

    def began(self, end: _End) -> None:
        if end is not self.accepted:
            if self.accepted.is_lost:
                # It has been reset meanwhile.
                end.reset()
            return
        peer = end.transport.get_extra_info("peername") if end.transport else None
        if peer:
            self.source = broker_at(peer[0]) or CLIENT
        there, back = self.ways
        there.link = self.source, self.target
        back.link = self.target, self.source
        for way in self.ways:
            way.renew()
        self._proxies.opened(self)

    def lost(self) -> None:
        if all(end.is_lost for end in (self.accepted, self.onward) if end.transport is not None):
            for way in self.ways:
                way.stop()
            if self.connecting is not None:
                self.connecting.cancel()
            self._proxies.closed(self)

    def way_ended(self) -> None:
        if all(way.has_ended for way in self.ways):
            for end in (self.accepted, self.onward):
                if end.transport is not None:
                    end.transport.close()

    def reset(self) -> None:
        for end in (self.accepted, self.onward):
            end.reset()


class _End(asyncio.Protocol):
    """One of the two ends of a connection, as seen from the proxy."""

    def __init__(self, connection: _Connection, outgoing: _Way, incoming: _Way) -> None:
        """`outgoing`: from this end to the other one."""
        self._connection = connection
        self._outgoing = outgoing
        self._incoming = incoming
        self.transport: asyncio.Transport | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._outgoing.reader = self._incoming.writer = self.transport
        self._connection.began(self)
        self._incoming.pass_on()

    def data_received(self, data: bytes) -> None:
        self._outgoing.take(data)

    def eof_received(self) -> bool:
        self._outgoing.take(b"")
        # This end may still receive.
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if error is not None:
            self._outgoing.take(None)
        self._connection.lost()

    def pause_writing(self) -> None:
        self._incoming.set_blocked(True)

    def resume_writing(self) -> None:
        self._incoming.set_blocked(False)

    def reset(self) -> None:
        if self.transport is None:
            return
        if not self.transport.is_closing():
            # Otherwise it would be closed in order.
            connection = self.transport.get_extra_info("socket")
            # macOS refuses the options of a connection that its peer has closed already.
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


class _Way:
    """The bytes of a connection in one direction; its end (no bytes) and a reset (None) are passed on too."""

    def __init__(self, proxies: LinkProxies, connection: _Connection) -> None:
        self._proxies = proxies
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.link = CLIENT, CLIENT
        self.reader: asyncio.Transport | None = None
        self.writer: asyncio.Transport | None = None
        self.has_ended = False
        self._is_cut = False
        self._is_blocked = False
        """Whether the writer has as many bytes as it takes."""
        self._is_paused = False
        self._held: deque[tuple[float, bytes | None]] = deque()
        """With the time at which they arrive."""
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def renew(self) -> None:
        """The rules have changed."""
        self._is_cut = self._proxies.has(RuleKind.CUT, *self.link)
        self.pass_on()

    def set_blocked(self, is_blocked: bool) -> None:
        self._is_blocked = is_blocked
        self.pass_on()

    def take(self, data: bytes | None) -> None:
        arrives_s = self._loop.time() + self._proxies.delay_s(*self.link)
        if self._held:
            # No byte overtakes an earlier one.
            arrives_s = max(arrives_s, self._held[-1][0])
        self._held.append((arrives_s, data))
        self._held_bytes += len(data or b"")
        self.pass_on()

    def pass_on(self) -> None:
        self.stop()
        while self._held and self.writer is not None and not self._is_cut and not self._is_blocked:
            arrives_s, data = self._held[0]
            if arrives_s > self._loop.time():
                self._timer = self._loop.call_at(arrives_s, self.pass_on)
                break
            self._held.popleft()
            self._held_bytes -= len(data or b"")
            self._write(self.writer, data)
        self._read_on()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self, writer: asyncio.Transport, data: bytes | None) -> None:
        if data is None:
            self._connection.reset()
            return
        if not writer.is_closing():
            writer.write(data) if data else writer.write_eof()
        if not data:
            self.has_ended = True
            self._connection.way_ended()

    def _read_on(self) -> None:
        is_full = self._is_blocked or self._held_bytes >= _MOST_HELD_BYTES
        if is_full == self._is_paused or self.reader is None or self.reader.is_closing():
            return
        self._is_paused = is_full
        if is_full:
            self.reader.pause_reading()
        else:
            self.reader.resume_reading()


async def serve(folder: Path, proxies: Proxies) -> None:
    await LinkProxies(folder, proxies).start()
    await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> int:
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m barnabas.deploy.link_proxies", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--proxy", nargs=3, action="append", default=[], metavar=("NAME", "PORT", "TARGET"))
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    proxies = {name: (int(port), Endpoint.parse(target)) for name, port, target in options.proxy}
    try:
        uvloop.run(serve(options.folder, proxies))
    except OSError as error:
        print(f"links: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
