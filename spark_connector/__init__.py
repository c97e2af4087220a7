"""The PySpark data source `barnabas`."""

from barnabas.spark_connector.interpreter import worker_python
from barnabas.spark_connector.source import BarnabasSource

__all__ = ["BarnabasSource", "worker_python"]
