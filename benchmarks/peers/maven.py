"""Java archives from a Maven repository, each checked against a SHA-256 that the project pins.

What it is for: running somebody else's Java program here without keeping 56 MB of it in the project.

Guarantees. `fetch` returns a folder that holds exactly the pinned archives, every one verified when it was
fetched; the folder appears as a whole or not at all, also when several programs fetch at once. It asks the
repositories of the user's own Maven set-up, or the one that `REPOSITORY_VARIABLE` names, and no other.

Any thread; calls block for at most `_TIMEOUT_S` per download and `_MAVEN_TIMEOUT_S` for Maven.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from barnabas.protocol.errors import LocalError

CACHE_VARIABLE: Final = "BENCHMARK_PEERS_CACHE"
"""Names the folder that fetched programs are kept in; without it ``$XDG_CACHE_HOME/barnabas``."""

REPOSITORY_VARIABLE: Final = "MAVEN_REPOSITORY_URL"
"""The base URL of a Maven repository, for a machine without Maven."""

_COPY_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_MAVEN_TIMEOUT_S: Final = 900.0
_TIMEOUT_S: Final = 60.0
_DOWNLOADS_AT_ONCE: Final = 8
_LARGEST_BYTES: Final = 64_000_000


class PeerError(LocalError):
    """Another system could not be had, started or reached; the text says what to do about it."""


class Archive(NamedTuple):
    """One pinned file: its path in every Maven repository and the SHA-256 of its bytes, in hex."""

    path: str
    sha256: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def coordinates(self) -> str:
        """``group:artifact:version``, or ``group:artifact:version:jar:classifier`` where there is one."""
        *group, artifact, version, name = self.path.split("/")
        classifier = name.removeprefix(f"{artifact}-{version}").removesuffix(".jar").removeprefix("-")
        return f"{'.'.join(group)}:{artifact}:{version}" + (f":jar:{classifier}" if classifier else "")


def read_pinned(text: str) -> list[Archive]:
    """The archives of a list as `sha256sum` prints it; raises ValueError naming a line that is not so."""
    found = []
    for line in text.splitlines():
        digest, _, path = line.partition("  ")
        if len(digest) != 64 or path.count("/") < 3 or not path.endswith(".jar"):
            raise ValueError(f"{line!r}: expected '<64 hex digits>  <group>/<artifact>/<version>/<name>.jar'")
        found.append(Archive(path, digest))
    return found


def cache_folder() -> Path:
    """Where fetched programs are kept."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barnabas"


def fetch(name: str, archives: Sequence[Archive]) -> Path:
    """The folder called `name` in the cache, filled with these archives where it is not there yet.

    Raises PeerError saying how the archives can be had where they cannot be fetched, and when one of them is
    not the pinned one.
    """
    folder = cache_folder() / name
    if all((folder / archive.name).is_file() for archive in archives):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{name}-") as temporary:
        partial = Path(temporary) / name
        partial.mkdir()
        _fill(partial, archives)
        check(partial, archives)
        try:
            partial.rename(folder)
        except OSError as error:
            # Another program may have put the same files there; anything else is not ours to remove.
            if not all((folder / archive.name).is_file() for archive in archives):
                raise PeerError(f"{folder} is in the way: remove it and try again ({error})") from error
    return folder


def check(folder: Path, archives: Sequence[Archive]) -> None:
    """Raise PeerError naming an archive that is missing or is not the pinned one."""
    for archive in archives:
        path = folder / archive.name
        if not path.is_file():
            raise PeerError(f"{archive.name} was not delivered by the Maven repository")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != archive.sha256:
            raise PeerError(f"{archive.name} has SHA-256 {found}, expected {archive.sha256}")


def _fill(folder: Path, archives: Sequence[Archive]) -> None:
    repository = os.environ.get(REPOSITORY_VARIABLE)
    maven = shutil.which("mvn")
    if repository is None and maven is not None:
        _copy_by_maven(maven, folder, archives)
        return
    repository = repository or mirror_of_settings(Path.home() / ".m2" / "settings.xml")
    if not repository:
        raise PeerError(
            "Maven is needed to fetch it and there is no mvn on the PATH (on Debian: apt-get install maven); "
            f"or set {REPOSITORY_VARIABLE} to the URL of a Maven repository, "
            f"or {CACHE_VARIABLE} to a folder that already holds {folder.name}/*.jar"
        )
    _download(repository.rstrip("/"), folder, archives)


def mirror_of_settings(settings: Path) -> str | None:
    """The URL of the first mirror of everything, or of central, in a Maven settings file; None if none."""
    try:
        root = xml.parse(settings).getroot()
    except (FileNotFoundError, xml.ParseError):
        return None
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        of = (mirror.findtext("{*}mirrorOf") or "").strip()
        if of in ("*", "central", "external:*"):
            return (mirror.findtext("{*}url") or "").strip() or None
    return None


def _copy_by_maven(maven: str, folder: Path, archives: Sequence[Archive]) -> None:
    pom = folder.parent / "pom.xml"
    pom.write_text(pom_of(archives), encoding="utf-8")
    command = [maven, "-B", "-q", "-f", str(pom), _COPY_GOAL, f"-DoutputDirectory={folder}"]
    try:
        said = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_MAVEN_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"Maven did not end within {_MAVEN_TIMEOUT_S:g} s: {' '.join(command)}") from error
    if said.returncode:
        wrong = [line for line in (said.stdout + said.stderr).splitlines() if "ERROR" in line]
        raise PeerError("Maven could not fetch it:\n" + "\n".join(wrong[:6]))


def pom_of(archives: Sequence[Archive]) -> str:
    """A project file whose only content is that the dependency plugin copies these archives."""
    items = []
    for archive in archives:
        group, artifact, version, *rest = archive.coordinates.split(":")
        classifier = f"<classifier>{rest[1]}</classifier>" if rest else ""
        items.append(
            f"<artifactItem><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version>{classifier}</artifactItem>"
        )
    group, _, version = _COPY_GOAL.rpartition(":")[0].split(":")
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>benchmarks</groupId><artifactId>peer</artifactId><version>1</version><build><plugins><plugin>"
        f"<groupId>{group}</groupId><artifactId>maven-dependency-plugin</artifactId><version>{version}</version>"
        "<configuration><artifactItems>" + "".join(items) + "</artifactItems></configuration>"
        "</plugin></plugins></build></project>\n"
    )


def _download(repository: str, folder: Path, archives: Sequence[Archive]) -> None:
    def one(archive: Archive) -> None:
        url = f"{repository}/{archive.path}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
                (folder / archive.name).write_bytes(answer.read(_LARGEST_BYTES))
        except urllib.error.HTTPError as error:
            error.close()
            raise PeerError(f"{url} could not be fetched: {error}") from error
        except OSError as error:
            raise PeerError(f"{url} could not be fetched: {error}") from error

    with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
        for done in [pool.submit(one, archive) for archive in archives]:
            done.result()
