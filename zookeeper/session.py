"""One ZooKeeper session per process: its events, and requests that survive a lost connection.

All calls block. Any thread may call, except the client library's own. `run_all` pipelines: many requests are
in flight at once, so a thousand nodes cost a few round trips. A request whose connection is lost is sent
again, for at most a session timeout (or the connection timeout, while `is_starting`); its outcome then has
`retried` set, because the first one may have been carried out. A watch may only put something into a queue.

One thread delivers session events in order; see `SessionEvent`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry, RetryFailedError

from barnabas.common.threads import make_thread
from barnabas.common.time_histogram import TimeHistogram
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.multi_read import Client

log = logging.getLogger("barnabas.zookeeper")

_WINDOW: Final = 512
_RECONNECT_MAX_DELAY_S: Final = 0.5
_HANDSHAKE_MS: Final = 2_000
_HANDSHAKES: Final = 3
DENIED: Final = (
    "ZooKeeper denies a request: its znode belongs to another principal, or it requires a login; expected a "
    "section Client in the JAAS file of the brokers (java.security.auth.login.config)"
)

Start = Callable[[Client], Any]
"""Starts one asynchronous request and gives the library's result object."""
MakeClient = Callable[..., Client]
"""Makes a client of the library from its keyword arguments."""


class Threads:
    """Starts threads, waits and reads the clock. A simulation replaces it, to run without threads."""

    def start(self, thread: threading.Thread) -> None:
        thread.start()

    def now_s(self) -> float:
        """Monotonic."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Whether the event was set within the time."""
        return event.wait(timeout_s)


class SessionEvent(Enum):
    """SUSPENDED, then RESUMED or SILENT; SILENT, then RESUMED or EXPIRED; EXPIRED, then RENEWED."""

    SUSPENDED = "connection lost"
    SILENT = "no connection for a session timeout"
    RESUMED = "connected again, same session"
    EXPIRED = "session expired"
    RENEWED = "connected again, new session"


class Outcome(NamedTuple):
    """The value of a request, or ZooKeeper's refusal; `retried` if an earlier answer was lost."""

    value: Any
    error: KazooException | None
    retried: bool

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class ZooKeeperSession:
    """`connect` is ``host:port[,host:port…][/chroot]``."""

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        on_fatal: Callable[[BaseException], None],
        make_client: MakeClient = Client,
        threads: Threads | None = None,
    ) -> None:
        self.connect = connect
        self.threads = threads or Threads()
        self._make_client = make_client
        self.session_timeout_ms = session_timeout_ms
        self._connection_timeout_ms = connection_timeout_ms
        self._on_fatal = on_fatal
        self.is_starting = False
        """While no other process relies on this one: a request continues in the next session."""
        self.request_times = TimeHistogram()
        """From the start of a request until its answer is read; refusals are answers too."""
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._client = self._new_client(connect)
        self._connected = threading.Event()
        self._closing = False
        self._states: queue.SimpleQueue[str | Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Used by the session thread only: the last state, and the time from which silence is reported.
        self._last_state = str(KazooState.CONNECTED)
        self._silent_at_s: float | None = None

    @property
    def session_id(self) -> int:
        """The id that ZooKeeper names as owner of our ephemeral nodes; 0 without a session."""
        identity = self._client.client_id
        return identity[0] if identity is not None and identity[0] is not None else 0

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def add_listener(self, listener: Callable[[SessionEvent], None]) -> None:
        """Listeners are called in the order in which they were added, on the session thread."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[SessionEvent], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call this on the session thread, after the events that are queued already."""
        self._states.put(work)

    def start(self) -> None:
        """Connect, and create a missing chroot. Raises ZooKeeperUnavailable."""
        hosts, slash, chroot = self.connect.partition("/")
        if slash and chroot.strip("/"):
            self._make_chroot(hosts, f"/{chroot.strip('/')}")
        self._client.add_listener(self._state_changed)
        self._start_client(self._client)
        self._thread = make_thread("zookeeper-session", self._deliver, self._on_fatal, log)
        self.threads.start(self._thread)

    def close(self) -> None:
        """End the session, which removes its ephemeral nodes at once. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._states.put(None)
        self._client.stop()
        self._client.close()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    def run(self, start: Start) -> Any:
        """One request. Raises the library's errors, ZooKeeperUnavailable or SessionLost."""
        return self.attempt(start).get()

    def attempt(self, start: Start) -> Outcome:
        """One request, with its outcome. Raises ZooKeeperUnavailable or SessionLost."""
        return self.run_all([start])[0]

    def run_all(self, starts: Sequence[Start]) -> list[Outcome]:
        """All requests, at most 512 in flight at once; outcomes in the given order.

        Raises ZooKeeperUnavailable if the connection does not come back in time, or SessionLost. Some of the
        requests may then have been carried out.
        """
        outcomes: list[Outcome | None] = [None] * len(starts)
        for first in range(0, len(starts), _WINDOW):
            self._run_window(starts, range(first, min(first + _WINDOW, len(starts))), outcomes)
        return [outcome for outcome in outcomes if outcome is not None]

    def _run_window(self, starts: Sequence[Start], indexes: range, outcomes: list[Outcome | None]) -> None:
        deadline = self.threads.now_s() + self._request_timeout_s
        unanswered = list(indexes)
        retried = False
        while unanswered:
            self._wait_until_connected(deadline)
            in_flight = [(index, self.threads.now_s(), starts[index](self._client)) for index in unanswered]
            unanswered = []
            for index, began_s, result in in_flight:
                try:
                    value = result.get(timeout=max(0.001, deadline - self.threads.now_s()))
                except (ConnectionClosedError, SessionExpiredError) as error:
                    if self.is_starting and isinstance(error, SessionExpiredError):
                        unanswered.append(index)
                        continue
                    raise SessionLost(f"the ZooKeeper session is gone: {type(error).__name__}") from error
                except ConnectionLoss:
                    unanswered.append(index)
                except KazooTimeoutError:
                    raise ZooKeeperUnavailable(
                        f"ZooKeeper at {self.connect} gave no answer within {self._request_timeout_s:.1f} s"
                    ) from None
                except KazooException as error:
                    self.request_times.observe_s(self.threads.now_s() - began_s)
                    if isinstance(error, NoAuthError | SessionClosedRequireSaslError):
                        raise ZooKeeperUnavailable(DENIED) from None
                    outcomes[index] = Outcome(None, error, retried)
                else:
                    self.request_times.observe_s(self.threads.now_s() - began_s)
                    outcomes[index] = Outcome(value, None, retried)
            retried = retried or bool(unanswered)

    @property
    def _request_timeout_s(self) -> float:
        if self.is_starting:
            return max(self.session_timeout_ms, self._connection_timeout_ms) / 1000
        return self.session_timeout_ms / 1000

    def _wait_until_connected(self, deadline: float) -> None:
        if self.threads.wait(self._connected, max(0.0, deadline - self.threads.now_s())):
            return
        raise ZooKeeperUnavailable(
            f"no connection to ZooKeeper at {self.connect} for {self._request_timeout_s:.1f} s"
            f"{_refusal(self._client)}"
        )

    def _new_client(self, connect: str) -> Client:
        return self._make_client(
            hosts=_repeated(connect, self.session_timeout_ms),
            timeout=self.session_timeout_ms / 1000,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.02, backoff=2, max_delay=_RECONNECT_MAX_DELAY_S, max_jitter=0.4
            ),
            command_retry=KazooRetry(max_tries=1),
        )

    def _start_client(self, client: Client) -> None:
        try:
            client.start(timeout=self._connection_timeout_ms / 1000)
        except KazooTimeoutError:
            if refusal := _refusal(client):
                raise ZooKeeperUnavailable(f"no session with ZooKeeper at {self.connect}{refusal}") from None
            raise ZooKeeperUnavailable(
                f"no ZooKeeper answers at {self.connect} within {self._connection_timeout_ms} ms "
                "(zookeeper.connect, zookeeper.connection.timeout.ms); is it running?"
            ) from None

    def _make_chroot(self, hosts: str, chroot: str) -> None:
        client = self._new_client(hosts)
        self._start_client(client)
        timeout_s = self._connection_timeout_ms / 1000
        # A new connection may be lost at once; a repetition does no harm.
        retry = KazooRetry(max_tries=-1, delay=0.02, max_delay=_RECONNECT_MAX_DELAY_S, deadline=timeout_s)
        try:
            retry(client.ensure_path, chroot)
        except (NoAuthError, SessionClosedRequireSaslError):
            raise ZooKeeperUnavailable(DENIED) from None
        except RetryFailedError:
            raise ZooKeeperUnavailable(
                f"{chroot} could not be made in ZooKeeper at {hosts} within {self._connection_timeout_ms} ms "
                "(zookeeper.connection.timeout.ms): its connections are lost again and again"
            ) from None
        finally:
            client.stop()
            client.close()

    def _state_changed(self, state: str) -> None:
        # On the library's connection thread, which must never wait.
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        self._states.put(state)

    def _deliver(self) -> None:
        while not self._closing:
            self.deliver_next()

    def deliver_next(self, timeout_s: float | None = None) -> bool:
        """Wait for the next session event or `call_soon` call, and handle it; False after the timeout.

        The session thread runs this; a simulation calls it without the thread.
        """
        if self._silent_at_s is not None:
            left_s = max(0.0, self._silent_at_s - self.threads.now_s())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        try:
            state = self._states.get(timeout=timeout_s)
        except queue.Empty:
            if self._silent_at_s is None or self.threads.now_s() < self._silent_at_s:
                return False
            self._silent_at_s = None
            self._emit(SessionEvent.SILENT)
            return True
        if state is None or self._closing or state == self._last_state:
            return False
        if not isinstance(state, str):
            state()
            return True
        before, self._last_state, self._silent_at_s = self._last_state, state, None
        if state == KazooState.SUSPENDED:
            self._silent_at_s = self.threads.now_s() + self.session_timeout_ms / 1000
            self._emit(SessionEvent.SUSPENDED)
        elif state == KazooState.LOST:
            self._emit(SessionEvent.EXPIRED)
        else:
            self._emit(SessionEvent.RENEWED if before == KazooState.LOST else SessionEvent.RESUMED)
        return True

    def _emit(self, event: SessionEvent) -> None:
        log.info("ZooKeeper: %s", event.value)
        for listener in list(self._listeners):
            listener(event)


def _refusal(client: Client) -> str:
    """Why the connection could not be secured, to complete an error text."""
    reason = getattr(client, "refusal", "")
    return f": {reason}" if reason else ""


def _repeated(connect: str, session_timeout_ms: int) -> str:
    """The servers to try, each named several times, so that a silent server does not cost the session.

    A starting server accepts connections and never answers some of them. The library waits for a server for
    the session timeout divided by the number of named servers.
    """
    hosts, slash, chroot = connect.partition("/")
    attempts = max(_HANDSHAKES, session_timeout_ms // _HANDSHAKE_MS)
    servers = hosts.split(",")
    return ",".join(servers * -(-attempts // len(servers))) + slash + chroot
