"""The event log: lines of the files, and marks from lines that the controller's own code logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from barnabas.broker.process import _DATE_FORMAT, _LOG_FORMAT
from barnabas.deploy.log_files import LogEntry
from barnabas.ui.event_log import EventLog, marks_of, read_entry
from tests.support.controller_fakes import T0, T1, make_cluster

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


def marks(logged: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    """Kind, text, broker and partition of the marks from what was logged; forgets it."""
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
    return [
        (mark["kind"], mark["text"], mark.get("broker"), mark.get("partition"))
        for mark in marks_of(filter(None, read))
    ]


def test_elections_and_changes_of_the_isr_are_marks(logged: pytest.LogCaptureFixture) -> None:
    cluster = make_cluster()
    cluster.elect()
    logged.clear()
    before = {tp: cluster.states[tp] for tp in (T0, T1)}
    assert before[T0].leader == 1
    cluster.die(1)
    found = marks(logged)
    assert ("election", "no leader: t-0", None, "t-0") in found
    assert ("election", f"leader {cluster.states[T0].leader}: t-0", cluster.states[T0].leader, "t-0") in found
    assert ("isr", "broker 1 left the ISR: t-1", 1, "t-1") in found
    cluster.restart(1)
    logged.clear()
    cluster.rejoin(T0, *cluster.states[T0].isr, 1)
    assert marks(logged) == [("isr", "broker 1 joined the ISR: t-0", 1, "t-0")]


def test_a_new_controller_is_a_mark(logged: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.read()
    broker = rig.controller.broker_id
    assert ("controller", f"broker {broker} is the controller", broker, None) in marks(logged)


def test_many_partitions_with_the_same_change_are_one_mark() -> None:
    entries = [
        {"time_ms": number, "text": f"partition t-{number}: isr [1, 2] -> [2], changed by its leader 2"}
        for number in range(6)
    ]
    assert marks_of(entries) == [
        {
            "time_ms": 0,
            "kind": "isr",
            "text": "broker 1 left the ISR: t-0, t-1, t-2, t-3 and 2 more",
            "broker": 1,
        }
    ]
