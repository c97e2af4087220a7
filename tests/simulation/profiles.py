"""Profiles of random histories: some steps happen more often, so that rare coincidences occur sooner.

A profile only changes the weights of steps; it checks nothing itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

_NO_FAULTS: Final = dict.fromkeys(
    (
        "break_session",
        "crash",
        "cut",
        "depose_controller",
        "drift",
        "expire",
        "fail_disk",
        "leave_for_good",
        "pause",
        "power_loss",
        "restart_unseen",
        "shut_door",
        "shut_down",
        "slow_disk",
        "suspect",
        "wipe",
    ),
    0.0,
)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The weights that differ from the usual ones, the length of a history, and what the logs hold."""

    name: str
    steps: int = 200
    weights: Mapping[str, float] = field(default_factory=dict)
    is_compacted: bool = False
    has_transactions: bool = False
    has_topics: bool = False
    """Topics are created, grown, deleted and removed by hand."""
    has_moves: bool = False
    """Topics are reassigned, too."""
    has_settings: bool = False
    """Settings of topics change."""
    is_min_isr_strict: bool = False
    has_pushes: bool = False
    """Leaders push to their followers, which fetch otherwise."""


USUAL: Final = Profile(name="usual")

PUSHES: Final = Profile(name="pushes", has_pushes=True)
"""The usual histories, but leaders push."""

REBIRTHS: Final = Profile(
    name="rebirths",
    weights={
        **_NO_FAULTS,
        "rebirth": 3.0,
        "hold_back": 2.0,
        "let_go": 4.0,
        "control_all": 6.0,
        "control": 5.0,
        "send_control": 5.0,
        "fetch": 40.0,
        "deliver": 25.0,
        "produce": 8.0,
        "produce_acks_1": 1.0,
        "shrink": 5.0,
        "advance": 8.0,
        "work_off": 6.0,
        "consume": 0.0,
        "retain": 0.0,
        "give_up": 0.0,
        "time_out_control": 0.2,
    },
)
"""Brokers lose their disks and restart unnoticed, while earlier messages are still in flight."""

DOORS: Final = Profile(
    name="doors",
    weights={
        **_NO_FAULTS,
        "shut_door": 6.0,
        "open_door": 4.0,
        "cut": 1.0,
        "pause": 1.0,
        "produce": 6.0,
        "produce_acks_1": 6.0,
        "shrink": 10.0,
        "advance": 4.0,
        "fetch": 60.0,
        "deliver": 60.0,
        "work_off": 14.0,
        "control_all": 1.0,
    },
)
"""Answers of ZooKeeper are lost, and followers fall behind meanwhile."""

RACES: Final = Profile(
    name="races",
    weights={
        **_NO_FAULTS,
        "interleave": 10.0,
        "crash": 2.0,
        "suspect": 3.0,
        "restart": 6.0,
        "clear_suspicion": 6.0,
        "shrink": 10.0,
        "advance": 10.0,
        "control": 12.0,
        "work_off": 5.0,
    },
)
"""Leaders change ISRs while the controller writes the same states."""

RACKS: Final = Profile(
    name="racks",
    weights={
        **_NO_FAULTS,
        "rack_falls": 2.0,
        "leave_for_good": 6.0,
        "control_all": 3.0,
        "restart": 4.0,
    },
)
"""Many brokers go down at once, and some of them never return."""

LOST_ANSWERS: Final = Profile(
    name="lost answers",
    steps=60,
    weights={
        **_NO_FAULTS,
        "break_session": 40.0,
        "suspect": 10.0,
        "clear_suspicion": 15.0,
        "control": 3.0,
        "fetch": 20.0,
        "produce": 5.0,
    },
)
"""The controller gets no answer to its writes, and its next event may come late."""

OLD_WORDS: Final = Profile(
    name="old words",
    steps=100,
    weights={
        **_NO_FAULTS,
        "rebirth": 3.0,
        "hold_back": 8.0,
        "let_go": 1.0,
        "time_out_control": 8.0,
        "control_all": 4.0,
        "send_control": 20.0,
        "deliver": 20.0,
        "fetch": 10.0,
    },
)
"""Requests of a controller arrive again long after it has sent newer ones."""

COMPACTION: Final = Profile(
    name="compaction",
    steps=300,
    is_compacted=True,
    weights={
        "clean": 40.0,
        "fetch": 70.0,
        "deliver": 90.0,
        "produce": 30.0,
        "consume": 15.0,
        "retain": 0.2,
        "suspect": 2.0,
        "crash": 2.0,
        "power_loss": 0.5,
    },
)
"""Each replica cleans its log at its own moments: followers fetch across gaps, and leaders' logs differ."""

MARKERS: Final = Profile(
    name="markers",
    has_transactions=True,
    weights={
        "fetch": 50.0,
        "deliver": 60.0,
        "produce": 6.0,
        "retain": 1.0,
        "advance": 3.0,
        "crash": 1.0,
        "power_loss": 0.5,
    },
)
"""Transactions of several producers in the log of one partition, under the usual faults."""

MOVES: Final = Profile(
    name="moves",
    steps=300,
    has_moves=True,
    weights={
        "leave_for_good": 0.0,
        "power_loss": 0.0,
        "restart_unseen": 0.0,
        "wipe": 0.0,
        "die_midway": 2.0,
        "fail_disk": 0.3,
        "fetch": 50.0,
        "deliver": 60.0,
        "control": 40.0,
        "send_control": 30.0,
        "control_all": 1.0,
        "restart": 6.0,
    },
)
"""Partitions get other leaders and replicas, under the faults that lose no data."""

DEATHS: Final = Profile(
    name="deaths",
    steps=300,
    has_moves=True,
    weights={"die_while_changing": 4.0, **MOVES.weights, "die_midway": 0.0},
)
"""Leaders die while they write the ISRs of partitions that are reassigned."""

TOPICS: Final = Profile(
    name="topics",
    has_topics=True,
    weights={
        **_NO_FAULTS,
        "create_topic": 16.0,
        "delete_topic": 0.5,
        "hide_topic": 8.0,
        "restore_topic": 0.3,
        "let_be": 8.0,
        "control": 30.0,
        "fetch": 60.0,
        "produce": 30.0,
    },
)
"""Topics are removed by hand and created again, while brokers still have the roles of the former ones."""

STRICT: Final = Profile(
    name="strict",
    is_min_isr_strict=True,
    weights={"produce": 4.0, "produce_acks_1": 8.0, "shrink": 10.0, "crash": 2.0, "work_off": 10.0},
)
"""Records with acks=1 are written while the ISR is too small, and leaders change meanwhile."""

SETTINGS: Final = Profile(
    name="settings",
    steps=300,
    has_topics=True,
    has_settings=True,
    weights={"retain": 0.2, "produce": 25.0, "fetch": 50.0, "deliver": 60.0, "control": 40.0, "restart": 6.0},
)
"""The settings of topics change under load, and retention follows them."""

STRICT_SETTINGS: Final = replace(SETTINGS, name="strict settings", is_min_isr_strict=True)
"""A change of min.insync.replicas decides what is committed, too."""

COMPACTED_PUSHES: Final = replace(COMPACTION, name="compacted pushes", has_pushes=True)
MOVED_PUSHES: Final = replace(MOVES, name="moved pushes", has_pushes=True)

PROFILES: Final = {
    profile.name: profile
    for profile in (
        *(REBIRTHS, DOORS, RACES, RACKS, LOST_ANSWERS, OLD_WORDS),
        *(COMPACTION, MARKERS, MOVES, DEATHS, TOPICS, STRICT),
        *(SETTINGS, STRICT_SETTINGS),
        *(PUSHES, COMPACTED_PUSHES, MOVED_PUSHES),
    )
}
