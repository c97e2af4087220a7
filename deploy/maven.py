"""Java archives from a Maven repository, each checked against a SHA-256 that the project pins.

Guarantees. `fetch` returns a folder that holds the pinned archives, every one verified when it was fetched;
the folder appears as a whole or not at all, also if several programs fetch at once. It asks one repository:
``MAVEN_REPOSITORY_URL``, else the mirror of Maven Central in Maven's settings, else Maven Central.

``python -m barnabas.deploy.maven LIST NAME`` fetches the archives of a list into folder NAME of the cache.
The Dockerfile runs it with only this module and `protocol/errors.py`.

Any thread; calls block for at most `_TIMEOUT_S` per download.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import urllib.error
import urllib.request
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from barnabas.protocol.errors import LocalError

CACHE_VARIABLE: Final = "BARNABAS_CACHE"
"""Names the folder that keeps fetched archives; without it ``$XDG_CACHE_HOME/barnabas``."""

REPOSITORY_VARIABLE: Final = "MAVEN_REPOSITORY_URL"
"""The base URL of a Maven repository."""

_CENTRAL: Final = "https://repo1.maven.org/maven2"
_TIMEOUT_S: Final = 60.0
_DOWNLOADS_AT_ONCE: Final = 8
_LARGEST_BYTES: Final = 64_000_000


class FetchFailed(LocalError):
    """An archive could not be fetched, or is not the pinned one; the text names it and a remedy."""


class Archive(NamedTuple):
    """One pinned file: its path in every Maven repository and the SHA-256 of its bytes, in hex."""

    path: str
    sha256: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


def read_pinned(text: str) -> list[Archive]:
    """The archives of a list as `sha256sum` prints it; raises ValueError naming a malformed line."""
    archives = []
    for line in text.splitlines():
        digest, _, path = line.partition("  ")
        if len(digest) != 64 or path.count("/") < 3 or not path.endswith(".jar"):
            raise ValueError(f"{line!r}: expected '<64 hex digits>  <group>/<artifact>/<version>/<name>.jar'")
        archives.append(Archive(path, digest))
    return archives


def cache_folder() -> Path:
    folder_name = os.environ.get(CACHE_VARIABLE)
    if folder_name:
        return Path(folder_name).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barnabas"


def fetch(name: str, archives: Sequence[Archive]) -> Path:
    """The folder called `name` in the cache, filled with these archives if it is not there yet.

    Raises FetchFailed if an archive cannot be fetched, or is not the pinned one.
    """
    folder = cache_folder() / name
    if _has_all(folder, archives):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{name}-") as temporary:
        partial = Path(temporary) / name
        partial.mkdir()
        _download(repository_url(), partial, archives)
        try:
            partial.rename(folder)
        except OSError as error:
            # Another program may have put the same files there; anything else is not ours to remove.
            if not _has_all(folder, archives):
                raise FetchFailed(f"{folder} is in the way: remove it and try again ({error})") from error
    return folder


def _has_all(folder: Path, archives: Sequence[Archive]) -> bool:
    return all((folder / archive.name).is_file() for archive in archives)


def repository_url() -> str:
    url = os.environ.get(REPOSITORY_VARIABLE)
    if not url:
        homes = [os.environ.get(variable) for variable in ("MAVEN_HOME", "M2_HOME")]
        files = [Path.home() / ".m2" / "settings.xml"]
        files += [Path(home) / "conf" / "settings.xml" for home in homes if home]
        files.append(Path("/etc/maven/settings.xml"))
        url = next(filter(None, map(mirror_of_settings, files)), _CENTRAL)
    return url.rstrip("/")


def mirror_of_settings(settings: Path) -> str | None:
    """The URL of the first mirror of Maven Central in a Maven settings file, or None."""
    try:
        root = xml.parse(settings).getroot()
    except (OSError, xml.ParseError):
        return None
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        of = {part.strip() for part in (mirror.findtext("{*}mirrorOf") or "").split(",")}
        if of & {"*", "central", "external:*"} and "!central" not in of:
            return (mirror.findtext("{*}url") or "").strip() or None
    return None


def _download(repository: str, folder: Path, archives: Sequence[Archive]) -> None:
    def download(archive: Archive) -> None:
        url = f"{repository}/{archive.path}"
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
                content = response.read(_LARGEST_BYTES)
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise FetchFailed(
                f"{url} could not be fetched: {error}; set {REPOSITORY_VARIABLE} to a Maven repository that "
                "can be reached"
            ) from error
        digest = hashlib.sha256(content).hexdigest()
        if digest != archive.sha256:
            raise FetchFailed(f"{url} has SHA-256 {digest}, expected {archive.sha256}")
        (folder / archive.name).write_bytes(content)

    with ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool:
        for download_done in [pool.submit(download, archive) for archive in archives]:
            download_done.result()


def main() -> None:
    """Fetch the archives of a list; the arguments are the list's file and the folder's name."""
    pinned, name = sys.argv[1:]
    fetch(name, read_pinned(Path(pinned).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
