"""The real server of the page, whose sampler shows the states that a test gives it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final
from unittest.mock import patch

import msgspec
import uvloop

from barnabas.ui import app
from barnabas.ui.app import bind, make_server
from barnabas.ui.context import Context
from barnabas.ui.history import History
from barnabas.ui.sampler import Sampler
from barnabas.ui.snapshot import KEYED

State = dict[str, Any]
UNITS: Final = {"records_in": "records/s", "bytes_in": "bytes/s", "acknowledged": "records/s"}
_TOKEN: Final = "token-of-the-test"


class ShownStates(Sampler):
    """Asks no cluster; `show` is called by the thread of the test."""

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        await asyncio.Event().wait()

    def recent(self) -> State:
        return self.state or {}

    def whole(self, parts: frozenset[str]) -> bytes:
        return msgspec.json.encode(self.state)

    def start_with(self, state: State) -> None:
        """A page that is opened gets this state."""
        self.state = state
        self.history = History()
        for mark in state["marks"]:
            self.history.add("marks", mark)
        for gap in state["gaps"]:
            self.history.gap(**gap)

    def show(self, change: State) -> None:
        """Every open page gets the change."""
        state = dict(self.state or {})
        for name, value in change.items():
            state[name] = {**state[name], **value} if name in KEYED else value
        for name, entries in change.get("gone", {}).items():
            state[name] = {key: value for key, value in state[name].items() if key not in entries}
        self.start_with(state)

        def put() -> None:
            for listener in self._listeners:
                listener.put(msgspec.json.encode(change))

        self._loop.call_soon_threadsafe(put)

    def listen(self, parts: Any) -> Any:
        listener = super().listen(parts)
        listener.put(b"")
        return listener


@contextmanager
def serving(context: Context) -> Iterator[tuple[str, ShownStates]]:
    """The URL of the page and its sampler."""
    with bind(0) as listening, patch.object(app, "Sampler", ShownStates):
        port = listening.getsockname()[1]
        server = make_server(context, port=port, token=_TOKEN)
        server.capture_signals = nullcontext  # type: ignore[method-assign]  # a thread has no signals
        thread = threading.Thread(target=uvloop.run, args=(server.serve([listening]),))
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/{_TOKEN}/", server._sampler  # type: ignore[misc]  # ShownStates, by the patch
        finally:
            server.should_exit = True
            thread.join()


def make_replica(end: int, *, high: int, remote: int | None = None, **values: Any) -> State:
    replica: State = {
        "log_start_offset": 0,
        "high_watermark": high,
        "last_stable_offset": high,
        "log_end_offset": end,
        "remote_log_end_offset": remote,
        "leader_epoch": 4,
        "size_bytes": 100_000,
        "is_offline": False,
        "failure": None,
        "caught_up_ms_ago": 20,
    }
    return replica | values


def make_partition(number: int = 0, *, topic: str = "orders", **values: Any) -> State:
    """Led by broker 1, with brokers 2 and 3 in sync, 3 some records behind."""
    partition: State = {
        "topic": topic,
        "partition": number,
        "is_internal": False,
        "leader": 1,
        "leader_epoch": 4,
        "isr": [1, 2, 3],
        "min_isr": 2,
        "records_per_s": 30.0,
        "is_under_min_isr": False,
        "moves_to": None,
        "replicas": {
            "1": make_replica(1204, high=1198),
            "2": make_replica(1204, high=1198, remote=1200),
            "3": make_replica(1202, high=1190, remote=1198),
        },
    }
    return partition | values


def make_broker(id: int, **values: Any) -> State:
    broker: State = {
        "id": id,
        "endpoint": f"127.0.0.1:{9091 + id}",
        "rack": None,
        "state": "running",
        "pid": 4000 + id,
        "is_controller": id == 1,
        "leaders": 2,
        "replicas": 6,
        "size_bytes": 3 << 20,
        "disk_free_bytes": 40 << 30,
        "disk_total_bytes": 60 << 30,
        "cpu_percent": 4.2,
        "error": None,
    }
    return broker | values


def make_state(partitions: int = 6) -> State:
    now_ms = 1_800_000_000_000
    series = {
        name: {"unit": unit, "points": [[now_ms - 500 * ago, 300] for ago in range(40, -1, -1)]}
        for name, unit in UNITS.items()
    }
    return {
        "time_ms": now_ms,
        "cluster_id": "test",
        "controller": 1,
        "problems": [],
        "zookeeper": {"endpoint": "127.0.0.1:2181", "state": "running", "pid": 99},
        "brokers": {str(id): make_broker(id) for id in (1, 2, 3)},
        "partitions": {f"orders-{number}": make_partition(number) for number in range(partitions)}
        | {"__consumer_offsets-0": make_partition(topic="__consumer_offsets", is_internal=True)},
        "groups": {},
        "transactions": {},
        "marks": [],
        "gaps": [],
        "series": series,
        "log": [],
    }
