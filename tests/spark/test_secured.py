"""Sources and sinks on a secured cluster (SASL_SSL, ACLs), by the options that were written for a user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from barnabas.client.admin.admin import NewTopic
from barnabas.client.blocking import Admin
from barnabas.common.security.principal import Principal
from barnabas.common.security.rights import bindings_of, operations_of, resource_of
from barnabas.deploy.client_settings import client_settings
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.state import SecurityConfiguration

from ..cluster.tools import running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RIGHTS = (
    "read,write topic:numbers topic:copies",
    # Of a sink that writes exactly once.
    "all transactional-id:copy*",
    "create,read,write topic:__barnabas_spark_sinks",
    "describe_configs cluster",
)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The options of alice, who has `RIGHTS`."""
    cluster = LocalCluster(
        tmp_path_factory.mktemp("secured"),
        brokers=1,
        security=SecurityConfiguration(tls=True, mechanism="SCRAM-SHA-256", acl=True),
        users={"alice": None},
    )
    with running(cluster):
        security = cluster.security
        assert security is not None
        with Admin(**client_settings("barnabas", security.access(cluster.bootstrap))) as admin:
            admin.create_topics([NewTopic("numbers", 2), NewTopic("copies", 2)])
            for right in RIGHTS:
                operations, *resources = right.split()
                chosen = [resource_of(text) for text in resources]
                admin.create_acls(bindings_of(Principal.user("alice"), operations_of(operations), chosen))
        yield json.loads((security.clients_of("alice") / "spark.json").read_text())


def test_a_user_reads_and_writes_batches_and_streams(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    # As in `test_sinks`: Spark finds a source to write to only in the active session.
    spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)

    def values(topic: str) -> list[str]:
        read = spark.read.format("barnabas").options(**options, subscribe=topic).load()
        return sorted(row.value.decode() for row in read.select("value").collect())

    numbers = spark.range(5).selectExpr("cast(id as string) value")
    numbers.write.format("barnabas").options(**options, topic="numbers").mode("append").save()
    query = (
        spark.readStream.format("barnabas")
        .options(**options, subscribe="numbers", startingOffsets="earliest")
        .load()
        .select("value")
        .writeStream.format("barnabas")
        .options(**options, topic="copies", checkpointLocation=str(tmp_path))
        # Exactly once.
        .option("kafka.transactional.id", "copy")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    assert values("copies") == ["0", "1", "2", "3", "4"]
    with pytest.raises(Exception, match="orders"):
        values("orders")
