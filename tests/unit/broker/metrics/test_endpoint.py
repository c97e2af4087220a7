"""The HTTP endpoint of metrics: its answers, and that no client can block it."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from email.message import Message
from typing import NamedTuple

import pytest

from barnabas.broker.metrics import endpoint as endpoint_module
from barnabas.broker.metrics.endpoint import MetricsEndpoint
from barnabas.broker.network.server import CannotBind
from tests.support.errors import Fatal
from tests.support.waiting import DEADLINE_S, wait_for

Make = Callable[..., MetricsEndpoint]


@pytest.fixture
def fatal() -> Fatal:
    return Fatal()


@pytest.fixture
def make(fatal: Fatal) -> Iterator[Make]:
    """Makes endpoints that run on a free port."""
    made: list[MetricsEndpoint] = []

    def start(
        page: Callable[[], bytes] = lambda: b"m 1\n", host: str = "127.0.0.1", port: int = 0
    ) -> MetricsEndpoint:
        endpoint = MetricsEndpoint(host, port, page, on_fatal=fatal)
        endpoint.start()
        made.append(endpoint)
        return endpoint

    yield start
    for endpoint in made:
        endpoint.stop()
    assert fatal.errors == []


class Answer(NamedTuple):
    status: int
    headers: Message
    body: bytes


def get(endpoint: MetricsEndpoint, path: str = "/metrics", method: str = "GET") -> Answer:
    """One request."""
    connection = http.client.HTTPConnection(*endpoint.endpoint, timeout=DEADLINE_S)
    with closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())


def connected(endpoint: MetricsEndpoint) -> socket.socket:
    return socket.create_connection(endpoint.endpoint, timeout=DEADLINE_S)


def test_a_scrape_gets_the_page_with_its_type_and_length(make: Make) -> None:
    answer = get(make(), "/metrics?name=x")
    assert (answer.status, answer.body) == (200, b"m 1\n")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.headers["Content-Length"] == "4"
    assert answer.headers["Server"] == "barnabas"


def test_a_request_may_come_byte_by_byte(make: Make) -> None:
    with connected(make()) as client:
        for byte in b"GET /metrics HTTP/1.0\r\n\r\n":
            client.sendall(bytes([byte]))
        assert client.makefile("rb").read().endswith(b"\r\n\r\nm 1\n")


@pytest.mark.parametrize(("path", "method", "status"), [("/metricsx", "GET", 404), ("/metrics", "POST", 501)])
def test_nothing_else_is_answered(make: Make, path: str, method: str, status: int) -> None:
    answer = get(make(), path, method)
    assert (answer.status, answer.body) == (status, b"")


def test_a_page_that_cannot_be_built_fails_only_this_scrape(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [ValueError("broken")]

    def page() -> bytes:
        if errors:
            raise errors.pop()
        return b"m 2\n"

    endpoint = make(page)
    assert get(endpoint).status == 500
    assert "the metrics could not be collected" in caplog.text
    assert "broken" in caplog.text
    assert get(endpoint).status == 200


@pytest.mark.parametrize(
    "sent", [b"\x00\xff\r\n\r\n", b"\r\n\r\n", b"GET\r\n\r\n", b"GET /" + b"x" * 100_000]
)
def test_a_malformed_request_ends_only_its_own_connection(make: Make, sent: bytes) -> None:
    endpoint = make()
    # Closing with unread bytes resets the connection.
    with connected(endpoint) as client, suppress(OSError):
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        answer = client.makefile("rb").read()
        assert answer == b"" or answer.split()[1] in (b"404", b"501")
    assert get(endpoint).status == 200


def test_half_a_request_is_answered_when_its_client_ends(make: Make) -> None:
    with connected(make()) as client:
        client.sendall(b"GET /metrics")
        client.shutdown(socket.SHUT_WR)
        assert client.makefile("rb").read().endswith(b"m 1\n")


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_client_that_never_ends_its_request_is_closed(
    make: Make, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    monkeypatch.setattr(endpoint_module, "READ_TIMEOUT_S", 0.2)
    endpoint = make()
    with connected(endpoint) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\na: ")
        with suppress(OSError):
            while not is_silent:
                client.sendall(b"b")
                time.sleep(0.001)
            assert client.recv(1) == b""
    assert get(endpoint).status == 200


def test_a_client_that_does_not_read_is_closed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "READ_TIMEOUT_S", 2 * DEADLINE_S)
    monkeypatch.setattr(endpoint_module, "SEND_TIMEOUT_S", 0.2)
    endpoint = make(lambda: b"x" * 50_000_000)
    with connected(endpoint) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert get(endpoint, "/other").status == 404


def test_a_failed_accept_is_logged_and_retried(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint, failures = make(), [OSError(24, "too many open files")]
    accept = socket.socket.accept

    def failing(listener: socket.socket) -> object:
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", failing)
    began_s = time.monotonic()
    # The thread is in the original call still.
    assert [get(endpoint).status for _ in range(3)] == [200, 200, 200]
    assert time.monotonic() - began_s >= endpoint_module._PAUSE_S
    assert failures == []
    assert "cannot accept a scrape: [Errno 24] too many open files" in caplog.text


def test_the_error_for_a_taken_port_names_the_settings(make: Make) -> None:
    taken = make().endpoint
    with pytest.raises(CannotBind, match=f"metrics.host='127.0.0.1', metrics.port={taken.port}: cannot bind"):
        make(port=taken.port)


def test_the_error_for_an_unknown_host_names_the_setting(make: Make) -> None:
    with pytest.raises(CannotBind, match=r"metrics\.host='no\.such\.host\.invalid'"):
        make(host="no.such.host.invalid")


def test_stopping_closes_the_port_and_the_scrape_in_progress(
    fatal: Fatal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "SEND_TIMEOUT_S", 2 * DEADLINE_S)
    endpoint = MetricsEndpoint("127.0.0.1", 0, lambda: b"x" * 50_000_000, on_fatal=fatal)
    address = endpoint.endpoint
    endpoint.start()
    with socket.create_connection(address, timeout=DEADLINE_S) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert client.recv(10)
        began_s = time.monotonic()
        endpoint.stop()
        assert time.monotonic() - began_s < DEADLINE_S
        assert "metrics" not in {thread.name for thread in threading.enumerate()}
        received_bytes = 0
        with suppress(ConnectionResetError):
            while received := client.recv(1 << 20):
                received_bytes += len(received)
        assert received_bytes < 50_000_000
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=DEADLINE_S)
    assert fatal.errors == []


def test_an_error_outside_a_scrape_is_fatal(fatal: Fatal, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = MetricsEndpoint("127.0.0.1", 0, lambda: b"", on_fatal=fatal)
    monkeypatch.setattr(endpoint, "_answer", lambda connection: 1 / 0)
    endpoint.start()
    with connected(endpoint) as client:
        assert client.recv(1) == b""
    wait_for(lambda: len(fatal.errors) == 1)
    endpoint.stop()
