"""Measures the CPU of the live page: its server, its tab in Chromium, and the brokers with and without it.

Three brokers with 100 partitions of three replicas and 10 groups, idle and under a steady load of acks=all.
The brokers with a page open stand beside those of the seconds just before, without one. A reader of the
stream is the page for the server's figures; the tab is that of a headless Chromium, which draws in software.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from barnabas.client.admin.admin import Admin
from barnabas.client.admin.topics import NewTopic
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.producer.producer import Producer
from barnabas.deploy.local import LocalCluster
from benchmarks.support import (
    Figure,
    Options,
    broker_pids,
    cpu_seconds,
    memory_mb,
    run,
    running_cluster,
    tell,
    temporary_folder,
)

_TOPIC: Final = "load"
_GROUP_TOPIC: Final = "shared"
_PARTITIONS: Final = 100
_GROUPS: Final = 10
_RECORDS_PER_S: Final = 500
_SETTLE_S: Final = 3.0
_START_S: Final = 20.0
_STREAMS: Final = {"overview": "", "groups": "?with=groups"}
_TABS: Final = {"overview": "", "groups": "groups", "partition": f"partition?topic={_TOPIC}&partition=0"}
_CHROMIUMS: Final = ("chromium", "chromium-browser", "google-chrome")
_QUIET: Final = (
    "--headless=new --no-sandbox --disable-gpu --disable-background-networking --disable-component-update "
    "--disable-sync --no-first-run"
)


class Shares(NamedTuple):
    """Percents of one core over the same seconds; `tab` of all processes of the browser."""

    server: float
    brokers: float
    tab: float


class _Bench(NamedTuple):
    server: subprocess.Popen[bytes]
    url: str
    brokers: list[int]
    seconds: int

    async def shares(self, *browser: int) -> Shares:
        """The CPU that the processes use, once they have settled."""
        await asyncio.sleep(_SETTLE_S)
        parties = [[self.server.pid], self.brokers, [*browser]]
        started = time.monotonic()
        before = [cpu_seconds(*pids) for pids in parties]
        await asyncio.sleep(self.seconds)
        passed = time.monotonic() - started
        after = [cpu_seconds(*pids) for pids in parties]
        return Shares(*(100 * (b - a) / passed for a, b in zip(before, after, strict=True)))


@asynccontextmanager
async def _groups(bootstrap: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for number in range(_GROUPS):
            consumer = Consumer(
                bootstrap_servers=bootstrap,
                group_id=f"group-{number}",
                auto_offset_reset="earliest",
                # It polls once, and has to stay for the whole benchmark.
                max_poll_interval_ms=3_600_000,
            )
            await stack.enter_async_context(consumer)
            consumer.subscribe([_GROUP_TOPIC])
            await consumer.poll(timeout_ms=500)
        yield


@contextmanager
def _page(cluster: LocalCluster, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The server of the page, and its URL."""
    url_file = folder / "url"
    command = [sys.executable, "-m", "barnabas.cli.main", "ui", "--dir", str(cluster.directory)]
    with subprocess.Popen([*command, "--url-file", str(url_file)], stdout=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + _START_S
            while not url_file.exists():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the page did not start (status {server.poll()})")
                time.sleep(0.1)
            yield server, url_file.read_text().strip()
        finally:
            server.terminate()


@asynccontextmanager
async def _load(bootstrap: str, records_per_s: int) -> AsyncIterator[None]:
    """Write at this rate to all partitions, with acks=all."""

    async def write(producer: Producer) -> None:
        for number in range(sys.maxsize):
            await producer.send(_TOPIC, b"v" * 100, partition=number % _PARTITIONS)
            await asyncio.sleep(1 / records_per_s)

    if not records_per_s:
        yield
        return
    async with Producer(bootstrap_servers=bootstrap, acks="all") as producer:
        writing = asyncio.create_task(write(producer))
        try:
            yield
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing


@asynccontextmanager
async def _stream(url: str) -> AsyncIterator[None]:
    """Read the stream of a page, without its tab."""
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port))

    async def read() -> None:
        while await reader.read(1 << 16):
            pass

    writer.write(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()
        writer.close()


@contextmanager
def _tab(executable: str, url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Chromium that shows this page alone, in a session of its own."""
    profile = folder / "profile"
    command = [executable, *_QUIET.split(), f"--user-data-dir={profile}", url]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as browser:
        try:
            yield browser
        finally:
            browser.terminate()
    shutil.rmtree(profile, ignore_errors=True)


def _session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(path.name)) == leader:
                found.append(int(path.name))
    return found


async def _measure(cluster: LocalCluster, folder: Path, options: Options) -> list[Figure]:
    chromium = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _CHROMIUMS)), None)
    if chromium is None:
        tell("no Chromium is here: nothing is said of the tab")
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(bootstrap_servers=cluster.bootstrap))
        await admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 3), NewTopic(_GROUP_TOPIC, 10, 3)])
        await stack.enter_async_context(_groups(cluster.bootstrap))
        server, url = stack.enter_context(_page(cluster, folder))
        bench = _Bench(server, url, broker_pids(cluster), options.amount(15, 8))
        figures = []
        for title, rate in (("idle", 0), (f"{_RECORDS_PER_S} records/s", _RECORDS_PER_S)):
            async with _load(cluster.bootstrap, rate):
                figures += await _with_streams(bench, title, options)
                if chromium is not None:
                    figures += await _with_tabs(bench, title, chromium, folder)
        return [*figures, Figure(name="server, resident memory", measured=memory_mb(server.pid), unit="MB")]


async def _with_streams(bench: _Bench, title: str, options: Options) -> list[Figure]:
    without: list[Shares] = []
    beside: dict[str, list[Shares]] = {name: [] for name in _STREAMS}
    for number in range(options.rounds):
        tell(f"{title}, round {number + 1} of {options.rounds}")
        without.append(await bench.shares())
        for name, query in _STREAMS.items():
            async with _stream(f"{bench.url}stream{query}"):
                beside[name].append(await bench.shares())
    figures = [
        Figure.of(f"{title}: brokers, no page", [one.brokers for one in without], "%"),
        Figure.of(f"{title}: server, no page", [one.server for one in without], "%"),
    ]
    for name, shares in beside.items():
        figures += _figures(f"{title}, {name}", without, shares)
    return figures


def _figures(name: str, without: Sequence[Shares], beside: Sequence[Shares]) -> list[Figure]:
    times = [after.brokers / max(0.1, before.brokers) for before, after in zip(without, beside, strict=True)]
    return [
        Figure.of(f"{name}: server", [one.server for one in beside], "%", at_most=3.0),
        Figure.of(f"{name}: brokers", [one.brokers for one in beside], "%"),
        Figure.of(f"{name}: brokers, times those without", times, ""),
    ]


async def _with_tabs(bench: _Bench, title: str, chromium: str, folder: Path) -> list[Figure]:
    figures = []
    for name, path in _TABS.items():
        tell(f"{title}, {name} in Chromium")
        with _tab(chromium, bench.url + path, folder) as browser:
            await asyncio.sleep(_SETTLE_S)
            shares = await bench.shares(*_session(browser.pid))
        # A tab fetches its page again after a change, which a reader of the stream does not.
        figures += [
            Figure(name=f"{title}, {name} in a tab: server", measured=shares.server, unit="%", at_most=3.0),
            Figure(name=f"{title}, {name}: tab in Chromium", measured=shares.tab, unit="%"),
        ]
    return figures


def measure(options: Options) -> list[Figure]:
    with temporary_folder(options) as folder, running_cluster(options, brokers=3) as cluster:
        return uvloop.run(_measure(cluster, folder, options))


if __name__ == "__main__":
    run(__doc__, measure)
