"""Very many random histories on all cores, with a summary: ``make soak``.

``SOAK_SCHEDULES=100000`` sets their number, ``SOAK_SEED=0`` the first seed, ``SOAK_JOBS`` the number of
processes, ``SOAK_PROFILE`` the kind of histories by its name in `tests.simulation.kinds`. A failure names its
seed, and ``BARNABAS_SIMULATION_SEED=<seed> pytest tests/simulation`` repeats it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
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

_KIND: Final = os.environ.get("SOAK_PROFILE", USUAL.name)
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
    kind: str = USUAL.name
    steps: Counter[str] = field(default_factory=Counter)
    elections: int = 0
    controllers: int = 0
    committed: int = 0
    acknowledged: int = 0
    topics: Counter[str] = field(default_factory=Counter)
    transactions: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.elections += other.elections
        self.controllers += other.controllers
        self.committed += other.committed
        self.acknowledged += other.acknowledged
        self.topics.update(other.topics)
        self.transactions.update(other.transactions)
        self.checks.update(other.checks)
        self.failures += other.failures

    def __str__(self) -> str:
        def counts(names: list[str]) -> str:
            return ", ".join(f"{name} {self.steps[name]:,}" for name in sorted(names) if self.steps[name])

        shown = self.failures[:_SHOWN_FAILURES]
        lines = [
            f"{self.schedules:,} schedules, {self.kind}, {sum(self.steps.values()):,} steps in all",
            f"faults: {counts([*_FAULTS])}",
            f"nuisances: {counts(list(NUISANCES))}",
            f"cures: {counts(list(CURES | DISK_CURES | TOPIC_CURES))}",
            f"{self.controllers:,} controllers elected, {self.elections:,} leader epochs begun",
            f"{self.committed:,} records committed, {self.acknowledged:,} of them acknowledged",
            f"topics: {', '.join(f'{what} {count:,}' for what, count in self.topics.items())}",
            f"transactions: {', '.join(f'{what} {count:,}' for what, count in self.transactions.items())}",
            f"checks: {', '.join(f'{what} {count:,}' for what, count in self.checks.items())}",
            f"{len(self.failures):,} failures",
            *(f"  seed {seed}: {what}" for seed, what in shown),
        ]
        if len(shown) < len(self.failures):
            lines.append(f"  and {len(self.failures) - len(shown)} more")
        return "\n".join(lines)


def run(seeds: range) -> Summary:
    """Run these histories, one after the other."""
    logging.disable(logging.CRITICAL)
    summary = Summary()
    for seed in seeds:
        summary.schedules += 1
        history = KINDS[_KIND].make(seed)
        with history.world as world:
            try:
                history.run()
            except Exception as error:  # noqa: BLE001 - any error is a finding, and the other seeds still run
                summary.failures.append((seed, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"))
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


def _count_transactions(summary: Summary, history: exactly_once_chaos.Chaos) -> None:
    for attempt in history.judge.attempts:
        summary.transactions[_ENDS[attempt.told]] += 1
        summary.transactions["hit by a late message of version 1"] += attempt.is_hit
    summary.checks.update({promise.name: count for promise, count in history.judge.checked.items()})


def main() -> int:
    schedules = int(os.environ.get("SOAK_SCHEDULES", "100000"))
    first = int(os.environ.get("SOAK_SEED", "0"))
    jobs = int(os.environ.get("SOAK_JOBS", str(os.cpu_count() or 1)))
    end = first + schedules
    parts = [range(seed, min(seed + _AT_ONCE, end)) for seed in range(first, end, _AT_ONCE)]
    total = Summary(kind=_KIND)
    began, reported = time.monotonic(), time.monotonic()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for part in pool.imap_unordered(run, parts):
            total.add(part)
            for seed, what in part.failures:
                print(f"seed {seed}: {what}", flush=True)
            now = time.monotonic()
            if now - reported >= _REPORT_S:
                reported = now
                rate = total.schedules / (now - began)
                print(
                    f"{total.schedules:,} of {schedules:,} schedules, {rate:.1f}/s, "
                    f"{(schedules - total.schedules) / rate / 60:.0f} minutes left",
                    flush=True,
                )
    print(f"seeds {first} to {end - 1} on {jobs} cores in {time.monotonic() - began:,.0f} s")
    print(total)
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
