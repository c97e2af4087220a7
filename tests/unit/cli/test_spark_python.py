"""`barnabas-python` is this Python, with its installed PySpark instead of the zip files of Spark."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from barnabas.cli.spark_python import without_archives
from barnabas.spark_connector import worker_python


def test_only_files_of_the_installed_pyspark_leave_the_path(tmp_path: Path) -> None:
    library = tmp_path / "pyspark" / "python" / "lib"
    library.mkdir(parents=True)
    inside = [library / "pyspark.zip", library / "py4j-src.zip"]
    other = tmp_path / "other" / "pyspark.zip"
    other.parent.mkdir()
    for each in (*inside, other):
        each.touch()
    folder = tmp_path / "pyspark" / "python"
    path = [str(each) for each in (*inside, other, folder, tmp_path / "pyspark-more.zip")]
    # Without Py4J in the folder its zip file is needed.
    assert without_archives(path, str(tmp_path)) == path
    (tmp_path / "py4j").mkdir()
    assert without_archives(path, str(tmp_path)) == path[2:]


def test_it_is_this_python_without_the_zip_files(tmp_path: Path) -> None:
    libraries = Path(sysconfig.get_path("purelib")) / "pyspark" / "python" / "lib"
    archives = [str(each) for each in libraries.glob("*.zip")]
    assert len(archives) == 2
    code = "import pyspark, sys; print(pyspark.__file__, sys.prefix, *sys.argv[1:]); sys.exit(7)"
    done = subprocess.run(
        [worker_python(), "-c", code, "a b", "c"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*archives, str(tmp_path)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    expected = f"{libraries.parents[1] / '__init__.py'} {sys.prefix} a b c\n"
    assert (done.returncode, done.stdout) == (7, expected)
    assert os.path.basename(worker_python()) == "barnabas-python"
