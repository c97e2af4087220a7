"""Messages for the tests of codecs: random ones, made from the declarations, and Produce requests."""

import struct
from typing import Any, NamedTuple

from hypothesis import strategies as st

from barnabas.protocol.codec_kafka_source import is_carried
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.schema import APIS, INTEGER_BITS, Api, WireField, WireType, wire_fields

TIMES = {
    "expiry_time_period_ms",
    "expiry_timestamp_ms",
    "issue_timestamp_ms",
    "log_append_time_ms",
    "max_lifetime_ms",
    "max_timestamp_ms",
    "renew_period_ms",
    "retention_time_ms",
    "session_lifetime_ms",
    "timestamp",
    "transaction_start_time_ms",
}
"""The fields that one of the oracles makes a date or a span of time of; not every int64 is one."""
LATEST_TIME_MS = 4_000_000_000_000


class Case(NamedTuple):
    """One API in one version."""

    api: Api
    version: int

    def __str__(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def name(self) -> str:
        return self.api.response.__name__.removesuffix("Response")

    @property
    def is_flexible(self) -> bool:
        return self.api.flexible_since is not None and self.version >= self.api.flexible_since


CASES = [
    Case(api, version)
    for _, api in sorted(APIS.items())
    for version in range(api.versions[0], api.served_to + 1)
]


def _values(name: str, wire: WireField, version: int | None) -> st.SearchStrategy[Any]:
    made: st.SearchStrategy[Any]
    if wire.struct is not None:
        made = messages(wire.struct, version)
    elif name.endswith("error_code") and version is not None:
        made = st.sampled_from([int(code) for code in ErrorCode])
    elif name in TIMES and version is not None:
        made = st.integers(0, LATEST_TIME_MS)
    elif wire.kind in INTEGER_BITS:
        limit = 1 << (INTEGER_BITS[wire.kind] - 1)
        made = st.integers(-limit, limit - 1)
    else:
        made = {
            WireType.BOOLEAN: st.booleans(),
            WireType.FLOAT64: st.floats(allow_nan=False),
            WireType.STRING: st.text(max_size=12) | st.sampled_from(["x" * 126, "é" * 64, "y" * 300]),
            WireType.BYTES: st.binary(max_size=60) | st.sampled_from([b"o" * 127, b"p" * 20_000]),
            WireType.UUID: st.uuids(),
            WireType.RECORDS: st.binary(max_size=60) | st.sampled_from([b"r" * 127, b"s" * 20_000]),
        }[wire.kind]
    if wire.is_array:
        made = st.lists(made, max_size=3)
        if wire.struct is None:
            made |= st.lists(_values(name, WireField(wire.kind), version), min_size=33, max_size=34)
    if wire.nullable_since is None or (version is not None and version < wire.nullable_since):
        return made
    return st.none() | made


_made: dict[tuple[type[Any], int | None], st.SearchStrategy[Any]] = {}


def messages(cls: type[Any], version: int | None = None) -> st.SearchStrategy[Any]:
    """Instances whose fields are random where the version has them and have their defaults elsewhere.

    Without a version they are for the native codec, which has all fields.
    """
    found = _made.get((cls, version))
    if found is None:
        parts: dict[str, st.SearchStrategy[Any]] = {}
        for name, wire, maker in wire_fields(cls):
            if version is not None and not is_carried(wire, version):
                continue
            parts[name] = _values(name, wire, version)
            if wire.tag is not None and version is not None:
                # Often the default, which is then not sent at all.
                parts[name] = st.builds(maker) | parts[name]
        found = _made[cls, version] = st.builds(cls, **parts)
    return found


def payload(buffers: list[Any]) -> memoryview:
    """A frame as its receiver sees it, after a check of its length bytes."""
    whole = b"".join(buffers)
    assert struct.unpack_from(">I", whole)[0] == len(whole) - 4
    return memoryview(whole)[4:]


def produce(*batches: Any) -> ProduceRequest:
    """A request with these records, one partition each."""
    partitions = [PartitionProduceData(index=i, records=batch) for i, batch in enumerate(batches)]
    return ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=partitions)]
    )
