"""The compiled core runs only with the sources that it was built from; its tests pass in pure Python too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tests.simulation.find  # noqa: F401 - it registers the mistakes
from barnabas.common import compiled_core
from tests.simulation.planted import HUNTS, OF_COMPILED_CODE

ROOT = Path(__file__).parents[3]
OF_THE_CORE = (
    "unit/protocol/test_record_batch.py",
    "unit/protocol/test_record_walk.py",
    "unit/protocol/test_varint.py",
    "unit/protocol/test_frames.py",
    "unit/broker/base/test_purgatory.py",
    "unit/broker/handlers/test_produce.py",
    "unit/broker/handlers/test_shared_answers.py",
    "unit/broker/handlers/test_trips.py",
    "unit/broker/handlers/test_unforeseen_errors.py",
    "unit/broker/replication/test_cold_reads.py",
    "unit/broker/replication/test_delayed.py",
    "unit/broker/replication/test_fetch_sessions.py",
    "unit/broker/replication/test_follower_session_model.py::test_a_mistake_is_found",
    "unit/broker/replication/test_partition_leading.py",
    "unit/broker/replication/test_subscriptions.py",
    "simulation/test_recording.py",
    "simulation/test_histories.py::test_the_old_mistake_shows_in",
    "unit/client/test_blocking.py::test_ctrl_c_within_send_leaves_a_producer_that_delivers",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one source in each package."""
    for name in ("protocol", "common", "zookeeper", "controller", "broker/log"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "some.py").write_text("LIMIT = 1\n")
    return tmp_path


def manifest_of(root: Path) -> dict[str, object]:
    stamps = compiled_core.stamps(str(root))
    digests = {path: compiled_core.digest(str(root), path) for path in stamps}
    return {"recipe": [], "modules": {}, "stamps": stamps, "digests": digests}


def run_python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=150,
    )


def test_a_build_is_current_until_a_byte_of_a_source_changes(root: Path) -> None:
    manifest = manifest_of(root)
    source = root / "broker" / "log" / "some.py"
    assert compiled_core.is_current(manifest, str(root))
    os.utime(source, ns=(1, 1))
    assert compiled_core.is_current(manifest, str(root)), "the same bytes, checked out again"
    source.write_text("LIMIT = 2\n")
    assert not compiled_core.is_current(manifest, str(root))


@pytest.mark.parametrize("change", ["new", "gone"])
def test_a_source_that_came_or_went_makes_a_build_out_of_date(root: Path, change: str) -> None:
    manifest = manifest_of(root)
    if change == "new":
        (root / "common" / "other.py").touch()
    else:
        (root / "common" / "some.py").unlink()
    assert not compiled_core.is_current(manifest, str(root))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"modules": {}}), "\udcff"])
def test_what_is_no_manifest_counts_as_no_build(tmp_path: Path, text: str) -> None:
    (tmp_path / compiled_core.MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    assert compiled_core.read_manifest(str(tmp_path)) is None
    assert compiled_core.read_manifest(str(tmp_path / "missing")) is None


def test_a_build_that_is_current_is_what_runs() -> None:
    manifest = compiled_core.read_manifest(compiled_core.folder())
    if manifest is None or not compiled_core.is_current(manifest) or os.environ.get("BARNABAS_PURE_PYTHON"):
        pytest.skip("there is no compiled core of these sources: `make compiled`")
    names = [name for name in manifest["modules"] if name.startswith("barnabas.")]
    assert len(names) >= 4
    ran = run_python(
        "-c", f"import {', '.join(names)}, sys; print(*(sys.modules[n].__file__ for n in {names}))"
    )
    files = ran.stdout.split()
    assert len(files) == len(names), ran.stderr
    assert all(file.startswith(compiled_core.folder()) and file.endswith(".so") for file in files)
    assert "(compiled)" in run_python("-m", "barnabas", "--version").stdout


def test_the_tests_of_the_core_pass_in_pure_python_too() -> None:
    if not compiled_core.is_running():
        pytest.skip("this run is in pure Python itself")
    said = run_python("-m", "barnabas", "--version", BARNABAS_PURE_PYTHON="1").stdout
    assert "(pure Python, as BARNABAS_PURE_PYTHON says)" in said
    planted = "simulation/test_planted.py::test_a_planted_mistake_is_found"
    hunts = [f"{planted}[{hunt}]" for hunt in HUNTS if hunt.mistake in OF_COMPILED_CODE]
    tests = [f"tests/{name}" for name in (*OF_THE_CORE, *hunts)]
    ran = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, BARNABAS_PURE_PYTHON="1")
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert "skipped" not in ran.stdout
