"""Pinned archives: their list, the repository that is asked, and contents that are refused."""

import hashlib
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from barnabas.deploy import maven, zookeeper
from barnabas.deploy.maven import Archive, FetchFailed, fetch, mirror_of_settings, read_pinned, repository_url
from barnabas.deploy.process import DeployError
from benchmarks.peers import apache_kafka
from tests.support.waiting import DEADLINE_S

ROOT = Path(__file__).parents[3]
CONTENT = b"an archive"
ARCHIVE = Archive("org/example/tool/1.2/tool-1.2.jar", hashlib.sha256(CONTENT).hexdigest())


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


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


def test_the_list_of_apache_kafka_has_the_archives_that_are_started() -> None:
    names = {archive.name for archive in read_pinned(apache_kafka._PINNED.read_text())}
    assert {"kafka_2.13-3.9.1.jar", "kafka-tools-3.9.1.jar", "zookeeper-3.8.4.jar"} <= names


@pytest.mark.parametrize(
    "line", ["abc  a/b/1/b-1.jar", "0" * 64 + " a/b/1/b-1.jar", "0" * 64 + "  b.jar", ""]
)
def test_a_malformed_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_pinned(line + "\n")


def test_an_archive_is_fetched_once_and_kept(repository: Path) -> None:
    (repository / ARCHIVE.path).write_bytes(CONTENT)
    folder = fetch("tool", [ARCHIVE])
    assert (folder / "tool-1.2.jar").read_bytes() == CONTENT
    (repository / ARCHIVE.path).unlink()
    assert fetch("tool", [ARCHIVE]) == folder


def test_the_files_that_the_dockerfile_copies_first_are_enough_to_fetch(
    repository: Path, tmp_path: Path
) -> None:
    (repository / ARCHIVE.path).write_bytes(CONTENT)
    for line in (ROOT / "deploy" / "Dockerfile").read_text().splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and words[-1].startswith("barnabas/"):
            (tmp_path / words[-1]).mkdir(parents=True)
            for source in words[1:-1]:
                shutil.copy(ROOT / source, tmp_path / words[-1])
    (tmp_path / "list").write_text(f"{ARCHIVE.sha256}  {ARCHIVE.path}\n")
    done = subprocess.run(
        [sys.executable, "-S", "-m", "barnabas.deploy.maven", "list", "tool"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cache" / "tool" / "tool-1.2.jar").read_bytes() == CONTENT


def test_an_archive_that_is_not_the_pinned_one_is_refused_and_not_kept(repository: Path) -> None:
    (repository / ARCHIVE.path).write_bytes(b"something else")
    with pytest.raises(FetchFailed, match=r"tool-1\.2\.jar has SHA-256"):
        fetch("tool", [ARCHIVE])
    assert list((repository.parent / "cache").iterdir()) == []


def test_an_archive_that_the_repository_does_not_have_is_named(repository: Path) -> None:
    with pytest.raises(FetchFailed, match=r"tool-1\.2\.jar could not be fetched: HTTP Error 404"):
        fetch("tool", [ARCHIVE])


def test_without_settings_maven_central_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(maven.REPOSITORY_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(maven, "mirror_of_settings", lambda path: None)
    assert repository_url() == "https://repo1.maven.org/maven2"


def test_without_pyspark_the_jars_of_zookeeper_come_from_the_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = zookeeper.find_jars(zookeeper._JARS + zookeeper._LOGGING_JARS + zookeeper._SASL_JARS)
    for archive in read_pinned(zookeeper._PINNED.read_text()):
        (repository / archive.path).parent.mkdir(parents=True)
        (jar,) = [path for path in installed if path.name == archive.name]
        (repository / archive.path).write_bytes(jar.read_bytes())
    monkeypatch.setattr(zookeeper.importlib.util, "find_spec", lambda name: None)
    jars = zookeeper.find_jars()
    assert [path.name for path in jars] == [path.name for path in installed[:5]]
    assert all(path.is_relative_to(repository.parent / "cache") for path in jars)


def test_without_jars_and_repository_every_way_out_is_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeployError, match=r"404.*MAVEN_REPOSITORY_URL.*_JARS to.*BARNABAS_ZOOKEEPER="):
        zookeeper.find_jars()


@pytest.mark.parametrize(
    ("of", "is_taken"), [("central", True), ("*", True), ("*,!central", False), ("other", False)]
)
def test_a_mirror_of_central_in_the_settings_is_taken(tmp_path: Path, of: str, is_taken: bool) -> None:
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors><mirror><id>m</id>'
        f"<mirrorOf>{of}</mirrorOf><url>http://repository.example/all</url></mirror></mirrors></settings>"
    )
    assert mirror_of_settings(settings) == ("http://repository.example/all" if is_taken else None)


def test_settings_that_are_missing_or_broken_name_no_mirror(tmp_path: Path) -> None:
    assert mirror_of_settings(tmp_path / "none.xml") is None
    (tmp_path / "broken.xml").write_text("<settings>")
    assert mirror_of_settings(tmp_path / "broken.xml") is None
