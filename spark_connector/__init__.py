"""The PySpark data source `barnabas`, and the Python that Spark's workers have to run for it."""

import os
import sys

from barnabas.spark_connector.data_source import BarnabasSource

__all__ = ["BarnabasSource", "worker_python"]


def worker_python() -> str:
    """The value of `PYSPARK_PYTHON` for a session of this process: a path.

    It is the command `barnabas-python`, by which Spark's processes start a second sooner, where it is
    installed beside this Python.
    """
    faster = os.path.join(os.path.dirname(sys.executable), "barnabas-python")
    return faster if os.access(faster, os.X_OK) else sys.executable
