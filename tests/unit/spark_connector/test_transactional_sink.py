"""The exactly-once writers refuse on the driver, before a task writes, what the brokers do not allow."""

import pickle
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructType

from barnabas.client.admin.configs import ConfigResource
from barnabas.client.config import AdminConfig
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.spark_connector.sink import transactional_sink
from barnabas.spark_connector.sink.sink_options import parse_sink_options
from barnabas.spark_connector.sink.transactional_sink import TransactionalStreamWriter, TransactionalWriter

GIVEN = {"kafka.bootstrap.servers": "a:1", "topic": "t", "kafka.transactional.id": "sink"}
SCHEMA = StructType().add("value", BinaryType())


class FakeAdmin:
    """Has broker 7 alone, with these settings."""

    two_phase = "true"
    is_kafka = False

    def __init__(self, config: AdminConfig) -> None:
        self.config = config

    async def start(self) -> None:
        pass

    async def describe_cluster(self) -> Any:
        return SimpleNamespace(nodes=[SimpleNamespace(node_id=7)])

    async def describe_configs(self, resources: list[ConfigResource], names: Iterable[str]) -> Any:
        values = dict(zip(names, (self.two_phase, "900000"), strict=True))
        return {resource: {n: SimpleNamespace(value=v) for n, v in values.items()} for resource in resources}


@pytest.fixture(autouse=True)
def admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_sink, "Admin", FakeAdmin)
    monkeypatch.setattr(transactional_sink, "_of_process", {})


def batch_writer(**given: str) -> TransactionalWriter:
    return TransactionalWriter(parse_sink_options(GIVEN | given), ("value",))


def stream_writer(**given: str) -> TransactionalStreamWriter:
    return TransactionalStreamWriter(parse_sink_options(GIVEN | given), SCHEMA, ("value",))


@pytest.mark.parametrize("writer_of", [batch_writer, stream_writer])
def test_brokers_that_cannot_prepare_are_refused(monkeypatch: pytest.MonkeyPatch, writer_of: Any) -> None:
    monkeypatch.setattr(FakeAdmin, "two_phase", "false")
    with pytest.raises(
        InvalidConfiguration, match=r"needs transaction\.two\.phase\.commit\.enable=true.* broker 7 has false"
    ):
        pickle.dumps(writer_of())


def test_brokers_of_other_software_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeAdmin, "is_kafka", True)
    with pytest.raises(InvalidConfiguration, match=r"needs brokers of Barnabas .*KIP-939"):
        pickle.dumps(batch_writer())


@pytest.mark.parametrize("writer_of", [batch_writer, stream_writer])
def test_a_longer_time_out_than_the_brokers_is_refused(writer_of: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=r"timeout\.ms=900001: expected at most 900000"):
        pickle.dumps(writer_of(**{"kafka.transaction.timeout.ms": "900001"}))
