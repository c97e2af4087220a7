"""An earlier revision of this repository: which one was released last, its files, and its commands.

The files come from the history with ``git archive``. A command of an earlier tree runs with this interpreter
and the installed packages; only `barnabas` itself is the earlier one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from barnabas.deploy.local_broker import broker_command
from barnabas.protocol.errors import LocalError

REPOSITORY: Final = Path(__file__).parents[1]
_VERSION_FILE: Final = "src/barnabas/__init__.py"
_TIMEOUT_S: Final = 60.0


class NoRevision(LocalError):
    """The history does not have the revision; the text says what to do about it."""


@dataclass(frozen=True)
class Revision:
    """A commit, and the name that it goes by."""

    name: str
    commit: str

    def __str__(self) -> str:
        return self.name if self.commit.startswith(self.name) else f"{self.name} ({self.commit[:8]})"


@dataclass(frozen=True)
class Tree:
    """The files of a revision: a folder with ``src`` and ``broker``."""

    folder: Path

    def command(self, *words: str) -> list[str]:
        """The command with the `barnabas` of this tree."""
        return ["/usr/bin/env", f"PYTHONPATH={self.folder / 'src'}", *words]

    def broker_command(self, settings_file: Path) -> list[str]:
        """Of `LocalCluster`: the broker with these settings, but for those that this tree does not know."""
        lines = settings_file.read_text().splitlines(keepends=True)
        named = "".join(path.read_text() for path in sorted((self.folder / "broker/config").glob("*.py")))
        own = settings_file.with_name("earlier.properties")
        own.write_text("".join(line for line in lines if _is_known(line, named)))
        return self.command(*broker_command(own))

    def version(self) -> str:
        """The output of this tree's ``barnabas --version``, on one line."""
        words = self.command(sys.executable, "-m", "barnabas.cli.main", "--version")
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        return ", ".join(done.stdout.splitlines())


def _is_known(line: str, named: str) -> bool:
    name = re.split(r"[=: ]", line.strip(), maxsplit=1)[0].replace(".", "_")
    return re.search(rf"\b{re.escape(name)}\b", named) is not None


def last_release(repository: Path = REPOSITORY) -> Revision:
    """The last tag ``v…`` before HEAD; without one the commit that set the last version of the changelog.

    Raises NoRevision.
    """
    tag = _git(repository, "describe", "--tags", "--match", "v[0-9]*", "--abbrev=0")
    if tag is not None:
        return resolved(tag, repository)
    if _git(repository, "rev-parse", "--is-shallow-repository") != "false":
        raise NoRevision(
            f"{repository} has neither a tag v… nor its whole history, so the last release is not known "
            "(git fetch --unshallow --tags; or --against REVISION)"
        )
    version = released_version((repository / "CHANGELOG.md").read_text())
    if version is not None:
        commits = _git(repository, "log", "--format=%H", f'-S"{version}"', "--", _VERSION_FILE)
        if commits:
            # The oldest: a later one may have replaced the version.
            return Revision(version, commits.split()[-1])
    raise NoRevision(
        f"no commit set {version or 'a version'} of CHANGELOG.md in {_VERSION_FILE} (--against REVISION)"
    )


def released_version(changelog: str) -> str | None:
    """The version of the newest section that has a date."""
    found = re.search(r"^## \[?(\d+\.\d+\.\d+\S*?)\]? - \d{4}-\d\d-\d\d", changelog, flags=re.MULTILINE)
    return found and found[1]


def resolved(name: str, repository: Path = REPOSITORY) -> Revision:
    """The revision of this name: a tag, a branch, a commit. Raises NoRevision."""
    commit = _git(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if not commit:
        raise NoRevision(f"the history of {repository} has no revision {name}")
    return Revision(name, commit)


def unpacked(revision: Revision, folder: Path, repository: Path = REPOSITORY) -> Tree:
    """The tree of a revision, in this new folder. Raises NoRevision."""
    folder.mkdir(parents=True)
    archive = folder / "tree.tar"
    if _git(repository, "archive", "--output", str(archive), revision.commit) is None:
        raise NoRevision(f"the history of {repository} has no files of {revision}")
    shutil.unpack_archive(archive, folder, filter="data")
    archive.unlink()
    return Tree(folder)


def _git(repository: Path, *words: str) -> str | None:
    """The output of git, or None if it fails; raises NoRevision without git."""
    if shutil.which("git") is None:
        raise NoRevision("an earlier revision comes from the history, and there is no git")
    done = subprocess.run(
        ["git", "-C", str(repository), *words],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return None if done.returncode else done.stdout.strip()
