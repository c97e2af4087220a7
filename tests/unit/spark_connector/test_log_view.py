"""The view of a cluster: its clients get the options, and requests that fail for the moment are repeated."""

import socketserver
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from barnabas.client.admin import blocking as blocking_admin
from barnabas.client.config import AdminConfig, ClientConfig
from barnabas.client.consumer import blocking_range_reader
from barnabas.client.consumer.range_reader import DEFAULT_FETCH_BYTES
from barnabas.client.errors import NoBrokerReachable
from barnabas.client.metadata import PartitionInfo, TopicInfo
from barnabas.client.offsets import ListedOffset
from barnabas.protocol.errors import BarnabasError, ConnectionClosed, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from barnabas.spark_connector.idle_clients import IdleClients
from barnabas.spark_connector.options import parse_options
from barnabas.spark_connector.source import log_view
from barnabas.spark_connector.source.log_view import LogView, Topic

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GIVEN = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "fetchOffset.retryIntervalMs": "0"}
TOPIC_ID = TopicId(uuid.uuid4())
LOST = ConnectionClosed("the broker went away")


def partitions_of(topic: str) -> tuple[PartitionInfo, ...]:
    return tuple(PartitionInfo(topic, index, BrokerId(1), LeaderEpoch(0), (), (), ()) for index in (0, 1))


class FakeAdmin:
    """Raises `failures`, one with each call, and then answers."""

    def __init__(self, failures: list[BarnabasError]) -> None:
        self.failures = failures
        self.calls: list[tuple[dict[TopicPartition, Any], str]] = []
        self.offsets = {T0: Offset(7), T1: Offset(-1)}
        self.is_closed = False

    def list_offsets(self, specs: dict[TopicPartition, Any], *, isolation_level: str) -> Any:
        self.calls.append((specs, isolation_level))
        if self.failures:
            raise self.failures.pop(0)
        return {tp: ListedOffset(self.offsets[tp], 0, LeaderEpoch(0)) for tp in specs}

    def describe_topics(self, names: list[str] | None) -> dict[str, TopicInfo]:
        topics = {
            name: TopicInfo(name, TOPIC_ID, name == "__internal", partitions_of(name))
            for name in ("t", "__internal")
        }
        return topics if names is None else {name: topics[name] for name in names}

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def admins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[FakeAdmin, list[AdminConfig]]]:
    """Make the admin of the next view, which fails as given; returns it and the configurations it gets."""

    def make(*failures: BarnabasError) -> tuple[FakeAdmin, list[AdminConfig]]:
        admin, configs = FakeAdmin(list(failures)), list[AdminConfig]()

        def connect(config: AdminConfig) -> FakeAdmin:
            configs.append(config)
            return admin

        monkeypatch.setattr(blocking_admin, "Admin", connect)
        return admin, configs

    return make


def test_the_admin_has_the_settings_and_asks_at_the_isolation_level(admins: Any) -> None:
    admin, configs = admins()
    options = parse_options(
        GIVEN
        | {
            "wire": "kafka",
            "kafka.isolation.level": "read_committed",
            "kafka.client.id": "reports",
            "kafka.default.api.timeout.ms": "7000",
            "kafka.fetch.max.bytes": "5",
        }
    )
    with LogView(options) as view:
        assert view.end_offsets([T0]) == {T0: 7}
        assert view.offsets_at({T0: 5, T1: 6}) == {T0: 7, T1: None}
        assert not admin.is_closed
    assert admin.is_closed
    assert admin.calls == [({T0: "latest"}, "read_committed"), ({T0: 5, T1: 6}, "read_committed")]
    expected = AdminConfig(
        bootstrap_servers="a:1", wire="kafka", client_id="reports", default_api_timeout_ms=7000
    )
    assert configs == [expected]


class Reader:
    """A `RangeReader` that records what it is asked; `fails` makes the next read fail."""

    made: ClassVar[list["Reader"]] = []
    fails = False

    def __init__(self, config: ClientConfig, stall_timeout_ms: int) -> None:
        self.config, self.stall_timeout_ms = config, stall_timeout_ms
        self.asked: list[tuple[Any, ...]] = []
        self.is_closed = False
        self.made.append(self)

    def read(
        self, *part: Any, isolation_level: str, topic_id: Any, fetch_max_bytes: int
    ) -> Iterator[memoryview]:
        self.asked.append((*part, isolation_level, fetch_max_bytes))
        if self.fails:
            raise NoBrokerReachable("gone")
        yield memoryview(b"")

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[Reader]:
    monkeypatch.setattr(blocking_range_reader, "RangeReader", Reader)
    monkeypatch.setattr(Reader, "made", [])
    monkeypatch.setattr(log_view, "_readers", IdleClients())
    return Reader.made


def test_a_read_has_the_settings_and_the_smaller_bound_of_its_fetches(readers: list[Reader]) -> None:
    tuned = {
        "wire": "kafka",
        "kafka.isolation.level": "read_committed",
        "kafka.reconnect.backoff.ms": "3",
        "kafka.fetch.max.bytes": "5000",
        "kafka.max.partition.fetch.bytes": "4000",
        "kafkaConsumer.pollTimeoutMs": "90",
    }
    for given in (GIVEN, GIVEN | tuned):
        list(LogView(parse_options(given)).read(T0, 3, 9))
    plain, other = readers
    assert plain.asked == [(T0, 3, 9, "read_uncommitted", DEFAULT_FETCH_BYTES)]
    assert other.asked == [(T0, 3, 9, "read_committed", 4000)]
    assert (plain.config.wire, plain.stall_timeout_ms) == ("auto", 120_000)
    assert (other.config.wire, other.config.reconnect_backoff_ms, other.stall_timeout_ms) == ("kafka", 3, 90)


def test_the_reads_of_a_process_share_connections_until_one_fails_or_is_left(readers: list[Reader]) -> None:
    view = LogView(parse_options(GIVEN))
    list(view.read(T0, 0, 1))
    list(view.read(T0, 1, 2))
    [reader] = readers
    assert len(reader.asked) == 2
    assert not reader.is_closed
    reader.fails = True
    with pytest.raises(NoBrokerReachable):
        list(view.read(T0, 2, 3))
    assert reader.is_closed
    left = view.read(T0, 2, 3)
    next(left)
    left.close()
    assert len(readers) == 2
    assert readers[1].is_closed
    # Two reads at the same time have a reader each; the process keeps one of them.
    one, other = view.read(T0, 2, 3), view.read(T0, 2, 3)
    next(one), next(other)
    assert len(readers) == 4
    assert [*one, *other] == []
    assert [each.is_closed for each in readers[2:]].count(True) == 1


def test_offset_0_is_an_offset_and_nothing_is_asked_of_no_partitions(admins: Any) -> None:
    admin, configs = admins()
    view = LogView(parse_options(GIVEN))
    assert view.end_offsets([]) == {}
    assert configs == []
    admin.offsets[T0] = Offset(0)
    assert view.offsets_at({T0: 5}) == {T0: 0}


def test_internal_topics_are_found_by_name_alone(admins: Any) -> None:
    admins()
    view = LogView(parse_options(GIVEN))
    topic = Topic(TOPIC_ID, [0, 1])
    assert view.topics(None) == {"t": topic}
    assert view.topics(("t", "__internal")) == {"t": topic, "__internal": topic}


@pytest.mark.parametrize(("retries", "succeeds"), [("2", True), ("1", False), ("0", False)])
def test_a_request_is_repeated_as_often_as_the_option_says(
    admins: Any,
    retries: str,
    succeeds: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    admin, _ = admins(LOST, LOST)
    given = {"fetchOffset.numRetries": retries, "fetchOffset.retryIntervalMs": "1000"}
    view = LogView(parse_options(GIVEN | given))
    if succeeds:
        assert view.log_start_offsets([T0]) == {T0: 7}
        assert f"the broker went away; asking again in {pauses[0]:.1f} s, at most 2 times" in caplog.text
    else:
        with pytest.raises(ConnectionClosed, match="went away"):
            view.log_start_offsets([T0])
        assert len(admin.calls) == int(retries) + 1
    assert len(pauses) == int(retries)
    assert all(0.8 <= pause <= 1.2 for pause in pauses)


@pytest.mark.parametrize(
    "error",
    [
        api_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not yours"),
        api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic 't'"),
    ],
    ids=["permanent", "a topic that is not there"],
)
def test_other_errors_end_the_planning_at_once(admins: Any, error: BarnabasError) -> None:
    admin, _ = admins(error)
    with pytest.raises(type(error)):
        LogView(parse_options(GIVEN)).end_offsets([T0])
    assert len(admin.calls) == 1


def test_no_pause_goes_beyond_the_time_of_a_call(admins: Any) -> None:
    admin, _ = admins(LOST)
    given = {"fetchOffset.retryIntervalMs": "60000", "kafka.default.api.timeout.ms": "1000"}
    with pytest.raises(ConnectionClosed):
        LogView(parse_options(GIVEN | given)).end_offsets([T0])
    assert len(admin.calls) == 1


def test_a_failure_to_connect_is_repeated_too(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[AdminConfig] = []

    def connect(config: AdminConfig) -> Any:
        attempts.append(config)
        raise LOST

    monkeypatch.setattr(blocking_admin, "Admin", connect)
    with pytest.raises(ConnectionClosed):
        LogView(parse_options(GIVEN)).end_offsets([T0])
    assert len(attempts) == 4


def test_every_server_that_cannot_be_reached_is_named() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1,localhost:2", "fetchOffset.numRetries": "0"}
    with pytest.raises(NoBrokerReachable, match="no broker could be reached: ") as raised:
        LogView(parse_options(GIVEN | given)).topics(["t"])
    for server in ("127.0.0.1:1", "localhost:2"):
        assert f"{server} ({server} refused the connection)" in str(raised.value)


class Closing(socketserver.BaseRequestHandler):
    """Ends the connection at the first request, as Kafka's brokers do if it is not theirs."""

    def handle(self) -> None:
        self.request.recv(4)


@pytest.mark.parametrize("wire", ["auto", "native", "kafka"])
def test_brokers_that_speak_neither_protocol_are_said_to_need_security(wire: str) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Closing) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        given = {
            "kafka.bootstrap.servers": f"127.0.0.1:{server.server_address[1]}",
            "fetchOffset.numRetries": "0",
        }
        with pytest.raises(NoBrokerReachable, match=r"security_protocol=.*\)$"):
            LogView(parse_options(GIVEN | given | {"wire": wire})).end_offsets([T0])
        server.shutdown()
        thread.join()
