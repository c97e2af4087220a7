"""The promises of groups and transactions: one list for the judges of all histories with coordinators.

Those of replicas are in `truth`, those of topics in `topics`. In each kind of histories, each promise of the
judge has a planted mistake that only its check finds: see `alone` in `planted`.
"""

from collections import Counter
from enum import Enum
from typing import Any, ClassVar


class Promise(Enum):
    G0 = "the transactions of an id do not mix, and have one order in all partitions"
    G1A = "no record of an aborted transaction is read"
    G1B = "no record is read before its transaction ends, and none without those before it"
    ATOMICITY = "a transaction has the same end in all partitions"
    COMPLETENESS = "a committed transaction is there, with each of its records once"
    FENCING = "a producer that was fenced writes and ends nothing"
    OFFSETS = "a group's offsets are those of its last committed transaction, and no pending one is stable"
    ENDS = "a transaction ends as its producer was told, or as it was prepared"
    PRODUCERS = "each producer of an id gets a later epoch, and one that can be fenced"
    STATES = "the states of an id follow each other as they may, and its epoch never goes back"
    TIMEOUTS = "no transaction is aborted without a request before its time-out has passed"
    LEADERS = "after replica.lag.time.max.ms a deposed leader acknowledges nothing and shows no offset"
    MARKERS = "a transaction is complete once each of its partitions has a marker"
    GENERATIONS = "a generation has a leader with an answer, and only its members wait for it"
    ASSIGNMENTS = "a generation has one assignment, which is in the log and has each partition once"
    COMMITS = "an acknowledged commit is in the log, and is the group's offset or an earlier one"
    COMMITTERS = "a member commits in its generation, for the partitions that it owns"
    REST = "once the faults end, all that began ends, and every request is answered"


class BrokenPromises(AssertionError):
    def __init__(self, broken: dict[Promise, str]) -> None:
        super().__init__("; ".join(f"{promise.name}: {text}" for promise, text in broken.items()))
        self.promises = set(broken)


class PromiseKeeper:
    """The part that all judges share; `world` has the time."""

    promises: ClassVar[frozenset[Promise]]
    """The promises that the judge checks, without any that follow from others there."""
    goes_on: ClassVar[bool] = False
    """Whether a history goes on after a broken promise, because it may break others."""
    world: Any

    def __init__(self) -> None:
        self.broken: dict[Promise, str] = {}
        """The promises that were broken, each with what was seen first."""
        self.checked: Counter[Promise] = Counter()

    def require(self, promise: Promise, holds: bool, text: str = "") -> None:
        """Note a broken promise, and raise BrokenPromises unless the history goes on."""
        self.checked[promise] += 1
        if not holds:
            self.broken.setdefault(promise, f"at {self.world.now_ms / 1000:.1f} s {text or promise.value}")
            if not self.goes_on:
                raise BrokenPromises(self.broken)
