"""The figures of a run over time: rates and latencies in buckets, gaps, leaders, ISRs, and marks.

Times come in as seconds of the monotonic clock and go out as milliseconds of the Unix epoch. A bucket without
an acknowledgement has a rate of 0 and no latency. Any thread adds; a lock keeps the figures whole.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from barnabas.protocol.ids import TopicPartition

BUCKET_MS: Final = 100
LEAST_GAP_MS: Final = 100
"""A shorter time without an acknowledgement is no gap."""


class PartitionSeen(NamedTuple):
    """A partition in the metadata of a broker."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]


class Mark(NamedTuple):
    now_s: float
    kind: str
    text: str
    broker: int | None = None
    partition: str | None = None


class Gap(NamedTuple):
    partition: str
    start_s: float
    end_s: float | None
    """None if it had not ended when the load did."""


class Samples:
    def __init__(self, began_s: float, began_ms: int) -> None:
        """The same moment by both clocks, from which on figures are kept (`begin`)."""
        self._began_s = began_s
        self._began_ms = began_ms
        self._lock = threading.Lock()
        self._latencies_ms: defaultdict[int, list[float]] = defaultdict(list)
        self._reads: defaultdict[int, int] = defaultdict(int)
        self._last_s: dict[str, float] = {}
        self.gaps: list[Gap] = []
        self.marks: list[Mark] = []
        self.isr: dict[str, list[tuple[float, tuple[int, ...]]]] = {}
        """By partition: each ISR, with the time when it was first seen."""
        self._newest: dict[str, PartitionSeen] = {}
        self._controllers: dict[int, int] = {}
        self.controller: int | None = None

    def begin(self, began_s: float, began_ms: int) -> None:
        """Forget what was before this moment, but for the state of the partitions."""
        with self._lock:
            self._began_s, self._began_ms = began_s, began_ms
            self._latencies_ms.clear()
            self._reads.clear()
            self.gaps.clear()
            self.marks.clear()
            self._last_s = dict.fromkeys(self._last_s, began_s)
            self.isr = {name: [(began_s, seen.isr)] for name, seen in self._newest.items()}

    # -- the load (load.Watcher) ---------------------------------------------------------------------------

    def acknowledged(self, partition: TopicPartition, sent_s: float, now_s: float) -> None:
        name = str(partition)
        with self._lock:
            self._latencies_ms[self._bucket(now_s)].append((now_s - sent_s) * 1000)
            last_s = self._last_s.get(name, now_s)
            self._last_s[name] = now_s
            if (now_s - last_s) * 1000 >= LEAST_GAP_MS:
                self.gaps.append(Gap(name, last_s, now_s))

    def read(self, records: int, now_s: float) -> None:
        with self._lock:
            self._reads[self._bucket(now_s)] += records

    def end_load(self, now_s: float) -> None:
        """Note the partitions that wait for an acknowledgement at the end of the load."""
        with self._lock:
            for name, last_s in self._last_s.items():
                if (now_s - last_s) * 1000 >= LEAST_GAP_MS:
                    self.gaps.append(Gap(name, last_s, None))

    # -- the cluster ---------------------------------------------------------------------------------------

    def step(self, text: str, now_s: float) -> None:
        with self._lock:
            self.marks.append(Mark(now_s, "fault", text))

    def saw(self, partition: str, seen: PartitionSeen, now_s: float) -> None:
        """Take a partition from a broker's metadata, if it is of a newer leader epoch than is known."""
        with self._lock:
            before = self._newest.get(partition)
            if before is None or seen.leader_epoch > before.leader_epoch:
                self._take(partition, before, seen, now_s)

    def saw_isr(self, partition: str, leader_epoch: int, isr: tuple[int, ...], now_s: float) -> None:
        """Take the ISR from its leader, which changes it within an epoch.

        The brokers' metadata has such a change only once the controller has sent it.
        """
        with self._lock:
            before = self._newest.get(partition)
            if before is not None and before.leader_epoch == leader_epoch and before.isr != isr:
                self._take(partition, before, before._replace(isr=isr), now_s)

    def _take(self, partition: str, before: PartitionSeen | None, seen: PartitionSeen, now_s: float) -> None:
        self._newest[partition] = seen
        if before is None or seen.isr != before.isr:
            self.isr.setdefault(partition, []).append((now_s, seen.isr))
        if before is not None:
            self._mark_change(partition, before, seen, now_s)

    def _mark_change(self, partition: str, before: PartitionSeen, seen: PartitionSeen, now_s: float) -> None:
        epoch = f"epoch {seen.leader_epoch}"
        if seen.leader != before.leader:
            leader = None if seen.leader < 0 else seen.leader
            leads = "no broker leads" if leader is None else f"broker {leader} leads"
            self.marks.append(Mark(now_s, "election", f"{partition}: {leads}, {epoch}", leader, partition))
        if seen.isr != before.isr:
            isr = ", ".join(map(str, seen.isr)) or "empty"
            self.marks.append(Mark(now_s, "isr", f"{partition}: ISR {isr}", None, partition))

    def saw_controller(self, broker: int, controller: int, now_s: float) -> None:
        """Take the controller from a broker's metadata, if it is not that broker's last answer."""
        with self._lock:
            if controller < 0 or self._controllers.get(broker) == controller:
                return
            self._controllers[broker] = controller
            if self.controller is not None and controller != self.controller:
                mark = Mark(now_s, "controller", f"broker {controller} is the controller", controller)
                self.marks.append(mark)
            self.controller = controller

    def newest(self, partition: str) -> PartitionSeen | None:
        return self._newest.get(partition)

    # -- the result ----------------------------------------------------------------------------------------

    def ms(self, now_s: float) -> int:
        return self._began_ms + round((now_s - self._began_s) * 1000)

    def longest_gap(self, end_s: float) -> tuple[int, str]:
        """Milliseconds and partition; one that had not ended lasts until `end_s`. (0, "") without any."""
        lengths = [(self._length_ms(gap, end_s), gap.partition) for gap in self.gaps]
        return max(lengths, default=(0, ""))

    def series(self, end_s: float) -> dict[str, Any]:
        """Rates and latencies from the beginning to `end_s`, as the charts take them."""
        with self._lock:
            buckets = range(max(0, self._bucket(end_s)))
            times_ms = [self._began_ms + bucket * BUCKET_MS for bucket in buckets]
            per_s = 1000 / BUCKET_MS
            latencies = [sorted(self._latencies_ms.get(bucket, ())) for bucket in buckets]
            columns: dict[str, tuple[str, list[float | None]]] = {
                "acknowledged": ("records/s", [len(found) * per_s for found in latencies]),
                "read": ("records/s", [self._reads.get(bucket, 0) * per_s for bucket in buckets]),
                "p50": ("ms", [percentile(found, 50) for found in latencies]),
                "p99": ("ms", [percentile(found, 99) for found in latencies]),
                "max": ("ms", [percentile(found, 100) for found in latencies]),
            }
        return {
            name: {"unit": unit, "points": [list(pair) for pair in zip(times_ms, values, strict=True)]}
            for name, (unit, values) in columns.items()
        }

    def history(self, end_s: float) -> dict[str, Any]:
        """Marks, gaps and ISRs as the charts take them."""
        with self._lock:
            marks = [
                {"id": f"mark-{number}", "time_ms": self.ms(now_s), "kind": kind, "text": text}
                | ({} if broker is None else {"broker": broker})
                | ({} if partition is None else {"partition": partition})
                for number, (now_s, kind, text, broker, partition) in enumerate(sorted(self.marks))
            ]
            gaps = [
                {
                    "id": f"gap-{number}",
                    "start_ms": self.ms(gap.start_s),
                    "end_ms": None if gap.end_s is None else self.ms(gap.end_s),
                    "text": f"{gap.partition}: {self._length_ms(gap, end_s):,} ms without an acknowledgement",
                }
                for number, gap in enumerate(sorted(self.gaps, key=lambda gap: gap.start_s))
            ]
            isr = {
                name: [[self.ms(now_s), list(ids)] for now_s, ids in changes]
                for name, changes in sorted(self.isr.items())
            }
        return {"marks": marks, "gaps": gaps, "isr": isr}

    def _length_ms(self, gap: Gap, end_s: float) -> int:
        # As the charts compute it, from times in whole milliseconds.
        return self.ms(end_s if gap.end_s is None else gap.end_s) - self.ms(gap.start_s)

    def _bucket(self, now_s: float) -> int:
        return int((now_s - self._began_s) * 1000 // BUCKET_MS)


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Of values in their order, by nearest rank; None without values."""
    if not ordered:
        return None
    rank = -(-len(ordered) * percent // 100)
    return round(ordered[max(0, rank - 1)], 2)
