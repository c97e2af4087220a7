"""The wheel in an empty environment, as after `pip install`.

Packages come from the index that pip is set up for; without one that can be reached the test is skipped.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas import __version__
from barnabas.cli import exit_codes
from barnabas.deploy.zookeeper import find_jars

ROOT = Path(__file__).parents[2]
NOT_SOURCE = (".*", "tests", "benchmarks", "examples", "docs", "build", "dist", "*.egg-info", "__pycache__")
UNREACHABLE = (
    "NewConnectionError",
    "name resolution",
    "Connection refused",
    "Network is unreachable",
    "timed out",
)


def pip(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode and any(reason in done.stderr for reason in UNREACHABLE):
        pytest.skip(f"pip reaches no package index: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr


class Installation:
    """A virtual environment with nothing but the wheel, and a home directory of its own."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.wheel = wheel
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BARNABAS_", "PYTHON", "VIRTUAL_ENV"))
        } | {
            "HOME": str(folder / "home"),
            # The jars of the development set-up; test_maven covers their download.
            "BARNABAS_ZOOKEEPER_JARS": str(find_jars()[0].parent),
        }
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)

    def install(self, extras: str = "") -> None:
        pip(
            *("--python", str(self.folder / "bin" / "python"), "install", "-q", "--no-compile"),
            *("--constraint", str(ROOT / "requirements.lock"), f"{self.wheel}{extras}"),
        )

    def run(self, program: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "bin" / program), *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=self.environment,
            cwd=self.folder,
        )

    def barnabas(self, *words: str, stdin: str = "") -> str:
        done = self.run("barnabas", *words, stdin=stdin)
        assert done.returncode == exit_codes.OK, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # A copy, since a build leaves files in the source tree.
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    pip("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "source"))
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.startswith(f"barnabas-{__version__}-")
    return wheel


@pytest.mark.timeout(900)
def test_a_cluster_runs_from_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    installation = Installation(tmp_path / "environment", wheel)
    installation.install()
    client = installation.run("python", "-c", "import barnabas.client.blocking as m; print(m.__file__)")
    assert client.returncode == 0, client.stderr
    package = Path(client.stdout.strip()).parents[1]
    assert package.is_relative_to(installation.folder)
    assert (package / "py.typed").exists()
    # The page's files and the scenarios, each of them.
    for folder in ("ui/replays", "ui/static", "ui/templates", "chaos/scenarios"):
        names = {path.name for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert names
        assert {path.name for path in (package / folder).rglob("*") if path.is_file()} == names
    refused = installation.run("barnabas", "up", "--detach")
    assert refused.returncode == exit_codes.FAILED
    assert "pip install 'barnabas[local]'" in refused.stderr
    listed = installation.run("barnabas", "completion", "bash")
    assert (listed.returncode, "barnabas[cli]" in listed.stderr) == (exit_codes.FAILED, True)

    installation.install("[local]")
    try:
        assert "export BARNABAS_BOOTSTRAP=127.0.0.1:" in installation.barnabas(
            "up", "--detach", "--brokers", "1"
        )
        installation.barnabas(
            "topics", "create", "greetings", "--partitions", "1", "--replication-factor", "1"
        )
        installation.barnabas("produce", "greetings", stdin="hello\nworld\n")
        assert installation.barnabas("consume", "greetings") == "hello\nworld\n"
        assert "greetings-0" in installation.barnabas("status")
    finally:
        stopped = installation.barnabas("down")
    assert stopped == "stopped\n"
