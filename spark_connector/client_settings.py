"""The `kafka.*` options: which settings of our clients they set, which have no effect, and which are refused.

Spark passes every such option on to Kafka's client, which warns of unknown names. Here a setting that our
client has is checked and used. Another one of Kafka's and an unknown name have no effect, which is logged as
a warning, once in a process. A setting that would change the records is refused with the reason.
An unknown one of security is refused, too: a secured cluster must never be used in the clear by accident.
Values of security settings are never shown.

The functions are pure but for the warnings, and for any thread.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from barnabas.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from barnabas.client.security import WITHOUT_EFFECT
from barnabas.common.settings import parsed, settings_of
from barnabas.common.suggestions import did_you_mean
from barnabas.protocol.errors import InvalidConfiguration

logger = logging.getLogger(__name__)

KAFKA_PREFIX: Final = "kafka."

_SECURITY: Final = ("security.", "sasl.", "ssl.")
_OF_ALL_CLIENTS: Final = """
    auto.include.jmx.reporter bootstrap.servers client.dns.lookup client.id connections.max.idle.ms
    enable.metrics.push interceptor.classes metadata.max.age.ms metadata.recovery.strategy metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms receive.buffer.bytes
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms
    security.protocol send.buffer.bytes socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms
"""
_OF_CONSUMERS: Final = """
    allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs client.rack
    default.api.timeout.ms enable.auto.commit exclude.internal.topics fetch.max.bytes fetch.max.wait.ms
    fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
    isolation.level key.deserializer max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    partition.assignment.strategy session.timeout.ms value.deserializer
"""
_OF_PRODUCERS: Final = """
    acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level delivery.timeout.ms enable.idempotence key.serializer linger.ms max.block.ms
    max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
    partitioner.ignore.keys retries transaction.timeout.ms transactional.id value.serializer
"""
KAFKA_NAMES: Final = frozenset(f"{_OF_ALL_CLIENTS} {_OF_CONSUMERS} {_OF_PRODUCERS}".split())
"""The settings of the consumer and the producer of Kafka 3.9, except those of `client.security`."""


class Client(NamedTuple):
    """A kind of client that the connector opens.

    ``uses`` are the fields of ``config_class`` that have an effect; the values of others are only checked.
    ``refused`` has the reason for each setting that is not accepted.
    """

    role: str
    config_class: type[ClientConfig]
    uses: frozenset[str]
    refused: Mapping[str, str]


_INTERCEPTORS: Final = "interceptors are Java classes that can change records"
_WIRE: Final = "use the option wire, because Kafka has no such setting"

FETCH_SIZES: Final = ("fetch_max_bytes", "max_partition_fetch_bytes")
"""A task reads one partition, so the smaller of the two bounds its fetches."""

SOURCE_CLIENT: Final = Client(
    "source",
    ConsumerConfig,
    frozenset(settings_of(AdminConfig)).union(FETCH_SIZES),
    {
        "auto.offset.reset": "set startingOffsets to earliest or latest instead; the source itself decides "
        "which offsets are read, so that no records of new topics or partitions are missed",
        "key.deserializer": "keys are read as bytes; use DataFrame operations to deserialize them",
        "value.deserializer": "values are read as bytes; use DataFrame operations to deserialize them",
        "enable.auto.commit": "the source itself keeps the offsets that were read",
        "interceptor.classes": _INTERCEPTORS,
        "wire": _WIRE,
    },
)
SINK_CLIENT: Final = Client(
    "sink",
    ProducerConfig,
    frozenset(settings_of(ProducerConfig)),
    {
        "key.serializer": "keys are written as bytes; use DataFrame operations to serialize them",
        "value.serializer": "values are written as bytes; use DataFrame operations to serialize them",
        "interceptor.classes": _INTERCEPTORS,
        "wire": _WIRE,
        "partitioner.class": "a partitioner is a Java class; use the column partition or kafka.partitioner",
    },
)


def client_settings(
    given: Mapping[str, str], client: Client, handled: Collection[str] = ()
) -> dict[str, Any]:
    """The typed settings of a client, by field of its config class, from the `kafka.*` options of `given`.

    Other options are left alone, as are those `handled` elsewhere, which are full names. Names may have any
    case. Raises InvalidConfiguration for a refused option or a wrong value, naming it as it was given.
    """
    written = {
        name.lower().removeprefix(KAFKA_PREFIX): name
        for name in given
        if name.lower().startswith(KAFKA_PREFIX) and name.lower() not in handled
    }
    declared = settings_of(client.config_class, lambda field: field.replace("_", "."))
    fields = {setting.name: field for field, setting in declared.items()}
    used: dict[str, Any] = {}
    for name, option in written.items():
        if name in client.refused:
            raise InvalidConfiguration(f"option {option!r} is refused: {client.refused[name]}")
        if name in fields:
            field = fields[name]
            value = parsed(option, given[option], declared[field].kind)
            if field in client.uses:
                used[field] = value
                continue
        if name in fields or name in KAFKA_NAMES or name in WITHOUT_EFFECT:
            _warn_once(f"option {option!r} has no effect in the barnabas {client.role}")
        elif name.startswith(_SECURITY):
            hint = did_you_mean(name, {*fields, *WITHOUT_EFFECT})
            raise InvalidConfiguration(
                f"option {option!r} is unknown, and settings of security must be known{hint}"
            )
        else:
            hint = did_you_mean(name, {*fields, *KAFKA_NAMES})
            _warn_once(f"option {option!r} is no setting of Kafka's client and has no effect{hint}")
    _check_together(
        used, client.config_class, {fields[name]: written[name] for name in fields.keys() & written}
    )
    return used


def _check_together(
    settings: Mapping[str, Any], config_class: type[ClientConfig], written: Mapping[str, str]
) -> None:
    try:
        config_class.of(settings)
    except InvalidConfiguration as error:
        names = settings_of(config_class)
        text = re.sub(
            r"\b(" + "|".join(names) + r")\b",
            lambda match: written.get(match[0], KAFKA_PREFIX + match[0].replace("_", ".")),
            str(error),
        )
        raise InvalidConfiguration(text) from None


@lru_cache(maxsize=256)
def _warn_once(text: str) -> None:
    logger.warning("%s", text)
