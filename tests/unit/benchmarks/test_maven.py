"""Pinned archives: their list, what Maven is asked for, and what is refused. No network."""

from __future__ import annotations

import hashlib
import http.server
import threading
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.peers import apache_kafka, maven
from benchmarks.peers.maven import Archive, PeerError, fetch, mirror_of_settings, pom_of, read_pinned

CONTENT = b"an archive"
ARCHIVE = Archive("org/example/tool/1.2/tool-1.2.jar", hashlib.sha256(CONTENT).hexdigest())


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """The test's output is not the server's."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a Maven repository served over HTTP, named by the environment, and an empty cache."""
    folder = tmp_path / "repository"
    (folder / ARCHIVE.path).parent.mkdir(parents=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv(maven.REPOSITORY_VARIABLE, f"http://127.0.0.1:{server.server_address[1]}/")
    monkeypatch.setenv(maven.CACHE_VARIABLE, str(tmp_path / "cache"))
    yield folder
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_list_of_apache_kafka_can_be_read_and_holds_what_is_started() -> None:
    names = {archive.name for archive in read_pinned(apache_kafka._PINNED.read_text())}
    assert {"kafka_2.13-3.9.1.jar", "kafka-tools-3.9.1.jar", "zookeeper-3.8.4.jar"} <= names


@pytest.mark.parametrize(
    "line", ["abc  a/b/1/b-1.jar", "0" * 64 + " a/b/1/b-1.jar", "0" * 64 + "  b.jar", ""]
)
def test_a_line_that_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_pinned(line + "\n")


def test_coordinates_come_from_the_path_also_with_a_classifier() -> None:
    assert ARCHIVE.coordinates == "org.example:tool:1.2"
    assert Archive("a/b/c/2/c-2-linux.jar", "").coordinates == "a.b:c:2:jar:linux"


def test_maven_is_asked_for_exactly_the_pinned_archives() -> None:
    pom = pom_of([ARCHIVE, Archive("a/b/c/2/c-2-linux.jar", "")])
    items = [[part.text for part in item] for item in xml.fromstring(pom).iterfind(".//{*}artifactItem")]
    assert items == [["org.example", "tool", "1.2"], ["a.b", "c", "2", "linux"]]


def test_an_archive_is_fetched_once_and_kept(repository: Path) -> None:
    (repository / ARCHIVE.path).write_bytes(CONTENT)
    folder = fetch("tool", [ARCHIVE])
    assert (folder / "tool-1.2.jar").read_bytes() == CONTENT
    (repository / ARCHIVE.path).unlink()
    assert fetch("tool", [ARCHIVE]) == folder


def test_an_archive_that_is_not_the_pinned_one_is_refused_and_not_kept(repository: Path) -> None:
    (repository / ARCHIVE.path).write_bytes(b"something else")
    with pytest.raises(PeerError, match=r"tool-1\.2\.jar has SHA-256"):
        fetch("tool", [ARCHIVE])
    assert list((repository.parent / "cache").iterdir()) == []


def test_an_archive_that_the_repository_does_not_have_is_named(repository: Path) -> None:
    with pytest.raises(PeerError, match=r"tool-1\.2\.jar could not be fetched: HTTP Error 404"):
        fetch("tool", [ARCHIVE])


def test_a_machine_without_maven_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(maven.REPOSITORY_VARIABLE, raising=False)
    monkeypatch.setenv(maven.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(PeerError, match=rf"install maven.*{maven.REPOSITORY_VARIABLE}"):
        fetch("tool", [ARCHIVE])


@pytest.mark.parametrize(("of", "found"), [("central", True), ("*", True), ("other", False)])
def test_the_mirror_of_the_users_settings_is_taken_when_it_stands_for_central(
    tmp_path: Path, of: str, found: bool
) -> None:
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors><mirror><id>m</id>'
        f"<mirrorOf>{of}</mirrorOf><url>http://repository.example/all</url></mirror></mirrors></settings>"
    )
    assert mirror_of_settings(settings) == ("http://repository.example/all" if found else None)


def test_settings_that_are_missing_or_broken_name_no_mirror(tmp_path: Path) -> None:
    assert mirror_of_settings(tmp_path / "none.xml") is None
    (tmp_path / "broken.xml").write_text("<settings>")
    assert mirror_of_settings(tmp_path / "broken.xml") is None
