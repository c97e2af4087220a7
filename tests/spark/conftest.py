"""One Spark session and one cluster for all tests here; each test has topics of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from barnabas.client.admin.admin import NewTopic
from barnabas.client.blocking import Admin
from barnabas.deploy.local import LocalCluster
from benchmarks.peers import spark_kafka
from benchmarks.peers.processes import PeerError
from tests.support.names import fresh_name

from ..cluster.tools import running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeTopic = Callable[..., str]

_HERE = Path(__file__).parent
_LANES = "SPARK_LANES"
"""Set by `make spark-lanes`, which also runs the tests with the marker `lanes`."""
_BROKER_SETTINGS = {
    # A paused follower has to stay in the ISR for as long as a test looks.
    "replica.lag.time.max.ms": "60000",
    "zookeeper.session.timeout.ms": "60000",
    "log.retention.check.interval.ms": "200",
    "log.retention.ms": "-1",
}
_SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The session of a few tests ends before the better compiler has repaid its work.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            needed = item.get_closest_marker("pyspark")
            if needed is not None and pyspark_version() < _numbers(needed.args[0]):
                item.add_marker(pytest.mark.skip(f"needs PySpark {needed.args[0]}: {needed.args[1]}"))
            slow = item.get_closest_marker("lanes")
            if slow is not None and _LANES not in os.environ:
                item.add_marker(pytest.mark.skip(f"only in make spark-lanes: {slow.args[0]}"))
            item.add_marker(pytest.mark.spark)
            # PySpark leaves sockets to the collector, and warns of the pandas that it was not tried with.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not:FutureWarning"))


def pyspark_version() -> tuple[int, ...]:
    return _numbers(version("pyspark"))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


@cache
def _kafka_archives() -> str:
    """Spark's own Kafka source for the session, as ``spark.jars``. Raises PeerError if there is none."""
    running = version("pyspark")
    if running != spark_kafka.VERSION:
        raise PeerError(f"Spark's own Kafka source runs in PySpark {spark_kafka.VERSION} alone")
    return spark_kafka.archives()


@pytest.fixture
def kafka_source() -> None:
    """Skips the test where the session has no ``format("kafka")``."""
    try:
        _kafka_archives()
    except PeerError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from barnabas.spark_connector import worker_python

    # The workers have to be this very Python.
    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("barnabas tests")
    for name, value in _SESSION.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    with suppress(PeerError):
        builder = builder.config("spark.jars", _kafka_archives())
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers with their own ZooKeeper."""
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"), settings=_BROKER_SETTINGS)
    with running(cluster):
        yield cluster


@pytest.fixture(scope="session")
def admin(spark_cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=spark_cluster.bootstrap) as made:
        yield made


@pytest.fixture
def make_topic(admin: Admin) -> MakeTopic:
    """Make a topic with a name of its own; takes the arguments of `NewTopic`."""

    def make(partitions: int = 1, **arguments: object) -> str:
        name = fresh_name("topic")
        if "replica_assignment" not in arguments:
            arguments["num_partitions"] = partitions
        admin.create_topics(NewTopic(name, **arguments))
        return name

    return make
