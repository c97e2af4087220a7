"""`barnabas logs`: the ends of several files by time, and the lines that come later."""

from pathlib import Path

import pytest

from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.deploy.log_files import LogFile
from barnabas.deploy.state import BrokerRecord, ClusterRecord, write_record

Output = pytest.CaptureFixture[str]


def line(second: int, text: str) -> str:
    return f"2026-01-01 00:00:{second:02}.000 INFO    [main] {text}\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A cluster that was stopped, with logs of two brokers."""
    brokers = []
    for number in (1, 2):
        folder = tmp_path / f"broker-{number}"
        (folder / "logs").mkdir(parents=True)
        brokers.append(BrokerRecord(id=number, port=number, directory=str(folder), log_dirs=[]))
    write_record(ClusterRecord(directory=str(tmp_path), host="h", zookeeper_connect="h:1", brokers=brokers))
    (tmp_path / "broker-1/logs/server.log").write_text(
        line(1, "one") + line(4, "four") + "Traceback\n  deep\n"
    )
    (tmp_path / "broker-2/logs/server.log").write_text(line(2, "two") + line(3, "three") + "incompl")
    return tmp_path


def shown(directory: Path, capsys: Output, *words: str) -> list[str]:
    assert main(["logs", "--dir", str(directory), *words]) == exit_codes.OK
    return [f"{text[:8]} {text.split()[-1]}" for text in capsys.readouterr().out.splitlines()]


def test_lines_of_all_brokers_come_in_the_order_of_time(directory: Path, capsys: Output) -> None:
    assert shown(directory, capsys) == [
        "broker-1 one",
        "broker-2 two",
        "broker-2 three",
        "broker-1 four",
        "broker-1 Traceback",
        "broker-1 deep",
    ]
    assert shown(directory, capsys, "2", "--lines", "1") == ["broker-2 three"]
    assert shown(directory, capsys, "2", "-n", "0") == []
    assert shown(directory, capsys, "2", "-n", "9999999999") == ["broker-2 two", "broker-2 three"]


def test_a_missing_broker_or_file_is_named(directory: Path, capsys: Output) -> None:
    assert main(["logs", "7", "--dir", str(directory)]) == exit_codes.NOT_FOUND
    assert "there is no broker 7; there are 1, 2" in capsys.readouterr().err
    assert main(["logs", "--file", "zookeeper", "--dir", str(directory)]) == exit_codes.NOT_FOUND
    assert "zookeeper.log" in capsys.readouterr().err


def test_a_followed_file_is_read_across_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(line(1, "before") + "begun")
    log = LogFile("x", path)

    def new() -> list[str]:
        return [text.split()[-1] for entry in log.new() for text in entry.lines]

    assert len(log.last(10)) == 1
    assert new() == []
    with path.open("a") as file:
        file.write(" done\n" + line(2, "last"))
    path.rename(tmp_path / "server.log.1")
    assert new() == ["done", "last"]
    path.write_text(line(3, "first"))
    assert new() == ["first"]
    log.close()
