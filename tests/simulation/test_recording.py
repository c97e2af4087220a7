"""Recordings of histories: the published ones are up to date, and show what the old mistake does."""

import json

import pytest

from tests.simulation.recording import frames_of_seed
from tests.simulation.replays import FOLDER, PUBLISHED, recording_of, text_of
from tests.support.compiled import PURE_PYTHON_ONLY

WITH_PLANTED_MISTAKES = ("kip-101-power-cut", "stale-controller")
"""These replays plant mistakes that compiled code would not call."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[PURE_PYTHON_ONLY] if name in WITH_PLANTED_MISTAKES else [])
        for name in PUBLISHED
    ],
)
def test_a_published_recording_is_the_present_history(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text()
    assert text == text_of(recording_of(name)), "run `make replays`, and read what has changed"


def test_every_file_is_a_published_recording() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(PUBLISHED)


@pytest.mark.parametrize(
    ("name", "field", "now", "before"),
    [
        ("kip-101-stale-high-watermark", "lost", [], [0]),
        ("kip-101-power-cut", "diverged", [], [1]),
        ("kip-279-double-failover", "diverged", [], [1]),
        ("torn-transaction", "visible", [0], [0, 3]),
    ],
)
def test_the_last_frame_shows_the_old_mistake(name: str, field: str, now: object, before: object) -> None:
    recording = json.loads((FOLDER / f"{name}.json").read_text())
    ends = [recording["frames"][-1], recording["before"]["frames"][-1]]
    assert [end[field] for end in ends] == [now, before]
    assert [end["violation"] is None for end in ends] == [True, False]


def test_a_replaced_controller_makes_a_second_leader() -> None:
    recording = json.loads((FOLDER / "stale-controller.json").read_text())
    leaders = [
        [name for name, replica in frames[-1]["state"]["partitions"]["t-0"]["replicas"].items()
         if replica["role"] == "leader"]
        for frames in (recording["frames"], recording["before"]["frames"])
    ]  # fmt: skip
    assert leaders == [["1"], ["1", "2"]]


def test_a_random_history_has_frames_that_each_show_something() -> None:
    frames = frames_of_seed("usual", 4)
    assert len(frames) > 10
    assert frames[-1]["violation"] is None
    assert all(frame["changes"] or frame["step"] for frame in frames)
