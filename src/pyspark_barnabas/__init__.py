"""Lets Spark discover the data source by name; PySpark imports every module called pyspark_*."""
