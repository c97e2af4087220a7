"""Network links that can be cut while both ends live: TCP proxies before the brokers and before ZooKeeper.

Each broker has a proxy at its advertised address, and ZooKeeper has one too. The process that opened a
connection is found in the kernel's tables. A cut has a direction: bytes from a source to a target are held
back, and so is the end of a connection; neither end gets an error. Held bytes arrive when the link is
restored, as a network retransmits. Unlike in a network, a connection can be opened through a cut link; it is
then silent.

One thread runs the proxies; any thread may cut and restore links. The held bytes are bounded by the buffers
of the connections, because a proxy that may not send does not read.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from barnabas.protocol.ids import Endpoint

T = TypeVar("T")

CLIENT = "client"
ZOOKEEPER = "zookeeper"
_HOST = "127.0.0.1"
_HOST_IN_TABLE = b"0100007F"
_CHUNK = 1 << 16
_TURNS = 10


class Links:
    """The links of one cluster. ``brokers`` returns the brokers' present ids by process id."""

    def __init__(self, brokers: Callable[[], Mapping[int, int]]) -> None:
        self._brokers = brokers
        self._cut: set[tuple[str, str]] = set()
        self._mended = asyncio.Event()
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

    def refuse(self, target: int | str) -> None:
        """Make a target look dead from now on: its connections are reset, and its port refuses."""
        self._run(self._refuse(str(target)))

    def reset(self, source: int | str) -> None:
        """Reset the connections that a source has opened; it may connect again at once."""
        self._call(self._abort, lambda link: link[0] == str(source))

    def mend(self) -> None:
        """Make all links work again, without refusals."""
        self._call(self._mend)
        self._run(self._accept_all())

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

    def _mend(self) -> None:
        self._cut.clear()
        self._mended.set()
        self._mended = asyncio.Event()

    async def _place(self, target: str, endpoint: Endpoint) -> Endpoint:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            carrying = self._spawn(self._carry(target, endpoint, reader, writer))
            # Also if it is cancelled before it begins.
            carrying.add_done_callback(lambda _: writer.transport.abort())

        if target not in self._ends:
            self._ends[target] = self._reserve(), endpoint
        before = self._ends[target][0]
        self._servers[target] = await asyncio.start_server(connected, *before, reuse_port=True)
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

    async def _stop_accepting(self, servers: Collection[asyncio.Server]) -> None:
        """Close servers. The loop begins an accepted connection some turns later, and leaks it if its server
        is closed by then."""
        for server in servers:
            for listening in server.sockets:
                self._loop.remove_reader(listening.fileno())
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        for server in servers:
            server.close()

    def _abort(self, is_meant: Callable[[tuple[str, str]], bool]) -> None:
        for link, ends in self._open.items():
            for writer in ends if is_meant(link) else ():
                writer.transport.abort()

    async def _accept_all(self) -> None:
        for target in self._ends.keys() - self._servers.keys():
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
        local, peer = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        # On another thread: the kernel may take long to read its tables. If other connections had to wait,
        # their clients would time out and connect again, ever more often.
        source = await asyncio.to_thread(self._source, peer[1], local[1]) if peer is not None else CLIENT
        opened = [writer]
        ends = self._open.setdefault((source, target), set())
        ends.add(writer)
        try:
            await self._passable(source, target)
            there, onward = await asyncio.open_connection(*endpoint)
            opened.append(onward)
            ends.add(onward)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, onward, source, target))
                pumps.create_task(self._pump(there, writer, target, source))
        except OSError:
            # The target refuses, so the proxy closes.
            return
        finally:
            for one in opened:
                ends.discard(one)
                one.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, target: str
    ) -> None:
        """Pass bytes on in one direction until they end; an end is passed on as well."""
        try:
            while True:
                data = await reader.read(_CHUNK)
                await self._passable(source, target)
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            # A reset is passed on as one, to both, but by a cut link.
            await self._passable(source, target)
            writer.transport.abort()

    async def _passable(self, source: str, target: str) -> None:
        while (source, target) in self._cut:
            await self._mended.wait()

    async def _close(self) -> None:
        self._mend()
        await self._stop_accepting(self._servers.values())
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._servers.values():
            await server.wait_closed()
        for reserved in self._reserved:
            reserved.close()
        await asyncio.get_running_loop().shutdown_default_executor()
        # What was aborted is closed in the loop's next turn.
        await asyncio.sleep(0.01)

    def _source(self, port: int, proxy_port: int) -> str:
        """The broker that opened the connection from this port to a proxy; a client if no broker did."""
        inode = _inode(port, proxy_port)
        for pid, broker in self._brokers().items():
            if inode is not None and inode in _inodes(pid):
                return str(broker)
        return CLIENT


def _inode(port: int, remote_port: int) -> str | None:
    """The socket that is bound to a local port and connected to another one, both of `_HOST`."""
    table = Path("/proc/net/tcp").read_bytes()
    # Not line by line: earlier tests may have left thousands of connections.
    at = table.find(b"%s:%04X %s:%04X " % (_HOST_IN_TABLE, port, _HOST_IN_TABLE, remote_port))
    # From its local address on: remote address, state, queues, timer, retransmits, user, timeout, inode.
    return table[at : at + 150].split()[8].decode() if at >= 0 else None


def _inodes(pid: int) -> Iterable[str]:
    """The sockets of a process; none when it has ended."""
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                text = entry.readlink().name
            except FileNotFoundError:
                # Closed meanwhile.
                continue
            if text.startswith("socket:["):
                found.add(text.removeprefix("socket:[").removesuffix("]"))
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found
