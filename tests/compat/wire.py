"""Kafka's wire format written by hand, independent of our codec and of any client.

Only what the tests of the socket need, in versions without tagged fields (and one with). Blocking; a call
beyond the deadline fails the test.
"""

from __future__ import annotations

import struct
from typing import Any

from tests.support.raw_socket import RawSocket
from tests.support.waiting import wait_for

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, LIST_GROUPS, API_VERSIONS = 0, 1, 2, 3, 10, 16, 18
OFFSETS_TOPIC = "__consumer_offsets"


def string(value: str | None) -> bytes:
    """A (nullable) string: INT16 length, -1 for null."""
    if value is None:
        return struct.pack(">h", -1)
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def array(*items: bytes) -> bytes:
    """An array: INT32 count, then the items."""
    return struct.pack(">i", len(items)) + b"".join(items)


def blob(value: bytes) -> bytes:
    """Bytes: INT32 length."""
    return struct.pack(">i", len(value)) + value


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(key: int, version: int, body: bytes, correlation_id: int = 1, client_id: str = "wire") -> bytes:
    """A whole request with a header of version 1."""
    return frame(struct.pack(">hhi", key, version, correlation_id) + string(client_id) + body)


def api_versions_request(version: int = 0, correlation_id: int = 1) -> bytes:
    return request(API_VERSIONS, version, b"", correlation_id)


def metadata_request(*topics: str, correlation_id: int = 1) -> bytes:
    """Metadata 4 of these topics (none: of no topic), which makes none."""
    return request(METADATA, 4, array(*map(string, topics)) + b"\0", correlation_id)


def produce_request(
    topic: str,
    partition: int,
    records: bytes,
    *,
    acks: int = -1,
    correlation_id: int = 1,
    timeout_ms: int = 10_000,
) -> bytes:
    """Produce 7 to one partition."""
    to_partition = struct.pack(">i", partition) + blob(records)
    body = string(None) + struct.pack(">hi", acks, timeout_ms) + array(string(topic) + array(to_partition))
    return request(PRODUCE, 7, body, correlation_id)


def fetch_request(
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int = 50_000_000,
    max_wait_ms: int = 0,
    correlation_id: int = 1,
) -> bytes:
    """Fetch 4 of one partition."""
    of_partition = struct.pack(">iqi", partition, offset, max_bytes)
    head = struct.pack(">iiiib", -1, max_wait_ms, 1, max_bytes, 0)
    return request(FETCH, 4, head + array(string(topic) + array(of_partition)), correlation_id)


class Reader:
    """Reads a response field by field."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def take(self, form: str) -> Any:
        """One number or several, by `struct` format without the byte order."""
        found = struct.unpack_from(">" + form, self._data, self._position)
        self._position += struct.calcsize(">" + form)
        return found[0] if len(found) == 1 else found  # several numbers, or none: a tuple

    def string(self) -> str | None:
        size = self.take("h")
        return None if size < 0 else self._raw(size).decode()

    def blob(self) -> bytes | None:
        size = self.take("i")
        return None if size < 0 else self._raw(size)

    def _raw(self, size: int) -> bytes:
        found = self._data[self._position : self._position + size]
        assert len(found) == size
        self._position += size
        return found

    @property
    def rest(self) -> bytes:
        return self._data[self._position :]


class Connection(RawSocket):
    """A connection to one broker."""

    def __init__(self, address: str, *, receive_buffer_bytes: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        super().__init__(host, int(port), receive_buffer_bytes=receive_buffer_bytes)

    def receive(self) -> Reader:
        """The next response, at its correlation id; ConnectionError when the broker closes instead."""
        return Reader(self.receive_frame())

    def ask(self, data: bytes) -> Reader:
        """Send a request; its response after the correlation id."""
        self.send(data)
        answer = self.receive()
        assert answer.take("i") == struct.unpack_from(">i", data, 8)[0], "the answer is to another request"
        return answer

    # -- whole questions -----------------------------------------------------------------------------------

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """Api key → the versions that the broker serves."""
        answer = self.ask(api_versions_request())
        assert answer.take("h") == 0
        return {key: (low, high) for key, low, high in (answer.take("hhh") for _ in range(answer.take("i")))}

    def metadata(self, *topics: str) -> Metadata:
        return Metadata(self.ask(metadata_request(*topics)))

    def produce(self, topic: str, partition: int, records: bytes, **more: Any) -> tuple[int, int]:
        """(error code, base offset) of a produce to one partition."""
        return produced(self.ask(produce_request(topic, partition, records, **more)))

    def fetch(self, topic: str, partition: int, offset: int, **more: Any) -> tuple[int, int, bytes | None]:
        """(error code, high watermark, records) of one partition."""
        return fetched(self.ask(fetch_request(topic, partition, offset, **more)))


def wait_led(bootstrap: str, topic: str, partitions: int) -> None:
    """Wait until every broker knows so many partitions of a topic, all with leaders."""

    def is_so(address: str) -> bool:
        with Connection(address) as broker:
            leaders = broker.metadata(topic).leaders[topic]
        return len(leaders) == partitions and -1 not in leaders.values()

    for address in bootstrap.split(","):
        complaint = f"{address} does not know {partitions} partitions with leaders of {topic}"
        wait_for(lambda address=address: is_so(address), complaint)


def have_offsets_topic_made(bootstrap: str) -> None:
    """Have the offsets topic made, and wait until each broker knows all leaders and can list its groups.

    The first request for a coordinator creates it. Until every broker has loaded its partitions of the topic,
    a list of all groups is refused, by Apache Kafka too, and most admin clients raise that error.
    """
    for address in bootstrap.split(","):
        wait_for(lambda address=address: _is_ready(address), f"{address} is not ready to coordinate groups")


def _is_ready(address: str) -> bool:
    with Connection(address) as broker:
        if broker.ask(request(FIND_COORDINATOR, 0, string("any"))).take("h"):
            return False
        leaders = broker.metadata(OFFSETS_TOPIC).leaders[OFFSETS_TOPIC]
        if not leaders or -1 in leaders.values():
            return False
        return bool(broker.ask(request(LIST_GROUPS, 0, b"")).take("h") == 0)


def produced(answer: Reader) -> tuple[int, int]:
    """(error code, base offset) in the response to `produce_request`."""
    assert answer.take("i") == 1
    answer.string()
    assert answer.take("i") == 1
    _, code, offset = answer.take("ihq")
    return code, offset


def fetched(answer: Reader) -> tuple[int, int, bytes | None]:
    """(error code, high watermark, records) in the response to `fetch_request`."""
    _throttle, topics = answer.take("ii")
    assert topics == 1
    answer.string()
    assert answer.take("i") == 1
    _, code, high_watermark, _stable = answer.take("ihqq")
    for _ in range(max(0, answer.take("i"))):
        answer.take("qq")
    return code, high_watermark, answer.blob()


class Metadata:
    """The response to `metadata_request`."""

    def __init__(self, answer: Reader) -> None:
        answer.take("i")
        self.brokers: dict[int, str] = {}
        for _ in range(answer.take("i")):
            broker_id, host, port = answer.take("i"), answer.string(), answer.take("i")
            answer.string()
            self.brokers[broker_id] = f"{host}:{port}"
        self.cluster_id = answer.string()
        self.controller = answer.take("i")
        self.errors: dict[str, int] = {}
        self.leaders: dict[str, dict[int, int]] = {}
        for _ in range(answer.take("i")):
            code, name, _internal = answer.take("h"), answer.string(), answer.take("b")
            assert name is not None
            self.errors[name] = code
            self.leaders[name] = {}
            for _ in range(answer.take("i")):
                _, partition, leader = answer.take("hii")
                for _ in ("replicas", "isr"):
                    answer.take(f"{answer.take('i')}i")
                self.leaders[name][partition] = leader

    def leader_address(self, topic: str, partition: int = 0) -> str:
        return self.brokers[self.leaders[topic][partition]]
