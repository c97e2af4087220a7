"""The HTTP endpoint of metrics: its answers, and that no client can block it."""

import http.client
import itertools
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from email.message import Message
from typing import Any, NamedTuple

import pytest

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

    def start(page: Callable[[], bytes] = lambda: b"m 1\n", **arguments: Any) -> MetricsEndpoint:
        endpoint = MetricsEndpoint(
            arguments.pop("host", "127.0.0.1"),
            arguments.pop("port", 0),
            page,
            content_type="text/plain; version=0.0.4",
            on_fatal=fatal,
            **arguments,
        )
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
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4"
    assert answer.headers["Content-Length"] == "4"
    assert answer.headers["Server"] == "barnabas"


@pytest.mark.parametrize(("path", "method", "status"), [("/metricsx", "GET", 404), ("/metrics", "POST", 501)])
def test_nothing_else_is_answered(make: Make, path: str, method: str, status: int) -> None:
    assert get(make(), path, method).status == status


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


@pytest.mark.parametrize("sent", [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"GET /" + b"x" * 100_000])
def test_a_malformed_request_ends_only_its_own_connection(make: Make, sent: bytes) -> None:
    endpoint = make()
    # Closing with unread bytes resets the connection.
    with connected(endpoint) as client, suppress(ConnectionError):
        client.sendall(sent)
        while client.recv(65_536):
            pass
    assert get(endpoint).status == 200


def test_a_scrape_too_many_is_refused_and_the_next_is_served(make: Make) -> None:
    may_go_on, begun = threading.Event(), threading.Semaphore(0)

    def page() -> bytes:
        begun.release()
        assert may_go_on.wait(DEADLINE_S)
        return b"m 1\n"

    endpoint = make(page, max_scrapes=2)
    clients = [connected(endpoint) for _ in range(2)]
    try:
        for client in clients:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert begun.acquire(timeout=DEADLINE_S)
        # The first refusal leaves no room for a second scrape.
        for _ in range(2):
            with connected(endpoint) as refused:
                assert refused.recv(1000).startswith(b"HTTP/1.0 503 ")
        may_go_on.set()
        for client in clients:
            assert client.makefile("rb").read().endswith(b"m 1\n")
    finally:
        for client in clients:
            client.close()
    wait_for(lambda: _status(endpoint) == 200)


def _status(endpoint: MetricsEndpoint) -> int:
    """503 also while earlier scrapes are being closed."""
    try:
        return get(endpoint).status
    except (OSError, http.client.HTTPException):
        return 503


def test_a_scrape_without_a_thread_leaves_its_room(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = make(max_scrapes=1)

    def exhausted(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched, connected(endpoint) as client:
        patched.setattr(socketserver.ThreadingMixIn, "process_request", exhausted)
        assert client.recv(1) == b""
    assert get(endpoint).status == 200


def test_a_client_that_never_ends_its_request_is_closed(make: Make) -> None:
    endpoint = make(scrape_timeout_s=0.5, max_scrapes=1)
    with connected(endpoint) as client:
        said = itertools.chain([b"GET /metrics HTTP/1.0\r\na: "], itertools.repeat(b"b"))

        def is_closed() -> bool:
            try:
                client.sendall(next(said))
            except OSError:
                return True
            return False

        wait_for(is_closed)
    wait_for(lambda: _status(endpoint) == 200)


def test_a_client_that_does_not_read_is_closed(make: Make) -> None:
    endpoint = make(lambda: b"x" * 50_000_000, scrape_timeout_s=0.3, max_scrapes=1)
    with connected(endpoint) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        wait_for(lambda: _is_free(endpoint))


def _is_free(endpoint: MetricsEndpoint) -> bool:
    try:
        with connected(endpoint) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return client.recv(12) == b"HTTP/1.0 404"
    except OSError:
        return False


def test_the_error_for_a_taken_port_names_the_settings(make: Make) -> None:
    taken = make().endpoint
    with pytest.raises(CannotBind, match=f"metrics.host='127.0.0.1', metrics.port={taken.port}: cannot bind"):
        make(port=taken.port)


def test_the_error_for_an_unknown_host_names_the_setting(make: Make) -> None:
    with pytest.raises(CannotBind, match=r"metrics\.host='no\.such\.host\.invalid'"):
        make(host="no.such.host.invalid")


def test_stopping_closes_the_port_and_the_scrapes_in_progress(fatal: Fatal) -> None:
    endpoint = MetricsEndpoint(
        "127.0.0.1", 0, lambda: b"x" * 50_000_000, content_type="text/plain", on_fatal=fatal
    )
    endpoint.start()
    with connected(endpoint) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert client.recv(10)
        endpoint.stop()
        received_bytes = 0
        with suppress(ConnectionResetError):
            while received := client.recv(1 << 20):
                received_bytes += len(received)
        assert received_bytes < 50_000_000
    with pytest.raises(ConnectionRefusedError):
        connected(endpoint)
    assert fatal.errors == []
