"""One ZooKeeper session per process: its events, and requests that survive a lost connection.

All calls block and may come from any thread except the client library's own. `run_all` pipelines: many
requests are in flight at once, so that a thousand nodes cost a few round trips instead of a thousand. A
request whose connection is lost is sent again, for at most a session timeout (or the connection timeout,
while `is_patient`); its outcome then has `retried` set, since the first one may have been carried out.
Watches only put something into a queue of their owner.

One thread delivers session events in order; see `SessionEvent`.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry, RetryFailedError

from barnabas.protocol.errors import LocalError
from barnabas.zookeeper.threads import Threads

log = logging.getLogger("barnabas.zookeeper")

_WINDOW: Final = 512
_RECONNECT_MAX_DELAY_S: Final = 0.5
_HANDSHAKE_MS: Final = 2_000
_HANDSHAKES: Final = 3

Start = Callable[[KazooClient], Any]
"""Starts one asynchronous request and gives the library's result object."""
MakeClient = Callable[..., KazooClient]
"""Makes a client of the library from its keyword arguments."""


class ZooKeeperUnavailable(LocalError):
    """ZooKeeper could not be reached in time; a write may or may not have been carried out."""

    retriable = True


class SessionLost(LocalError):
    """The session has expired or was closed: what it owned (ephemeral nodes, watches) is gone."""


class SessionEvent(Enum):
    """SUSPENDED, then RESUMED or SILENT; SILENT, then RESUMED or EXPIRED; EXPIRED, then RENEWED."""

    SUSPENDED = "connection lost"
    SILENT = "no connection for a session timeout"
    RESUMED = "connected again, same session"
    EXPIRED = "session expired"
    RENEWED = "connected again, new session"


class Outcome(NamedTuple):
    """Of one request: its value, or ZooKeeper's refusal; `retried` when an earlier answer was lost."""

    value: Any
    error: KazooException | None
    retried: bool

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class ZooKeeperSession:
    """See the module. `connect` is ``host:port[,host:port…][/chroot]``."""

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        on_fatal: Callable[[BaseException], None],
        make_client: MakeClient = KazooClient,
        threads: Threads | None = None,
    ) -> None:
        self.connect = connect
        self.threads = threads or Threads()
        self._make_client = make_client
        self.session_timeout_ms = session_timeout_ms
        self._connection_timeout_ms = connection_timeout_ms
        self._on_fatal = on_fatal
        self.is_patient = False
        """For a process that nobody relies on yet: it goes on in the next session where one ends."""
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
        """Call this on the session thread, after the events that came before."""
        self._states.put(work)

    def start(self) -> None:
        """Connect, making the chroot when it is missing. Raises ZooKeeperUnavailable."""
        hosts, slash, chroot = self.connect.partition("/")
        if slash and chroot.strip("/"):
            self._make_chroot(hosts, f"/{chroot.strip('/')}")
        self._client.add_listener(self._state_changed)
        self._start_client(self._client)
        self._thread = threading.Thread(target=self._deliver, name="zookeeper-session", daemon=True)
        self.threads.start(self._thread)

    def close(self) -> None:
        """End the session, which removes what is ephemeral at once. Idempotent."""
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
        """One request; raises the library's NoNodeError and so on, ZooKeeperUnavailable or SessionLost."""
        return self.attempt(start).get()

    def attempt(self, start: Start) -> Outcome:
        """One request with its outcome, for those to whom a refusal after a retry means something else."""
        return self.run_all([start])[0]

    def run_all(self, starts: Sequence[Start]) -> list[Outcome]:
        """All requests, at most 512 under way at once; outcomes in the order given.

        Raises ZooKeeperUnavailable when no connection comes back within a session timeout, SessionLost when
        the session is gone; some of the requests may then have been carried out.
        """
        outcomes: list[Outcome | None] = [None] * len(starts)
        for first in range(0, len(starts), _WINDOW):
            self._run_window(starts, range(first, min(first + _WINDOW, len(starts))), outcomes)
        return [outcome for outcome in outcomes if outcome is not None]

    def _run_window(self, starts: Sequence[Start], indexes: range, outcomes: list[Outcome | None]) -> None:
        deadline = self.threads.now_s() + self._patience_s
        left = list(indexes)
        retried = False
        while left:
            self._wait_until_connected(deadline)
            under_way = [(index, starts[index](self._client)) for index in left]
            left = []
            for index, result in under_way:
                try:
                    value = result.get(timeout=max(0.001, deadline - self.threads.now_s()))
                except (ConnectionClosedError, SessionExpiredError) as error:
                    if self.is_patient and isinstance(error, SessionExpiredError):
                        left.append(index)
                        continue
                    raise SessionLost(f"the ZooKeeper session is gone: {type(error).__name__}") from error
                except ConnectionLoss:
                    left.append(index)
                except KazooTimeoutError:
                    raise ZooKeeperUnavailable(
                        f"ZooKeeper at {self.connect} gave no answer within {self._patience_s:.1f} s"
                    ) from None
                except KazooException as error:
                    outcomes[index] = Outcome(None, error, retried)
                else:
                    outcomes[index] = Outcome(value, None, retried)
            retried = retried or bool(left)

    @property
    def _patience_s(self) -> float:
        if self.is_patient:
            return max(self.session_timeout_ms, self._connection_timeout_ms) / 1000
        return self.session_timeout_ms / 1000

    def _wait_until_connected(self, deadline: float) -> None:
        if self.threads.wait(self._connected, max(0.0, deadline - self.threads.now_s())):
            return
        raise ZooKeeperUnavailable(
            f"no connection to ZooKeeper at {self.connect} for {self._patience_s:.1f} s"
        )

    def _new_client(self, connect: str) -> KazooClient:
        return self._make_client(
            hosts=_repeated(connect, self.session_timeout_ms),
            timeout=self.session_timeout_ms / 1000,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.02, backoff=2, max_delay=_RECONNECT_MAX_DELAY_S, max_jitter=0.4
            ),
            command_retry=KazooRetry(max_tries=1),
        )

    def _start_client(self, client: KazooClient) -> None:
        try:
            client.start(timeout=self._connection_timeout_ms / 1000)
        except KazooTimeoutError:
            raise ZooKeeperUnavailable(
                f"no ZooKeeper answers at {self.connect} within {self._connection_timeout_ms} ms "
                "(zookeeper.connect, zookeeper.connection.timeout.ms); is it running?"
            ) from None

    def _make_chroot(self, hosts: str, chroot: str) -> None:
        client = self._new_client(hosts)
        self._start_client(client)
        timeout_s = self._connection_timeout_ms / 1000
        # A connection may be lost as soon as it is there; to make what was made already does no harm.
        again = KazooRetry(max_tries=-1, delay=0.02, max_delay=_RECONNECT_MAX_DELAY_S, deadline=timeout_s)
        try:
            again(client.ensure_path, chroot)
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
        try:
            while not self._closing:
                self.deliver_next()
        except Exception as error:
            log.critical("session thread ends: %s: %s", type(error).__name__, error, exc_info=True)
            self._on_fatal(error)

    def deliver_next(self, timeout_s: float | None = None) -> bool:
        """Wait for the session's next event, or work of `call_soon`, and handle it; False if there was none.

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


def _repeated(connect: str, session_timeout_ms: int) -> str:
    """The servers to try, each so often that none that is silent costs us the session.

    A server that is just starting takes connections and leaves some of them without an answer for ever. The
    library waits for one for a session timeout, divided by the number of servers that it was given.
    """
    hosts, slash, chroot = connect.partition("/")
    wanted = max(_HANDSHAKES, session_timeout_ms // _HANDSHAKE_MS)
    servers = hosts.split(",")
    return ",".join(servers * -(-wanted // len(servers))) + slash + chroot
