"""The connector on a standalone cluster, whose executors get it from an archive."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from barnabas.client.blocking import Producer
from barnabas.deploy.local import LocalCluster

from .standalone import standalone

_JOB = """
import json, sys
from pyspark.sql import SparkSession

settings = json.loads(sys.argv[1])
builder = SparkSession.builder
for name, value in settings["session"].items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.read.format("barnabas").options(**settings["source"]).load().collect()
print(json.dumps(sorted(row.value.decode() for row in rows)))
spark.stop()
"""


@pytest.mark.lanes("the archive has 440 MB")
@pytest.mark.timeout(300)
def test_executors_without_packages_read_by_the_archive(
    spark_cluster: LocalCluster, make_topic: Any, tmp_path: Path
) -> None:
    topic = make_topic(2)
    with Producer(bootstrap_servers=spark_cluster.bootstrap) as producer:
        for number in range(4):
            producer.send(topic, b"%d" % number, partition=number % 2)
        producer.flush()
    with standalone(tmp_path) as cluster:
        session = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            **cluster.settings,
        }
        source = {"kafka.bootstrap.servers": spark_cluster.bootstrap, "subscribe": topic}
        # A process of its own: this one has a session already.
        ended = subprocess.run(
            [sys.executable, "-c", _JOB, json.dumps({"session": session, "source": source})],
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == ["0", "1", "2", "3"]
