"""Kills a broker while the demo writes, and measures how long writes fail.

The producer measures: for every partition that the victim led, it takes the longest time between
acknowledgements after the kill; the failover time is the longest of them. An acknowledgement that was in
flight when the broker died hardly shortens it.

Runs on the producer's event loop; only the signals are sent from another thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from barnabas.client.metadata import TopicInfo
from barnabas.deploy.running_cluster import RunningCluster

_LONGEST_START_S: Final = 30.0
_LONGEST_FAILOVER_S: Final = 20.0


class Silences:
    """The longest time without an acknowledgement for each partition, since a time. Seconds in, ms out."""

    def __init__(self, since_s: float, partitions: Iterable[int]) -> None:
        self._last = dict.fromkeys(partitions, since_s)
        self._longest = dict.fromkeys(self._last, 0.0)
        self._any_last = since_s
        self._any_longest = 0.0
        self._heard: set[int] = set()

    def note(self, partition: int, now_s: float) -> None:
        """An acknowledgement came."""
        self._any_longest = max(self._any_longest, now_s - self._any_last)
        self._any_last = now_s
        last = self._last.get(partition)
        if last is not None:
            self._longest[partition] = max(self._longest[partition], now_s - last)
            self._last[partition] = now_s
            self._heard.add(partition)

    def by_partition_ms(self) -> dict[int, float]:
        """The times of the watched partitions that had an acknowledgement again."""
        return {partition: self._longest[partition] * 1000 for partition in sorted(self._heard)}

    def unheard(self) -> list[int]:
        """The partitions without a further acknowledgement."""
        return sorted(set(self._last) - self._heard)

    @property
    def any_ms(self) -> float:
        """The longest time without an acknowledgement from any partition."""
        return self._any_longest * 1000


def busiest_leader(topic: TopicInfo) -> tuple[int, list[int]]:
    """The broker that leads most partitions (the lowest id among equals), and these partitions."""
    led: dict[int, list[int]] = {}
    for partition in topic.partitions:
        led.setdefault(int(partition.leader), []).append(partition.partition)
    victim = min(led, key=lambda broker: (-len(led[broker]), broker))
    return victim, led[victim]


class Failover:
    """One broker's death and return while records are being sent."""

    def __init__(
        self,
        cluster: RunningCluster,
        topic: TopicInfo,
        *,
        say: Callable[[str], None],
        look: Callable[[], Awaitable[TopicInfo]],
    ) -> None:
        """`say` prints events; `look` returns the topic's state and is called while the broker is dead."""
        self.victim, self.partitions = busiest_leader(topic)
        self.silences: Silences | None = None
        self.topic_without_victim: TopicInfo | None = None
        self._cluster = cluster
        self._say = say
        self._look = look
        self._is_watching = False
        self._moved = asyncio.Event()
        self._work: list[asyncio.Task[None]] = []

    def kill(self) -> None:
        """Send SIGKILL, from a thread of its own, while the records continue."""
        self._work.append(asyncio.create_task(self._kill()))

    def restart(self) -> None:
        """Restart the broker, in the background, when all its partitions are written again."""
        self._work.append(asyncio.create_task(self._restart()))

    def note_acknowledged(self, partition: int) -> None:
        if self._is_watching and self.silences is not None:
            self.silences.note(partition, time.monotonic())
            if not self.silences.unheard():
                self._moved.set()

    async def finish(self) -> None:
        """End the measurement and wait for the restart.

        Raises DeployError if the broker did not come back.
        """
        self._is_watching = False
        for task in self._work:
            await task

    async def _kill(self) -> None:
        self.silences = Silences(time.monotonic(), self.partitions)
        self._is_watching = True
        await asyncio.to_thread(self._cluster.kill, self.victim)
        self._say(f"broker {self.victim} is dead (SIGKILL); it led partitions {_listed(self.partitions)}")

    async def _restart(self) -> None:
        try:
            await asyncio.wait_for(self._moved.wait(), _LONGEST_FAILOVER_S)
        except TimeoutError:
            self._say(f"some of its partitions were not written for {_LONGEST_FAILOVER_S:.0f} s")
        self.topic_without_victim = await self._look()
        started = time.monotonic()
        await asyncio.to_thread(self._cluster.start_broker, self.victim, _LONGEST_START_S)
        self._say(f"broker {self.victim} runs again after {time.monotonic() - started:.1f} s")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
