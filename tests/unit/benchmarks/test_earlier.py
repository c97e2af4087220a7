"""Which revision was released last, and what an earlier tree is started with."""

import subprocess
from pathlib import Path

import pytest

from barnabas.deploy.local_broker import LOCAL_SETTINGS
from benchmarks.earlier import NoRevision, Tree, last_release, released_version, resolved, unpacked


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def commit(folder: Path, version: str, changelog: str) -> str:
    """A commit with these two files; returns its id."""
    source = folder / "src/barnabas/__init__.py"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(f'__version__ = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(changelog)
    git(folder, "add", ".")
    git(folder, "commit", "--allow-empty", "-m", f"area: version {version}")
    return git(folder, "rev-parse", "HEAD")


RELEASED = (
    "# Changelog\n\n## Unreleased\n\n- 1.2.3 - 2026-01-01\n\n## 0.2.0 - 2026-02-01\n\n## 0.1.0 - 2026-01-01\n"
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two releases, and two commits since the last one."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    commit(folder, "0.1.0", "## 0.1.0 - 2026-01-01\n")
    commit(folder, "0.2.0", RELEASED)
    commit(folder, "0.2.0", RELEASED + "more\n")
    commit(folder, "0.3.0.dev0", RELEASED)
    return folder


@pytest.mark.parametrize(
    ("changelog", "version"),
    [
        (RELEASED, "0.2.0"),
        ("## [1.0.0rc1] - 2026-02-01\n", "1.0.0rc1"),
        ("## Unreleased\n## 0.1.0\n", None),
        ("", None),
    ],
)
def test_the_released_version_is_the_newest_one_with_a_date(changelog: str, version: str | None) -> None:
    assert released_version(changelog) == version


def test_without_tags_the_last_release_is_the_commit_that_set_its_version(repository: Path) -> None:
    found = last_release(repository)
    assert found.commit == git(repository, "rev-parse", "HEAD~2")
    assert str(found) == f"0.2.0 ({found.commit[:8]})"


def test_the_last_release_is_the_last_tag_of_a_version(repository: Path) -> None:
    git(repository, "tag", "v0.1.0", "HEAD~3")
    git(repository, "tag", "v0.2.0", "HEAD~1")
    git(repository, "tag", "demo")
    assert last_release(repository).commit == git(repository, "rev-parse", "HEAD~1")
    assert last_release(repository).name == "v0.2.0"


def test_a_shallow_history_says_what_to_do(repository: Path, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", str(shallow))
    with pytest.raises(NoRevision, match="git fetch --unshallow"):
        last_release(shallow)
    with pytest.raises(NoRevision, match="has no revision v9"):
        resolved("v9", shallow)


def test_a_history_without_releases_is_refused(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text("# Changelog\n")
    with pytest.raises(NoRevision, match="--against"):
        last_release(repository)


def test_a_folder_without_history_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(NoRevision, match="neither a tag"):
        last_release(tmp_path)


def test_a_tree_has_the_files_of_its_revision(repository: Path, tmp_path: Path) -> None:
    tree = unpacked(last_release(repository), tmp_path / "earlier", repository)
    assert (tree.folder / "src/barnabas/__init__.py").read_text() == '__version__ = "0.2.0"\n'
    assert list(tree.folder.glob("*.tar")) == []


def test_an_earlier_broker_gets_the_settings_that_it_knows(tmp_path: Path) -> None:
    settings = tmp_path / "broker-1/server.properties"
    settings.parent.mkdir()
    settings.write_text("num.io.threads=2\nnum.io.threads.later=3\nlog.dirs=a=b\n")
    config = tmp_path / "broker/config"
    config.mkdir(parents=True)
    (config / "settings.py").write_text("    num_io_threads: int = setting()\n    log_dirs: str\n")
    command = Tree(tmp_path).broker_command(settings)
    assert command[:2] == ["/usr/bin/env", f"PYTHONPATH={tmp_path}/src"]
    given = Path(command[command.index("--config") + 1])
    assert given.read_text() == "num.io.threads=2\nlog.dirs=a=b\n"
    assert given != settings


def test_a_broker_of_this_tree_gets_all_settings(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    text = "".join(f"{name}={value}\n" for name, value in LOCAL_SETTINGS.items())
    settings.write_text(text)
    command = Tree(Path(__file__).parents[3]).broker_command(settings)
    assert Path(command[command.index("--config") + 1]).read_text() == text
