"""Runs the same work for thousands of logs on a bounded number of threads, as at start and stop."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from barnabas.broker.log.disk_verdicts import Operation
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import disk_work

_SYNC_ALL_FROM: Final = 64
"""With this many unsynced logs, one sync of the whole file system is faster than one per file."""

T = TypeVar("T")


def for_each(items: Collection[T], work: Callable[[T], object], threads: int, name: str) -> None:
    """Do the work for all items; only one thread keeps their order.

    The first failure is raised after all started items have ended; the others are not started.
    """
    threads = min(threads, len(items))
    if threads <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        futures = [pool.submit(work, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
        pool.shutdown(cancel_futures=True)
    for future in futures:
        if not future.cancelled():
            future.result()


def close_all(logs: Collection[Log], log_dir: Path, files: FileSystem, threads: int, now_ms: int) -> None:
    """Close all logs of a log dir. Raises LogDirFailure, StorageCallFailed."""
    for_each(logs, Log.write_out, threads, "log-close")
    is_on_disk = False
    if sum(not log.is_synced for log in logs) >= _SYNC_ALL_FROM:
        with disk_work(log_dir, Operation.SYNC):
            is_on_disk = files.sync_all(log_dir)
    for_each(logs, partial(Log.close, now_ms=now_ms, is_on_disk=is_on_disk), threads, "log-close")
