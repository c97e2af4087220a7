"""The page of faults and the change that injects one, on a cluster of idle processes."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette

from barnabas.client.admin.admin import Admin
from barnabas.deploy.faults import Aim
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.ui import faults
from barnabas.ui.app import make_app
from barnabas.ui.context import Context
from tests.support.asgi import get, post
from tests.support.idle_cluster import idle_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with idle_cluster(tmp_path) as cluster:
        yield cluster


class Marks(list[tuple[str, int | None]]):
    """In the place of the history."""

    def mark(self, kind: str, text: str, *, broker: int | None, time_ms: int | None) -> None:
        assert kind == "fault"
        self.append((text, broker))


def app_of(cluster: RunningCluster | None, **context: Any) -> tuple[Starlette, Marks]:
    marks = Marks()
    admin = Admin(bootstrap_servers="127.0.0.1:1")
    app = make_app(Context(admin=admin, bootstrap="", settings={}, cluster=cluster, **context))
    app.state.sampler = SimpleNamespace(history=marks)
    return app, marks


def disabled_in(page: str) -> set[str]:
    return set(re.findall(r'value="([^"]*)"[^>]* disabled>', page))


async def test_a_button_injects_its_fault_marks_it_and_is_then_disabled(cluster: RunningCluster) -> None:
    app, marks = app_of(cluster)
    page = (await get(app, "faults")).text
    assert {"resume 1", "give-room 1", "kill 2"} <= disabled_in(page)
    assert not disabled_in(page) & {"kill 1", "pause 1", "fill-disk 1", "restart 2", "cut 1 2"}
    done = await post(app, "faults", fault="fill-disk 1")
    assert done.status == 303
    assert done.headers["location"] == "faults?outcome=the%20disk%20of%20broker%201%20is%20full"
    await post(app, "faults", fault="pause 1")
    assert marks == [("the disk of broker 1 is full", 1), ("broker 1 was paused", 1)]
    page = (await get(app, "faults")).text
    assert "paused, its disk is full" in page
    assert {"pause 1", "fill-disk 1"} <= disabled_in(page)
    assert not disabled_in(page) & {"resume 1", "kill 1", "give-room 1"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "kill", "target": "2"}, "Kill: broker 2 is not running"),
        ({"name": "explode", "target": "1"}, "explode: there is no fault 'explode'; there are kill, stop, "),
        ({"name": "cut", "target": "1", "other": "9"}, "Cut: other '9': expected 2, zookeeper, client"),
        ({"fault": "slow 1 2", "delay_ms": "0"}, "delay_ms '0': expected a number of milliseconds from 1"),
        ({}, ": there is no fault ''"),
    ],
)
async def test_a_fault_that_fails_is_an_error_and_no_mark(
    cluster: RunningCluster, fields: dict[str, str], said: str
) -> None:
    app, marks = app_of(cluster)
    answer = await post(app, "faults", **fields, accept="application/json")
    assert answer.status == 409
    assert json.loads(answer.text)["error"].startswith(said)
    assert marks == []


async def test_without_a_cluster_of_this_machine_there_are_no_faults() -> None:
    app, _ = app_of(None)
    assert "Faults need a cluster that runs on this machine" in (await get(app, "faults")).text
    answer = await post(app, "faults", fault="kill 1", accept="application/json")
    assert answer.status == 409


async def test_a_page_that_may_only_see_has_no_button_that_works(cluster: RunningCluster) -> None:
    app, _ = app_of(cluster, is_read_only=True)
    page = (await get(app, "faults")).text
    assert len(disabled_in(page)) == page.count("<button")


async def test_one_fault_of_a_server_at_a_time(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, marks = app_of(cluster)
    begun, may_end = threading.Event(), threading.Event()

    def wait(directory: Path, name: str, aim: Aim) -> str:
        if aim.target == "1":
            begun.set()
            assert may_end.wait(30)
        return f"{name} {aim.target}"

    monkeypatch.setattr(faults, "_run", wait)
    first = asyncio.create_task(post(app, "faults", fault="restart 1"))
    await asyncio.to_thread(begun.wait, 30)
    second = await post(app, "faults", fault="kill 1", accept="application/json")
    assert json.loads(second.text) == {"error": "another fault of broker 1 is under way"}
    await post(app, "faults", fault="kill 2")
    may_end.set()
    await first
    assert marks == [("kill 2", 2), ("restart 1", 1)]
    assert (await post(app, "faults", fault="kill 1")).status == 303


async def test_the_matrix_shows_what_is_broken(cluster: RunningCluster) -> None:
    cluster.link_server.launch()
    cluster.link_server.wait_ready(30.0)
    cluster.write_record()
    app, _ = app_of(cluster)
    await post(app, "faults", fault="slow 1 client", delay_ms="50")
    await post(app, "faults", fault="cut 2 zookeeper")
    page = (await get(app, "faults")).text
    assert "<strong>+50 ms</strong>" in page
    assert "<strong>cut</strong>" in page
    assert not disabled_in(page) & {"mend 2 zookeeper", "mend 1 client"}
    assert "mend 1 2" in disabled_in(page)
    await post(app, "faults", fault="mend-all")
    assert "<strong>" not in (await get(app, "faults")).text
