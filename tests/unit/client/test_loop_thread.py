"""The thread of the blocking clients, at its end."""

import asyncio
import subprocess
import sys
import threading

import pytest

from barnabas.client.errors import ClientClosed
from barnabas.client.loop_thread import ClientThread
from tests.support.waiting import DEADLINE_S


def test_a_call_that_stop_cancels_raises_client_closed() -> None:
    thread = ClientThread("test")
    begun = threading.Event()
    outcome: list[BaseException] = []

    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def caller() -> None:
        try:
            thread.call(wait_for_ever)
        except BaseException as error:  # noqa: BLE001 - looked at by the test's own thread
            outcome.append(error)

    waiting = threading.Thread(target=caller)
    waiting.start()
    assert begun.wait(DEADLINE_S)
    thread.stop("the end")
    waiting.join(DEADLINE_S)
    (error,) = outcome
    assert isinstance(error, ClientClosed)
    assert str(error) == "the end"


def test_no_call_blocks_after_the_end() -> None:
    thread = ClientThread("test")
    ended: list[str] = []

    async def nothing() -> None:
        await asyncio.sleep(0)

    def caller() -> None:
        try:
            while True:
                thread.call(nothing)
        except ClientClosed as closed:
            ended.append(str(closed))

    callers = [threading.Thread(target=caller, daemon=True) for _ in range(4)]
    for one in callers:
        one.start()
    thread.stop("the end")
    for one in callers:
        one.join(DEADLINE_S)
    assert ended == ["the end"] * 4
    with pytest.raises(ClientClosed, match="the end"):
        thread.call(nothing)


def test_the_clients_work_where_there_is_neither_fork_nor_uvloop() -> None:
    """As on Windows."""
    program = """
import os, sys
del os.register_at_fork, os.fork
for name in ("uvloop", "fcntl", "resource"):
    sys.modules[name] = None
from barnabas.client import blocking
from barnabas.client.errors import NoBrokerReachable
try:
    blocking.Producer(bootstrap_servers="127.0.0.1:1")
except NoBrokerReachable:
    print("asked")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.stdout == "asked\n", done.stderr
