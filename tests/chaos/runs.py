"""The length, seed, deadline, expectation and failure report of a chaos run.

`make test` runs each kind of promise once, briefly, with the day as the seed; where two tests have one kind,
they take turns by day. ``CHAOS_SECONDS`` (`make chaos`) runs all tests for that long with random seeds.
``CHAOS_SEED`` repeats the choices of an earlier run, not their timing. The seed also says whether the cluster
is secured; ``CHAOS_SECURED=0`` or ``1`` says it instead.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pytest

from barnabas.chaos.checker import Verdict
from barnabas.chaos.history import Read
from barnabas.chaos.load import Load
from barnabas.deploy.state import SecurityConfiguration
from tests.support.soak import DAY

IS_THOROUGH: Final = "CHAOS_SECONDS" in os.environ
HEALING_S: Final = 90.0
"""The time in which a healed cluster must be healthy."""
SECURED: Final = SecurityConfiguration(tls=True, mechanism="SCRAM-SHA-256", acl=True)
BROKER: Final = {"zookeeper.session.timeout.ms": "2000", "replica.lag.time.max.ms": "4000"}

Test = TypeVar("Test", bound=Callable[..., Any])

thorough = pytest.mark.skipif(not IS_THOROUGH, reason="make chaos runs it")


class Run:
    """The choices of one run, and what it did; one thread."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.steps: list[str] = []
        self._began = time.monotonic()

    def security(self) -> SecurityConfiguration | None:
        """Of the cluster: TLS, SCRAM and ACLs in half of the runs."""
        chosen = os.environ.get("CHAOS_SECURED")
        is_secured = random.Random(self.seed).random() < 0.5 if chosen is None else chosen == "1"
        self.say("the cluster is secured" if is_secured else "the cluster is open")
        return SECURED if is_secured else None

    def say(self, what: str) -> None:
        self.steps.append(f"{time.monotonic() - self._began:6.1f} s  {what}")
        print(self.steps[-1], flush=True)


@contextmanager
def chaos_run(seconds: float) -> Iterator[Run]:
    """A run whose seed is printed, and added to a failure with the steps before it."""
    run = Run(int(os.environ.get("CHAOS_SEED") or (random.randrange(1 << 32) if IS_THOROUGH else DAY)))
    print(f"CHAOS_SEED={run.seed} CHAOS_SECONDS={seconds:g}", flush=True)
    try:
        yield run
    except BaseException as error:
        error.add_note("\n".join([f"CHAOS_SEED={run.seed}", *run.steps]))
        raise


def seconds(usual: float) -> float:
    """How long to inject faults: `usual` in `make test`."""
    return float(os.environ.get("CHAOS_SECONDS", usual))


def chaos_test(seconds: float, *, more_s: float = 600) -> Callable[[Test], Test]:
    """Mark a test with faults for so long, and `more_s` to settle and to read."""

    def marked(test: Test) -> Test:
        return pytest.mark.cluster(pytest.mark.timeout(seconds + more_s)(test))

    return marked


def takes_turns(turn: int, of: int = 2) -> pytest.MarkDecorator:
    """In `make test`, run this test every so many days; others have the same kind of promise."""
    return pytest.mark.skipif(not IS_THOROUGH and DAY % of != turn, reason="another test's turn today")


def expect_good(verdict: Verdict, load: Load, *tolerated: str, acknowledged: int = 100) -> None:
    """Fail unless the verdict is good, the load was no idle one, and its only problems are tolerated.

    A long outage may always cost the time-out of a record.
    """
    reads = len(load.history.of(Read))
    print(f"{verdict}; {reads} reads, longest pause {load.longest_pause_s:.1f} s", flush=True)
    print(f"{len(load.problems)} problems: {load.problems[:5]}", flush=True)
    assert verdict.is_good, str(verdict)
    tolerated = ("DeliveryTimedOut", *tolerated)
    assert [text for text in load.problems if not any(word in text for word in tolerated)] == []
    assert verdict.acknowledged > acknowledged
    assert reads > 0
