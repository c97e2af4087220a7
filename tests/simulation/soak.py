"""Very many random histories on all cores, with a summary: ``make soak``.

``SOAK_SCHEDULES=100000`` sets their number, ``SOAK_SEED=0`` the first seed, ``SOAK_JOBS`` the number of
processes. Each kind of `tests.simulation.kinds` has its share, or ``SOAK_PROFILE`` names the only one. A
failure names its kind and seed, and ``BARNABAS_SIMULATION_SEED=<seed> pytest tests/simulation`` repeats it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.simulation import exactly_once_chaos, group_chaos
from tests.simulation.chaos import CURES, FAULTS, NUISANCES, Chaos
from tests.simulation.coordinated_chaos import FAULTS_OF_BROKERS
from tests.simulation.disk_chaos import DISK_CURES
from tests.simulation.kinds import KINDS
from tests.simulation.profiles import USUAL
from tests.simulation.topic_chaos import TOPIC_CURES, TOPIC_FAULTS
from tests.simulation.world import World

_KIND: Final = os.environ.get("SOAK_PROFILE")
_SHARES: Final = {"topics": 0.08, "moves": 0.06, "deaths": 0.06, "settings": 0.06, "exactly once": 0.03}
"""Kind → its part of all histories; the slow ones have less. The usual ones have what is left."""
_OTHER_SHARE: Final = 0.01
_FAULTS: Final = {
    *(FAULTS | TOPIC_FAULTS),
    *FAULTS_OF_BROKERS,
    *exactly_once_chaos.Chaos.faults,
    *group_chaos.Chaos.faults,
}
_ENDS: Final = {True: "committed", False: "aborted", None: "without an answer"}
_AT_ONCE: Final = 50
_REPORT_S: Final = 30.0
_SHOWN_FAILURES: Final = 20


@dataclass
class Summary:
    """The counts of some histories."""

    schedules: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    elections: int = 0
    controllers: int = 0
    committed: int = 0
    acknowledged: int = 0
    topics: Counter[str] = field(default_factory=Counter)
    settings: Counter[str] = field(default_factory=Counter)
    transactions: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, int, str]] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        self.schedules += other.schedules
        self.kinds += other.kinds
        self.steps += other.steps
        self.elections += other.elections
        self.controllers += other.controllers
        self.committed += other.committed
        self.acknowledged += other.acknowledged
        self.topics.update(other.topics)
        self.settings.update(other.settings)
        self.transactions.update(other.transactions)
        self.checks.update(other.checks)
        self.failures += other.failures

    def __str__(self) -> str:
        def counts(names: list[str]) -> str:
            return ", ".join(f"{name} {self.steps[name]:,}" for name in sorted(names) if self.steps[name])

        shown = self.failures[:_SHOWN_FAILURES]
        lines = [
            f"{self.schedules:,} schedules, {sum(self.steps.values()):,} steps in all",
            f"kinds: {', '.join(f'{kind} {count:,}' for kind, count in self.kinds.most_common())}",
            f"faults: {counts([*_FAULTS])}",
            f"nuisances: {counts(list(NUISANCES))}",
            f"cures: {counts(list(CURES | DISK_CURES | TOPIC_CURES))}",
            f"{self.controllers:,} controllers elected, {self.elections:,} leader epochs begun",
            f"{self.committed:,} records committed, {self.acknowledged:,} of them acknowledged",
            f"topics: {', '.join(f'{what} {count:,}' for what, count in self.topics.items())}",
            f"settings: {', '.join(f'{what} {count:,}' for what, count in self.settings.items())}",
            f"transactions: {', '.join(f'{what} {count:,}' for what, count in self.transactions.items())}",
            f"checks: {', '.join(f'{what} {count:,}' for what, count in self.checks.items())}",
            f"{len(self.failures):,} failures",
            *(f"  {kind}, seed {seed}: {what}" for kind, seed, what in shown),
        ]
        if len(shown) < len(self.failures):
            lines.append(f"  and {len(self.failures) - len(shown)} more")
        return "\n".join(lines)


def run(part: tuple[str, range]) -> Summary:
    """Run these histories of a kind, one after the other."""
    logging.disable(logging.CRITICAL)
    summary, (kind, seeds) = Summary(), part
    for seed in seeds:
        summary.schedules += 1
        summary.kinds[kind] += 1
        history = KINDS[kind].make(seed)
        with history.world as world:
            try:
                history.run()
            except Exception as error:  # noqa: BLE001 - any error is a finding, and the other seeds still run
                text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                summary.failures.append((kind, seed, text))
            summary.steps.update(map(_name_of, history.trace))
            _count_cluster(summary, world)
            if isinstance(history, Chaos) and history.topics is not None:
                summary.topics.update(history.topics.counts)
            if isinstance(history, exactly_once_chaos.Chaos):
                _count_transactions(summary, history)
    return summary


def _name_of(step: str) -> str:
    """A step of a history; in a world whose time runs by itself, without the time of day."""
    first, *rest = step.split()
    return rest[0] if first[:1].isdigit() else first


def _count_cluster(summary: Summary, world: World) -> None:
    summary.controllers += world.controller_epoch
    for truth in world.all_truths:
        summary.committed += len(truth.committed)
        summary.acknowledged += truth.acknowledged_end
        summary.elections += truth.state.leader_epoch + 1 if truth.has_state else 0
    if world.settings is not None:
        summary.settings["changes"] += world.settings.changes
        summary.settings["segments deleted by retention"] += world.settings.deleted_segments


def _count_transactions(summary: Summary, history: exactly_once_chaos.Chaos) -> None:
    for attempt in history.judge.attempts:
        summary.transactions[_ENDS[attempt.told]] += 1
        summary.transactions["hit by a late message of version 1"] += attempt.is_hit
    summary.checks.update({promise.name: count for promise, count in history.judge.checked.items()})


def parts(schedules: int, first: int) -> Iterator[tuple[str, range]]:
    """A kind and some of its seeds, for each piece of work; the slow kinds come first."""
    shares = {kind: _SHARES.get(kind, _OTHER_SHARE) for kind in KINDS if kind != USUAL.name}
    if _KIND is not None:
        shares = {_KIND: 1.0}
    counts = {kind: round(share * schedules) for kind, share in shares.items()}
    if _KIND is None:
        counts[USUAL.name] = schedules - sum(counts.values())
    for kind, count in counts.items():
        end = first + count
        for seed in range(first, end, _AT_ONCE):
            yield kind, range(seed, min(seed + _AT_ONCE, end))


def main() -> int:
    schedules = int(os.environ.get("SOAK_SCHEDULES", "100000"))
    first = int(os.environ.get("SOAK_SEED", "0"))
    jobs = int(os.environ.get("SOAK_JOBS", str(os.cpu_count() or 1)))
    total = Summary()
    began, reported = time.monotonic(), time.monotonic()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for part in pool.imap_unordered(run, parts(schedules, first)):
            total.add(part)
            for kind, seed, what in part.failures:
                print(f"{kind}, seed {seed}: {what}", flush=True)
            now = time.monotonic()
            if now - reported >= _REPORT_S:
                reported = now
                rate = total.schedules / (now - began)
                print(
                    f"{total.schedules:,} of {schedules:,} schedules, {rate:.1f}/s, "
                    f"{(schedules - total.schedules) / rate / 60:.0f} minutes left",
                    flush=True,
                )
    print(f"seeds from {first} on, {jobs} processes, {time.monotonic() - began:,.0f} s")
    print(total)
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
