"""The base of the blocking clients: an asyncio client on a background thread with an event loop.

Calls from other threads wait for their outcome. `hop` and `hop_plain` turn a method of the asyncio client
into one of the blocking client, with its parameters, types and docstring. After a fork the child does not
have the thread, so every use there raises `ClientClosed` instead of blocking without end.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable
from types import FunctionType, TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, get_args, get_origin

from barnabas.client.client import Client, public_class
from barnabas.client.errors import ClientClosed
from barnabas.client.metrics import Metrics
from barnabas.common.threads import LoopThread

C = TypeVar("C", bound=Client)
C_co = TypeVar("C_co", bound=Client, covariant=True)
P = ParamSpec("P")
T = TypeVar("T")

_STOP_TIMEOUT_S: Final = 10.0
Closing = Callable[[], Coroutine[Any, Any, None]]


class ClientThread:
    """The thread of one client, and calls to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed_reason: str | None = None
        # Held while a call is handed over, so that no call comes after the end of the loop and never ends.
        self._handing_over = threading.Lock()
        self._calls: set[concurrent.futures.Future[Any]] = set()
        """The calls without an outcome: if the thread dies, nothing else ends them."""
        self._runner = LoopThread(name, on_fatal=self._died)
        self.loop = self._runner.loop
        self._runner.start()
        _threads.add(self)

    def _died(self, error: BaseException) -> None:
        with self._handing_over:
            self.closed_reason = f"the client's thread died: {error!r}"
        for call in list(self._calls):
            call.cancel()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop and wait for its outcome.

        Raises ClientClosed after `stop`, also for a call that `stop` cancelled.
        """
        return self.outcome(self.begin(work))

    def call_plain(self, work: Callable[[], T]) -> T:
        """Run a plain function on the loop; as `call`."""

        async def run() -> T:
            return work()

        return self.call(run)

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop. Raises ClientClosed after `stop`."""
        if self._runner.is_current:
            raise RuntimeError("a blocking call on the client's own thread, as from a callback, cannot end")
        with self._handing_over:
            if self.closed_reason is not None:
                raise ClientClosed(self.closed_reason)
            call = asyncio.run_coroutine_threadsafe(work(), self.loop)
            self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a plain function on the loop, without waiting for it. Raises ClientClosed after `stop`."""
        with self._handing_over:
            if self.closed_reason is not None:
                raise ClientClosed(self.closed_reason)
            self.loop.call_soon_threadsafe(function)

    def outcome(self, future: concurrent.futures.Future[T]) -> T:
        """Wait for a coroutine of `begin`. Raises ClientClosed if `stop` cancelled it."""
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if self.closed_reason is None:
                raise
            raise ClientClosed(self.closed_reason) from None
        except BaseException:
            # An interrupted caller does not want the answer any more.
            future.cancel()
            raise

    def stop(self, reason: str) -> None:
        """End the loop and its thread, cancelling what still runs on it. Idempotent."""
        with self._handing_over:
            if self.closed_reason is not None:
                return
            self.closed_reason = reason
        self._runner.stop(_STOP_TIMEOUT_S)


def close_unclosed(closings: Iterable[tuple[ClientThread, Closing]]) -> None:
    """Close clients that their users have not closed, and end their threads."""
    begun = []
    # Begin all before waiting for the first, so that together they take no longer than one.
    for thread, close in closings:
        try:
            begun.append((thread, thread.begin(close)))
        except ClientClosed:
            continue
    for thread, closing in begun:
        try:
            thread.outcome(closing)
        except ClientClosed:
            pass
        finally:
            thread.stop("the client was not closed")


_closers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _await_closers() -> None:
    # By itself the interpreter does not wait for a thread that began in an exit function.
    for closer in list(_closers):
        closer.join()


_threads: weakref.WeakSet[ClientThread] = weakref.WeakSet()


def _disown_threads() -> None:
    for thread in list(_threads):
        # Another thread of the parent may have held it when it forked.
        thread._handing_over = threading.Lock()
        thread.closed_reason = "the client belongs to the parent process; make another one after a fork"


# Windows does not have fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_threads)


class BlockingClient(Generic[C_co]):
    """A client for threads, which runs an asyncio client on a thread of its own. Connects when it is made.

    A method without a docstring is documented where the asyncio client has it.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A user's subclass has no twin of its own.
        bases = vars(cls).get("__orig_bases__", ())
        given = [get_args(base)[0] for base in bases if get_origin(base) is BlockingClient]
        # A generic one comes with its type variables.
        twins = [get_origin(twin) or twin for twin in given]
        for name, member in vars(cls).items() if twins else ():
            is_documented = not isinstance(member, FunctionType | property) or member.__doc__ is not None
            if not is_documented and hasattr(twins[0], name):
                member.__doc__ = getattr(twins[0], name).__doc__

    def __init__(self, client: C_co) -> None:
        self._client = client
        self._thread = ClientThread(f"barnabas-{public_class(client).__name__.lower()}")
        try:
            self._thread.call(client.start)
        except BaseException:
            self._thread.stop("the client could not be started")
            raise

    def _closing(self) -> Closing:
        """The close of a client that its user has not closed; it must not refer to this object."""
        return self._client.close

    def __del__(self) -> None:
        # A client whose constructor failed may have no thread. At exit nothing runs on the loop any more.
        thread: ClientThread | None = getattr(self, "_thread", None)
        if thread is None or thread.closed_reason is not None or sys.is_finalizing():
            return
        # A finalizer must not block, so a thread closes; the interpreter waits for it at exit.
        closing = [(thread, self._closing())]
        closer = threading.Thread(target=close_unclosed, args=(closing,), name=f"{thread.name}-close")
        try:
            closer.start()
            _closers.add(closer)
        except RuntimeError:
            # The system allows no more threads; since Python 3.12 none starts when the main thread has ended.
            close_unclosed(closing)
        text = f"unclosed barnabas.client.blocking.{type(self).__name__}"
        warnings.warn(text, ResourceWarning, stacklevel=1, source=self)

    def close(self) -> None:
        """Disconnect and end the thread. Idempotent."""
        if self._thread.closed_reason is None:
            self._thread.call(self._client.close)
            self._thread.stop("the client is closed")

    def metrics(self) -> Metrics:
        """A snapshot of what the client has measured; any thread may take it, also after `close`."""
        return self._client.metrics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_after(error)

    def _close_after(self, error: BaseException | None) -> None:
        """The close at the end of ``with``, after an error of its body or without one."""
        self.close()


def hop(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingClient[C], P], T]:
    """The blocking form of a coroutine method of an asyncio client."""

    @functools.wraps(method)
    def call(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(lambda: method(self._client, *args, **kwargs))

    return call


def hop_plain(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[BlockingClient[C], P], T]:
    """The form for threads of a plain method of an asyncio client, which runs on the client's thread."""

    @functools.wraps(method)
    def call(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call_plain(lambda: method(self._client, *args, **kwargs))

    return call
