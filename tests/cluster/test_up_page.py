"""`barnabas up --ui`: the live page is a process of the cluster."""

import json
from pathlib import Path
from typing import Any, BinaryIO
from urllib.request import urlopen

from barnabas.cli import exit_codes
from barnabas.deploy.running_cluster import RunningCluster
from tests.support.waiting import wait_for

from .tools import call_command, run_command


def test_the_page_follows_the_cluster_and_ends_with_it(tmp_path: Path) -> None:
    up = run_command("up", "--ui", "--detach", "--json", "--brokers", "2", "--dir", str(tmp_path))
    try:
        assert up.returncode == exit_codes.OK, up.stderr
        with urlopen(json.loads(up.stdout)["ui"] + "stream", timeout=20) as events:
            state = _next(events, b"state")
            assert {broker["state"] for broker in state["brokers"].values()} == {"running"}
            assert call_command("kill", "1", "--dir", str(tmp_path)).returncode == exit_codes.OK
            wait_for(
                lambda: [mark["text"] for mark in _next(events, b"change").get("marks", [])].count(
                    "broker 1 has ended"
                ),
                "the page shows no mark for the killed broker",
            )
            page = RunningCluster.open(tmp_path).page
            assert page is not None
            assert page.is_alive
            down = call_command("down", "--dir", str(tmp_path))
            assert down.returncode == exit_codes.OK, down.stderr
            assert not page.is_alive
            events.read()
    finally:
        call_command("down", "--now", "--dir", str(tmp_path))


def _next(events: BinaryIO, kind: bytes) -> dict[str, Any]:
    """The data of the next event, which is of this kind; comments and empty lines come between."""
    while not (line := events.readline()).startswith(b"event: "):
        assert line, "the stream has ended"
    assert line.split()[1] == kind
    found: dict[str, Any] = json.loads(events.readline().removeprefix(b"data: "))
    return found
