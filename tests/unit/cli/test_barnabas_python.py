"""`barnabas-python` is the Python beside it, with the PySpark installed there, not Spark's zip files."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from barnabas.spark_connector import worker_python

_REPORT = "import os; print(os.environ['PYTHONPATH'])"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment with the command, a Python, and the files of PySpark that Spark puts on the path."""
    root = tmp_path / "a pyspark environment"
    (root / "bin").mkdir(parents=True)
    shutil.copy(worker_python(), root / "bin")
    (root / "bin" / "python").symlink_to(sys.executable)
    library = root / "lib" / "python3.11" / "site-packages" / "pyspark" / "python" / "lib"
    library.mkdir(parents=True)
    for name in ("pyspark.zip", "py4j-src.zip"):
        (library / name).touch()
    (library.parents[2] / "py4j").mkdir()
    return root


def _path_of(environment: Path, *path: Path) -> list[Path]:
    """Run the command with these entries as its Python path; returns the entries that Python gets."""
    done = subprocess.run(
        [environment / "bin" / "barnabas-python", "-c", _REPORT],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [Path(each) for each in done.stdout.rstrip("\n").split(os.pathsep) if each]


def test_only_files_of_the_installed_pyspark_leave_the_path(environment: Path, tmp_path: Path) -> None:
    archives = sorted(environment.glob("**/*.zip"))
    assert len(archives) == 2
    elsewhere = tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    others = [elsewhere, archives[0].parent, tmp_path / "b *"]
    assert _path_of(environment, *archives, *others) == others
    assert _path_of(environment, *archives) == []
    # Without Py4J as a folder its zip file is needed.
    next(environment.glob("**/py4j")).rmdir()
    assert _path_of(environment, *archives, *others) == [*archives, *others]


def test_it_is_this_python_without_the_zip_files(tmp_path: Path) -> None:
    libraries = Path(sysconfig.get_path("purelib")) / "pyspark" / "python" / "lib"
    archives = [str(each) for each in libraries.glob("*.zip")]
    assert len(archives) == 2
    code = "import pyspark, sys; print(pyspark.__file__, sys.prefix, *sys.argv[1:]); sys.exit(7)"
    done = subprocess.run(
        [worker_python(), "-c", code, "a b", "*", ""],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*archives, str(tmp_path)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    expected = f"{libraries.parents[1] / '__init__.py'} {sys.prefix} a b * \n"
    assert (done.returncode, done.stdout) == (7, expected)
    assert os.path.basename(worker_python()) == "barnabas-python"


def test_without_a_python_beside_it_the_one_of_the_path_is_used(environment: Path) -> None:
    (environment / "bin" / "python").unlink()
    done = subprocess.run(
        [environment / "bin" / "barnabas-python", "-c", "import sys; print(sys.executable)"],
        env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert Path(done.stdout.strip()).parent == Path(sys.executable).parent
