"""The PySpark data source `barnabas`."""
