"""Lets Spark discover the data source by name; PySpark imports every module called pyspark_*."""

from barnabas.spark_connector.data_source import BarnabasSource as DefaultSource

__all__ = ["DefaultSource"]
