"""The verdict on a run: the promises of its history, and the expectations of its scenario, in words.

Pure functions. Some settings give a promise up: an unclean election, and acks=1, may lose acknowledged
records. A scenario says so with `may_lose`; then losses are counted and shown, but are no fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.chaos.checker import Verdict
from barnabas.chaos.history import Acknowledged, History, Read, Sent
from barnabas.chaos.scenario import Scenario

FOLLOWS_FROM_LOSS: Final = frozenset(
    # Not "disagreement": after any loss the replicas have the same records.
    {"lost", "doubly acknowledged", "changed", "vanished", "twice", "skipped", "read again"}
)
"""The promises that a lost record breaks: other records take its offset, and readers had seen it."""
NOT_RUN: Final = "not run as written"
"""A step failed, or the run was interrupted."""
NOT_HEALED: Final = "not healed"
NOT_JUDGED: Final = "not judged"
"""The load did not end, or its records cannot be read."""
_NOT_COMPARED: Final = frozenset({NOT_RUN, NOT_JUDGED})
"""Faults of these kinds break no promise, but no promise can be judged."""

_GIVEN_UP: Final = {
    "unclean.leader.election.enable": "true",
    "min.insync.replicas": "1",
}

_LEAST_LOAD: Final = 0.95
"""Of the planned rate: below it the verdict says that the load fell short."""


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """`faults` break a promise; `expected` are those that a setting allows. Examples by kind."""

    faults: Mapping[str, Sequence[str]]
    expected: Mapping[str, Sequence[str]]
    sentences: Sequence[str]
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not self.faults

    @property
    def outcome(self) -> str:
        """``good``, ``loss`` (as settings allow), ``broken``, or ``unfinished``."""
        if not self.faults:
            return "loss" if self.counts.get("lost") else "good"
        return "unfinished" if self.faults.keys() <= _NOT_COMPARED else "broken"

    def as_json(self) -> dict[str, Any]:
        return {
            "is_good": self.is_good,
            "outcome": self.outcome,
            "faults": {kind: list(examples) for kind, examples in self.faults.items()},
            "expected": {kind: list(examples) for kind, examples in self.expected.items()},
            **self.counts,
            "text": " ".join(self.sentences),
        }


def conclude(
    scenario: Scenario,
    history: History,
    verdict: Verdict | None,
    longest_gap: tuple[int, str],
    sent_per_s: float,
    failures: Mapping[str, Sequence[str]] = {},
) -> Conclusion:
    """`verdict`: None if nothing was compared. `longest_gap`: in ms, and its partition.

    `sent_per_s`: over the whole load. `failures`: sentences by kind: NOT_RUN, NOT_HEALED, NOT_JUDGED.
    """
    is_judged = verdict is not None
    verdict = verdict or Verdict(acknowledged=len(history.of(Acknowledged)))
    may_lose = scenario.expect.may_lose
    expected = {
        kind: found for kind, found in verdict.faults.items() if may_lose and kind in FOLLOWS_FROM_LOSS
    }
    faults = {kind: found for kind, found in verdict.faults.items() if kind not in expected}
    faults.update((kind, list(found)) for kind, found in failures.items())
    gap_ms, where = longest_gap
    limit_ms = scenario.expect.gap_at_most_ms
    if limit_ms is not None and gap_ms > limit_ms:
        faults["gap without acknowledgements"] = [
            f"{gap_ms:,} ms on {where}; expected at most {limit_ms:,} ms"
        ]
    lost = _lost(history) if is_judged else []
    counts = {
        "sent": len(history.of(Sent)),
        "acknowledged": verdict.acknowledged,
        "lost": len(lost),
        "read": len(history.of(Read)),
        "longest_gap_ms": gap_ms,
    }
    sentences = [
        *(_on_records(scenario, verdict, lost) if is_judged else _on_nothing_compared(verdict)),
        *_on_faults(verdict, faults),
        *_on_outcomes(counts, verdict, where, is_judged),
        *_on_the_load(scenario, sent_per_s),
    ]
    return Conclusion(faults=faults, expected=expected, sentences=sentences, counts=counts)


def _lost(history: History) -> list[Acknowledged]:
    """The acknowledged records that a client does not find at their offsets in the end."""
    if not (logs := history.logs("client")):
        return []
    contents = {partition: dict(records) for partition, records in logs.items()}
    return [
        event
        for event in history.of(Acknowledged)
        if contents.get(event.partition, {}).get(event.offset) != event.record
    ]


def _on_nothing_compared(verdict: Verdict) -> Iterator[str]:
    yield f"{verdict.acknowledged:,} records were acknowledged, and nothing says whether they are there."


def _on_records(scenario: Scenario, verdict: Verdict, lost: Sequence[Acknowledged]) -> Iterator[str]:
    count = verdict.acknowledged
    if not lost and "lost" not in verdict.faults:
        yield (
            f"Nothing acknowledged is lost: each of the {count:,} acknowledged records is at its offset, as "
            "clients read it and in the files of every replica."
        )
    if not lost:
        return
    first, last = lost[0], lost[-1]
    yield (
        f"{len(lost):,} of the {count:,} acknowledged records are gone: the first is record {first.record:,} "
        f"(offset {first.offset:,} of {first.partition}), the last is record {last.record:,} "
        f"(offset {last.offset:,} of {last.partition})."
    )
    if scenario.expect.may_lose:
        allowed = ", ".join(_reasons(scenario)) or "expect.may_lose"
        yield f"That breaks no promise, since the settings of this scenario give it up: {allowed}."


def _reasons(scenario: Scenario) -> Iterator[str]:
    settings = scenario.cluster_settings | scenario.topic_settings
    yield from (f"{name}={value}" for name, value in _GIVEN_UP.items() if settings.get(name) == value)
    if str(scenario.load.acks) != "all":
        yield f"acks={scenario.load.acks}"


def _on_faults(verdict: Verdict, faults: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for kind, examples in faults.items():
        if kind in _NOT_COMPARED:
            yield f"{kind.capitalize()}: {examples[0]}."
        else:
            times = verdict.counts.get(kind, len(examples))
            yield f"Broken: {kind} ({times:,}), for example: {examples[0]}."


def _on_outcomes(counts: Mapping[str, int], verdict: Verdict, where: str, is_judged: bool) -> Iterator[str]:
    gap_ms = counts["longest_gap_ms"]
    if gap_ms:
        yield f"The longest time without an acknowledgement was {gap_ms:,} ms, on {where}."
    else:
        yield "No partition was without an acknowledgement for 100 ms or longer."
    open_ones = counts["sent"] - counts["acknowledged"]
    if open_ones:
        yield f"{open_ones:,} records were not acknowledged, so nothing is promised for them" + (
            f"; {verdict.unacknowledged_but_written:,} of those are in the log." if is_judged else "."
        )


def _on_the_load(scenario: Scenario, sent_per_s: float) -> Iterator[str]:
    planned = scenario.load.records_per_s
    if sent_per_s < planned * _LEAST_LOAD:
        yield (
            f"The load fell short: it sent {sent_per_s:,.0f} records/s, "
            f"and the scenario asks for {planned:,}."
        )
