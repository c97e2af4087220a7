"""The event log: lines of the files, and times from lines that the controller's own code logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from barnabas.broker.process import _DATE_FORMAT, _LOG_FORMAT
from barnabas.deploy.log_files import LogEntry
from barnabas.ui.event_log import EventLog, read_entry, times_of
from barnabas.ui.timeline import marks_between
from tests.support.controller_fakes import T0, make_cluster

from ..controller.test_controller import Rig


def line(second: int, text: str, level: str = "INFO") -> str:
    return f"2026-01-01 00:00:{second:02}.125 {level:7} [main] {text}\n"


def texts(entries: list[dict[str, object]]) -> list[object]:
    return [entry["text"] for entry in entries]


def test_the_last_lines_of_all_files_come_by_time_then_the_new_ones(tmp_path: Path) -> None:
    folders = {}
    for id in (1, 2):
        folders[id] = tmp_path / f"broker-{id}"
        (folders[id] / "logs").mkdir(parents=True)
    one, two = (folders[id] / "logs" / "state-change.log" for id in (1, 2))
    one.write_text(line(1, "one") + line(4, "four", "ERROR") + "Traceback\n")
    two.write_text("the rest of a traceback\n" + line(2, "two") + "incompl")
    log = EventLog(folders)
    first = log.new()
    assert texts(first) == ["one", "two", "four\nTraceback"]
    assert [(entry["source"], entry["level"]) for entry in first][1:] == [
        ("broker-2", "INFO"),
        ("broker-1", "ERROR"),
    ]
    assert first[1]["time_ms"] - first[0]["time_ms"] == 1_000
    assert first[0]["time_ms"] % 1000 == 125
    assert log.new() == []
    # Broker 2 becomes controller, and has that file from now on.
    (folders[2] / "logs" / "controller.log").write_text(line(5, "five"))
    with one.open("a") as file:
        file.write(line(6, "six"))
    assert texts(log.new()) == ["five", "six"]
    assert [entry["id"] for entry in EventLog(folders).new()][:3] == [entry["id"] for entry in first]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="barnabas")
    return caplog


def changes(logged: pytest.LogCaptureFixture) -> set[tuple[str, str, str]]:
    """Kind, sentence and partition of what was logged; forgets it."""
    formatter = logging.Formatter(_LOG_FORMAT, _DATE_FORMAT)
    entries = [
        LogEntry("", "broker-1", formatter.format(record).split("\n"))
        for record in logged.records
        if record.name.startswith(("barnabas.controller", "barnabas.state_change"))
    ]
    logged.clear()
    read = [read_entry(entry) for entry in entries]
    assert entries
    assert None not in read
    return set(times_of(filter(None, read)))


def test_the_changes_in_the_lines_are_named_as_the_timeline_names_them(
    logged: pytest.LogCaptureFixture,
) -> None:
    cluster = make_cluster()
    cluster.elect()
    logged.clear()
    assert cluster.states[T0].leader == 1
    cluster.die(1)
    leader = cluster.states[T0].leader
    assert changes(logged) == {
        ("election", "no leader", "t-0"),
        ("election", f"leader {leader}", "t-0"),
        ("isr", "broker 1 left the ISR", "t-1"),
    }
    cluster.restart(1)
    logged.clear()
    cluster.rejoin(T0, *cluster.states[T0].isr, 1)
    assert changes(logged) == {("isr", "broker 1 joined the ISR", "t-0")}


def test_a_new_controller_is_a_change(logged: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.read()
    assert ("controller", f"broker {rig.controller.broker_id} is the controller", "") in changes(logged)


def test_a_mark_has_the_time_of_the_log_where_it_is_known() -> None:
    partition = {"leader": 1, "leader_epoch": 0, "isr": [1, 2]}
    before = {
        "time_ms": 1_000,
        "cluster_id": "c",
        "brokers": {},
        "zookeeper": None,
        "controller": 1,
        "partitions": {"t-0": partition, "t-1": partition},
    }
    moved = {"leader": 2, "leader_epoch": 1, "isr": [2]}
    after = before | {"time_ms": 1_500, "controller": 2, "partitions": {"t-0": moved, "t-1": moved}}
    times = {("election", "leader 2", "t-1"): 1_222, ("controller", "broker 2 is the controller", ""): 1_111}
    assert [(mark["kind"], mark["time_ms"]) for mark in marks_between(before, after, times)] == [
        ("controller", 1_111),
        ("election", 1_222),
        ("isr", 1_500),
    ]
