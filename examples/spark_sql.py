"""SQL over a topic of JSON in Spark: how many of each item were ordered.

Run: python examples/json_orders.py, then python examples/spark_sql.py
"""

import os

from pyspark.sql import SparkSession

from barnabas.spark_connector import worker_python

SERVERS = os.environ.get("BARNABAS_BOOTSTRAP", "127.0.0.1:9092")

# Spark's workers must run a Python that has barnabas, as this one does.
os.environ.setdefault("PYSPARK_PYTHON", worker_python())
spark = SparkSession.builder.master("local[2]").getOrCreate()
orders = spark.read.format("barnabas").option("bootstrap.servers", SERVERS).option("subscribe", "orders")
orders.load().createOrReplaceTempView("records")
spark.sql("""
    SELECT value.item, count(*) AS orders, sum(value.count) AS pieces
    FROM (SELECT from_json(string(value), 'item STRING, count INT') AS value FROM records)
    GROUP BY value.item
""").show()
