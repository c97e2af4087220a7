"""Clients that tasks of one process use one after another, because connecting costs more than a small task.

A task takes a client or makes one, has it to itself, and gives it back when all went well; a client that saw
an error is closed by its task, so that the next one begins with fresh connections and metadata.

Any thread. After a fork the child has none, because connections belong to the parent.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, Protocol, TypeVar

_MAX_IDLE: Final = 4


class Closable(Protocol):
    """A client, as far as its cache cares."""

    def close(self) -> None: ...


K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Closable)


class IdleClients(Generic[K, C]):
    """Idle clients by their settings, the last used one last."""

    def __init__(self) -> None:
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Without closing, in the child of a fork."""
        self._idle: OrderedDict[K, C] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: K, make: Callable[[], C]) -> C:
        with self._lock:
            client = self._idle.pop(key, None)
        return make() if client is None else client

    def give_back(self, key: K, client: C) -> None:
        with self._lock:
            surplus = [self._idle.pop(key, None)]
            self._idle[key] = client
            if len(self._idle) > _MAX_IDLE:
                surplus.append(self._idle.popitem(last=False)[1])
        for unused in surplus:
            if unused is not None:
                unused.close()


_all: weakref.WeakSet[IdleClients[Any, Any]] = weakref.WeakSet()


def _forget_all() -> None:
    for clients in list(_all):
        clients.forget()


os.register_at_fork(after_in_child=_forget_all)
