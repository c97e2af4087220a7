"""Network links that fail while both ends live: TCP proxies before the brokers and before ZooKeeper.

Each broker has a proxy at its advertised address, and ZooKeeper has one too. A broker connects from an
address of its own (`walled_broker.py`), so that every fault is one of a pair, in one direction:

- a cut holds back the bytes from a source to a target, and the end of a connection; neither end gets an
  error. Held bytes arrive when the link is restored, as a network retransmits. Unlike in a network, a
  connection can be opened through a cut link; it is then silent;
- a delay lets the bytes arrive later, in their order;
- a rejection, as of a firewall or a router, resets the connections from a source to a target, and no further
  one can be opened. A proxy has one port for all sources, so the source itself is made to refuse
  (`walled_broker.py`).

A proxy whose target has ended refuses connections as the target's port would.

One thread runs the proxies; any thread may break and restore links. The held bytes are bounded: a proxy that
may not send reads no more than ``_MOST_CHUNKS`` further.
"""

import asyncio
import errno
import logging
import random
import socket
import struct
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

from barnabas.protocol.ids import Endpoint

log = logging.getLogger(__name__)

T = TypeVar("T")

CLIENT = "client"
ZOOKEEPER = "zookeeper"
_HOST = "127.0.0.1"
_BROKERS = "127.0.1."
_CHUNK = 1 << 16
_MOST_CHUNKS = 64
_TURNS = 10
_LOOK_S = 0.02
_RESET = struct.pack("ii", 1, 0)


class Links:
    """The links of one cluster.

    `walls` is the folder of the files that `walled_broker.py` reads, one for each source of a rejection.
    """

    def __init__(self, walls: Path) -> None:
        self._walls = walls
        self._cut: set[tuple[str, str]] = set()
        self._mended = asyncio.Event()
        self._delays_ms: dict[tuple[str, str], tuple[float, float]] = {}
        """The least delay, and the jitter added to it."""
        self._rejected: dict[tuple[str, str], int] = {}
        """By source and target: the error of an attempt to connect."""
        self._refusing: set[str] = set()
        """The targets whose port refuses though they may live."""
        self._servers: dict[str, asyncio.Server] = {}
        self._ends: dict[str, tuple[Endpoint, Endpoint]] = {}
        """Target → the address of its proxy, and its own address."""
        self._reserved: list[socket.socket] = []
        self._open: dict[tuple[str, str], set[asyncio.StreamWriter]] = {}
        """By source and target."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def place(self, target: int | str, endpoint: Endpoint) -> Endpoint:
        """Put a proxy before a target; the address by which the target is to be known."""
        return self._run(self._place(str(target), endpoint))

    def cut(self, source: int | str, target: int | str) -> None:
        """From now on nothing gets from the source to the target."""
        self._call(self._cut.add, (str(source), str(target)))

    def sever(self, one: int | str, other: int | str) -> None:
        """Cut both ways."""
        self.cut(one, other)
        self.cut(other, one)

    def delay(self, source: int | str, target: int | str, delay_ms: float, jitter_ms: float = 0.0) -> None:
        """From now on bytes from the source to the target take so long, and up to the jitter longer."""
        self._call(self._delays_ms.__setitem__, (str(source), str(target)), (delay_ms, jitter_ms))

    def refuse(self, target: int | str) -> None:
        """Make a target look dead from now on: its connections are reset, and its port refuses."""
        self._call(self._refusing.add, str(target))
        self._run(self._refuse(str(target)))

    def reject(self, source: int | str, target: int | str, error: int = errno.ECONNREFUSED) -> None:
        """Make a target look dead to one source, a broker; `error` is that of its attempts to connect."""
        self._call(self._reject, (str(source), str(target)), error)

    def reset(self, source: int | str) -> None:
        """Reset the connections that a source has opened; it may connect again at once."""
        self._call(self._abort, lambda link: link[0] == str(source))

    def mend(self) -> None:
        """Make all links work again, without refusals, rejections and delays."""
        self._call(self._mend, lambda link: True)
        self._call(self._refusing.clear)
        self._run(self._accept_all())

    def mend_pair(self, one: int | str, other: int | str) -> None:
        """Make the link between two ends work again, both ways."""
        self._call(self._mend, lambda link: set(link) == {str(one), str(other)})

    def close(self) -> None:
        """End the proxies; raises what one of them failed of."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for error in self._errors:
            raise error

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _call(self, act: Callable[..., object], *arguments: object) -> None:
        """On the proxies' thread; done when this returns."""
        done: Future[None] = Future()

        def run() -> None:
            act(*arguments)
            done.set_result(None)

        self._loop.call_soon_threadsafe(run)
        done.result(10)

    def _mend(self, is_meant: Callable[[tuple[str, str]], bool]) -> None:
        self._cut = {link for link in self._cut if not is_meant(link)}
        self._delays_ms = {link: took for link, took in self._delays_ms.items() if not is_meant(link)}
        for link in list(filter(is_meant, self._rejected)):
            del self._rejected[link]
            self._build_wall(link[0])
        self._mended.set()
        self._mended = asyncio.Event()

    def _reject(self, link: tuple[str, str], error: int) -> None:
        self._rejected[link] = error
        self._build_wall(link[0])
        self._abort(lambda opened: opened == link)

    def _build_wall(self, source: str) -> None:
        lines = [
            f"{self._ends[target][0].port} {error}\n"
            for (rejected, target), error in self._rejected.items()
            if rejected == source
        ]
        # The source reads a whole file, the old one or the new one.
        new = self._walls / f"{source}.new"
        new.write_text("".join(lines))
        new.rename(self._walls / source)

    async def _place(self, target: str, endpoint: Endpoint) -> Endpoint:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            carrying = self._spawn(self._carry(target, endpoint, reader, writer))
            # Also if it is cancelled before it begins.
            carrying.add_done_callback(lambda _: writer.transport.abort())

        if target not in self._ends:
            self._ends[target] = self._reserve(), endpoint
        before = self._ends[target][0]
        if target not in self._servers and target not in self._refusing:
            server = await asyncio.start_server(connected, *before, reuse_port=True, start_serving=False)
            if target in self._servers or target in self._refusing:
                # Another task was faster.
                server.close()
            else:
                self._servers[target] = server
                await server.start_serving()
        return before

    def _reserve(self) -> Endpoint:
        """A port kept while a proxy refuses: a socket is bound to it and never listens."""
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((_HOST, 0))
        self._reserved.append(reserved)
        return Endpoint(_HOST, reserved.getsockname()[1])

    async def _refuse(self, target: str) -> None:
        server = self._servers.pop(target, None)
        if server is not None:
            await self._stop_accepting([server])
        self._abort(lambda link: link[1] == target)

    async def _has_ended(self, target: str) -> None:
        """The target's own port refuses: so does the proxy's, until the target listens again."""
        if target not in self._servers:
            return
        await self._refuse(target)
        endpoint = self._ends[target][1]
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                _, writer = await asyncio.open_connection(*endpoint)
            except OSError:
                continue
            writer.transport.abort()
            await self._place(target, endpoint)
            return

    async def _stop_accepting(self, servers: Collection[asyncio.Server]) -> None:
        """Close servers. The loop begins an accepted connection some turns later, and leaks it if its server
        is closed by then."""
        for server in servers:
            for listening in server.sockets:
                self._loop.remove_reader(listening.fileno())
        try:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        finally:
            for server in servers:
                server.close()

    def _abort(self, is_meant: Callable[[tuple[str, str]], bool]) -> None:
        for link, ends in self._open.items():
            for writer in ends if is_meant(link) else ():
                if not writer.transport.is_closing():
                    # Otherwise it would be closed in order.
                    connection = writer.get_extra_info("socket")
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()

    async def _accept_all(self) -> None:
        for target in self._ends:
            await self._place(target, self._ends[target][1])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)

    async def _carry(
        self, target: str, endpoint: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = _source(writer.get_extra_info("peername"))
        opened = [writer]
        ends = self._open.setdefault((source, target), set())
        ends.add(writer)
        try:
            await self._passable(source, target)
            if (source, target) in self._rejected:
                # It had looked at its wall before.
                return
            there, onward = await asyncio.open_connection(*endpoint)
            opened.append(onward)
            ends.add(onward)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, onward, source, target))
                pumps.create_task(self._pump(there, writer, target, source))
        except ConnectionRefusedError:
            self._spawn(self._has_ended(target))
        except OSError as error:
            # The connection is reset; the source tries again.
            log.debug("%s -> %s: %s", source, target, error)
        finally:
            for one in opened:
                ends.discard(one)
                one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, target: str
    ) -> None:
        """Pass bytes on in one direction until they end; an end is passed on as well."""
        loop = self._loop
        under_way: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(_MOST_CHUNKS)

        async def take() -> None:
            arrives_s, data = 0.0, cast(bytes | None, b"-")
            while data:
                try:
                    data = await reader.read(_CHUNK)
                except OSError:
                    data = None
                least_ms, jitter_ms = self._delays_ms.get((source, target), (0.0, 0.0))
                delay_s = (least_ms + random.uniform(0, jitter_ms)) / 1000
                # No byte overtakes an earlier one.
                arrives_s = max(arrives_s, loop.time() + delay_s)
                await under_way.put((arrives_s, data))

        async with asyncio.TaskGroup() as both:
            taking = both.create_task(take())
            try:
                while True:
                    arrives_s, data = await under_way.get()
                    if (left_s := arrives_s - loop.time()) > 0:
                        await asyncio.sleep(left_s)
                    await self._passable(source, target)
                    if not data:
                        break
                    writer.write(data)
                    await writer.drain()
                if data is None:
                    # A reset is passed on as one.
                    writer.transport.abort()
                else:
                    writer.write_eof()
            except OSError:
                # To both ends, but by a cut link.
                await self._passable(source, target)
                writer.transport.abort()
            finally:
                taking.cancel()

    async def _passable(self, source: str, target: str) -> None:
        while (source, target) in self._cut:
            await self._mended.wait()

    async def _close(self) -> None:
        self._mend(lambda link: True)
        self._refusing.update(self._ends)
        await self._stop_accepting(self._servers.values())
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers.values():
            await server.wait_closed()
        for reserved in self._reserved:
            reserved.close()
        # An aborted connection is closed in the loop's next turn.
        await asyncio.sleep(0.01)


def address_of(broker: int) -> str:
    """The address from which a broker connects."""
    return f"{_BROKERS}{broker}"


def _source(peer: tuple[str, int] | None) -> str:
    """The broker that opened a connection, or a client; without an address it has ended already."""
    if peer is None or not peer[0].startswith(_BROKERS):
        return CLIENT
    return peer[0].removeprefix(_BROKERS)
