"""Changes topics during a load: creates, grows and deletes some, and changes the limits of another.

Acknowledged changes have to hold in the end: a created topic exists with its partitions, a deleted one does
not exist, and existing topics accept records. A change without an answer may have been made or not.
One thread each; any thread may call `check` after the block.
"""

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from barnabas.client import NewTopic
from barnabas.client.admin.admin import ConfigResource
from barnabas.client.blocking import Admin, Producer
from barnabas.protocol.errors import BarnabasError
from tests.support.waiting import wait_for

_NAMES: Final = ("churn-a", "churn-b", "churn-c")
_SETTINGS: Final = {
    "max.message.bytes": ("500", "2000", "1048588"),
    "segment.bytes": ("4096", "65536"),
    "compression.type": ("producer", "gzip", "uncompressed"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
}
_TIMEOUT_MS: Final = 5_000
_STOP_S: Final = 60.0
_UNKNOWN: Final = -1


class TopicChurn:
    """The state of the topics by the acknowledged changes."""

    def __init__(self, clients: Mapping[str, Any], seed: int) -> None:
        self.changes = 0
        self._clients = clients
        self._chance = random.Random(seed)
        self._partitions = dict.fromkeys(_NAMES, 0)
        """Partitions per topic: 0 if it does not exist, _UNKNOWN after a change without an answer."""

    def step(self) -> None:
        """Make one change of one topic. Raises the cluster's error; the change may still have been made."""
        name = self._chance.choice(_NAMES)
        before, self._partitions[name] = self._partitions[name], _UNKNOWN
        with Admin(**self._clients, request_timeout_ms=_TIMEOUT_MS) as admin:
            if before == _UNKNOWN:
                known = admin.describe_topics()
                before = len(known[name].partitions) if name in known else 0
            after = self._change(admin, name, before)
        self._partitions[name] = after
        self.changes += 1

    def _change(self, admin: Admin, name: str, before: int) -> int:
        if before == 0:
            count = self._chance.randint(1, 4)
            admin.create_topics(NewTopic(name, count, 3), timeout_ms=_TIMEOUT_MS)
            return count
        if before < 6 and self._chance.random() < 0.4:
            admin.create_partitions({name: before + 1}, timeout_ms=_TIMEOUT_MS)
            return before + 1
        admin.delete_topics(name, timeout_ms=_TIMEOUT_MS)
        return 0

    def check(self, timeout_s: float) -> None:
        """Fail unless the cluster has the acknowledged topics in time, and accepts records for them."""
        seen: list[object] = []

        def holds() -> bool:
            try:
                with Admin(**self._clients, request_timeout_ms=_TIMEOUT_MS) as admin:
                    known = {name: len(topic.partitions) for name, topic in admin.describe_topics().items()}
            except BarnabasError as error:
                seen.append(error)
                return False
            seen.append({name: known.get(name, 0) for name in _NAMES})
            return all(
                known.get(name, 0) == wanted for name, wanted in self._partitions.items() if wanted >= 0
            )

        wanted = self._partitions
        wait_for(
            holds, lambda: f"topics acknowledged {wanted}, the cluster has {seen[-1]}", timeout_s=timeout_s
        )
        with Producer(**self._clients, acks="all") as producer:
            for name, count in self._partitions.items():
                for partition in range(count):
                    producer.send_and_wait(name, b"it is there", partition=partition)


@contextmanager
def churning_topics(clients: Mapping[str, Any], seed: int) -> Iterator[TopicChurn]:
    """Change topics at random from a seed, on a thread, while the block runs."""
    churn = TopicChurn(clients, seed)
    with _repeated(churn.step, (0.1, 0.5, 1.0), random.Random(seed + 1)):
        yield churn


@contextmanager
def changing_settings(clients: Mapping[str, Any], topic: str, seed: int) -> Iterator[None]:
    """Change the limits of a topic at random from a seed, on a thread, while the block runs.

    A batch whose answer was lost may meet other limits at its retry. It is in the log already, so it must be
    neither refused nor split and written a second time.
    """
    chance = random.Random(seed)

    def change() -> None:
        settings = {name: chance.choice(values) for name, values in _SETTINGS.items()}
        with Admin(**clients) as admin:
            admin.alter_configs({ConfigResource.topic(topic): settings}, timeout_ms=_TIMEOUT_MS)

    with _repeated(change, (0.2, 0.5, 2.0), chance):
        yield


@contextmanager
def _repeated(change: Callable[[], None], pauses_s: Sequence[float], chance: random.Random) -> Iterator[None]:
    """Call a function again and again, on a thread, while the block runs."""
    stopping = threading.Event()

    def work() -> None:
        while not stopping.wait(chance.choice(pauses_s)):
            # Brokers and ZooKeeper are away at times; the next change begins with the present state.
            with suppress(BarnabasError):
                change()

    thread = threading.Thread(target=work, name="topic-changes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(_STOP_S)
        if thread.is_alive():
            raise AssertionError(f"a change of a topic did not end within {_STOP_S} s")
