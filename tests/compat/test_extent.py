"""Changes of its subject, and of nothing else, bring the full product of clients and features back."""

import subprocess
from pathlib import Path

import pytest

from .extent import has_changes


def test_a_change_that_is_not_committed_is_seen(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "elsewhere").touch()
    assert not has_changes(tmp_path, ("protocol", "broker/handlers"))
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "new.py").touch()
    assert has_changes(tmp_path, ("protocol", "broker/handlers"))
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    author = ("-c", "user.name=a", "-c", "user.email=a@localhost")
    subprocess.run(["git", *author, "commit", "-qm", "all"], cwd=tmp_path, check=True)
    assert not has_changes(tmp_path, ("protocol", "broker/handlers"))


def test_without_git_nothing_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "protocol").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert not has_changes(tmp_path, ("protocol",))
    monkeypatch.setenv("PATH", "")
    assert not has_changes(tmp_path, ("protocol",))
