"""Background threads that report the exception that ends them; one of them runs an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def make_thread(
    name: str,
    run: Callable[[], object],
    on_fatal: Callable[[BaseException], None],
    log: logging.Logger = logger,
) -> threading.Thread:
    """A daemon thread. An exception that ends ``run`` is a bug: it is logged and passed to ``on_fatal``."""

    def run_guarded() -> None:
        try:
            run()
        except BaseException as error:
            log.critical("the thread %s died", name, exc_info=True)
            on_fatal(error)

    return threading.Thread(target=run_guarded, name=name, daemon=True)


def try_to_start(thread: threading.Thread) -> bool:
    """Start a thread; False, with a line in the log, if the system allows no more of them now."""
    try:
        thread.start()
    except RuntimeError as error:
        logger.error("the thread %s is not started now: %s", thread.name, error)
        return False
    return True


class LoopThread:
    """Runs an event loop from `start` to `stop`.

    An exception in a call or a task is a bug: the loop would only log it, so it is passed to ``on_fatal``.
    """

    def __init__(
        self,
        name: str,
        *,
        on_fatal: Callable[[BaseException], None],
        on_stop: Callable[[], None] = lambda: None,
        log: logging.Logger = logger,
    ) -> None:
        """``on_stop`` is called on the thread when the loop has ended, before all tasks are cancelled."""
        self.loop = new_event_loop()
        self._on_fatal = on_fatal
        self._on_stop = on_stop
        self._logger = log
        self._thread = make_thread(name, self._run, on_fatal, log)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Cancel all tasks and end the thread. False if it did not end in time. Idempotent."""
        if self._thread.is_alive():
            self.call(self.loop.stop)
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def call(self, function: Callable[..., object], *arguments: Any) -> bool:
        """Call the function on the loop, from any thread. False if the loop is closed."""

        def run() -> None:
            try:
                function(*arguments)
            except Exception as error:
                self._logger.critical("a call on the thread %s failed", self._thread.name, exc_info=True)
                self._on_fatal(error)

        try:
            self.loop.call_soon_threadsafe(run)
        except RuntimeError:
            return False
        return True

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task; called on the loop."""
        task = self.loop.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._logger.critical("a task of the thread %s died", self._thread.name, exc_info=error)
            self._on_fatal(error)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self._on_stop()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()
